"""Convolution and pooling as one, against the two as two: `test_rules` has their slow twin."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpaudit_ray.engines.cpu import conv_pool, vector_code
from dpaudit_ray.engines.cpu.conv_pool import ConvChain
from dpaudit_ray.engines.packing import selfcheck
from dpaudit_ray.engines.packing.memory import Groups
from dpaudit_ray.engines.packing.packed import PackedModel
from dpaudit_ray.models.convnet import Cnn4
from tests.engines.networks import slow_clipped_sum
from tests.long import long


def network(*layers: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    width = nn.Sequential(*layers, nn.Flatten())(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width, 3))


def block(inputs: int, outputs: int, size: int, **options: object) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, size, **options), nn.ReLU(), nn.MaxPool2d(2)]


def used(model: PackedModel, x: Tensor) -> list[bool]:
    """Whether each merged layer would take its loops, for inputs of the first one's kind."""
    merged = model._passes.module.merged
    rules = [part.rule for part in merged if isinstance(part, conv_pool.ConvPool)]
    return [x.dtype in rule.patch_cuts for rule in rules]


WAYS = pytest.mark.parametrize("way", ["network", "layers"])


def packed(module: nn.Module, way: str, groups: Groups | None = None) -> PackedModel:
    """The whole network in loops, or each convolution with its pooling as one layer; unchecked."""
    model = PackedModel(module, groups)
    assert isinstance(model._loops, ConvChain)
    model._way_chosen = True
    if way == "layers":
        model._loops = None
    return model


def apart(module: nn.Module, monkeypatch: pytest.MonkeyPatch, groups: Groups) -> PackedModel:
    with monkeypatch.context() as patch:
        patch.setattr(conv_pool, "merge_pooling", lambda layers, passes: layers)
        model = PackedModel(module, groups)
    model._way_chosen = True
    return model


CASES = {
    "overlap, strides": [nn.Conv2d(2, 17, 2, stride=(2, 1)), nn.MaxPool2d(3, stride=2)],
    "gaps": [nn.Conv2d(2, 5, 3, stride=(1, 3), padding=(0, 2)), nn.MaxPool2d((1, 2), stride=3)],
}  # fmt: skip
SHAPE = (2, 17, 19)


@pytest.mark.parametrize("case", CASES)
def test_strides_and_windows(case, monkeypatch):
    """Windows that overlap or leave some out, edges that are dropped, channels of two models."""
    layers = copy.deepcopy(CASES[case])
    torch.manual_seed(4)
    module = network(*layers, shape=SHAPE).double()
    x, y = torch.randn(19, *SHAPE).double(), torch.randint(0, 3, (19,))
    together = packed(module, "layers", Groups(4, 2))
    slow = apart(module, monkeypatch, Groups(4, 1))
    assert all(used(together, x))
    theta = together.initial + 0.1 * torch.randn(5, together.size).double()
    for clip in (0.1, math.inf):
        found, expected = (model.clipped_sums(theta, x, y, clip) for model in (together, slow))
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def papers() -> nn.Module:
    """Its loops, of the whole network in float32, are compiled already."""
    return Cnn4().build((1, 28, 28), 10)


def padded() -> nn.Module:
    """The same without biases, with other zeros around images and around what is pooled."""
    first = nn.Conv2d(1, 16, 8, stride=2, padding=(3, 1), bias=False)
    second = nn.Conv2d(16, 32, 4, stride=2, padding=(1, 2), bias=False)
    layers = first, nn.ReLU(), nn.MaxPool2d(2, 1), second, nn.ReLU(), nn.MaxPool2d(2, 1)
    return network(*layers, shape=(1, 28, 28))


LAYERS_AGAIN = long("other tests have layers with strides, with overlaps, and in float32")


@pytest.mark.parametrize(
    ("make", "way"),
    [
        pytest.param(papers, "network", marks=long("28 s; padded goes the same way")),
        (padded, "network"),
        pytest.param(papers, "layers", marks=LAYERS_AGAIN),
    ],
)
def test_the_network_of_the_papers_on_mnist(make, way, monkeypatch):
    """Strided convolutions, overlapping windows: all of it by the loops, in float32 as well."""
    torch.manual_seed(5)
    module = make()
    x, y = torch.randn(9, 1, 28, 28), torch.randint(0, 3, (9,))
    initial = PackedModel(module).initial
    theta = initial + 0.02 * torch.randn(3, len(initial))
    single = packed(module, way)
    assert used(single, x) == [True, True]
    twin = apart(module.double(), monkeypatch, Groups(3, 1))
    exact = twin.clipped_sums(theta.double(), x.double(), y, 0.5)
    found = single.clipped_sums(theta, x, y, 0.5)
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-5)


SMALL = (2, 8, 8)


@pytest.mark.parametrize(("case", "shape"), [("", SMALL), ("overlap, strides", SHAPE)])
def test_ties_go_where_torch_sends_them(case, shape):
    """Small integers tie in almost every window, and at ReLU's zero; all sums are exact."""
    torch.manual_seed(1)
    layers = copy.deepcopy(CASES[case]) if case else block(2, 3, 3)
    module = network(layers[0], nn.ReLU(), layers[-1], shape=shape).double()
    x, y = torch.randint(-1, 2, (40, *shape)).double(), torch.randint(0, 3, (40,))
    model = packed(module, "layers")
    theta = torch.randint(-1, 2, (2, model.size)).double()
    assert used(model, x) == [True]
    found = model.clipped_sums(theta, x, y, math.inf)
    slow = torch.stack([slow_clipped_sum(module, row, x, y, math.inf) for row in theta])
    torch.testing.assert_close(found, slow, rtol=1e-10, atol=1e-10)


@WAYS
def test_a_diverged_model_does_not_touch_its_neighbours(way):
    torch.manual_seed(2)
    whole = way == "network"
    module, shape = (
        (papers(), (1, 28, 28)) if whole else (network(*block(2, 3, 3), shape=SMALL), SMALL)
    )
    x, y = torch.randn(4, *shape), torch.randint(0, 3, (4,))
    model = packed(module, way, Groups(4, 4))
    theta = model.initial + 0.1 * torch.randn(4, model.size)
    alone = model.clipped_sums(theta, x, y, 1.0)
    theta[1], theta[2] = math.nan, math.inf
    together = model.clipped_sums(theta, x, y, 1.0)
    assert not torch.isfinite(together[1:3]).any()
    assert torch.equal(together[[0, 3]], alone[[0, 3]])


def test_what_the_loops_cannot_do_is_done_apart():
    """Dilations, groups, padded pools are never merged; wide rows fill no register."""
    x = torch.zeros(4, 2, 12, 12)
    for layers in (
        block(2, 3, 3, dilation=2),
        block(2, 4, 3, groups=2),
        [nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(3, padding=1)],
        [nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(3, ceil_mode=True)],
        [nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(4)],
        [nn.Conv2d(2, 3, 3), nn.ReLU()],
        [nn.Conv2d(2, 3, 3), nn.Tanh(), nn.MaxPool2d(2)],
    ):
        assert used(PackedModel(network(*layers, shape=(2, 12, 12))), x) == []
    assert conv_pool.PatchCut.from_weight((4, 1000, 3, 3), torch.float32) is None


def test_only_chains_of_known_layers_are_taken_whole():
    """Anything else between the layers, behind them or in another order, and other inputs."""
    stem = block(2, 3, 3)
    head = [nn.Flatten(), nn.Linear(27, 4), nn.ReLU(), nn.Linear(4, 2)]
    known = PackedModel(nn.Sequential(*stem, *head))
    assert isinstance(known._loops, ConvChain)
    images = torch.zeros(3, 2, 8, 8)
    for x, fits in (
        (images, True),
        (images.double(), False),
        (torch.zeros(3, 3, 8, 8), False),
        (torch.zeros(3, 2, 12, 12), False),
        (torch.zeros(3, 2, 2, 2), False),
        (torch.zeros(3, 128), False),
    ):
        assert known._loops.fits(known.initial[None], x) == fits
    for layers in (
        [*stem, *head[:-1]],
        [*stem, *head, nn.ReLU()],
        [*stem, *head[:2], nn.Tanh(), head[3]],
        [*stem, nn.Tanh(), *head],
        [*stem, nn.Flatten(2), nn.Linear(9, 4)],
        [nn.GroupNorm(1, 2), *stem, *head],
        [*stem, nn.Conv2d(3, 3, 1), *head],
        [nn.Sequential(*stem), *head],
        head,
    ):
        assert not isinstance(PackedModel(nn.Sequential(*layers))._loops, ConvChain)
    head[1].register_forward_hook(lambda *_: None)
    assert PackedModel(nn.Sequential(*stem, *head))._loops is None


def test_fewer_registers_give_the_same(monkeypatch):
    """Rows of patches, outputs and windows in several turns."""
    torch.manual_seed(3)
    module = network(*block(5, 7, 3), shape=(5, 11, 24)).double()
    x, y = torch.randn(3, 5, 11, 24).double(), torch.tensor([0, 1, 2])
    slow = apart(module, monkeypatch, Groups(2, 1))
    theta = slow.initial + 0.1 * torch.randn(2, slow.size).double()
    expected = slow.clipped_sums(theta, x, y, 1.0)
    row = math.ceil(15 / vector_code.lanes(8, 15))  # registers of a row
    monkeypatch.setattr(vector_code, "REGISTERS", 2 + max(4, 2 * row))
    cut = packed(module, "layers")
    assert cut._passes.module.merged[0].rule.patch_cuts[x.dtype].rows == 1
    assert math.prod(conv_pool.tile((8, 22), vector_code.REGISTERS - 2)) < 22
    torch.testing.assert_close(cut.clipped_sums(theta, x, y, 1.0), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("layers", ["convolutions", "small"])
def test_threads_change_nothing(layers):
    torch.manual_seed(2)
    if layers == "small":
        module, shape = nn.Sequential(nn.Linear(8, 3), nn.ReLU(), nn.Linear(3, 2)), (8,)
        model = PackedModel(module.double())
    else:
        module, shape = network(*block(2, 3, 3), shape=SMALL), SMALL
        model = packed(module.double(), "layers")
    theta = model.initial + 0.1 * torch.randn(7, model.size).double()
    x, y = torch.randn(11, *shape).double(), torch.randint(0, 2, (11,))
    one = model.clipped_sums(theta, x, y, 0.5)
    torch.set_num_threads(3)
    three = model.clipped_sums(theta, x, y, 0.5)
    torch.testing.assert_close(three, one, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("head", [nn.ReLU, nn.Tanh], ids=["network", "layers"])
def test_loops_that_are_wrong_are_not_used(head, monkeypatch):
    """Of a whole network, and of a convolution in one that is not taken whole."""
    torch.manual_seed(6)
    shape = (1, 28, 28) if head is nn.ReLU else SMALL
    layers = [*block(2, 3, 3), nn.Flatten(), nn.Linear(27, 4), head(), nn.Linear(4, 3)]
    module = papers() if head is nn.ReLU else nn.Sequential(*layers)
    x, y = torch.randn(6, *shape), torch.arange(6) % 3
    expected_sums = selfcheck._expected

    def in_float32(candidate: Any, dtype: torch.dtype, single: bool = False) -> Any:
        if dtype == torch.float64:
            raise TypeError("loops for it, which would decide, take long to compile")
        return expected_sums(candidate, dtype, single)

    monkeypatch.setattr(selfcheck, "_expected", in_float32)
    right, write = PackedModel(module), conv_pool.ConvPoolRule.write_sums
    theta = right.initial + 0.1 * torch.randn(2, right.size)
    expected = right.clipped_sums(theta, x, y, 0.5)
    assert right._passes.by_loops
    assert isinstance(right._loops, ConvChain) == (head is nn.ReLU)

    def wrong(rule: conv_pool.ConvPoolRule, out: Tensor, sums: Tensor, biases: Tensor) -> None:
        write(rule, out, 1.01 * sums, biases)

    monkeypatch.setattr(conv_pool.ConvPoolRule, "write_sums", wrong)
    model = PackedModel(module)
    found = model.clipped_sums(theta, x, y, 0.5)
    assert model._loops is None
    assert not model._passes.by_loops
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
