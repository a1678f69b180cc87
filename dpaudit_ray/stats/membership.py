"""Success of a membership attack, with intervals: ROC curve, TPR at a low FPR, AUC, accuracy.

Scores of one training run share its model, so they are dependent. Training runs are independent and
have one distribution, and each interval is for a number of that distribution:

* TPR and FPR at a threshold: the expected share of accused scores among all members, or all
  non-members, of many training runs. The TPR at an FPR is that of the lowest threshold whose FPR is
  no higher.
* AUC: the probability that a member of one training run scores above a non-member of another one.
  It is the area under that curve.
* Balanced accuracy: (TPR + 1 - FPR) / 2 in three of four training runs, at the threshold that is
  best in the fourth.

Intervals use no estimated variance. Given how many members each training run has, its hits are
independent and bounded, so the bounds of `share_bounds` hold; with one score from each they are
exact (Clopper, Pearson 1934). The threshold of an FPR is unknown but fixed. It lies between a
threshold whose FPR is certainly higher and one whose FPR is certainly lower, so that the TPR needs
a bound at one threshold only; the errors of both bounds add up.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, ndtr

from .base import Members, Scores
from .curve import Curve
from .error_rates import Floats, as_floats, clopper_pearson_lower, first_where, in_unit, root
from .share_bounds import betting_lower, binomial_lower, evidence

RATES = (0.1, 0.01, 0.001)  # FPRs that are reported if enough scores resolve them
_FEWEST_ACCUSED = 10  # R scores resolve an FPR of 10 / R and more
_BAND_RATES = 12  # FPRs of the ROC curve, which share the error of its band
_QUANTILES = 1001  # quantiles of the scores that are tried as thresholds
_FIT_EVERY = 4  # every fourth training run is for fitting a threshold, which is used on the others
# Angles of `_independent_levels`, one for each way to split an error between FPR and TPR.
_ANGLES = np.linspace(0, math.pi / 2, 4)


@dataclass(frozen=True)
class Interval:
    """A number in [0, 1], with a two-sided interval `low` to `high`."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Membership:
    """Rates at which an attack finds members, with intervals.

    Attributes:
        scores: float [runs, records], or [runs] if each training run has one; higher for "in". NaN
            counts as the lowest of all.
        members: the secret bits, bool of the same shape.
        confidence: level of each two-sided interval.

    Raises:
        ValueError: The shapes differ, or all scores are of members, or none is.
    """

    scores: Scores
    members: Members
    confidence: float = 0.95

    def __post_init__(self) -> None:
        """Checks scores and bits, and makes [training runs, records] arrays of them."""
        in_unit("confidence", self.confidence)
        scores = as_floats(self.scores)
        bits = np.asarray(self.members)
        if scores.ndim not in (1, 2) or bits.shape != scores.shape:
            shapes = f"{scores.shape} and {bits.shape}"
            raise ValueError(f"scores and members must be [training runs, records], got {shapes}")
        members = bits.astype(bool, copy=False)
        one_world = members.all() or not members.any()
        if one_world or not np.array_equal(members, bits):
            raise ValueError("members must be 0 or 1 (or booleans), and some of each")
        shape = (len(scores), -1)
        object.__setattr__(self, "scores", scores.reshape(shape))
        object.__setattr__(self, "members", members.reshape(shape))

    @property
    def least_fpr(self) -> float:
        """The least FPR that R scores resolve: 10 / R."""
        return _FEWEST_ACCUSED / self.scores.size

    @cached_property
    def _without_nan(self) -> Scores:
        """Scores with -inf in place of NaN."""
        missing = np.isnan(self.scores)
        if not missing.any():
            return self.scores
        return np.where(missing, -np.inf, self.scores)

    @cached_property
    def _populations(self) -> "tuple[_Population, _Population]":
        """Scores of non-members, and of members."""
        return (
            _Population.from_scores(self._without_nan, ~self.members),
            _Population.from_scores(self._without_nan, self.members),
        )

    @property
    def _one_score_each(self) -> bool:
        """Whether each training run has one score, so that all scores are independent."""
        return bool(self.scores.shape[1] == 1)

    def true_positive_rate(self, fpr: float, confidence: float | None = None) -> Interval:
        """Computes the TPR at the lowest threshold whose FPR is at most `fpr`.

        Of tied scores at that threshold an attacker may accuse none, or just as many as the FPR
        allows: the interval holds for both.

        Args:
            fpr: false-positive rate among all non-members of many training runs, in (0, 1).
            confidence: confidence of the two-sided interval; the class's confidence if None.
        """
        in_unit("fpr", fpr)
        if confidence is None:
            confidence = self.confidence
        alpha = (1 - confidence) / 2
        outside, inside = self._populations
        false_positives = math.floor(fpr * outside.n * (1 + 1e-12))  # despite rounding
        value = inside.count_above(outside.negated[false_positives], "left") / inside.n
        low, high = value, value
        # An event that no training run shows may still have a probability of log(1 / level) over
        # the number of runs. This widens upper bounds most, so these get the first level, which is
        # the larger one: the bound on the FPR if the TPR is bounded from below, and that on the TPR
        # if from above. The two levels add up to alpha. If scores are independent, so are the two
        # errors: then larger levels are used in several pairs, and the loosest bound errs only if
        # every pair does.
        levels = [(0.75 * alpha, 0.25 * alpha)]
        if self._one_score_each:
            levels = _independent_levels(alpha)
        for first, second in levels:
            below = outside.most_below(fpr, first)
            accused = 0  # members above the threshold
            if below >= 0:
                accused = inside.count_above(outside.negated[below], "left")
            lower = inside.lower(inside.hits(accused), second)
            low = min(low, lower)

            above = outside.fewest_above(fpr, second)
            accused = inside.n
            if above <= outside.n:
                accused = inside.count_above(outside.negated[above - 1], "right")
            missed = inside.sizes - inside.hits(accused)
            upper = 1 - inside.lower(missed, first)
            high = max(high, upper)
        return Interval(value, low, high)

    @cached_property
    def points(self) -> dict[float, Interval]:
        """The TPR by FPR, at 10 %, 1 % and 0.1 %, as far as these reach `least_fpr`."""
        least = self.least_fpr * (1 - 1e-9)
        return {rate: self.true_positive_rate(rate) for rate in RATES if rate >= least}

    @cached_property
    def roc(self) -> dict[float, Interval]:
        """The ROC curve by rising FPR, from `least_fpr` on, with a simultaneous band.

        From one FPR to the next the TPR is from the `low` of the first to the `high` of the second.
        """
        least = min(self.least_fpr, 0.5)
        rates = np.geomspace(least, 1.0, _BAND_RATES + 1)
        confidence = 1 - (1 - self.confidence) / _BAND_RATES
        return {rate: self.true_positive_rate(rate, confidence) for rate in rates.tolist()[:-1]}

    @cached_property
    def auc(self) -> Interval:
        """The probability that a member scores above a non-member; ties count half.

        The interval is for a member and a non-member of different training runs.
        """
        outside, inside = self._populations
        others_above = _midranks(outside.negated, inside.negated) / outside.n
        value = float(1 - others_above.mean())
        if not self._one_score_each:
            return self._interval(value, *self._comparisons())
        # The AUC is a mean over all ways to pair members with others, each with so many pairs that
        # are independent: a U-statistic, which `binomial_lower` bounds.
        wins = np.full(min(inside.n, outside.n), value)
        return self._interval(value, wins, np.ones(len(wins)))

    @cached_property
    def _fitted(self) -> Members:
        """The training runs that a threshold is fitted to, bool [runs]."""
        numbers = np.arange(len(self.scores))
        return np.asarray(numbers % _FIT_EVERY == 0)

    @cached_property
    def fitted_threshold(self) -> float | None:
        """The threshold with the largest TPR - FPR in every fourth training run.

        It is one of 1,001 quantiles of their scores. None if these runs, or the others, have no
        member or no non-member.
        """
        members = self.members[self._fitted]
        for bits in (members, self.members[~self._fitted]):
            if bits.all() or not bits.any():
                return None
        scores = self._without_nan[self._fitted]
        positions = np.linspace(0, scores.size - 1, _QUANTILES).astype(int)
        thresholds = np.sort(scores, axis=None)[positions]
        outside = np.sort(scores[~members])
        inside = np.sort(scores[members])
        others_below = np.searchsorted(outside, thresholds, "right") / len(outside)
        members_below = np.searchsorted(inside, thresholds, "right") / len(inside)
        return float(thresholds[np.argmax(others_below - members_below)])

    @cached_property
    def balanced_accuracy(self) -> Interval:
        """The rate (TPR + 1 - FPR) / 2 at `fitted_threshold`, in all other training runs.

        It is NaN, with the interval 0 to 1, if there is no threshold.
        """
        if self.fitted_threshold is None:
            return Interval(math.nan, 0.0, 1.0)
        bits = self.members[~self._fitted]
        accused = self.scores[~self._fitted] > self.fitted_threshold
        # A training run's weight is the mean of its shares of all members and of all non-members.
        positives, negatives = bits.sum(axis=1), (~bits).sum(axis=1)
        member_weight = len(bits) / positives.sum() / 2
        other_weight = len(bits) / negatives.sum() / 2
        true_positives = (accused & bits).sum(axis=1)
        true_negatives = (~accused & ~bits).sum(axis=1)
        hits = true_positives * member_weight + true_negatives * other_weight
        sizes = positives * member_weight + negatives * other_weight
        value = min(float(hits.mean()), 1.0)
        return self._interval(value, hits, sizes)

    @cached_property
    def risks(self) -> tuple[Floats, Floats]:
        """Each record's AUC over its training runs, and simultaneous lower bounds; [records] each.

        They are NaN and 0 for a record that is always in or out. Training runs are independent, so
        the variance is at most A (1 - A) / min(in, out) (Birnbaum, Klose 1957): that of a rate of
        min(in, out) trials, as which the AUC is bounded.
        """
        runs, records = self.scores.shape
        inside = self.members.sum(axis=0)
        fewer = np.minimum(inside, runs - inside)
        auc = np.full(records, np.nan)
        for record in np.flatnonzero(fewer):
            bits = self.members[:, record]
            scores = self._without_nan[:, record]
            wins, comparisons = _wins(scores[bits], scores[~bits])
            auc[record] = wins / comparisons
        hits = np.nan_to_num(auc) * fewer
        low = clopper_pearson_lower(hits, fewer, (1 - self.confidence) / records)
        return auc, np.asarray(low)

    @property
    def exposed(self) -> NDArray[np.int64]:
        """Numbers of the records whose bound is above 1/2, the most exposed first, [k]."""
        auc, low = self.risks
        ranked = np.lexsort((-auc, -low))
        return ranked[low[ranked] > 0.5]

    def _interval(self, value: float, hits: Floats, sizes: Floats) -> Interval:
        """Returns an estimated share with bounds on the true one.

        Args:
            value: the estimate.
            hits: hits of each independent unit, a training run or a pair of them; float64 [n].
            sizes: largest possible hits of each unit, float64 [n].
        """
        alpha = (1 - self.confidence) / 2

        def lower(hits: Floats) -> float:
            """Bounds the mean share from below; exactly if all scores are independent."""
            hits = np.maximum(hits, 0.0)  # rounding may have made it negative
            if not self._one_score_each:
                return betting_lower(hits, sizes, alpha)
            largest = float(sizes.max())
            total = float(hits.sum()) / largest
            total = min(total, len(hits))
            return largest * binomial_lower(total, len(hits), alpha)

        low = lower(hits)
        high = 1 - lower(sizes - hits)
        return Interval(value, min(low, value), max(high, value))

    def _comparisons(self) -> tuple[Floats, Floats]:
        """Returns wins of members over non-members, and comparisons, for pairs of training runs.

        The first half of the training runs is paired with the second. Members of either run are
        compared with non-members of the other, and ties are half a win. Both are float64 [pairs].
        """
        half = len(self.scores) // 2
        totals = np.zeros((2, half))
        for pair in range(half):
            for run in (pair, half + pair):
                partner = half + 2 * pair - run
                inside = self._without_nan[run][self.members[run]]
                outside = self._without_nan[partner][~self.members[partner]]
                totals[:, pair] += _wins(inside, outside)
        return totals[0], totals[1]


@dataclass(frozen=True, eq=False)
class _Population:
    """The n scores of all members, or of all non-members.

    Attributes:
        negated: minus each score, float64 [n], ascending: the highest score comes first.
        runs: index of the training run of each score, int32 [n].
        sizes: number of scores of each training run, float64 [runs].
    """

    negated: Floats
    runs: NDArray[np.int32]
    sizes: Floats

    @classmethod
    def from_scores(cls, scores: Scores, chosen: Members) -> "_Population":
        """Sorts the scores for which `chosen` is true, highest first; both are [runs, records]."""
        negated = -scores[chosen]
        order = np.argsort(negated, kind="stable")
        sizes = chosen.sum(axis=1)
        run_indices = np.arange(len(scores), dtype=np.int32)
        runs = np.repeat(run_indices, sizes)
        return cls(negated[order], runs[order], sizes.astype(float))

    @property
    def n(self) -> int:
        return len(self.negated)

    @property
    def independent(self) -> bool:
        """Whether no training run has more than one of the scores."""
        return bool(self.sizes.max() <= 1)

    def count_above(self, negated: float, side: str) -> int:
        """Counts scores above another score (`left`), or from it on (`right`).

        Args:
            negated: minus that score.
            side: the argument of `numpy.searchsorted`.
        """
        return int(np.searchsorted(self.negated, negated, side))  # type: ignore[call-overload]

    def hits(self, k: int) -> Floats:
        """Returns how many of the k highest scores each training run has, float64 [runs]."""
        hits = np.bincount(self.runs[:k], minlength=len(self.sizes))
        return hits.astype(float)

    def most_below(self, rate: float, alpha: float) -> int:
        """Returns the largest k for which the k highest scores are certainly less than `rate`.

        Their expected share over training runs is below `rate` if a lower bound on the share of all
        other scores, at error `alpha`, is above 1 - `rate`. Returns -1 if that is not certain even
        for k = 0.

        Args:
            rate: a share of all scores, in (0, 1).
            alpha: error probability of the lower bound.
        """

        def may_be_at_least_rate(k: int) -> bool:
            """Returns whether the k highest scores may be a share of `rate` or more."""
            hits_of_others = self.sizes - self.hits(k)
            return not self.exceeds(hits_of_others, 1 - rate, alpha)

        # The condition holds from some k on: the one before is the largest certain k.
        return first_where(may_be_at_least_rate, self.n) - 1

    def fewest_above(self, rate: float, alpha: float) -> int:
        """Returns the smallest k for which the k highest scores are certainly more than `rate`.

        Their expected share over training runs is above `rate` if a lower bound on it, at error
        `alpha`, is. Returns n + 1 if that is not certain even for all scores.

        Args:
            rate: a share of all scores, in (0, 1).
            alpha: error probability of the lower bound.
        """
        return first_where(lambda k: self.exceeds(self.hits(k), rate, alpha), self.n + 1)

    def exceeds(self, hits: Floats, rate: float, alpha: float) -> bool:
        """Returns whether the lower bound on the mean share of `hits` exceeds a rate.

        It is `lower(hits, alpha) > rate`, without a search for the bound.

        Args:
            hits: hits of each training run, float64 [runs].
            rate: the rate, in (0, 1).
            alpha: error of the bound.
        """
        if self.independent:
            total = float(hits.sum())
            if total == 0:
                return False
            p_value = betainc(total, self.n - total + 1, rate)
            return float(p_value) < alpha
        return evidence(hits, self.sizes, rate) > -math.log(alpha)

    def lower(self, hits: Floats, alpha: float) -> float:
        """Returns a lower bound on the mean share of `hits`, float64 [runs]."""
        if self.independent:
            return float(clopper_pearson_lower(hits.sum(), self.n, alpha))
        return betting_lower(hits, self.sizes, alpha)


def _wins(inside: Scores, outside: Scores) -> tuple[float, int]:
    """Counts wins, pairs with the score of `inside` above that of `outside`, and all pairs.

    A tie is half a win.

    Args:
        inside: scores of members, float64.
        outside: scores of non-members, float64.
    """
    below = _midranks(np.sort(outside), inside)
    return float(below.sum()), len(inside) * len(outside)


def _midranks(ordered: Scores, queries: Scores) -> Floats:
    """Counts the sorted values below each query, equal ones half; float64 [queries]."""
    before = np.searchsorted(ordered, queries, "left")
    up_to = np.searchsorted(ordered, queries, "right")
    return (before + up_to) / 2


def _independent_levels(alpha: float) -> list[tuple[float, float]]:
    """Returns pairs of levels for two independent errors, not all of which err at once.

    A pair errs if either of its two errors happens; all pairs err with probability `alpha`. In
    standard normal units, the pairs lie on a quarter of a circle, whose radius is solved for.
    """

    def levels(radius: float) -> tuple[Floats, Floats]:
        """Returns the two levels of each pair at this distance from the origin."""
        first = ndtr(-radius * np.cos(_ANGLES))
        second = ndtr(-radius * np.sin(_ANGLES))
        return first, second

    def excess(radius: float) -> float:
        """Returns the probability that every pair has either error, less `alpha`."""
        first, second = levels(radius)  # first rises, second falls
        # If the first p-value is between two levels, all pairs err if the second one is below the
        # level that belongs to the lower of the two.
        between = np.diff(first, append=1.0)
        return float(first[0] + between @ second) - alpha

    radius = root(excess, 0.0, 38.0, xtol=1e-10)
    first, second = levels(radius)
    return list(zip(first.tolist(), second.tolist(), strict=True))


def sentence(
    fpr: float,
    rate: Interval,
    confidence: float,
    claim: Curve | None,
) -> str:
    """Returns a sentence that states a TPR for 1,000 members.

    Args:
        fpr: false-positive rate, in (0, 1).
        rate: the TPR there.
        confidence: confidence of the interval of `rate`.
        claim: trade-off function whose largest TPR is added; None for none.
    """
    low = math.floor(1000 * rate.low)
    high = math.ceil(1000 * rate.high)
    text = (
        f"of 1,000 members, an attacker who wrongly accuses {1000 * fpr:g} of 1,000 strangers "
        f"finds {1000 * rate.value:.0f} by these scores ({100 * confidence:g} %: {low} to {high})"
    )
    if claim is None:
        return text
    largest_rate = float(claim.true_positive_rate(fpr)[0])
    most = math.ceil(1000 * largest_rate)
    if most == 1000:
        return f"{text}; the claim excludes no number"
    return f"{text}; by the claim any attacker finds at most {most}"
