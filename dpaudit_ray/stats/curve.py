"""Claims as curves δ(ε), and the mechanism that leaks the most under one: a mix of coins.

A symmetric claim is a mixture of randomised responses. Write x = e^ε: δ is convex in x, and along
straight lines between its points the claim is exactly what a mechanism allows that first draws,
openly, how sure its answer will be, then tells the secret bit with that odds ratio (Kairouz, Oh,
Viswanath 2015 for one point; Dong, Roth, Su 2022, Theorem 3.2 for a curve). Every mechanism that
keeps the claim can be computed from that one's answer.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
from scipy import special

from . import gdp
from .error_rates import Floats, nonnegative

_POINTS = 40  # of a Gaussian claim; more moves no bound in its third digit
_LARGEST = 700.0  # e^ε is a number; points beyond say nothing about trials
# Beyond the last quantile of a grid, where few trials land but each says much.
_TAIL = (2.0, 6.0, 30.0, 200.0)


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """Points (ε_j, δ_j) of a claim, float64 [n] each: the mechanism is said to be all of them.

    Include ε = 0 (the best guessing accuracy). Curves of the same points are equal and hash alike.
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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Curve) and self._points == other._points

    def __hash__(self) -> int:
        return hash(self._points)

    @property
    def _points(self) -> tuple[bytes, bytes]:
        return self.epsilons.tobytes(), self.deltas.tobytes()

    def thinned(self, points: int) -> Curve:
        """At most so many of its points, evenly over ε from the smallest on: a weaker claim."""
        if len(self.epsilons) <= points:
            return self
        wanted = np.linspace(self.epsilons.min(), self.epsilons.max(), points)
        kept = np.unique(np.abs(self.epsilons[:, None] - wanted).argmin(axis=0))
        return Curve(self.epsilons[kept], self.deltas[kept])

    def true_positive_rate(self, fpr: npt.ArrayLike) -> Floats:
        """The ROC curve: no test hits more often at these false-positive rates, [n] in [0, 1]."""
        a = np.atleast_1d(np.asarray(fpr, dtype=np.float64))[:, None]
        growth = np.exp(np.minimum(self.epsilons, _LARGEST))
        steep = growth * a + self.deltas
        flat = 1 - (1 - self.deltas - a) / growth  # the same line with both errors exchanged
        return np.asarray(np.clip(np.minimum(steep, flat).min(axis=1), 0.0, 1.0))


@dataclasses.dataclass(frozen=True)
class Responses:
    """Randomised responses from the surest to the least sure, float64 [n] each.

    A trial answers with `shares[j]` at log odds `log_odds[j]`, wrongly with probability
    `mistakes[j]` = 1 / (1 + e^log_odds). The first entry tells the bit outright: its share is the
    δ that the claim leaves at any ε.
    """

    log_odds: Floats
    shares: Floats
    mistakes: Floats

    @classmethod
    def from_curve(cls, curve: Curve) -> Responses:
        """The mechanism that leaks the most under `curve`.

        Slopes of δ(x) at the points give the shares, from the surest answer down; what is
        left goes to the last level that it reaches, ε = 0 at the latest.
        """
        e, d = _hull(curve)
        x = np.exp(e)
        wrong = np.append((d[:-1] - d[1:]) / (x[1:] - x[:-1]), 0.0)  # wrong answers above a level
        shares = np.zeros(len(e))
        rest = 1 - d[-1]
        for level in range(len(e) - 1, 0, -1):
            share = (wrong[level - 1] - wrong[level]) * (1 + x[level])
            shares[level] = min(max(share, 0.0), rest)
            rest -= shares[level]
        shares[0] = rest
        return cls(
            log_odds=np.concatenate([e[-1:], e[::-1]]),
            shares=np.concatenate([[d[-1]], shares[::-1]]),
            mistakes=np.concatenate([[0.0], special.expit(-e[::-1])]),
        )

    @property
    def one_sided(self) -> Responses:
        """The same answers, each judged as a guess of "in": surest "in" first, [2 n] each."""
        return Responses(
            log_odds=np.concatenate([self.log_odds, -self.log_odds[::-1]]),
            shares=np.concatenate([self.shares, self.shares[::-1]]) / 2,
            mistakes=np.concatenate([self.mistakes, 1 - self.mistakes[::-1]]),
        )

    def cumulated(self, values: Floats) -> tuple[Floats, Floats]:
        """Shares of the trials down to each level, and sums of `values` over them; [n + 1] each."""
        sums = (np.cumsum(self.shares), np.cumsum(self.shares * values))
        return np.concatenate([[0.0], sums[0]]), np.concatenate([[0.0], sums[1]])

    def mean_log_odds(self, low: npt.ArrayLike, high: npt.ArrayLike) -> Floats:
        """Mean log odds between two shares of the trials, counted from the surest; [n] each."""
        edges, total = self.cumulated(self.log_odds)
        a, b = np.asarray(low, np.float64), np.asarray(high, np.float64)
        return np.asarray((np.interp(b, edges, total) - np.interp(a, edges, total)) / (b - a))


def gaussian(mu: float) -> Curve:
    """The claim "μ-GDP", at points of which half are where trials fall, half where mistakes do."""
    nonnegative("mu", mu)
    if mu in (0, np.inf):  # which claims that nothing leaks, or nothing
        return Curve(np.zeros(1), np.full(1, mu > 0, np.float64))
    # Worlds at ±μ/2 have log odds μ x at distance x from their midpoint.
    x = np.linspace(0.0, mu / 2 + 8.0, 2000)
    fall = special.ndtr(x - mu / 2) - special.ndtr(-x - mu / 2)
    errors = np.cumsum(np.gradient(fall) * special.expit(-mu * x))
    both = (fall + errors / errors[-1]) / 2 if errors[-1] > 0 else fall
    steps = np.arange(1, _POINTS) / _POINTS
    tail = 1 - 1 / (np.array(_TAIL) * _POINTS)
    epsilons = mu * np.concatenate([[0.0], np.interp(np.concatenate([steps, tail]), both, x)])
    return Curve(epsilons, np.asarray(gdp.delta(epsilons, mu)))


def _hull(curve: Curve) -> tuple[Floats, Floats]:
    """The points of the largest convex δ(x) below the curve's, by rising ε from 0 (δ = 1) on."""
    order = np.lexsort((curve.deltas, curve.epsilons))
    e, first = np.unique(curve.epsilons[order], return_index=True)
    d = np.minimum.accumulate(curve.deltas[order][first])
    if e[0] > 0:
        e, d = np.concatenate([[0.0], e]), np.concatenate([[1.0], d])
    e, d = e[e <= _LARGEST], d[e <= _LARGEST]
    x = np.exp(e)
    kept: list[int] = []
    for i in range(len(x)):
        while len(kept) > 1:
            a, b = kept[-2], kept[-1]
            if (d[b] - d[a]) * (x[i] - x[a]) < (d[i] - d[a]) * (x[b] - x[a]):
                break
            kept.pop()
        kept.append(i)
    return e[kept], d[kept]
