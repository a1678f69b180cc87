"""Fixed batches, known to the adversary: epochs of shuffled data, cut into full batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np

from ....accounting import Sampling
from .base import Coins, Indices, Sampler, Sizes


class Fixed(Sampler):
    """The canary is in every step; its `adversary.period` leaves steps out, and is known too."""

    claim: ClassVar[Sampling] = Sampling.POISSON  # at rate 1
    known: ClassVar[bool] = True

    name: Literal["fixed"] = "fixed"

    def batches(self, sizes: Sizes, rng: np.random.Generator) -> Iterator[Indices]:
        """Full batches of a new order in every epoch; what is left over sits it out."""
        while True:
            order = rng.permutation(sizes.examples)[: sizes.per_epoch * sizes.batch_size]
            yield from order.reshape(sizes.per_epoch, -1)

    def coins(
        self, sizes: Sizes, shape: tuple[int, ...], rng: np.random.Generator
    ) -> Iterator[Coins]:
        """Always in."""
        return itertools.repeat(np.ones(shape, np.bool_))

    def rate(self, sizes: Sizes) -> float:
        """1: what is known hides nothing."""
        return 1.0
