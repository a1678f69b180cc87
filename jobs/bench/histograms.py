"""Counts of several cells, and cells that exist only where somebody has them."""

import math
from typing import Any

import numpy as np
from numpy.random import Generator

from dpaudit_ray import Claim

from .entry import Entry, Release

STATDP = "DP-Sniper, StatDP"
ONE = Claim(epsilon=1.0)
TENTH = Claim(epsilon=0.1)
DELTA = 1e-3
AT_DELTA = Claim(epsilon=1.0, delta=DELTA)
CELLS = np.array([1.0, 1.0, 1.0, 1.0, 1.0])
ONE_MOVES = [(CELLS, CELLS - np.eye(5)[0]), (CELLS, CELLS + np.eye(5)[0])]
WORDS = [((12, 1), (12, 0)), ((12, 1), (11, 1))]  # the second word is of one person
THRESHOLD = 1 + math.log(1 / (2 * DELTA))
STABLE = ((6,) * 15, (5, *(6,) * 14))  # the same median in any neighbour
UNSTABLE = ((5,) * 7 + (6,) * 8, (5,) * 8 + (6,) * 7)
MEDIANS = [STABLE, UNSTABLE]
TEST = math.log(1 / (2 * DELTA))


def noisy_cells(scale: float) -> Release:
    """Adds Laplace noise to each cell."""

    def release(data: Any, rng: Generator, n: int) -> Any:
        return data + rng.laplace(0, scale, (n, len(data)))

    return release


def stable(threshold: float, scale: float = 1.0) -> Release:
    """Releases noisy counts of words that somebody has, if they are above a threshold."""

    def release(data: Any, rng: Generator, n: int) -> Any:
        counts = np.asarray(data)
        noisy = counts + rng.laplace(0, scale, (n, len(counts)))
        is_released = (counts > 0) & (noisy > threshold)
        return np.where(is_released, noisy, np.nan)

    return release


def distance_to_instability(records: Any) -> int:
    """Counts the records that may change before one more could change the median."""
    rising = np.sort(records)
    middle = len(rising) // 2
    at_median = np.flatnonzero(rising == rising[middle])
    return int(min(middle - at_median[0], at_median[-1] - middle))


def propose_test_release(threshold: float, scale: float) -> Release:
    """Releases the median itself if a noisy test finds it stable (Dwork, Lei 2009)."""

    def release(data: Any, rng: Generator, n: int) -> Any:
        distance = distance_to_instability(data) + rng.laplace(0, scale, n)
        return np.where(distance > threshold, np.median(data), np.nan)

    return release


ENTRIES = (
    Entry("NoisyHist1", noisy_cells(10.0), ONE_MOVES, TENTH, 0.1, STATDP, trials=10_000_000),
    Entry("NoisyHist2", noisy_cells(0.1), ONE_MOVES, TENTH, 10.0, STATDP, trials=4_000_000),
    Entry("stability histogram", stable(THRESHOLD), WORDS, AT_DELTA, 0.998, "Korolova 2009", DELTA),
    Entry(
        "propose, test, release",
        propose_test_release(TEST, 1.0),
        MEDIANS,
        AT_DELTA,
        0.960305,
        "Dwork, Lei 2009",
        DELTA,
    ),
    Entry(
        "stability histogram, no threshold",
        stable(-math.inf),
        WORDS,
        AT_DELTA,
        math.inf,
        "Korolova 2009",
        DELTA,
        bar=9.0,
    ),
    Entry(
        "stability histogram, low threshold",
        stable(THRESHOLD - 2),
        WORDS,
        AT_DELTA,
        math.inf,
        "Korolova 2009",
        DELTA,
        bar=3.0,
    ),
    Entry(
        "propose, release",
        propose_test_release(0.5, 1.0),
        MEDIANS,
        AT_DELTA,
        math.inf,
        "Dwork, Lei 2009",
        DELTA,
        bar=3.0,
    ),
)
