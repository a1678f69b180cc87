"""True ε of histograms, and of releases that a noisy test allows."""

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from tests.jobs.truths import loss

DELTA = 1e-3


def one_cell(scale: float) -> float:
    grid = np.linspace(-3, 3, 601)
    noise = stats.laplace(scale=scale)
    return loss.of_logs(noise.logpdf(grid), noise.logpdf(grid - 1))


def stable(threshold: float) -> float:
    """The larger loss of two pairs: a word that one person has, and a count of 12 or 11.

    The ratio of densities is constant below 11 and above 12, so these are one outcome each.
    """
    is_released = stats.laplace.sf(threshold, 1) if math.isfinite(threshold) else 1.0
    new_word = loss.of_probabilities([is_released, 1 - is_released], [0.0, 1.0], DELTA)
    lowest = [threshold] if math.isfinite(threshold) else []
    edges = [-np.inf, *lowest, *np.linspace(11, 12, 20_001), np.inf]
    counts = (np.diff(stats.laplace.cdf(edges, count)) for count in (12, 11))
    return max(new_word, loss.of_probabilities(*counts, DELTA))


def median_may_become_another(records: Sequence[int], changes: int) -> bool:
    """Makes the largest records very small, or the smallest ones very large."""
    middle = len(records) // 2
    for value in (-100, 100):
        changed = sorted(records, reverse=value < 0)[changes:] + [value] * changes
        if sorted(changed)[middle] != sorted(records)[middle]:
            return True
    return False


def tested(threshold: float) -> float:
    def outcomes(records: Sequence[int]) -> list[float]:
        needed = 1
        while not median_may_become_another(records, needed):
            needed += 1
        is_released = stats.laplace.sf(threshold, needed - 1)
        median = sorted(records)[len(records) // 2]
        return [is_released * (median == value) for value in (5, 6)] + [1 - is_released]

    stable_pair = (outcomes([6] * 15), outcomes([5] + [6] * 14))
    unstable_pair = (outcomes([5] * 7 + [6] * 8), outcomes([5] * 8 + [6] * 7))
    return max(loss.of_probabilities(*pair, DELTA) for pair in (stable_pair, unstable_pair))


TEST = math.log(1 / (2 * DELTA))
TRUTHS = {
    "NoisyHist1": lambda: one_cell(10.0),
    "NoisyHist2": lambda: one_cell(0.1),
    "stability histogram": lambda: stable(1 + TEST),
    "stability histogram, no threshold": lambda: stable(-math.inf),
    "stability histogram, low threshold": lambda: stable(TEST - 1),
    "propose, test, release": lambda: tested(TEST),
    "propose, release": lambda: tested(0.5),
}
