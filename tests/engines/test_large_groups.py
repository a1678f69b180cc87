"""What is wrong only where many models are computed at once is found on a CPU, too.

There a network of convolutions takes one model at a time. A pack of it that a CPU has tried must
not fail on a GPU.
"""

import pytest
import torch
from torch import Tensor, nn

from dpaudit_ray.engines.packing import selfcheck
from dpaudit_ray.engines.packing.memory import ONE_BY_ONE
from dpaudit_ray.engines.packing.packed import PackedModel
from dpaudit_ray.engines.rules.base import SampleGradients
from dpaudit_ray.engines.rules.linear import LinearRule
from tests.engines.test_packed import slow_clipped_sum

WIDE = 520  # of the layer that makes a network a large one


class Net(nn.Module):
    def __init__(self, large: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 2, 3, padding=1)
        self.second = nn.Conv2d(2, 3, 3, padding=1)
        self.out = nn.Linear(3 * 36, 3)
        if large:
            self.out = nn.Sequential(
                nn.Linear(3 * 36, 2048), nn.Linear(2048, WIDE), nn.Linear(WIDE, 3)
            )

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class SkipsFromTheInput(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(x + self.first(x))
        return self.out(torch.tanh(self.second(h)).flatten(1))


class AddsTheInputLater(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        return self.out(torch.tanh(self.second(torch.cat([h[:, :1], x[:, :1]], 1))).flatten(1))


class CountsTheInput(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.second(torch.tanh(self.first(x))))
        return self.out(h.view(x.shape[0], -1))


class Right(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.second(torch.tanh(self.first(x)))).flatten(1))


def settled(module: nn.Module) -> tuple[PackedModel, Tensor, Tensor]:
    torch.manual_seed(0)
    x, y = torch.randn(6, 2, 6, 6), torch.arange(6) % 3
    model = PackedModel(module)
    model.settle(x, y)
    return model, x, y


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("kind", [SkipsFromTheInput, AddsTheInputLater, CountsTheInput])
def test_what_fails_in_large_groups_only_is_computed_one_by_one(kind, large):
    module = kind(large)
    assert (PackedModel(module).size > selfcheck._LARGE) is large
    model, x, y = settled(module)
    assert model._alone is None
    assert model._groups == ONE_BY_ONE
    theta = model.initial + 0.01 * torch.randn(2, model.size)
    found = model.clipped_sums(theta, x, y, 0.5)
    slow = torch.stack([slow_clipped_sum(module, row, x, y, 0.5) for row in theta])
    torch.testing.assert_close(found, slow, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_a_right_network_keeps_its_groups(large):
    model, _, _ = settled(Right(large))
    assert model._groups is None
    assert model._alone is None


@pytest.mark.parametrize("kind", [SkipsFromTheInput, CountsTheInput])
def test_so_it_is_on_many_threads(kind, monkeypatch):
    """Three models on four threads are one to each: none would be in a group."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    model, _, _ = settled(kind(False))
    assert model._groups == ONE_BY_ONE


def test_float64_decides_where_float32_rounds(monkeypatch):
    """A large network is checked in float32; there a ReLU that rounding moves is no wrong rule."""
    samples = LinearRule.samples

    def rounded(rule: LinearRule, theta: Tensor, x: Tensor, g: Tensor) -> SampleGradients:
        return samples(rule, theta, x, g if g.dtype == torch.float64 else 1.1 * g)

    monkeypatch.setattr(LinearRule, "samples", rounded)
    model, _, _ = settled(Right(large=True))
    assert model._groups is None
    assert model._alone is None


def test_sums_that_cancel_are_not_taken_for_wrong_ones():
    """Where no ReLU lets anything through, gradients of two classes are opposite."""
    module = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1))
    torch.manual_seed(0)
    with torch.no_grad():
        module[0].bias.fill_(-100)
    for seed in range(6):
        torch.manual_seed(seed)
        nn.init.normal_(module[2].bias)
        model = PackedModel(module)
        model.settle(torch.randn(2, 8), torch.tensor([0, 1]))
        assert model._alone is None
