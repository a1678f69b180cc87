"""Claims that people state: (ε, δ), points of a curve, zero-concentrated and Gaussian DP."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import plain
from ..stats import curve as curves
from ..stats import gdp
from ..stats.curve import Curve
from .claim import Claim, check_delta, check_number, check_unit

_LARGEST_LOG = 12.0  # largest |log(α - 1)| in the search for the best Rényi order α


@dataclass(frozen=True)
class EpsilonDelta(Claim):
    """(ε, δ)-DP; pure ε-DP at a δ of 0.

    At a smaller ε' it implies δ' = 1 - (1 - δ) (1 + e^ε') / (1 + e^ε), that of a randomised
    response (Kairouz, Oh, Viswanath 2015).
    """

    key = "epsilon"
    epsilon: float
    delta: float = 0.0
    unit: str = "record"

    def __post_init__(self) -> None:
        """Checks the fields. Raises ValueError."""
        check_number("epsilon", self.epsilon, open_end=False)
        check_delta("delta", self.delta)
        check_unit(self.unit)

    def delta_at(self, epsilon: float) -> float:
        """Returns δ at ε, by the formula of the class below the stated ε."""
        if epsilon >= self.epsilon:
            return self.delta
        log_ratio = np.logaddexp(0.0, epsilon) - np.logaddexp(0.0, self.epsilon)
        return 1 - (1 - self.delta) * math.exp(log_ratio)

    def epsilon_at(self, delta: float) -> float:
        """Returns the ε that this implies at δ: the formula of the class, solved for ε'.

        It is infinite at a δ below the stated one, and 0 at a δ so large that the claim allows it
        at any ε.
        """
        if delta <= self.delta:
            return self.epsilon if delta == self.delta else math.inf
        if delta >= self.delta_at(0.0):
            return 0.0
        log_ratio = math.log1p(-delta) - math.log1p(-self.delta)  # log((1 - δ') / (1 - δ))
        log_sum = log_ratio + np.logaddexp(0.0, self.epsilon)  # log(1 + e^ε')
        return float(np.log(np.expm1(log_sum)))

    @property
    def curve(self) -> Curve:
        return self.at(np.array([0.0, self.epsilon]))

    def weakened(self, noise: float) -> Claim:
        return replace(self, epsilon=self.epsilon / noise)

    @property
    def words(self) -> str:
        at = f" at δ = {plain(self.delta, '.3g')}" if self.delta else ""
        return f"ε = {plain(self.epsilon, '.4g')}{at}"


@dataclass(frozen=True)
class Points(Claim):
    """Several (ε, δ), all of which are claimed."""

    key = "points"
    points: Sequence[Sequence[float]]  # pairs of ε and δ
    unit: str = "record"

    def __post_init__(self) -> None:
        """Checks the points, and makes pairs of them. Raises ValueError."""
        if not isinstance(self.points, list | tuple) or not self.points:
            raise ValueError(f"points must be a list of [ε, δ], got {self.points!r}")
        pairs = tuple(map(_pair, self.points))
        object.__setattr__(self, "points", pairs)
        check_unit(self.unit)

    @property
    def _parts(self) -> list[EpsilonDelta]:
        return [EpsilonDelta(epsilon, delta) for epsilon, delta in self.points]

    def delta_at(self, epsilon: float) -> float:
        deltas = [part.delta_at(epsilon) for part in self._parts]
        return min(deltas)

    def epsilon_at(self, delta: float) -> float:
        epsilons = [part.epsilon_at(delta) for part in self._parts]
        return min(epsilons)

    @property
    def curve(self) -> Curve:
        epsilons = [epsilon for epsilon, _ in self.points]
        return self.at(np.unique([0.0, *epsilons]))

    def weakened(self, noise: float) -> Claim:
        points = [(epsilon / noise, delta) for epsilon, delta in self.points]
        return replace(self, points=points)

    @property
    def words(self) -> str:
        return " and ".join(part.words for part in self._parts)


def _pair(point: Any) -> tuple[float, float]:
    """Returns a point as (ε, δ). Raises ValueError unless it is a valid claim."""
    if not isinstance(point, list | tuple) or len(point) != 2:
        raise ValueError(f"points must be a list of [ε, δ], got {point!r} in it")
    part = EpsilonDelta(*point)
    return part.epsilon, part.delta


@dataclass(frozen=True)
class ZeroConcentrated(Claim):
    """ρ-zCDP, by the best Rényi order at each ε (Canonne, Kamath, Steinke 2020, Corollary 13)."""

    key = "rho"
    rho: float
    unit: str = "record"

    def __post_init__(self) -> None:
        check_number("rho", self.rho)
        check_unit(self.unit)

    @property
    def worst_is_gaussian(self) -> bool:
        return True

    def delta_at(self, epsilon: float) -> float:
        """Returns δ at ε, at most what the divergence of order 1, which is ρ, allows at ε = 0.

        That is the smaller of Pinsker's bound and the bound by Bretagnolle and Huber.
        """
        # Its import takes as long as that of this entire package.
        from scipy.optimize import minimize_scalar

        def log_delta(log_order_minus_1: float) -> float:
            """Returns log δ by the Rényi order α, from log(α - 1).

            δ = exp((α - 1) (α ρ - ε)) / (α - 1) · ((α - 1) / α)^α, so
            log δ = (α - 1) (α ρ - ε) - log(α - 1) + α log((α - 1) / α).
            """
            order_minus_1 = math.exp(log_order_minus_1)
            order = 1 + order_minus_1  # α
            log_moment = order_minus_1 * (order * self.rho - epsilon)
            log_ratio = log_order_minus_1 - math.log1p(order_minus_1)  # log((α - 1) / α)
            return log_moment - log_order_minus_1 + order * log_ratio

        ends = (-_LARGEST_LOG, _LARGEST_LOG)
        best = minimize_scalar(log_delta, bounds=ends, method="bounded", options={"xatol": 1e-9})
        by_pinsker = math.sqrt(self.rho / 2)
        by_bretagnolle = math.sqrt(-math.expm1(-self.rho))
        by_order = math.exp(min(float(best.fun), 0.0))
        return min(by_order, by_pinsker, by_bretagnolle)

    def weakened(self, noise: float) -> Claim:
        return replace(self, rho=self.rho / noise**2)

    @property
    def words(self) -> str:
        return f"ρ = {plain(self.rho, '.4g')}"


@dataclass(frozen=True)
class GaussianDp(Claim):
    """μ-Gaussian DP (Dong, Roth, Su 2022)."""

    key = "mu"
    mu: float
    unit: str = "record"

    def __post_init__(self) -> None:
        check_number("mu", self.mu)
        check_unit(self.unit)

    @property
    def gaussian(self) -> bool:
        return True

    def delta_at(self, epsilon: float) -> float:
        return float(gdp.delta(epsilon, self.mu))

    def epsilon_at(self, delta: float) -> float:
        return float(gdp.epsilon(self.mu, delta)) if delta else math.inf

    @property
    def curve(self) -> Curve:
        return curves.gaussian(self.mu)

    def weakened(self, noise: float) -> Claim:
        return replace(self, mu=self.mu / noise)

    @property
    def words(self) -> str:
        return f"μ = {plain(self.mu, '.4g')}"
