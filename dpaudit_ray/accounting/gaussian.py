"""Exact accounting when every step sees every record: the training is √steps / σ -GDP."""

from __future__ import annotations

import math

from ..stats import gdp
from .accountant import Accountant, Ends
from .training import Training


def mu(training: Training) -> float:
    """The GDP parameter of a training without sampling.

    Raises:
        ValueError: sampling, for which no closed form exists.
    """
    if training.sample_rate != 1:
        raise ValueError(
            f"the gaussian accountant is exact at sample_rate 1 only, "
            f"got {training.sample_rate}; use prv, pld or rdp"
        )
    return math.sqrt(training.steps) / training.unit_noise


def epsilon(training: Training, delta: float) -> tuple[float, float, float]:
    """(ε, ε, ε) at δ."""
    value = float(gdp.epsilon(mu(training), delta))
    return value, value, value


def delta(training: Training, epsilon: float) -> tuple[float, float, float]:
    """(δ, δ, δ) at ε."""
    value = float(gdp.delta(epsilon, mu(training)))
    return value, value, value


class Gaussian(Accountant):
    """Exact, for trainings in which every step sees every record."""

    name = "gaussian"

    def epsilon(self, training: Training, delta: float, both_ends: bool) -> Ends:
        """See `Accountant`."""
        return epsilon(training, delta)

    def delta(self, training: Training, epsilon: float, both_ends: bool) -> Ends:
        """See `Accountant`."""
        return delta(training, epsilon)

    def composed(self, events: tuple[Training, ...], delta: float) -> Ends:
        """Squares of μ add up."""
        value = float(gdp.epsilon(math.hypot(*map(mu, events)), delta))
        return value, value, value
