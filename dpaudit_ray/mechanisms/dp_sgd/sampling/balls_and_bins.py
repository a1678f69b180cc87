"""Balls and bins (Chua et al. 2024): every record joins one batch of an epoch, drawn alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np

from ....accounting import Sampling
from .base import Coins, Indices, Sampler, Sizes


class BallsAndBins(Sampler):
    """As `shuffle`, but no record's place depends on another's, so that batches vary in size."""

    claim: ClassVar[Sampling] = Sampling.BALLS_AND_BINS

    name: Literal["balls-and-bins"] = "balls-and-bins"

    def batches(self, sizes: Sizes, rng: np.random.Generator) -> Iterator[Indices]:
        """N // |B| batches in every epoch."""
        for bins in self.coins(sizes, (sizes.examples,), rng):
            yield np.flatnonzero(bins)

    def coins(
        self, sizes: Sizes, shape: tuple[int, ...], rng: np.random.Generator
    ) -> Iterator[Coins]:
        """In exactly one batch of every epoch."""
        while True:
            chosen = rng.integers(sizes.per_epoch, size=shape)
            yield from (chosen == batch for batch in range(sizes.per_epoch))
