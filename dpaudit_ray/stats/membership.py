"""What a membership attack finds: ROC curve, TPR at low FPR, AUC, balanced accuracy, records' risk.

Scores of one training run share its model, so they are dependent. Training runs are independent and
of one law, and all that is bounded is of that law:

* TPR and FPR at a threshold: the expected share of accused ones among all members, or all
  non-members, of many training runs. The TPR at an FPR is that of the lowest threshold whose FPR is
  no higher.
* AUC: the chance that a member of one training run scores above a non-member of another one. It is
  the area under that curve.
* Balanced accuracy: (TPR + 1 - FPR) / 2 in three of four training runs, at the threshold that is
  best in the fourth.

Intervals use no estimated variance. Given how many members each training run has, its hits are
independent and bounded, so the bounds of `share_bounds` hold; with one score from each they are
exact (Clopper, Pearson 1934). The threshold of an FPR is unknown but fixed. A threshold that is
surely too low is lower than it, and one that is surely high enough is not, so that the TPR needs a
bound at this one threshold only; the errors of both bounds add up.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from .base import Members, Scores
from .curve import Curve
from .error_rates import (
    Floats,
    clopper_pearson_lower,
    first_where,
    in_unit,
    root,
)
from .share_bounds import betting_lower, binomial_lower, evidence

RATES = (0.1, 0.01, 0.001)  # FPRs that are reported if enough scores resolve them
_FEWEST = 10  # false positives that an FPR must have, of as many scores as there are: 10 / R
_BAND = 12  # FPRs that share the error of the simultaneous band
_CUTS, _BLOCK = 1001, 2**21  # thresholds that are tried; scores that are ranked at once, 16 MiB
_FITTED = 4  # every so many training runs, a threshold is fitted to one and judged by the others
_ANGLES = np.linspace(0, math.pi / 2, 4)  # at which error is shared between FPR and TPR


@dataclasses.dataclass(frozen=True)
class Interval:
    """A number in [0, 1], with a two-sided interval `low` to `high`."""

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True, eq=False)
class Membership:
    """Rates at which an attack finds members, with intervals.

    Attributes:
        scores: float [runs, records], or [runs] if each training run has one; higher for "in". NaN
            counts as the lowest of all.
        members: the secret bits, bool of the same shape.
        confidence: of each two-sided interval.

    Raises:
        ValueError: other shapes, or no score of one world.
    """

    scores: Scores
    members: Members
    confidence: float = 0.95

    def __post_init__(self) -> None:
        in_unit("confidence", self.confidence)
        scores, bits = np.asarray(self.scores, np.float64), np.asarray(self.members)
        if scores.ndim not in (1, 2) or bits.shape != scores.shape:
            shapes = f"{scores.shape} and {bits.shape}"
            raise ValueError(f"scores and members must be [trainings, records], got {shapes}")
        inside = bits.astype(np.bool_, copy=False)
        if not 0 < inside.sum() < inside.size or not np.array_equal(inside, bits):
            raise ValueError("members must be 0 or 1 (or booleans), and some of each")
        shape = (len(scores), -1)
        object.__setattr__(self, "scores", scores.reshape(shape))
        object.__setattr__(self, "members", inside.reshape(shape))

    @property
    def least_fpr(self) -> float:
        """The least FPR that so many scores resolve: 10 / R."""
        return _FEWEST / self.scores.size

    @property
    def _fitted(self) -> Members:
        return np.asarray(np.arange(len(self.scores)) % _FITTED == 0)

    @functools.cached_property
    def _worlds(self) -> tuple[_World, _World]:
        return _World.of_bits(self.scores, ~self.members), _World.of_bits(self.scores, self.members)

    def true_positive_rate(self, fpr: float, confidence: float | None = None) -> Interval:
        """Computes the TPR at the lowest threshold whose FPR is at most `fpr`.

        Of tied scores at that threshold an attacker may accuse none, or so many that the FPR is
        reached: the interval holds for both.

        Args:
            fpr: in (0, 1), of all non-members of many training runs.
            confidence: of the two-sided interval; that of the class if None.
        """
        in_unit("fpr", fpr)
        alpha = (1 - (self.confidence if confidence is None else confidence)) / 2
        outside, inside = self._worlds
        allowed = math.floor(fpr * outside.n * (1 + 1e-12))
        value = inside.above(outside.falling[allowed], "left") / inside.n
        low, high = value, value
        # What no training run has shown may have a probability of log(1 / level) / runs. It widens
        # upper bounds most, so these get the first level: of the FPR here, of the TPR there.
        for first, second in self._levels(alpha):
            below = outside.most_below(fpr, first)
            accused = 0
            if below >= 0:
                accused = inside.above(outside.falling[below], "left")
            low = min(low, inside.lower(inside.hits(accused), second))

            above = outside.fewest_above(fpr, second)
            accused = inside.n
            if above <= outside.n:
                accused = inside.above(outside.falling[above - 1], "right")
            missed = inside.sizes - inside.hits(accused)
            high = max(high, 1 - inside.lower(missed, first))
        return Interval(value, low, high)

    @functools.cached_property
    def points(self) -> dict[float, Interval]:
        """The TPR at 10 %, 1 % and .1 % FPR, by FPR; without those below `least_fpr`."""
        return {x: self.true_positive_rate(x) for x in RATES if x >= self.least_fpr * (1 - 1e-9)}

    @functools.cached_property
    def roc(self) -> dict[float, Interval]:
        """The ROC curve by rising FPR, from `least_fpr` on, with a simultaneous band.

        From one FPR to the next the TPR is from the `low` of the first to the `high` of the second.
        """
        rates = np.geomspace(min(self.least_fpr, 0.5), 1.0, _BAND + 1)[:-1].tolist()
        confidence = 1 - (1 - self.confidence) / _BAND
        return {rate: self.true_positive_rate(rate, confidence) for rate in rates}

    @functools.cached_property
    def auc(self) -> Interval:
        """Computes the chance that a member scores above a non-member, ties by half.

        The interval is for members and non-members of different training runs.
        """
        outside, inside = self._worlds
        value = float(1 - inside.placements(outside).mean())
        if not self._single:
            return self._interval(value, *self._comparisons())
        # A mean over all ways to pair members with others, each of so many independent pairs.
        wins = np.full(min(inside.n, outside.n), value)
        return self._interval(value, wins, np.ones(len(wins)))

    @functools.cached_property
    def fitted_threshold(self) -> float | None:
        """The best threshold in every fourth training run; None if it cannot be judged."""
        fitted = self._fitted
        for bits in (self.members[fitted], self.members[~fitted]):
            if bits.all() or not bits.any():
                return None
        return self._best_threshold(fitted)

    @functools.cached_property
    def balanced_accuracy(self) -> Interval:
        """Computes (TPR + 1 - FPR) / 2 at `fitted_threshold`, in all other training runs.

        NaN in 0 to 1 if there is no threshold.
        """
        if self.fitted_threshold is None:
            return Interval(math.nan, 0.0, 1.0)
        bits = self.members[~self._fitted]
        accused = self.scores[~self._fitted] > self.fitted_threshold
        # Training runs weigh as much as they have of all members, and of all non-members.
        of_member = len(bits) / bits.sum() / 2
        of_other = len(bits) / (~bits).sum() / 2
        hits = (accused & bits).sum(axis=1) * of_member + (~accused & ~bits).sum(axis=1) * of_other
        sizes = bits.sum(axis=1) * of_member + (~bits).sum(axis=1) * of_other
        return self._interval(min(float(hits.mean()), 1.0), hits, sizes)

    @functools.cached_property
    def risks(self) -> tuple[Floats, Floats]:
        """Each record's AUC over its trainings [m], and lower bounds of all records together [m].

        NaN and 0 for a record that is always in or out. Trainings are independent, so a variance is
        at most A (1 - A) / min(in, out) (Birnbaum, Klose 1957), which is taken.
        """
        from scipy import stats  # takes half a second to load

        n, m = self.scores.shape
        auc, fewer = np.full(m, np.nan), np.minimum(self.members.sum(0), (~self.members).sum(0))
        for start in range(0, m, size := max(_BLOCK // n, 1)):
            part = slice(start, start + size)
            bits = self.members[:, part]
            ranks, inside = stats.rankdata(_ordered(self.scores[:, part]), axis=0), bits.sum(0)
            sums = np.where(bits, ranks, 0.0).sum(0)
            with np.errstate(invalid="ignore"):
                auc[part] = (sums - inside * (inside + 1) / 2) / (inside * (n - inside))
        filled = np.clip(np.nan_to_num(auc), 0.0, 1.0)
        low = clopper_pearson_lower(filled * fewer, fewer, (1 - self.confidence) / m)
        return auc, np.asarray(low)

    @property
    def exposed(self) -> npt.NDArray[np.int64]:
        """Numbers of the records whose bound is above 1/2, the most exposed first, [k]."""
        auc, low = self.risks
        ranked = np.lexsort((-auc, -low))
        return ranked[low[ranked] > 0.5]

    @property
    def _single(self) -> bool:
        """Whether each training run has one score, so that all scores are independent."""
        return bool(self.scores.shape[1] == 1)

    def _levels(self, alpha: float) -> list[tuple[float, float]]:
        """Returns levels of bounds on FPR and TPR; the loosest of their results errs with `alpha`.

        If scores are independent, so are the two errors: a small one may go with a large one.
        """
        return _independent_levels(alpha) if self._single else [(0.75 * alpha, 0.25 * alpha)]

    def _best_threshold(self, rows: Members) -> float:
        """Of 1,000 quantiles of these trainings' scores that of the largest TPR - FPR."""
        scores, bits = _ordered(self.scores[rows]), self.members[rows]
        cuts = np.sort(scores, axis=None)[np.linspace(0, scores.size - 1, _CUTS).astype(int)]
        below = [
            np.searchsorted(np.sort(scores[world]), cuts, "right") / max(int(world.sum()), 1)
            for world in (~bits, bits)
        ]
        return float(cuts[np.argmax(below[0] - below[1])])

    def _interval(self, value: float, hits: Floats, sizes: Floats) -> Interval:
        """Returns a value with bounds on the mean share of `hits`, float64 [units] like `sizes`."""
        alpha = (1 - self.confidence) / 2
        bounds = []
        for part in (hits, sizes - hits):
            part = np.maximum(part, 0.0)  # but for rounding, it is not below
            if self._single:
                largest = float(sizes.max())
                total = min(float(part.sum()) / largest, len(part))
                bounds.append(largest * binomial_lower(total, len(part), alpha))
            else:
                bounds.append(betting_lower(part, sizes, alpha))
        return Interval(value, min(bounds[0], value), max(1 - bounds[1], value))

    def _comparisons(self) -> tuple[Floats, Floats]:
        """Returns wins of members over non-members, and comparisons, of pairs of training runs.

        The first half of the training runs is paired with the second. Members of either meet
        non-members of the other, and ties are half a win. Both are float64 [pairs].
        """
        half = len(self.scores) // 2
        shape = 2, half, self.scores.shape[1]
        distinct, ranks = np.unique(_ordered(self.scores), return_inverse=True)
        ranks = ranks.reshape(self.scores.shape)[: 2 * half].reshape(shape)
        keys = ranks + len(distinct) * np.arange(half)[:, None]  # sorted by pair, then by score
        bits = self.members[: 2 * half].reshape(shape)
        wins, sizes = np.zeros((2, half))
        for inside, outside, member_keys, other_keys in (
            (bits[0], ~bits[1], keys[0], keys[1]),
            (bits[1], ~bits[0], keys[1], keys[0]),
        ):
            members, others = inside.sum(axis=1), outside.sum(axis=1)
            below = _midranks(np.sort(other_keys[outside]), member_keys[inside])
            pairs = np.repeat(np.arange(half), members)
            of_earlier_pairs = members * (np.cumsum(others) - others)
            wins += np.bincount(pairs, below, half) - of_earlier_pairs
            sizes += members * others
        return wins, sizes


@dataclasses.dataclass(frozen=True, eq=False)
class _World:
    """Its n scores from the highest on, negated, their trainings, and how many each has."""

    falling: Floats
    rows: npt.NDArray[np.int32]
    sizes: Floats

    @classmethod
    def of_bits(cls, scores: Scores, chosen: Members) -> _World:
        values, sizes = _ordered(scores[chosen]), chosen.sum(axis=1)
        rows = np.repeat(np.arange(len(scores), dtype=np.int32), sizes)
        order = np.argsort(-values, kind="stable")
        return cls(-values[order], rows[order], sizes.astype(np.float64))

    @property
    def n(self) -> int:
        return len(self.falling)

    def above(self, falling: float, side: str) -> int:
        """Scores above another (`left`), or from there on (`right`)."""
        return int(np.searchsorted(self.falling, falling, side))  # type: ignore[call-overload]

    def placements(self, other: _World) -> Floats:
        """The share of the other world's scores that are above each score, ties by half, [n]."""
        return _midranks(other.falling, self.falling) / other.n

    def most_below(self, rate: float, alpha: float) -> int:
        """Returns the most highest scores of a rate surely below, -1 if there are none."""
        return (
            first_where(
                lambda k: not self.exceeds(self.sizes - self.hits(k), 1 - rate, alpha), self.n
            )
            - 1
        )

    def fewest_above(self, rate: float, alpha: float) -> int:
        """Returns the fewest highest scores of a rate surely above, `n` + 1 if there are none."""
        return first_where(lambda k: self.exceeds(self.hits(k), rate, alpha), self.n + 1)

    def exceeds(self, hits: Floats, rate: float, alpha: float) -> bool:
        """Returns `lower(hits, alpha) > rate`, in less time."""
        if self.independent:
            total = float(hits.sum())
            return total > 0 and float(special.betainc(total, self.n - total + 1, rate)) < alpha
        return evidence(hits, self.sizes, rate) > -math.log(alpha)

    def lower(self, hits: Floats, alpha: float) -> float:
        """Bounds the mean share of `hits`, float64 [runs], from below."""
        if self.independent:
            return float(clopper_pearson_lower(hits.sum(), self.n, alpha))
        return betting_lower(hits, self.sizes, alpha)

    @property
    def independent(self) -> bool:
        """Whether no training run has more than one of the scores."""
        return bool(self.sizes.max() <= 1)

    def hits(self, k: int) -> Floats:
        """Returns how many of the k highest scores each training run has, [runs]."""
        return np.bincount(self.rows[:k], minlength=len(self.sizes)).astype(np.float64)


def _midranks(values: npt.NDArray[Any], queries: npt.NDArray[Any]) -> Floats:
    """Returns how many sorted values are before each query, ties by half, [queries]."""
    before = np.searchsorted(values, queries, "left")
    return np.asarray((before + np.searchsorted(values, queries, "right")) / 2)


def _independent_levels(alpha: float) -> list[tuple[float, float]]:
    """Returns pairs of levels: with `alpha` at most, each has one of two independent errors.

    They lie on a quarter of a circle in standard normal units, whose radius is solved for.
    """

    def levels(radius: float) -> tuple[Floats, Floats]:
        return special.ndtr(-radius * np.cos(_ANGLES)), special.ndtr(-radius * np.sin(_ANGLES))

    def excess(radius: float) -> float:
        first, second = levels(radius)  # first rises, second falls
        # The first p-value is between two of its levels; the second has to err at all before.
        chances = np.diff(first, append=1.0)
        return float(first[0] + chances @ second) - alpha

    first, second = levels(root(excess, 0.0, 38.0, xtol=1e-10))
    return list(zip(first.tolist(), second.tolist(), strict=True))


def _ordered(scores: Scores) -> Scores:
    """NaN as the lowest score."""
    return np.where(np.isnan(scores), -np.inf, scores)


def sentence(fpr: float, rate: Interval, confidence: float, claim: Curve | None = None) -> str:
    """A TPR in words, of 1,000 members, beside the most that a `claim` allows any attack."""
    low, high = math.floor(1000 * rate.low), math.ceil(1000 * rate.high)
    text = (
        f"of 1,000 members, an attacker who accuses {1000 * fpr:g} of 1,000 strangers wrongly "
        f"finds {1000 * rate.value:.0f} by these scores ({100 * confidence:g} %: {low} to {high})"
    )
    if claim is None:
        return text
    if (most := math.ceil(1000 * float(claim.true_positive_rate(fpr)[0]))) == 1000:
        return f"{text}; the claim excludes no number"
    return f"{text}; by the claim any attacker finds at most {most}"
