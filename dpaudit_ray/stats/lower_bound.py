"""A lower bound on a privacy loss: its numbers, its status, and the assumptions behind it."""

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol


class Status(StrEnum):
    """Degree to which an ε can be trusted."""

    CERTIFIED = "certified"  # exceeds the truth with probability at most 1 - confidence
    IF_GAUSSIAN = "if-gaussian"  # μ is certified; ε is that of a Gaussian mechanism of this μ
    IF_CLAIMED = "if-claimed-family"  # ε is that of the claimed mechanism with more or less noise
    IF_INDEPENDENT = "if-independent"  # as `if-gaussian`, provided that canaries do not interfere
    IF_ASSUMED = "if-assumed"  # certified if the assumption holds that the estimator `assumes`
    APPROXIMATE = "approximate"  # as certified, in the limit of many trials
    CREDIBLE = "credible"  # a Bayesian posterior quantile
    PAPER = "paper"  # as a paper published it; not valid at its level
    INTERIM = "interim"  # holds after the declared number of trials, which is not reached yet
    EXTENDED = "extended"  # held after a declared number of trials, which was raised after looking

    @property
    def holds(self) -> bool:
        """Whether ε, μ, or ε under an assumption is bounded at the stated confidence."""
        return self is Status.CERTIFIED or self.conditional

    @property
    def conditional(self) -> bool:
        """Whether ε is bounded under an assumption that is not certified."""
        by_curve = (Status.IF_GAUSSIAN, Status.IF_CLAIMED)
        return self in (*by_curve, Status.IF_INDEPENDENT, Status.IF_ASSUMED)

    def assumes(self, mu: float) -> str:
        """Returns the assumption in words.

        Args:
            mu: the bound on μ that ε was converted from; NaN if no μ was used.
        """
        if self is Status.CERTIFIED:
            return "assumption-free" if math.isnan(mu) else "Gaussian steps"
        return _ASSUMES[self]


_ASSUMES = {
    Status.IF_GAUSSIAN: "assumes Gaussian",
    Status.IF_CLAIMED: "assumes claimed family",
    Status.IF_INDEPENDENT: "assumes independence",
    Status.IF_ASSUMED: "own assumption",
    Status.APPROXIMATE: "approximate",
    Status.CREDIBLE: "credible",
    Status.PAPER: "as published",
    Status.INTERIM: "not final",
    Status.EXTENDED: "extended",
}


class TradeOff(StrEnum):
    """Shape of a mechanism's trade-off curve, as far as it is known; audits measure its size."""

    GAUSSIAN = "gaussian"  # that of N(0, 1) against N(μ, 1), for some μ
    CLAIMED = "claimed"  # that of the claimed mechanism, for some noise multiplier
    UNKNOWN = "unknown"


class Family(Protocol):
    """The trade-off curves that a mechanism may have: a curve for each size of its noise."""

    @property
    def trade_off(self) -> TradeOff:
        """Shape that is assumed of a mechanism of this family."""

    def epsilon(self, rate: float, delta: float) -> float:
        """Returns the least ε at δ of a curve of the family that allows a hit rate of `rate`."""


# Status of an ε that was converted through a curve of this shape: certified once that is known.
_CONVERTED_THROUGH = {TradeOff.GAUSSIAN: Status.IF_GAUSSIAN, TradeOff.CLAIMED: Status.IF_CLAIMED}


@dataclass(frozen=True)
class Estimate:
    """A lower bound on the privacy loss.

    Attributes:
        method: name of the estimator.
        status: degree to which the bound can be trusted.
        epsilon_lower: bound on ε at `delta`; 0 if nothing is refuted. It was converted from
            `mu_lower` as if the trade-off curve were Gaussian, or (`if-claimed-family`) from the
            same hit rate as if the curve were one of the claim's family. If `mu_lower` is NaN, it
            assumes no curve.
        mu_lower: bound on the Gaussian-DP parameter: the mechanism is not μ-GDP for any smaller μ,
            whatever its trade-off curve (`if-independent`: if its canaries do not interfere). 0 if
            nothing is refuted; NaN if no μ was used.
        delta: δ of the bound on ε.
        confidence: level of the bounds.
        trials: number of trials that were folded.
        threshold: score from which a trial is guessed "in"; NaN if there is no threshold.
        note: an assumption that the caller did not state; "" for none.
    """

    method: str
    status: Status
    epsilon_lower: float
    mu_lower: float
    delta: float
    confidence: float
    trials: int
    threshold: float = math.nan
    note: str = ""

    def given(self, trade_off: TradeOff, independent: bool = False) -> "Estimate":
        """Returns this bound with a status that drops the assumptions that are known to hold.

        With independent canaries, `if-independent` becomes `if-gaussian`. A bound that assumes a
        curve of shape `trade_off` becomes `certified`.

        Args:
            trade_off: shape of the mechanism's trade-off curve.
            independent: whether each canary's score is known to depend on its own bit only.
        """
        status = self.status
        if independent and status is Status.IF_INDEPENDENT:
            status = Status.IF_GAUSSIAN
        if status is _CONVERTED_THROUGH.get(trade_off):
            status = Status.CERTIFIED
        return replace(self, status=status)

    @property
    def curve_free(self) -> bool:
        """Whether ε is certified whatever the mechanism's trade-off curve is."""
        return self.status is Status.CERTIFIED and math.isnan(self.mu_lower)
