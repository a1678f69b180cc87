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

# Runs the mechanism on the first input (False) or the second, so many times; returns the outputs.
Draw = Callable[[bool, int, Generator], Outputs]


class Scorer(Protocol):
    """Scores outputs: higher if they more likely come from the second input."""

    def __call__(self, outputs: Outputs) -> NDArray[np.float64]:
        """Returns scores, float64 [n], of n outputs."""


class OutputAdversary(Adversary):
    """Base of adversaries that score complete outputs."""

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
            rng: the adversary's own randomness, also for its own runs.
            delta: δ of the claim.
        """

    def promise(self, draw: Draw, rng: Generator, delta: float = 0.0) -> float:
        """Estimates the ε at `delta` that a pair of inputs can show, by runs that are not trials.

        Pairs are compared by it. So it may add a smaller term, to rank pairs with an ε of 0.
        """
        raise NotImplementedError(f"{self.name} compares no pairs")


def rounded(scores: Floats) -> Floats:
    """Rounds scores to 1/1024, as a score file then takes about two bytes for each."""
    return np.round(scores * 1024) / 1024
