"""Networks of papers and of one's own: their sizes, what they take and return, what is refused."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import resnet18

from dpaudit_ray import plugins
from dpaudit_ray.engines.packing.packed import PackedModel
from dpaudit_ray.errors import SpecError
from dpaudit_ray.models.base import Model
from dpaudit_ray.models.networks.blocks import BasicBlock, conv3x3, residual_network, stages
from dpaudit_ray.plugins import parse
from tests.long import long
from tests.trainings import gradient

CIFAR, MNIST, PURCHASE = (3, 32, 32), (1, 28, 28), (600,)
TRAINED = [
    ({"name": "fcnn"}, (8,), 2, 68),
    ({"name": "convnet"}, CIFAR, 10, 62_006),
    ({"name": "cnn4"}, MNIST, 10, 26_010),
    ({"name": "cnn4"}, CIFAR, 10, 37_274),
    ({"name": "mlp3"}, PURCHASE, 100, 600 * 128 + 128 + 128 * 128 + 128 + 128 * 100 + 100),
    ({"name": "mlp3", "width": 7}, (4,), 2, 4 * 7 + 7 + 7 * 7 + 7 + 7 + 1),
    ({"name": "mlp", "hidden": []}, (2, 3), 2, 7),
    ({"name": "mlp"}, (2, 3), 2, 7 * 64 + 65 * 64 + 65),
    ({"name": "resnet18"}, CIFAR, 10, 11_173_962),
    ({"name": "wrn16"}, CIFAR, 10, 2_748_890),
]


def build(options: dict[str, Any], shape: tuple[int, ...], classes: int) -> nn.Module:
    torch.manual_seed(0)
    return plugins.parse(Model, options, "mechanism.model").build(shape, classes)


@pytest.mark.parametrize(("options", "shape", "classes", "size"), TRAINED)
def test_a_network_has_the_papers_size_and_treats_each_example_alone(options, shape, classes, size):
    """A batch gives what its examples give alone, also in training mode: no batch statistics.

    Nothing works in place: no module changes its input, and none its output after the fact.
    """
    network, again = (build(options, shape, classes) for _ in range(2))
    pairs = zip(network.parameters(), again.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs), "the seed decides the weights"
    assert sum(p.numel() for p in network.parameters()) == size
    assert all(p.requires_grad for p in network.parameters())
    assert not list(network.buffers()), "nothing is remembered from one batch to the next"
    network = network.double()
    x = torch.rand(3, *shape, dtype=torch.float64)
    with torch.no_grad():
        together = network(x)
        alone = torch.cat([network(example[None]) for example in x])
    assert together.shape == (3, 1 if classes == 2 else classes)
    assert torch.allclose(together, alone, atol=1e-10)
    assert together.std(dim=0).min() > 0, "they do depend on the example"
    seen: list[tuple[Tensor, int]] = []

    def watch(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.extend((tensor, tensor._version) for tensor in (*inputs, output))

    for module in network.modules():
        assert not getattr(module, "inplace", False)
        module.register_forward_hook(watch)
    network(x[:2])
    assert seen
    assert all(tensor._version == version == 0 for tensor, version in seen)


@pytest.mark.parametrize(
    ("options", "models"),
    [
        ({"name": "mlp3"}, 256),
        ({"name": "mlp3", "width": 4096}, 4),
        ({"name": "resnet18"}, 12),
        ({"name": "wrn16"}, 48),
        ({"name": "wrn16", "width": 8}, 12),
    ],
)
def test_a_pack_has_room_for_its_models(options, models):
    """256 of ResNet-18 would take 11 GB for θ alone, and as much for each of its copies."""
    model = plugins.parse(Model, options, "mechanism.model")
    assert model.pack_size == models
    assert model.name != "resnet18" or model.parameters == 11_173_962
    assert models * model.parameters * 4 <= 512 << 20


@pytest.mark.parametrize("width", [1, 4])
def test_wide_networks_are_counted_without_being_built(width):
    options = {"name": "wrn16", "width": width}
    model = plugins.parse(Model, options, "mechanism.model")
    assert model.parameters == sum(p.numel() for p in build(options, CIFAR, 10).parameters())


def test_resnet18_is_torchvisions_with_another_stem():
    """Same weights in the same order give the same logits, GroupNorm in both."""
    network = build({"name": "resnet18"}, CIFAR, 10).double()
    twin = resnet18(num_classes=10, norm_layer=lambda c: nn.GroupNorm(32, c)).double()
    twin.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False).double()
    twin.maxpool = nn.Identity()
    with torch.no_grad():
        for ours, theirs in zip(network.parameters(), twin.parameters(), strict=True):
            ours.copy_(torch.randn_like(ours) / ours[0].numel() ** 0.5)
            theirs.copy_(ours)
        x = torch.rand(2, *CIFAR, dtype=torch.float64)
        assert torch.allclose(network(x), twin(x), atol=1e-9)


@pytest.mark.parametrize(
    ("options", "shape", "least"),
    [
        ({"name": "convnet"}, (3, 15, 32), 16),
        ({"name": "cnn4"}, (28, 28), 14),
        ({"name": "resnet18"}, (3, 7, 7), 8),
        ({"name": "wrn16"}, (600,), 8),
    ],
)
def test_data_that_is_no_such_image_is_told(options, shape, least):
    with pytest.raises(SpecError) as error:
        build(options, shape, 10)
    assert str(error.value) == (
        f"mechanism.model: {options['name']} needs images [channels, height, width] of at least "
        f"{least} x {least} pixels, but mechanism.data gives {list(shape)}; use another of the two"
    )
    smallest = (2, least, least + 1)
    assert build(options, smallest, 2)(torch.rand(2, *smallest)).shape == (2, 1)


SHAPES = {
    "fcnn": (8,), "mlp3": (60,), "cnn4": (1, 28, 28), "convnet": CIFAR, "wrn16": (3, 8, 8),
    "resnet18": (3, 8, 8), "narrow resnet": (3, 8, 8),
}  # fmt: skip
FLOAT32 = ("cnn4", "convnet")


def narrow_resnet() -> nn.Module:
    """The blocks of ResNet-18 with few channels."""
    blocks = stages(BasicBlock, 4, (4, 8, 12, 16), groups=2)
    stem = [conv3x3(3, 4), nn.GroupNorm(2, 4), nn.ReLU()]
    return residual_network([*stem, *blocks], width=16, outputs=10)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=long("a narrower one has its blocks") if "18" in name else ())
        for name in SHAPES
    ],
)
def test_clipped_sums_of_every_network(name):
    """Two models on two examples: equal to one gradient per example, in float64 to 1e-10."""
    torch.manual_seed(3)
    dtype = torch.float32 if name in FLOAT32 else torch.float64
    classes = 2 if name == "fcnn" else 10
    if name == "narrow resnet":
        module = narrow_resnet().to(dtype)
    else:
        module = parse(Model, name, "model").build(SHAPES[name], classes).to(dtype)
    x = torch.randn(2, *SHAPES[name], dtype=dtype)
    y = torch.tensor([1, 0])
    packed = PackedModel(module)
    theta = torch.stack([packed.initial, packed.initial * 1.1])
    fast = packed.clipped_sums(theta, x, y, 0.5)
    for row, sums in zip(theta, fast, strict=True):
        each = [gradient(module, row, x[i : i + 1], y[i : i + 1]) for i in range(2)]
        slow = sum(g * min(1.0, 0.5 / float(g.norm())) for g in each)
        within = 1e-10 if dtype == torch.float64 else 1e-4
        torch.testing.assert_close(sums, slow, rtol=within, atol=within)


_A_STEP = """
import torch
from dpaudit_ray.forecast import bench
from dpaudit_ray.mechanisms.dp_sgd.steps import PackedSteps
from dpaudit_ray.mechanisms.dp_sgd.training import DpSgdTraining
torch.set_num_threads(2)
recipe = bench._recipe(bench.WORKLOADS["convnet"])
training = DpSgdTraining.prepare(recipe, seed=0, gpu=False)
steps = PackedSteps(training.recipe, training.model, 0, training.initial.device)
theta = training.initial.repeat(256, 1)
batch = training.batches[0]
steps.step(theta, training.x[batch], training.y[batch], None)
assert theta.isfinite().all()
import resource
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@long("half a minute of training for a guard of memory")
def test_a_pack_of_256_convnets_stays_under_8_gib():
    """A whole step at batch 128, in a process of its own, by the kernel's count."""
    done = subprocess.run(
        [sys.executable, "-c", _A_STEP], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 8 * 2**20  # KiB


# A network of one's own by import path -----------------------------------------------------

SOURCE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, inputs=8, width=4, outputs=1):
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.last = nn.Linear(width, outputs)

    def forward(self, x):
        return self.last(torch.relu(self.first(x.flatten(1))))


class Nested:
    Net = Net


def make(**options):
    return nn.Sequential(nn.Flatten(), Net(**options))


def nothing():
    return None


def silent():
    raise ValueError


number, made = 3, Net()
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_network.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)


def build_own(path: str, **options: Any) -> nn.Module:
    return build({"name": "module", "path": path, "options": options}, (8,), 2)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("name", ["Net", "Nested.Net", "make"])
def test_classes_and_functions_do(name):
    network = build_own(f"own_network:{name}", width=5)
    assert sum(p.numel() for p in network.parameters()) == 8 * 5 + 5 + 5 + 1
    assert network(torch.zeros(3, 8)).shape == (3, 1)


@pytest.mark.usefixtures("own")
def test_path_and_options_are_its_identity():
    raw = {"name": "module", "path": "own_network:Net", "options": {"width": 5}}
    assert plugins.parse(Model, raw, "model").identity() == raw | {"revision": 3}


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("path", "options", "problem"),
    [
        (
            "own_network",
            {},
            "path: must be package.module:name, without folders and .py, got 'own_network'",
        ),
        ("own_network.py:Net", {}, "path: 'own_network.py:Net' names a file; name the module"),
        ("own_network:made", {}, "path: own_network:made is already a module instance; name"),
        ("own_network:Nat", {}, "path: cannot import 'own_network:Nat' (module 'own_network' has"),
        ("own_network:number", {}, "path: 'own_network:number' cannot be called, got 3"),
        ("own_network:nothing", {}, "path: own_network:nothing gives a NoneType, no torch.nn.Mod"),
        (
            "own_network:silent",
            {},
            "options: own_network:silent does not take them (ValueError), got {}",
        ),
        ("own_network:Net", {"widht": 2}, "options: own_network:Net does not take them (Net.__in"),
    ],
)
def test_what_cannot_be_used_is_told(path, options, problem):
    with pytest.raises(SpecError) as error:
        build_own(path, **options)
    assert str(error.value).startswith(f"mechanism.model.{problem}")
    assert "\n" not in str(error.value)
