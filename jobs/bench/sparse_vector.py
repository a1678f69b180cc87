"""Sparse vectors: which of ten answers are above a noisy threshold (Lyu, Su, Li 2017)."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dpaudit_ray import Claim

from .entry import Entry, Release

SNIPER = "DP-Sniper"
ANSWERS = {"vectors": 10}
TENTH = Claim(epsilon=0.1)
ABORTED = -1.0


@dataclass(frozen=True)
class SparseVector:
    """Scales of Laplace noise, and when it stops.

    Attributes:
        threshold_scale: of the noise of the threshold.
        answer_scale: of the noise of each answer; 0 for none.
        most_above: number of answers above, after which no answer is compared.
        threshold: that of an answer.
    """

    threshold_scale: float
    answer_scale: float
    most_above: int = 1
    threshold: float = 1.0

    def compared(self, data: Any, rng: Generator, n: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Returns whether each answer is above, ABORTED after the last, and noisy answers."""
        noisy = data + rng.laplace(0, self.answer_scale, (n, len(data)))
        is_above = noisy >= self.threshold + rng.laplace(0, self.threshold_scale, (n, 1))
        above_before = np.cumsum(is_above, axis=1) - is_above
        return np.where(above_before < self.most_above, is_above, ABORTED), noisy

    def __call__(self, data: Any, rng: Generator, n: int) -> Any:
        """Releases which answers are above."""
        return self.compared(data, rng, n)[0]


def with_values(vector: SparseVector) -> Release:
    """Releases the noisy answers that are above, too, by the noise that compared them."""

    def release(data: Any, rng: Generator, n: int) -> Any:
        comparisons, noisy = vector.compared(data, rng, n)
        return np.concatenate([comparisons, np.where(comparisons == 1, noisy, 0)], axis=1)

    return release


def with_fresh_values(vector: SparseVector, value_scale: float) -> Release:
    """Releases answers that are above with noise of their own (Wang 2019)."""

    def release(data: Any, rng: Generator, n: int) -> Any:
        comparisons, _ = vector.compared(data, rng, n)
        values = data + rng.laplace(0, value_scale, comparisons.shape)
        return np.concatenate([comparisons, np.where(comparisons == 1, values, 0)], axis=1)

    return release


def both(first: Release, second: Release) -> Release:
    """Releases the outputs of two mechanisms."""

    def release(data: Any, rng: Generator, n: int) -> Any:
        return np.concatenate([first(data, rng, n), second(data, rng, n)], axis=1)

    return release


def prefix_sums(data: Any, rng: Generator, n: int) -> Any:
    """Sums noisy answers up to each."""
    return np.cumsum(data + rng.laplace(0, 10.0, (n, len(data))), axis=1)


UNLIMITED = 10
SVT3 = with_values(SparseVector(20.0, 20.0))
SVT4 = SparseVector(40.0, 40 / 3)

ENTRIES = (
    Entry(
        "SVT1",
        SparseVector(20.0, 40.0, threshold=0.5),
        ANSWERS,
        TENTH,
        0.0885258,
        SNIPER,
        trials=4_000_000,
    ),
    Entry("SVT2", SparseVector(20.0, 40.0), ANSWERS, TENTH, 0.0882304, SNIPER, trials=5_000_000),
    Entry("SVT3", SVT3, ANSWERS, TENTH, 0.5, SNIPER, trials=10_000_000),
    Entry("SVT4", SVT4, ANSWERS, TENTH, 0.172471, SNIPER, trials=15_000_000),
    Entry(
        "SVT5",
        SparseVector(20.0, 0.0, UNLIMITED),
        ANSWERS,
        TENTH,
        math.inf,
        SNIPER,
        bar=9.0,
        trials=2_000_000,
    ),
    Entry(
        "SVT6",
        SparseVector(20.0, 20.0, UNLIMITED),
        ANSWERS,
        TENTH,
        0.420032,
        SNIPER,
        trials=40_000_000,
    ),
    Entry("SVT34Parallel", both(SVT3, SVT4), ANSWERS, TENTH, 0.524998, SNIPER),
    Entry(
        "NumericalSVT",
        with_fresh_values(SparseVector(30.0, 120.0, 2), 60.0),
        ANSWERS,
        TENTH,
        0.0805192,
        SNIPER,
    ),
    Entry("PrefixSum", prefix_sums, ANSWERS, TENTH, 1.0, SNIPER, trials=5_000_000),
)
