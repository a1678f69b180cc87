"""Poisson sampling (Abadi et al. 2016): every record joins every step by a coin of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np

from ....accounting import Sampling
from .base import Coins, Indices, Sampler, Sizes


class Poisson(Sampler):
    """At rate q = |B| / N; batches vary in size, and may be empty."""

    claim: ClassVar[Sampling] = Sampling.POISSON

    name: Literal["poisson"] = "poisson"

    def batches(self, sizes: Sizes, rng: np.random.Generator) -> Iterator[Indices]:
        """Independent of each other."""
        while True:
            yield np.flatnonzero(rng.random(sizes.examples) < sizes.rate)

    def coins(
        self, sizes: Sizes, shape: tuple[int, ...], rng: np.random.Generator
    ) -> Iterator[Coins]:
        """As any record's."""
        while True:
            yield rng.random(shape) < sizes.rate

    def rate(self, sizes: Sizes) -> float:
        """q."""
        return sizes.rate
