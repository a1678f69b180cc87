"""The interface of sampling schemes: the others' batches, and the canary's coins.

The others' batches are drawn once for a sweep and known to the adversary (or per trial, where
`batches: secret`). The canary's coins are drawn for each trial, by nobody's knowledge: given the
batches of the others, trials are independent, and the claim for a canary that is sampled holds.
Coins that trials share are a secret no more: a sweep that happens to draw many refutes the truth.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ....accounting import Sampling
from ....plugins import Plugin

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
        """Full batches that N examples give, at least 1."""
        return max(1, self.examples // self.batch_size)


class Sampler(Plugin):
    """Base of all schemes. Whatever a batch holds, its sum is divided by the expected |B|."""

    kind: ClassVar[str] = "sampling scheme"
    home: ClassVar[str] = "dpaudit_ray.mechanisms.dp_sgd.sampling"

    claim: ClassVar[Sampling]  # as what accountants know it
    known: ClassVar[bool] = False  # True: a record is in steps that the adversary knows

    @abstractmethod
    def batches(self, sizes: Sizes, rng: np.random.Generator) -> Iterator[Indices]:
        """The others' batch at steps 1, 2, ... without end: indices int64 [any number], also 0."""

    @abstractmethod
    def coins(
        self, sizes: Sizes, shape: tuple[int, ...], rng: np.random.Generator
    ) -> Iterator[Coins]:
        """Whether each canary is sampled at steps 1, 2, ... without end: bool, of `shape`.

        `shape` is [n] for a canary in each of n trials, or [n, m] for m of them.
        """

    def rate(self, sizes: Sizes) -> float:
        """The chance that a step has the canary, as accountants are told; one batch an epoch."""
        return 1 / sizes.per_epoch
