"""The papers' networks in the packed engine, against plain autograd, and what they need to run."""

import subprocess
import sys

import pytest
import torch

from dpaudit_ray.engines.packing.packed import PackedModel
from dpaudit_ray.models.base import Model
from dpaudit_ray.plugins import parse
from tests.long import long
from tests.trainings import gradient

CIFAR = (3, 32, 32)
SHAPES = {
    "fcnn": (8,), "mlp3": (60,), "cnn4": (1, 28, 28), "convnet": CIFAR, "wrn16": CIFAR,
    "resnet18": CIFAR,
}  # fmt: skip


COMPILED = long("compiles in float64 what `test_convpool` does of other networks")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.float64) for name in SHAPES if name not in ("cnn4", "convnet")]
    + [(name, torch.float32) for name in ("cnn4", "convnet")]
    + [pytest.param(name, torch.float64, marks=COMPILED) for name in ("cnn4", "convnet")],
)
def test_clipped_sums_of_every_network(name, dtype):
    """Two models on two examples: equal to one gradient per example, in float64 to 1e-10."""
    torch.manual_seed(3)
    classes = 2 if name == "fcnn" else 10
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


def test_a_pack_of_256_convnets_stays_under_8_gib():
    """A whole step at batch 128, in a process of its own, by the kernel's count."""
    done = subprocess.run(
        [sys.executable, "-c", _A_STEP], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 8 * 2**20  # KiB
