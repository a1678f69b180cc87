"""Rényi differential privacy of the Poisson-sampled Gaussian mechanism (Mironov et al. 2019).

At order α > 1, the divergence of q N(1, σ²) + (1 - q) N(0, σ²) from N(0, σ²) is

    log A(α) / (α - 1),   A(α) = E over x ~ N(0, σ²) of (1 - q + q exp((2 x - 1) / 2 σ²))^α.

The expectation is a trapezoidal sum in logarithms, which for such integrands converges beyond
double precision once the grid resolves σ; it serves fractional and whole orders alike.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy import special

from .training import Adjacency, Training

# The orders that Opacus searches, so that its users find their numbers again.
ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(12, 64))
_TAIL = 12.0  # standard deviations kept on either side of the integrand


def divergences(
    noise_multiplier: float, steps: int, sample_rate: float, orders: npt.ArrayLike = ORDERS
) -> npt.NDArray[np.float64]:
    """RDP of `steps` steps at each order, float64 [len(orders)]; `noise_multiplier` > 0.

    Raises:
        ValueError: an order of 1 or less.
    """
    alphas = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    if not np.all(alphas > 1):
        raise ValueError(f"orders must exceed 1, got {orders!r}")
    if sample_rate == 1:
        return np.asarray(steps * alphas / (2 * noise_multiplier**2))
    per_step = [_log_moment(a, noise_multiplier, sample_rate) / (a - 1) for a in alphas]
    return steps * np.array(per_step)


def epsilon(training: Training, delta: float) -> tuple[float, float, float]:
    """(0, ε, ε): RDP bounds from above only. Balle et al. 2020, Theorem 21."""
    alphas, rdp = np.array(ORDERS), _of(training)
    bounds = rdp + np.log1p(-1 / alphas) - np.log(delta * alphas) / (alphas - 1)
    best = max(float(bounds.min()), 0.0)
    return 0.0, best, best


def delta(training: Training, epsilon: float) -> tuple[float, float, float]:
    """(0, δ, δ), from the same theorem solved for δ."""
    alphas, rdp = np.array(ORDERS), _of(training)
    logs = (alphas - 1) * (rdp - epsilon + np.log1p(-1 / alphas)) - np.log(alphas)
    best = math.exp(min(float(logs.min()), 0.0))
    return 0.0, best, best


def _of(training: Training) -> npt.NDArray[np.float64]:
    if training.sample_rate < 1 and training.adjacency is Adjacency.REPLACE:
        raise ValueError(
            f"rdp handles replacement only at sample_rate 1, got {training.sample_rate}; use pld"
        )
    return divergences(training.unit_noise, training.steps, training.sample_rate)


def _log_moment(order: float, sigma: float, rate: float) -> float:
    """log A(order). The mass sits between 0 and `order`; the step also resolves σ² (the kink)."""
    step = min(sigma / 4, sigma**2 / 2)
    x = np.arange(-_TAIL * sigma, order + _TAIL * sigma + step, step)
    ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * x - 1) / (2 * sigma**2))
    log_density = -(x**2) / (2 * sigma**2) - math.log(sigma * math.sqrt(2 * math.pi))
    return float(special.logsumexp(order * ratio + log_density)) + math.log(step)
