"""Sampling schemes: who is in the batch of each step, the others' records and the canary.

The others' batches are drawn once for a sweep and known to the adversary. The canary's coins are
drawn for each trial, known to nobody: so trials are independent, and the claim for a canary that is
sampled holds. Coins that a sweep shares would refute true claims in a fifth of sweeps.
"""

from __future__ import annotations

import dataclasses
import itertools
from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from ...accounting import Sampling
from ...plugins import Plugin

Indices = npt.NDArray[np.int64]
Coins = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """N examples without the canary, and the expected batch size |B| ≤ N."""

    examples: int
    batch_size: int

    @property
    def rate(self) -> float:
        """|B| / N."""
        return self.batch_size / self.examples

    @property
    def per_epoch(self) -> int:
        """Number of full batches that N examples give, at least 1."""
        return max(1, self.examples // self.batch_size)


class Sampler(Plugin):
    """Base of all schemes."""

    kind: ClassVar[str] = "sampling scheme"
    home: ClassVar[str] = "dpaudit_ray.mechanisms.dp_sgd.sampling"

    claim: ClassVar[Sampling]  # the scheme's name among accountants
    in_known_steps: ClassVar[bool] = False  # True: a record is in steps that the adversary knows

    @abstractmethod
    def batches(self, sizes: Sizes, rng: np.random.Generator) -> Iterator[Indices]:
        """Yields the others' batch at steps 1, 2, ... without end: indices int64, maybe none."""

    def coins(
        self, sizes: Sizes, shape: tuple[int, ...], rng: np.random.Generator
    ) -> Iterator[Coins]:
        """Yields whether each canary is sampled at steps 1, 2, ... without end: bool, of `shape`.

        Which is [n], or [n, m] of m canaries a trial. Here each is in one batch of every epoch.
        """
        while True:
            chosen = rng.integers(sizes.per_epoch, size=shape)
            yield from (chosen == batch for batch in range(sizes.per_epoch))

    def rate(self, sizes: Sizes) -> float:
        """The chance that a step has the canary, as accountants are told; one batch an epoch."""
        return 1 / sizes.per_epoch


def _shuffled(sizes: Sizes, rng: np.random.Generator) -> Iterator[Indices]:
    """Full batches of a new order in every epoch; records left over skip that epoch."""
    while True:
        order = rng.permutation(sizes.examples)[: sizes.per_epoch * sizes.batch_size]
        yield from order.reshape(sizes.per_epoch, -1)


class Fixed(Sampler):
    """Fixed batches: epochs of shuffled data, cut into full ones. The canary is in every step."""

    claim: ClassVar[Sampling] = Sampling.POISSON  # at rate 1
    in_known_steps: ClassVar[bool] = True

    name: Literal["fixed"] = "fixed"

    def batches(self, sizes: Sizes, rng: np.random.Generator) -> Iterator[Indices]:
        return _shuffled(sizes, rng)

    def coins(
        self, sizes: Sizes, shape: tuple[int, ...], rng: np.random.Generator
    ) -> Iterator[Coins]:
        return itertools.repeat(np.ones(shape, np.bool_))

    def rate(self, sizes: Sizes) -> float:
        return 1.0


class Poisson(Sampler):
    """Poisson sampling (Abadi et al. 2016): every record joins every step at rate q = |B| / N."""

    claim: ClassVar[Sampling] = Sampling.POISSON

    name: Literal["poisson"] = "poisson"

    def batches(self, sizes: Sizes, rng: np.random.Generator) -> Iterator[Indices]:
        while True:
            yield np.flatnonzero(rng.random(sizes.examples) < sizes.rate)

    def coins(
        self, sizes: Sizes, shape: tuple[int, ...], rng: np.random.Generator
    ) -> Iterator[Coins]:
        while True:
            yield rng.random(shape) < sizes.rate

    def rate(self, sizes: Sizes) -> float:
        return sizes.rate


class Shuffle(Sampler):
    """Shuffling: the batches of an epoch are cut from one random order."""

    claim: ClassVar[Sampling] = Sampling.SHUFFLE

    name: Literal["shuffle"] = "shuffle"

    def batches(self, sizes: Sizes, rng: np.random.Generator) -> Iterator[Indices]:
        return _shuffled(sizes, rng)


class BallsAndBins(Sampler):
    """Balls and bins (Chua et al. 2024): every record joins one batch of an epoch, drawn alone."""

    claim: ClassVar[Sampling] = Sampling.BALLS_AND_BINS

    name: Literal["balls-and-bins"] = "balls-and-bins"

    def batches(self, sizes: Sizes, rng: np.random.Generator) -> Iterator[Indices]:
        return map(np.flatnonzero, self.coins(sizes, (sizes.examples,), rng))
