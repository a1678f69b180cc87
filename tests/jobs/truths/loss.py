"""The privacy loss of two distributions, slow and obvious: nothing of the package is used."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, stats

LARGEST = 100.0  # above any finite ε of the bench
ROUNDING = 1e-15  # of a sum of probabilities


def of_logs(log_p: ArrayLike, log_q: ArrayLike) -> float:
    """Returns ε at δ = 0 of log probabilities, or log densities, of the same outcomes."""
    log_p, log_q = np.asarray(log_p), np.asarray(log_q)
    possible = ~(np.isneginf(log_p) & np.isneginf(log_q))
    return float(np.abs(log_p[possible] - log_q[possible]).max())


def of_probabilities(p: ArrayLike, q: ArrayLike, delta: float = 0.0) -> float:
    """Returns the smallest ε with P(S) ≤ e^ε Q(S) + δ for all sets S of outcomes, both ways."""
    p, q = np.asarray(p, float), np.asarray(q, float)
    np.testing.assert_allclose([p.sum(), q.sum()], 1, rtol=1e-6)
    if delta == 0:
        with np.errstate(divide="ignore"):
            return of_logs(np.log(p), np.log(q))

    def excess(epsilon: float) -> float:
        ratio = math.exp(epsilon)
        return max(np.maximum(p - ratio * q, 0).sum(), np.maximum(q - ratio * p, 0).sum()) - delta

    if excess(0.0) <= ROUNDING:
        return 0.0
    if excess(LARGEST) > ROUNDING:
        return math.inf
    return float(optimize.brentq(excess, 0, LARGEST, xtol=1e-12))


def of_gaussian(mu: float, delta: float) -> float:
    """Returns ε of two normal distributions that are μ deviations apart (Balle, Wang 2018)."""

    def excess(epsilon: float) -> float:
        tail = stats.norm.cdf(-mu / 2 - epsilon / mu)
        return stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * tail - delta

    return float(optimize.brentq(excess, 0, LARGEST, xtol=1e-12))


def worst(pairs: Iterable[Sequence], loss: Callable[..., float]) -> float:
    """Returns the largest loss of all pairs of inputs."""
    return max(itertools.starmap(loss, pairs))


def quadrature(
    kinks: Sequence[float],
    reach: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns points and weights of Gauss and Legendre, for functions smooth between kinks.

    From -reach to reach, the intervals grow with the distance from the kinks.
    """
    distances = np.concatenate([[0.0], np.geomspace(1, reach, 40)])
    middle = float(np.mean(kinks))
    ends = np.unique([*kinks, *(middle + distances), *(middle - distances)])
    points, weights = np.polynomial.legendre.leggauss(12)
    half = np.diff(ends)[:, None] / 2
    centre = (ends[:-1] + ends[1:])[:, None] / 2
    return (centre + half * points).ravel(), (half * weights).ravel()
