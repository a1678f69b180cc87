"""Seeds, low precision, and a cache that cannot be written."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numba.core import caching
from torch import nn

from dpaudit_ray.engines.cpu import vector_code
from dpaudit_ray.engines.packing.packed import PackedModel
from dpaudit_ray.mechanisms.dp_sgd.initialization import generator, seeded


@pytest.mark.parametrize("bit", [32, 63, 64, 127])
def test_every_bit_of_a_seed_counts(bit: int) -> None:
    """`manual_seed` keeps 32 of them on a CPU."""
    drawn = []
    for seed in (5, 5 + 2**bit):
        with seeded(seed):
            drawn.append(torch.randn(8))
        again = torch.randn(8, generator=generator(seed, torch.device("cpu")))
        assert torch.equal(drawn[-1], again)
    assert not torch.equal(*drawn)


def test_seeds_draw_standard_normals() -> None:
    """The first of 4000 seeds each, and 40,000 of one; right ones are rejected in 1 of 1e4."""
    firsts = torch.cat(
        [torch.randn(1, generator=generator(s, torch.device("cpu"))) for s in range(4000)]
    )
    many = torch.randn(40_000, generator=generator(2**100, torch.device("cpu")))
    for drawn in (firsts, many):
        assert abs(float(drawn.mean())) < 4 / math.sqrt(len(drawn))
        assert abs(float(drawn.std()) - 1) < 4 / math.sqrt(2 * len(drawn))


NETWORKS = {
    "linear": lambda: nn.Sequential(nn.Linear(12, 40), nn.Tanh(), nn.Linear(40, 3)),
    "conv": lambda: nn.Sequential(
        nn.Unflatten(1, (3, 2, 2)), nn.Conv2d(3, 8, 2, padding=1), nn.GroupNorm(2, 8), nn.ReLU(),
        nn.Flatten(), nn.Linear(72, 3),
    ),
    "sequence": lambda: nn.Sequential(
        nn.Unflatten(1, (3, 4)), nn.Linear(4, 50), nn.Tanh(), nn.Flatten(), nn.Linear(150, 3)
    ),
    "slow": lambda: nn.Sequential(nn.Linear(12, 9), nn.PReLU(), nn.Linear(9, 3)),
    "alone": lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(12, 3))),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_bfloat16_clips_to_the_clip_norm_and_sums_in_float32(name: str) -> None:
    """It reached 1.004 C, and sums were off by .09 to .43 C."""
    torch.manual_seed(0)
    model = PackedModel(NETWORKS[name](), compute=torch.bfloat16)
    x, y = 3 * torch.randn(64, 12), torch.randint(0, 3, (64,))
    theta = model.initial + 0.1 * torch.randn(2, model.size)
    clip = 0.05
    one_by_one = []
    for j in range(len(y)):
        weights = torch.zeros(2, len(y))
        weights[:, j] = 1
        one_by_one.append(model.clipped_sums(theta, x, y, clip, weights))
    norms = torch.stack(one_by_one).double().norm(dim=2)
    assert float(norms.max()) <= clip * (1 + 1e-5)
    assert float(norms.median()) > clip * (1 - 1e-5), "most are clipped"
    total = torch.stack(one_by_one).double().sum(0)
    found = model.clipped_sums(theta, x, y, clip)
    assert float((found - total).norm(dim=1).max()) < 1e-4 * clip


def test_a_cache_that_cannot_be_written_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def total(values: np.ndarray) -> float:
        result = 0.0
        for value in values:
            result += value
        return result

    for kind in (caching.CacheImpl, *caching.CacheImpl.__subclasses__()):
        monkeypatch.setattr(kind, "_locator_classes", [])
    loop: Any = vector_code.compiled(total)
    assert loop(np.ones(3)) == 3
    assert loop.stats.cache_path is None
