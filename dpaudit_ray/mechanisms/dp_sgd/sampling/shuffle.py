"""Shuffling: the batches of an epoch are cut from one random order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np

from ....accounting import Sampling
from .base import Coins, Indices, Sampler, Sizes


class Shuffle(Sampler):
    """The canary joins one of an epoch's N // |B| batches, which one is drawn anew each time."""

    claim: ClassVar[Sampling] = Sampling.SHUFFLE

    name: Literal["shuffle"] = "shuffle"

    def batches(self, sizes: Sizes, rng: np.random.Generator) -> Iterator[Indices]:
        """Full batches of a new order in every epoch; what is left over sits it out."""
        while True:
            order = rng.permutation(sizes.examples)[: sizes.per_epoch * sizes.batch_size]
            yield from order.reshape(sizes.per_epoch, -1)

    def coins(
        self, sizes: Sizes, shape: tuple[int, ...], rng: np.random.Generator
    ) -> Iterator[Coins]:
        """In exactly one batch of every epoch."""
        while True:
            chosen = rng.integers(sizes.per_epoch, size=shape)
            yield from (chosen == batch for batch in range(sizes.per_epoch))
