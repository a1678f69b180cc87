"""True ε of noise that is added to numbers."""

import math

import numpy as np
from scipy import special, stats

from tests.jobs.truths import loss

GRID = np.linspace(-30, 30, 24_001)
DELTA = 1e-5


def laplace(scale: float) -> float:
    noise = stats.laplace(scale=scale)
    return loss.of_logs(noise.logpdf(GRID), noise.logpdf(GRID - 1))


def truncated_geometric() -> float:
    """A geometric count with ratio 9/8, of which all mass beyond 0 and 5 falls on these."""
    far = np.arange(-2000, 2006)

    def probabilities(count: int) -> np.ndarray:
        weights = (8 / 9) ** np.abs(far - count)
        return np.bincount(np.clip(far, 0, 5), weights / weights.sum())

    other = (probabilities(0), probabilities(2))
    return max(loss.of_probabilities(probabilities(1), p) for p in other)


def staircase() -> float:
    inner = 1 / (1 + math.exp(0.5))

    def log_density(y: np.ndarray) -> np.ndarray:
        step, place = np.divmod(np.abs(y), 1)
        return -step - (place >= inner)

    middles = (np.arange(-9000, 9000) + 0.5) / 1000
    return loss.of_logs(log_density(middles), log_density(middles - 1))


def rounded() -> float:
    edges = np.arange(-40, 40, 0.25) + 0.125
    edges = np.concatenate([[-np.inf], edges, [np.inf]])
    p, q = (np.diff(stats.laplace(loc).cdf(edges)) for loc in (0, 1))
    near = np.minimum(p, q) > 1e-9
    return loss.of_logs(np.log(p[near]), np.log(q[near]))


def clamped() -> float:
    inside = np.linspace(0, 1, 1001)
    logs = []
    for noise in (stats.laplace(0), stats.laplace(1)):
        ends = [noise.logcdf(0), noise.logsf(1)]
        logs.append(np.concatenate([ends, noise.logpdf(inside)]))
    return loss.of_logs(*logs)


def subsampled(rate: float) -> float:
    out, shifted = stats.laplace.logpdf(GRID), stats.laplace.logpdf(GRID - 1)
    mixture = special.logsumexp([out, shifted], axis=0, b=[[1 - rate], [rate]])
    return loss.of_logs(mixture, out)


def discrete_gaussian() -> float:
    integers = np.arange(-40, 42)

    def probabilities(count: int) -> np.ndarray:
        noise = integers - count
        weights = np.exp(-(noise**2) / 8.0) * (np.abs(noise) <= 40)
        return weights / weights.sum()

    return loss.of_probabilities(probabilities(0), probabilities(1), DELTA)


def few_bits() -> float:
    uniform = (np.arange(4096) + 0.5) / 4096
    noise = np.concatenate([np.log(uniform), -np.log(uniform)])
    outputs, index = np.unique(np.concatenate([noise, 1 + noise]), return_inverse=True)
    p, q = (np.bincount(part, minlength=len(outputs)) / 8192 for part in np.split(index, 2))
    return loss.of_probabilities(p, q)


TRUTHS = {
    "Laplace": lambda: laplace(10.0),
    "LaplaceParallel": lambda: 20 * laplace(200.0),
    "TruncatedGeometric": truncated_geometric,
    "discrete Laplace": lambda: loss.of_logs(
        stats.dlaplace.logpmf(np.arange(-30, 30), 1.0),
        stats.dlaplace.logpmf(np.arange(-31, 29), 1.0),
    ),
    "staircase": staircase,
    "rounded Laplace": rounded,
    "clamped Laplace": clamped,
    "subsampled Laplace": lambda: subsampled(0.3),
    "Gaussian": lambda: loss.of_gaussian(1 / 3.730632, DELTA),
    "classical Gaussian": lambda: loss.of_gaussian(1 / math.sqrt(2 * math.log(1.25e5)), DELTA),
    "discrete Gaussian": discrete_gaussian,
    "Laplace of half the scale": lambda: laplace(0.5),
    "Laplace of 12 bits": few_bits,
    "not subsampled": lambda: laplace(1.0),
    "Gaussian of half the noise": lambda: loss.of_gaussian(2 / 3.730632, DELTA),
}
