"""True ε of votes, federated rounds and correlated noise."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats
from scipy.stats import rv_continuous

from tests.jobs.truths import loss
from tests.jobs.truths.selection import winners

DELTA = 1e-5
STEPS = 8
BEFORE, AFTER = (40, 39, 1, 0, 0), (39, 40, 1, 0, 0)


def vote(noise: rv_continuous, delta: float) -> float:
    return loss.of_probabilities(winners(noise, BEFORE), winners(noise, AFTER), delta)


def checked_vote() -> float:
    """Label 0, label 1, or no answer."""
    is_sure = stats.laplace.sf(39.0, 40)
    return loss.of_probabilities([is_sure, 0, 1 - is_sure], [0, is_sure, 1 - is_sure])


def linear(noise_of_outputs: np.ndarray, change: Sequence[float]) -> float:
    """Gaussian noise with a covariance: μ² is the change, whitened."""
    whitened = np.linalg.solve(noise_of_outputs, np.asarray(change, float))
    return loss.of_gaussian(math.sqrt(np.dot(change, whitened)), DELTA)


def tree() -> float:
    """Lists the nodes of each prefix; covariance is by the nodes that two prefixes share."""
    prefixes = []
    for step in range(1, STEPS + 1):
        nodes, end = set(), step
        while end:
            size = end & -end  # the smallest node that ends here
            nodes.add((end - size, end))
            end -= size
        prefixes.append(nodes)
    shared = [[len(first & second) for second in prefixes] for first in prefixes]
    return linear(4.0 * np.array(shared), np.ones(STEPS))


def band_matrix() -> np.ndarray:
    matrix = np.zeros((STEPS, STEPS))
    for row in range(STEPS):
        for column in range(max(0, row - 2), row + 1):
            matrix[row, column] = 0.5 ** (row - column)
    return matrix


def banded(steps: Sequence[int]) -> float:
    factor = np.linalg.inv(band_matrix())
    return linear(4.0 * factor @ factor.T, np.isin(np.arange(STEPS), steps))


TRUTHS: dict[str, Callable[[], float]] = {
    "PATE, LNMax": lambda: vote(stats.laplace(scale=2), 0.0),
    "PATE, GNMax": lambda: vote(stats.norm(scale=4), DELTA),
    "PATE, exact votes": checked_vote,
    "FedAvg": lambda: loss.of_gaussian(1 / 2, DELTA),
    "FedAvg, unclipped": lambda: loss.of_gaussian(3 / 2, DELTA),
    "adaptive clipping": lambda: loss.of_gaussian(math.hypot(1 / 2, 1), DELTA),
    "adaptive clipping, exact count": lambda: math.inf,
    "tree aggregation": tree,
    "tree, one node counted": tree,
    "BandMF": lambda: banded([0]),
    "BandMF, records too close": lambda: banded([0, 1]),
    "FedAvg, updates reversed": lambda: loss.of_gaussian(2 / 2, DELTA),
}
