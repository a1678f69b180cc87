"""Claims as curves δ(ε), and the mechanism that leaks most under such a claim.

A symmetric claim is a mixture of randomised responses. Write x = e^ε: δ is convex in x. If it is
taken as straight between the points of the claim, it is exactly the claim of this mechanism: it
draws, openly, how sure its answer will be, and then gives the secret bit with that odds ratio
(Kairouz, Oh, Viswanath 2015 for one point; Dong, Roth, Su 2022, Theorem 3.2 for a curve). The
output of every mechanism under the claim can be computed from that answer.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, ndtr

from . import gdp
from .error_rates import Floats, as_floats, nonnegative

_POINTS = 40  # points of a Gaussian claim; more points change no bound in its third digit
_LARGEST = 700.0  # largest ε whose e^ε is finite; points beyond bound no trial
# Points beyond the last quantile of a grid, where trials are few but nearly sure: their upper tails
# are the width of the grid, divided by these.
_TAIL = (2.0, 6.0, 30.0, 200.0)


@dataclass(frozen=True, eq=False)
class Curve:
    """Points (ε_j, δ_j) of a claim, float64 [n] each, all of which are claimed.

    Include ε = 0, where δ limits the accuracy of guesses. Curves of the same points are equal and
    have the same hash.
    """

    epsilons: Floats
    deltas: Floats

    def __post_init__(self) -> None:
        """Checks the points, and makes arrays of them."""
        e = np.atleast_1d(as_floats(self.epsilons))
        d = np.atleast_1d(as_floats(self.deltas))
        are_alike = e.ndim == 1 and e.shape == d.shape
        if not are_alike or len(e) == 0:
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

    def thinned(self, points: int) -> "Curve":
        """Returns at most `points` of its points, evenly spaced in ε: a weaker claim."""
        epsilons = self.epsilons
        if len(epsilons) <= points:
            return self
        targets = np.linspace(epsilons.min(), epsilons.max(), points)
        distances = np.abs(epsilons[:, None] - targets)
        nearest = np.unique(distances.argmin(axis=0))
        return Curve(epsilons[nearest], self.deltas[nearest])

    def true_positive_rate(self, fpr: ArrayLike) -> Floats:
        """Returns the ROC curve: the largest true-positive rates of a test, float64 [n].

        Args:
            fpr: false-positive rates, [n] in [0, 1].
        """
        rates = np.atleast_1d(as_floats(fpr))[:, None]
        growth = np.exp(np.minimum(self.epsilons, _LARGEST))
        steep = growth * rates + self.deltas
        flat = 1 - (1 - self.deltas - rates) / growth  # the same line with both errors exchanged
        largest = np.minimum(steep, flat).min(axis=1)
        return np.asarray(np.clip(largest, 0.0, 1.0))


@dataclass(frozen=True)
class Responses:
    """Randomised responses from the surest to the least sure, float64 [n] each.

    A share `shares[j]` of the trials has an answer with log odds `log_odds[j]`, which is wrong with
    probability `mistakes[j]`. For j > 0 that is 1 / (1 + e^log_odds[j]). Entry 0 reveals the bit:
    it has no mistakes, and its share is the δ that the claim allows at any ε.
    """

    log_odds: Floats
    shares: Floats
    mistakes: Floats

    @classmethod
    def from_curve(cls, curve: Curve) -> "Responses":
        """Builds the mechanism that leaks the most under `curve`.

        A level with log odds ε, drawn with probability s, adds s / (1 + e^ε) to the probability of
        a wrong answer. It also adds a kink to δ(x), x = e^ε, where the slope changes by as much. So
        the slopes between the points give the shares, from the surest answer down. If these use up
        all probability, less sure levels get none; if some remains, it goes to ε = 0.
        """
        e, d = _hull(curve)
        x = np.exp(e)
        falls = d[:-1] - d[1:]
        slopes = falls / np.diff(x)
        wrong = np.append(slopes, 0.0)  # probability of wrong answers that are surer than a level
        shares = np.zeros(len(e))
        remainder = 1 - d[-1]
        for level in range(len(e) - 1, 0, -1):
            wrong_at_level = wrong[level - 1] - wrong[level]
            share = wrong_at_level * (1 + x[level])
            shares[level] = min(max(share, 0.0), remainder)
            remainder -= shares[level]
        shares[0] = remainder
        log_odds = e[::-1]
        return cls(
            log_odds=np.append(e[-1:], log_odds),
            shares=np.append(d[-1:], shares[::-1]),
            mistakes=np.append(0.0, expit(-log_odds)),
        )

    def scores(self, members: NDArray[np.bool_], rng: np.random.Generator) -> Floats:
        """Draws answers as signed log odds, float64 [n]: positive where the answer is "in".

        Args:
            members: the secret bits, bool [n].
            rng: generator of the draws.
        """
        trials = len(members)
        probabilities = self.shares / self.shares.sum()
        entry = rng.choice(len(self.shares), size=trials, p=probabilities)  # of each trial
        is_wrong = rng.random(trials) < self.mistakes[entry]
        sureness = self.log_odds.copy()
        # Entry 0 has the log odds of entry 1, but is never wrong: it must score above all others.
        sureness[0] += 1
        sign = np.where(members ^ is_wrong, 1, -1)
        return sign * sureness[entry]

    @property
    def one_sided(self) -> "Responses":
        """The same answers, all read as guesses of "in", from the surest on, [2 n] each.

        Half of the answers of each level are "in", the others "out". An answer "out" with log odds
        l is read as a guess of "in" with log odds -l. This guess is correct if the answer is wrong.
        """
        return Responses(
            log_odds=np.append(self.log_odds, -self.log_odds[::-1]),
            shares=np.append(self.shares, self.shares[::-1]) / 2,
            mistakes=np.append(self.mistakes, 1 - self.mistakes[::-1]),
        )

    def cumulated(self, values: Floats) -> tuple[Floats, Floats]:
        """Sums shares, and `values` times shares, from the surest level down; float64 [n + 1] each.

        Both begin with 0. `values` are float64 [n], one for each level.
        """
        shares = np.append(0.0, np.cumsum(self.shares))
        totals = np.cumsum(self.shares * values)
        return shares, np.append(0.0, totals)

    def mean_log_odds(self, low: ArrayLike, high: ArrayLike) -> Floats:
        """Returns mean log odds of the trials between two shares of them, float64 [n].

        Args:
            low: share of the trials that are surer, [n].
            high: share of the trials at which the mean ends, above `low`, [n].
        """
        shares, totals = self.cumulated(self.log_odds)
        begin = as_floats(low)
        end = as_floats(high)
        total_to_end = np.interp(end, shares, totals)
        difference = total_to_end - np.interp(begin, shares, totals)
        return np.asarray(difference / (end - begin))


def gaussian(mu: float) -> Curve:
    """Returns the claim "μ-GDP" as `_POINTS` points (ε, δ), and a few more in its tail.

    The points are quantiles of the trials' log odds, of a distribution that weighs trials half by
    their number and half by their expected mistakes.
    """
    nonnegative("mu", mu)
    if mu in (0, np.inf):  # nothing leaks, or nothing is claimed
        return Curve(np.zeros(1), np.full(1, mu > 0, float))
    # Worlds at ±μ/2 have log odds μ x at distance x from their midpoint.
    x = np.linspace(0.0, mu / 2 + 8.0, 2000)
    # Share of the trials within x.
    trials = ndtr(x - mu / 2) - ndtr(-x - mu / 2)
    error_rate = expit(-mu * x)
    errors = np.cumsum(np.gradient(trials) * error_rate)
    share = trials
    if errors[-1] > 0:
        share = (trials + errors / errors[-1]) / 2
    evenly = np.arange(1, _POINTS) / _POINTS
    tail = 1 - 1 / (np.array(_TAIL) * _POINTS)
    quantiles = np.interp(np.append(evenly, tail), share, x)
    epsilons = mu * np.append(0.0, quantiles)
    return Curve(epsilons, np.asarray(gdp.delta(epsilons, mu)))


def _hull(curve: Curve) -> tuple[Floats, Floats]:
    """Returns the corners of the largest convex δ(x), x = e^ε, below the points of a curve.

    They are ε and δ, float64 [n] each, by rising ε from 0 on; if the curve has no point there, its
    δ is 1. A corner is dropped if it lies on or above the line from the one before it to a later
    point.
    """
    order = np.lexsort((curve.deltas, curve.epsilons))
    e, first = np.unique(curve.epsilons[order], return_index=True)
    d = np.minimum.accumulate(curve.deltas[order][first])
    if e[0] > 0:
        e = np.append(0.0, e)
        d = np.append(1.0, d)
    e = e[e <= _LARGEST]
    d = d[: len(e)]
    x = np.exp(e)
    corners: list[int] = []
    for i in range(len(x)):
        while len(corners) > 1:
            a, b = corners[-2:]
            # Slopes from a to b and from a to i, both times the same number: no division by 0.
            rise_to_b = (d[b] - d[a]) * (x[i] - x[a])
            rise_to_i = (d[i] - d[a]) * (x[b] - x[a])
            if rise_to_b < rise_to_i:  # b lies below the line from a to i
                break
            corners.pop()
        corners.append(i)
    return e[corners], d[corners]
