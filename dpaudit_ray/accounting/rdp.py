"""Rényi differential privacy of the Poisson-sampled Gaussian mechanism, by Opacus.

Mironov 2017; Mironov, Talwar, Zhang 2019 for sampling. ε follows from the best of many orders.
"""

import functools
import math

import numpy as np
from numpy.typing import ArrayLike

from ..stats.error_rates import Floats, as_floats
from .accountant import Accountant
from .training import Adjacency, Training

# The orders that Opacus searches, so that its users find their numbers again.
ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(12, 64))


class Rdp(Accountant):
    """Rényi divergences: loose bounds, from above only, but without a grid that could fail."""

    name = "rdp"

    def epsilon(self, training: Training, delta: float) -> float:
        return to_epsilon(_training_divergences(training), ORDERS, delta)[0]

    def delta(self, training: Training, epsilon: float) -> float:
        """Returns δ at ε, by the theorem of `to_epsilon`, solved for δ."""
        alphas = np.array(ORDERS)
        excess = _training_divergences(training) - epsilon + np.log1p(-1 / alphas)
        log_deltas = (alphas - 1) * excess - np.log(alphas)
        return math.exp(min(float(log_deltas.min()), 0.0))

    def composed(
        self,
        events: tuple[Training, ...],
        delta: float,
    ) -> float:
        """Returns ε of all events together: divergences of one order add up."""
        divergences_of_events = [_training_divergences(part) for part in events]
        total = np.sum(divergences_of_events, axis=0)
        return to_epsilon(total, ORDERS, delta)[0]


def divergences(
    noise_multiplier: float, steps: int, sample_rate: float, orders: ArrayLike = ORDERS
) -> Floats:
    """Computes the Rényi divergence of all steps at each order, float64 [len(orders)].

    Args:
        noise_multiplier: deviation of the noise over the largest change of a sum by one record.
        steps: number of noisy sums.
        sample_rate: probability that a record takes part in a step.
        orders: Rényi orders, above 1.
    """
    alphas = np.atleast_1d(as_floats(orders))
    if not np.all(alphas > 1):
        raise ValueError(f"orders must exceed 1, got {orders!r}")
    if sample_rate == 1:
        return steps * alphas / (2 * noise_multiplier**2)
    from opacus.accountants.analysis.rdp import compute_rdp

    divergence = compute_rdp(
        q=sample_rate, noise_multiplier=noise_multiplier, steps=steps, orders=alphas.tolist()
    )
    return as_floats(divergence)


def to_epsilon(
    rdp: ArrayLike,
    orders: ArrayLike,
    delta: float,
) -> tuple[float, float]:
    """Converts divergences to (ε, best order) at δ; Balle et al. 2020, Theorem 21.

    ε is the least over orders α of divergence(α) + ln(1 - 1/α) - ln(δ α) / (α - 1).

    Args:
        rdp: Rényi divergence at each order, [n].
        orders: Rényi orders, above 1, [n].
        delta: δ, in (0, 1).
    """
    alphas = as_floats(orders)
    converted = np.asarray(rdp) + np.log1p(-1 / alphas)
    bounds = converted - np.log(delta * alphas) / (alphas - 1)
    best = int(np.argmin(bounds))
    return max(float(bounds[best]), 0.0), float(alphas[best])


def quick_epsilon(
    noise_multiplier: float,
    steps: int,
    sample_rate: float,
    delta: float,
) -> float:
    """Computes ε of `Rdp` ten times faster: by integer orders, then by all orders near the best.

    This is enough, since ε has a single minimum over orders.

    Args:
        noise_multiplier: deviation of the noise over the largest change of a sum by one record.
        steps: number of noisy sums.
        sample_rate: probability that a record takes part in a step.
        delta: δ, in (0, 1).
    """

    def best(orders: list[float]) -> tuple[float, float]:
        """Returns (ε, order) by the best of these orders."""
        rdp = divergences(noise_multiplier, steps, sample_rate, orders)
        return to_epsilon(rdp, orders, delta)

    _, best_integer = best([order for order in ORDERS if order % 1 == 0])
    # All tenths up to the next integers on either side, with a margin for rounding.
    near = [order for order in ORDERS if abs(order - best_integer) < 1.15]
    return best(near)[0]


def _training_divergences(training: Training) -> Floats:
    """Returns the divergences of all steps at each of `ORDERS`, float64 [orders]."""
    rate = training.sample_rate
    if rate == 1:
        return divergences(training.unit_noise, training.steps, 1)
    if training.adjacency is Adjacency.REPLACE:
        raise ValueError(f"rdp handles replacement only at sample_rate 1, got {rate}; use pld")
    return training.steps * _step_divergences(training.unit_noise, rate)


@functools.lru_cache
def _step_divergences(noise_multiplier: float, sample_rate: float) -> Floats:
    """Returns the divergences of one sampled step, which take half a second; read-only."""
    result = divergences(noise_multiplier, 1, sample_rate)
    result.setflags(write=False)
    return result
