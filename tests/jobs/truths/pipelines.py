"""True ε of sums, counts and means."""

import math
from collections.abc import Callable

import numpy as np
from scipy import special, stats

from dpaudit_ray.mechanisms.release import pairs
from tests.jobs.truths import loss

GRID = np.linspace(-40, 40, 8001)


def log_laplace(y: np.ndarray, middle: float, scale: float) -> np.ndarray:
    """Log density, far out too, where the density itself is 0 in floating point."""
    return -np.abs(y - middle) / scale - math.log(2 * scale)


def shifted(change: float) -> float:
    return loss.of_logs(stats.laplace.logpdf(GRID), stats.laplace.logpdf(GRID - change))


def sums_of_neighbours(missing_is_zero: bool) -> float:
    """The largest loss for a table and all neighbours that the audit generates."""
    records = np.array([0.0, 0.25, 0.5, 1.0])
    losses = []
    for _, neighbour in pairs._neighbours(records, ("add", "remove")):
        totals = []
        for table in neighbour:
            values = np.where(np.isnan(table), 0.0, table) if missing_is_zero else table
            totals.append(float(np.minimum(np.maximum(values, 0), 1).sum()))
        is_number = [not math.isnan(total) for total in totals]
        losses.append(shifted(totals[1] - totals[0]) if all(is_number) else math.inf)
    return max(losses)


def scaled(first: tuple[float, float], second: tuple[float, float]) -> float:
    """Laplace noise of two scales: the ratio grows without end; without noise there is none."""
    far = []
    for reach in (1e2, 1e3):
        y = np.array([-reach, reach])
        logs = [log_laplace(y, *world) for world in (first, second) if world[1] > 0]
        far.append(loss.of_logs(*logs) if len(logs) == 2 else math.inf)
    return math.inf if far[1] > 5 * far[0] or math.isinf(far[0]) else far[1]


def mean_of_noisy_size() -> float:
    """The density of the quotient, by an integral over the noisy count; a count below 1 is 1."""
    values = np.concatenate([GRID, [-1e8, -1e4, 1e4, 1e8]])

    def log_density(total: float, count: float) -> np.ndarray:
        m, weights = loss.quadrature([count], 400.0)
        above = m > 1
        m, weights = m[above], weights[above]
        log_count = stats.laplace.logpdf(m, count, 2) + np.log(weights) + np.log(m)
        log_numerator = log_laplace(np.multiply.outer(values, m), total, 2)
        of_quotients = special.logsumexp(log_numerator + log_count, axis=1)
        of_one = stats.laplace.logcdf(1, count, 2) + log_laplace(values, total, 2)
        return np.logaddexp(of_quotients, of_one)

    return loss.of_logs(log_density(0.0, 3.0), log_density(1.0, 4.0))


TRUTHS: dict[str, Callable[[], float]] = {
    "count": lambda: shifted(1.0),
    "sum": lambda: sums_of_neighbours(missing_is_zero=True),
    "mean of noisy size": mean_of_noisy_size,
    "sum with missing values": lambda: sums_of_neighbours(missing_is_zero=False),
    "sum of raw values": lambda: shifted(3.0),
    "count and sum": lambda: 2 * shifted(1.0),
    "sum of two records each": lambda: shifted(2.0),
    "classes from data": lambda: loss.of_probabilities([1.0, 0.0], [0.0, 1.0]),  # their number
    "noise scale from data": lambda: scaled((0.0, 0.0), (1.0, 1.0)),
    "mean of known size": lambda: scaled((0.0, 1 / 3), (1 / 4, 1 / 4)),
}
