"""The claim test: do these trials contradict an accountant's curve, whatever the mechanism is?

A claim is a curve δ(ε); every point of it bounds the payoff of a guess with abstention
(`wagers`). Wealth is spread over the points, so no trade-off curve is assumed for the true
mechanism, and with it over thresholds and stakes. Reaching 1/alpha refutes the claim, at any
look. Along a family of claims the refuted ones have an end: with the noise multiplier as
parameter, "this run is as private as noise σ at best".
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from scipy import optimize, special

from . import gdp
from .base import Estimate, Estimator, Members, Scores, Status
from .binomial import check_alpha
from .wagers import Wagers

Floats = npt.NDArray[np.float64]

# Gaussian worlds μ apart have likelihood ratio e^(μ c) at distance c from their midpoint, so
# these are the points of a claim that a threshold at distance c speaks about.
_DISTANCES = np.array([0.0, 0.3, 0.6, 1.0, 1.5, 2.0, 2.6, 3.2])
_PLAIN = 0.5  # weight of plain guessing, which is the best single test of Gaussian claims


@dataclasses.dataclass(frozen=True)
class Curve:
    """Points (ε_j, δ_j) of a claim, float64 [n] each: the mechanism is said to be all of them.

    Include ε = 0 (the best guessing accuracy); points whose δ is tiny add little.

    Raises:
        ValueError: lengths that differ, an ε below 0 or a δ outside [0, 1].
    """

    epsilons: Floats
    deltas: Floats

    def __post_init__(self) -> None:
        e, d = (np.atleast_1d(np.asarray(x, np.float64)) for x in (self.epsilons, self.deltas))
        if e.ndim != 1 or e.shape != d.shape or len(e) == 0:
            raise ValueError(
                f"epsilons and deltas must be two 1-D arrays of one length, "
                f"got shapes {e.shape} and {d.shape}"
            )
        if not np.all((e >= 0) & np.isfinite(e)):
            raise ValueError(f"epsilons must be finite and at least 0, got {self.epsilons!r}")
        if not np.all((d >= 0) & (d <= 1)):
            raise ValueError(f"deltas must lie in [0, 1], got {self.deltas!r}")
        object.__setattr__(self, "epsilons", e)
        object.__setattr__(self, "deltas", d)


@dataclasses.dataclass
class Claim(Estimator):
    """Evidence against claims, gathered while trials arrive.

    As an estimator it reports the largest refuted μ of the Gaussian family; `evidence` and
    `refuted_parameter` take any accountant's curves.
    """

    name: ClassVar[str] = "claim"
    status: ClassVar[Status] = Status.IF_GAUSSIAN
    interim_valid: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._wagers = Wagers()

    def _fold(self, scores: Scores, members: Members) -> None:
        self._wagers.fold(scores, members)

    @property
    def trials(self) -> int:
        """Trials folded so far."""
        return self._wagers.trials

    def evidence(self, curve: Curve) -> float:
        """Natural logarithm of the wealth against `curve`: refuted at level alpha from ln(1/alpha).

        The logarithm of an e-value: e-values of several audits may be averaged, and one that is
        looked at often needs no correction.
        """
        wealth = self._wagers.log_wealth(curve.epsilons, curve.deltas)
        mixture = float(special.logsumexp(wealth)) - math.log(wealth.size)
        plain = curve.epsilons == 0
        if not plain.any():
            return mixture
        guesses = wealth[plain, 2, 0]
        best = float(special.logsumexp(guesses)) - math.log(guesses.size)
        return float(np.logaddexp(math.log(_PLAIN) + best, math.log1p(-_PLAIN) + mixture))

    def refutes(self, curve: Curve, confidence: float) -> bool:
        """Whether the trials so far refute `curve`; wrong with probability 1 - confidence, ever.

        Raises:
            ValueError: confidence outside (0, 1).
        """
        check_alpha(1 - confidence)
        return self.evidence(curve) >= -math.log(1 - confidence)

    def refuted_parameter(
        self, family: Callable[[float], Curve], low: float, high: float, confidence: float
    ) -> float:
        """Where refutation ends along `family`, for a parameter that grows with privacy loss.

        Args:
            family: the claim for each parameter; larger parameters claim less.
            low: smallest parameter of interest, returned when not even that is refuted.
            high: largest one, returned when all are refuted.
            confidence: level at which everything up to the result is refuted together.

        Raises:
            ValueError: low above high, or confidence outside (0, 1).
        """
        check_alpha(1 - confidence)
        if not low < high:
            raise ValueError(f"low must lie below high, got {low} and {high}")
        target = -math.log(1 - confidence)

        def excess(parameter: float) -> float:
            return self.evidence(family(parameter)) - target

        if excess(low) < 0:
            return low
        if excess(high) >= 0:
            return high
        return float(optimize.brentq(excess, low, high, xtol=1e-9, rtol=1e-5))

    def effective_noise(
        self, family: Callable[[float], Curve], low: float, high: float, confidence: float
    ) -> float:
        """The run is no more private than this noise multiplier; `high` when nothing is refuted.

        Arguments as for `refuted_parameter`, but `family` maps noise multipliers to claims, and
        all claims above the result are refuted together. Needs a few dozen curves.

        Raises:
            ValueError: low not positive or above high, or confidence outside (0, 1).
        """
        if not low > 0:
            raise ValueError(f"low must be positive, got {low}")
        return 1 / self.refuted_parameter(
            lambda inverse: family(1 / inverse), 1 / high, 1 / low, confidence
        )

    def bound(self, delta: float, confidence: float) -> Estimate:
        wagers, level = self._wagers, (delta, confidence)
        mu = self.refuted_parameter(gaussian, 0.0, 40.0, confidence)
        return self._estimate(float(gdp.epsilon(mu, delta)), mu, level, wagers.trials)


def gaussian(mu: float) -> Curve:
    """The claim "μ-GDP", at the points that a few thousand trials can speak about."""
    epsilons = mu * _DISTANCES
    return Curve(epsilons, np.asarray(gdp.delta(epsilons, mu)))
