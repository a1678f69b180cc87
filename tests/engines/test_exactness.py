"""Seeds, and a cache that cannot be written."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from numba.core import caching

from dpaudit_ray.engines.cpu import vector_code
from dpaudit_ray.mechanisms.dp_sgd.initialization import generator, seeded


@pytest.mark.parametrize("bit", [32, 63, 64, 127])
def test_every_bit_of_a_seed_counts(bit):
    """`manual_seed` keeps 32 of them on a CPU."""
    drawn = []
    for seed in (5, 5 + 2**bit):
        with seeded(seed):
            drawn.append(torch.randn(8))
        again = torch.randn(8, generator=generator(seed, torch.device("cpu")))
        assert torch.equal(drawn[-1], again)
    assert not torch.equal(*drawn)


def test_seeds_draw_standard_normals():
    """The first of 4000 seeds each, and 40,000 of one; right ones are rejected in 1 of 1e4."""
    firsts = torch.cat(
        [torch.randn(1, generator=generator(s, torch.device("cpu"))) for s in range(4000)]
    )
    many = torch.randn(40_000, generator=generator(2**100, torch.device("cpu")))
    for drawn in (firsts, many):
        assert abs(float(drawn.mean())) < 4 / math.sqrt(len(drawn))
        assert abs(float(drawn.std()) - 1) < 4 / math.sqrt(2 * len(drawn))


def test_a_cache_that_cannot_be_written_is_done_without(monkeypatch):
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
