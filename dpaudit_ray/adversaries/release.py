"""Adversaries against `mechanism: release`, which distinguish outputs of neighbouring inputs.

Adversaries can run the mechanism themselves. They learn from these runs before any trial, so each
score depends on the output of its trial alone, and every estimator stays valid.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ..stats.error_rates import Floats
from .base import Adversary
from .outputs import Outputs

Draw = Callable[[bool, int, Generator], Outputs]  # outputs with the canary or without, and how many


class Scorer(Protocol):
    """Scores outputs: higher if they are more likely of the second input."""

    def __call__(self, outputs: Outputs) -> NDArray[np.float64]:
        """Returns scores, float64 [n], of n outputs."""


class OutputAdversary(Adversary):
    """Base of adversaries that score whole outputs."""

    attacks = "release"
    log_odds = True
    searches: ClassVar[bool] = False  # whether `promise` compares pairs of inputs

    @abstractmethod
    def scorer(
        self, draw: Draw, pair: tuple[Any, Any], rng: Generator, delta: float = 0.0
    ) -> Scorer:
        """Prepares to score outputs for one pair of inputs.

        Args:
            draw: runs the mechanism on the first input (False) or the second.
            pair: the two inputs.
            rng: the adversary's own randomness, for its own runs too.
            delta: δ of the claim.
        """

    def promise(self, draw: Draw, rng: Generator, delta: float = 0.0) -> float:
        """Estimates the ε at `delta` that a pair of inputs shows, from runs that are not trials."""
        raise NotImplementedError(f"{self.name} compares no pairs")


def rounded(scores: Floats) -> Floats:
    """Rounds scores to 1/1024: a file then holds them in about two bytes each."""
    return np.round(scores * 1024) / 1024
