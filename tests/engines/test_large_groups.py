"""What is wrong only where many models are computed at once is found on a CPU, too.

A pack of a network that a CPU has tried must not fail on a GPU, where groups are larger.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpaudit_ray.engines.packing import selfcheck
from dpaudit_ray.engines.packing.packed import PackedModel
from dpaudit_ray.engines.rules.base import SampleGradients
from dpaudit_ray.engines.rules.linear import LinearRule
from tests.engines.networks import Crowded, Made, slow_clipped_sum

WIDE = 520  # of the layer that makes a network a large one


def net(middle: Any, last: Any, large: bool) -> nn.Module:
    """Two convolutions and a head; `middle` is what the second one is given."""
    head: nn.Module = nn.Linear(3 * 36, 3)
    if large:
        head = nn.Sequential(nn.Linear(108, 2048), nn.Linear(2048, WIDE), nn.Linear(WIDE, 3))
    return Made(
        lambda self, x: self.out(last(x, torch.tanh(self.second(middle(x, self.first(x)))))),
        first=nn.Conv2d(2, 2, 3, padding=1), second=nn.Conv2d(2, 3, 3, padding=1), out=head,
    )  # fmt: skip


def flat(x: Tensor, h: Tensor) -> Tensor:
    return h.flatten(1)


def activated(x: Tensor, h: Tensor) -> Tensor:
    return torch.tanh(h)


WRONG = {
    "skips from the input": (lambda x, h: torch.tanh(x + h), flat),
    "adds the input later": (lambda x, h: torch.cat([torch.tanh(h)[:, :1], x[:, :1]], 1), flat),
    "counts the input": (activated, lambda x, h: h.view(x.shape[0], -1)),
}


def settled(module: nn.Module) -> tuple[PackedModel, Tensor, Tensor]:
    torch.manual_seed(0)
    x, y = torch.randn(6, 2, 6, 6), torch.arange(6) % 3
    model = PackedModel(module)
    model.choose_way(x, y)
    return model, x, y


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("kind", WRONG)
def test_code_that_meets_the_batch_again_gets_it_once_for_each_model(kind, large):
    module = net(*WRONG[kind], large)
    assert (PackedModel(module).size > selfcheck._LARGE) is large
    model, x, y = settled(module)
    assert model._alone is None
    assert model._passes.mapped
    theta = model.initial + 0.01 * torch.randn(2, model.size)
    found = model.clipped_sums(theta, x, y, 0.5)
    assert all(worker._passes.mapped for worker in model._workers)
    slow = torch.stack([slow_clipped_sum(module, row, x, y, 0.5) for row in theta])
    torch.testing.assert_close(found, slow, rtol=1e-4, atol=1e-5)


def test_what_is_wrong_with_many_rows_is_computed_alone():
    """Rules with `vmap` around them do not help here."""
    module = Made(
        lambda self, x: self.out(Crowded.apply(self.fc(x.flatten(1)))),
        fc=nn.Linear(72, 5), out=nn.Linear(5, 3),
    )  # fmt: skip
    model, _, _ = settled(module)
    assert model._alone is not None


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_a_right_network_keeps_its_groups(large):
    model, _, _ = settled(net(activated, flat, large))
    assert (model._groups, model._alone) == (None, None)
    assert not model._passes.mapped


def test_so_it_is_on_many_threads(monkeypatch):
    """Three models on four threads are one to each: none would be in a group."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    model, _, _ = settled(net(*WRONG["counts the input"], False))
    assert model._passes.mapped


def test_float64_decides_where_float32_rounds(monkeypatch):
    """A large network is checked in float32; there a ReLU that rounding moves is no wrong rule."""
    samples = LinearRule.samples

    def rounded(rule: LinearRule, theta: Tensor, x: Tensor, g: Tensor) -> SampleGradients:
        return samples(rule, theta, x, g if g.dtype == torch.float64 else 1.1 * g)

    monkeypatch.setattr(LinearRule, "samples", rounded)
    model, _, _ = settled(net(activated, flat, large=True))
    assert (model._groups, model._alone) == (None, None)


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
        model.choose_way(torch.randn(2, 8), torch.tensor([0, 1]))
        assert model._alone is None
