"""Sampling schemes: which records the batch of each step has, and whether it has the canary.

The batches of the other records are drawn once for a sweep and known to the adversary. The canary's
coins (random bits: is it sampled at this step?) are drawn for each trial and known to no one, so
trials are independent, and the claim for a canary that is sampled holds. Coins shared by a sweep
would refute true claims in a fifth of sweeps.
"""

import itertools
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ...accounting import Sampling
from ...plugins import Plugin

Indices = NDArray[np.int64]
Coins = NDArray[np.bool_]


@dataclass(frozen=True)
class Sizes:
    """Number N of examples without the canary, and the expected batch size |B| ≤ N."""

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

    kind = "sampling scheme"
    home = "dpaudit_ray.mechanisms.dp_sgd.sampling"

    claim: ClassVar[Sampling]  # the scheme's name among accountants
    in_known_steps: ClassVar[bool] = False  # True: a record is in steps that the adversary knows

    @abstractmethod
    def batches(self, sizes: Sizes, rng: Generator) -> Iterator[Indices]:
        """Yields the batch of the other records at steps 1, 2, ... without end.

        A batch is an array of indices, int64 [any number], and may be empty.
        """

    def coins(
        self,
        sizes: Sizes,
        shape: tuple[int, ...],
        rng: Generator,
    ) -> Iterator[Coins]:
        """Yields whether each canary is sampled at steps 1, 2, ... without end.

        Here each canary is in one batch of every epoch.

        Args:
            sizes: N and |B|.
            shape: shape of the yielded arrays: [n] trials, or [n, m] with m canaries in each.
            rng: source of the coins.
        """
        while True:
            canary_batch = rng.integers(sizes.per_epoch, size=shape)
            for batch in range(sizes.per_epoch):
                yield canary_batch == batch

    def rate(self, sizes: Sizes) -> float:
        """Returns the probability that a step has the canary; here it is in one batch an epoch."""
        return 1 / sizes.per_epoch


class _Shuffled(Sampler):
    """Base of schemes that cut each epoch's batches from one random order.

    All batches are full: records that remain skip the epoch.
    """

    def batches(self, sizes: Sizes, rng: Generator) -> Iterator[Indices]:
        """Yields the batches of one epoch after another, each epoch in a new order."""
        while True:
            order = rng.permutation(sizes.examples)[: sizes.per_epoch * sizes.batch_size]
            yield from order.reshape(sizes.per_epoch, -1)


class _Independent(Sampler):
    """Base of schemes that draw the other records as they draw canaries, each independently."""

    def batches(self, sizes: Sizes, rng: Generator) -> Iterator[Indices]:
        """Yields the records whose coins put them into each batch."""
        return map(np.flatnonzero, self.coins(sizes, (sizes.examples,), rng))


class Fixed(_Shuffled):
    """Fixed batches: epochs of shuffled data, cut into full ones. The canary is in every step."""

    claim = Sampling.POISSON  # at rate 1
    in_known_steps = True

    name: Literal["fixed"] = "fixed"

    def coins(
        self,
        sizes: Sizes,
        shape: tuple[int, ...],
        rng: Generator,
    ) -> Iterator[Coins]:
        """Yields 1 for every canary: it is in every step."""
        return itertools.repeat(np.ones(shape, bool))

    def rate(self, sizes: Sizes) -> float:
        return 1.0


class Poisson(_Independent):
    """Poisson sampling (Abadi et al. 2016): every record joins every step at rate q = |B| / N."""

    claim = Sampling.POISSON

    name: Literal["poisson"] = "poisson"

    def coins(
        self,
        sizes: Sizes,
        shape: tuple[int, ...],
        rng: Generator,
    ) -> Iterator[Coins]:
        """Yields whether each canary is drawn into the batch, at the same rate as a record."""
        while True:
            yield rng.random(shape) < sizes.rate

    def rate(self, sizes: Sizes) -> float:
        return sizes.rate


class Shuffle(_Shuffled):
    """Shuffling: the batches of an epoch are cut from one random order."""

    claim = Sampling.SHUFFLE

    name: Literal["shuffle"] = "shuffle"


class BallsAndBins(_Independent):
    """Balls and bins (Chua et al. 2024): each record joins a batch of the epoch independently."""

    claim = Sampling.BALLS_AND_BINS

    name: Literal["balls-and-bins"] = "balls-and-bins"
