"""Exact accounting if every step uses every record: the training run is √steps / σ -GDP."""

import math

from ..stats import gdp
from .accountant import Accountant
from .training import Training


class Gaussian(Accountant):
    """Dong, Roth, Su 2022, Corollary 3.3: exact, for runs whose steps use every record."""

    name = "gaussian"
    samplings = frozenset()  # it has no proof of amplification: batches count as known

    def epsilon(self, training: Training, delta: float) -> float:
        return float(gdp.epsilon(mu(training), delta))

    def delta(self, training: Training, epsilon: float) -> float:
        return float(gdp.delta(epsilon, mu(training)))

    def composed(
        self,
        events: tuple[Training, ...],
        delta: float,
    ) -> float:
        """Returns ε of all events together, which are Gaussian DP with √Σ μ²."""
        total_mu = math.hypot(*map(mu, events))  # squares of μ add up
        return float(gdp.epsilon(total_mu, delta))


def mu(training: Training) -> float:
    """Returns the GDP parameter of a training run.

    Raises:
        ValueError: the run samples its batches, so that it is not Gaussian.
    """
    rate = training.sample_rate
    if rate != 1:
        rule = "the gaussian accountant is exact at sample_rate 1 only"
        raise ValueError(f"{rule}, got {rate}; use prv, pld or rdp")
    return math.sqrt(training.steps) / training.unit_noise
