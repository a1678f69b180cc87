"""In bfloat16 an example may not move a sum by more than C either, and sums keep their digits.

Activations and their gradients are rounded; what is made of them is not. Clipped gradients that
were rounded to bfloat16 reached 1.004 C, and sums of thousands were off by .43 C.
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from dpaudit_ray.engines.packing.memory import GPU_MOST
from dpaudit_ray.engines.packing.packed import PackedModel
from tests.long import paired

CLIP, EXAMPLES, MODELS = 0.37, 48, 3


class Tokens(nn.Module):
    """Embedding, a linear layer on a sequence, and a norm on it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.mixed = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(torch.tanh(self.mixed(self.embed(x)))).mean(1))


def vector(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(20, 16), nn.Tanh(), *layers, nn.Linear(16, 3))


def image(*layers: nn.Module, width: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), *layers, nn.Flatten(), nn.Linear(width, 3))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: vector(nn.Linear(16, 16), nn.Tanh()), (20,)),
    "relu chain": (lambda: nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 3)), (20,)),
    "norm": (lambda: vector(nn.LayerNorm(16)), (20,)),
    "convolution": (lambda: image(nn.Conv2d(4, 5, 3), nn.Tanh(), width=80), (2, 8, 8)),
    "wide convolution": (lambda: image(nn.Conv2d(4, 96, 5), nn.Tanh(), width=384), (2, 8, 8)),
    "group norm": (lambda: image(nn.GroupNorm(2, 4), width=144), (2, 8, 8)),
    "pooled": (lambda: image(nn.MaxPool2d(2), nn.ReLU(), width=36), (2, 8, 8)),
    "embedding": (Tokens, (7,)),
    "fallback": (lambda: vector(nn.PReLU(16)), (20,)),
    "alone": (lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(20, 3))), (20,)),
    "grouped": (lambda: image(nn.Conv2d(4, 4, 3, groups=2), nn.Tanh(), width=64), (2, 8, 8)),
}  # fmt: skip


def case(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(4)
    make, shape = NETWORKS[name]
    if name == "embedding":
        return make(), torch.randint(0, 11, (EXAMPLES, *shape)), torch.arange(EXAMPLES) % 3
    return make(), 3 * torch.randn(EXAMPLES, *shape), torch.arange(EXAMPLES) % 3


@pytest.mark.parametrize(
    ("name", "groups"), paired(NETWORKS, [None, GPU_MOST], "every network in a GPU's groups, too")
)
def test_clipped_gradients_keep_to_the_norm_and_sums_to_their_digits(name, groups):
    module, x, y = case(name)
    model = PackedModel(module, groups, torch.bfloat16)
    theta = model.initial + 0.05 * torch.randn(MODELS, model.size)
    each = []
    for j in range(EXAMPLES):
        weights = torch.zeros(MODELS, EXAMPLES)
        weights[:, j] = 1
        each.append(model.clipped_sums(theta, x, y, CLIP, weights).double())
    norms = torch.stack(each).norm(dim=2)
    assert float(norms.max()) <= CLIP * (1 + 1e-6)
    assert float((norms > 0.999 * CLIP).double().mean()) > 0.5  # else it would say little
    found, total = model.clipped_sums(theta, x, y, CLIP), torch.stack(each).sum(0)
    assert found.dtype == torch.float32
    off = float((found - total).norm(dim=1).max())
    rounded = float((total.bfloat16().double() - total).norm(dim=1).min())
    assert off < 1e-5 * CLIP * math.sqrt(EXAMPLES)
    assert off < rounded / 20


@pytest.mark.parametrize("name", ["linear", "convolution", "embedding"])
def test_it_is_bfloat16_that_is_computed(name):
    module, x, y = case(name)
    exact, model = PackedModel(module), PackedModel(module, None, torch.bfloat16)
    theta = model.initial + 0.05 * torch.randn(MODELS, model.size)
    wide, short = (m.clipped_sums(theta, x, y, CLIP) for m in (exact, model))
    off = float((wide - short).norm() / wide.norm())
    assert 1e-4 < off < 0.1


def test_views_keep_to_the_norm_too():
    module, x, y = case("convolution")
    model = PackedModel(module, None, torch.bfloat16)
    theta = model.initial[None]
    views = torch.stack([x, x.flip(3)], 1)
    for j in range(8):
        found = model.viewed_sums(theta, views[j : j + 1], y[j : j + 1], CLIP).double()
        assert float(found.norm()) <= CLIP * (1 + 1e-6)
