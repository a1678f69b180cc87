"""Bounds by both error rates of one test, "guess in if the score is at least h".

Both rates get a Clopper-Pearson bound, on trials that were not used to choose h. Without any
assumption, (ε, δ)-DP implies α + e^ε β ≥ 1 - δ and β + e^ε α ≥ 1 - δ for every test with
false-positive rate α and false-negative rate β (Nasr et al. 2021, eq. 4-5, with the inequality the
right way round). μ-GDP implies Φ⁻¹(1 - α) - Φ⁻¹(β) ≤ μ (Nasr et al. 2023, section 4).
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from .base import Estimator, Members, Scores
from .error_rates import Counts, Rates, as_floats, clopper_pearson_upper
from .lower_bound import Estimate, Status
from .trial_log import LEARN, Logged, with_diverged_guessed

# Maps upper bounds on false-positive and false-negative rates [n] to bounds on ε or μ [n].
Gain = Callable[[Rates, Rates], Rates]
SHARES = {"past": 0.2, "holdout": 0.5, "fixed": 0.0}  # shares of the trials that choose a threshold
_MOST_BLOCKS = 1024  # blocks of thresholds in the first round of a search
_PARTS = 8  # parts into which a block is divided for the next round


@dataclass
class Worlds:
    """Scores of both worlds, sorted.

    Attributes:
        outside: scores without the canary; ±inf if `with_diverged_guessed`.
        inside: scores with the canary; ±inf if `with_diverged_guessed`.
        failed_outside: failed trials without the canary: errors at every threshold.
        failed_inside: failed trials with the canary.
    """

    outside: Scores
    inside: Scores
    failed_outside: int
    failed_inside: int

    @classmethod
    def from_scores(cls, scores: Scores, members: Members) -> "Worlds":
        """Splits scores by their bits.

        Args:
            scores: float64 [n], NaN for failed trials.
            members: the secret bits, bool [n].
        """
        failed = np.isnan(scores)
        failed_inside = int((failed & members).sum())
        outside = scores[~failed & ~members]
        inside = scores[~failed & members]
        outside.sort()  # in place: there may be millions
        inside.sort()
        return cls(outside, inside, int(failed.sum()) - failed_inside, failed_inside)

    @classmethod
    def observed(cls, scores: Scores, members: Members) -> "Worlds":
        """Splits the scores of an entire audit, float64 [R]; diverged trials are not finite.

        The first diverged trials decide how later ones are guessed, and count as failed.
        """
        marked = np.where(np.isfinite(scores), scores, np.inf)
        learn = math.ceil(LEARN * len(marked))
        return cls.from_scores(with_diverged_guessed(marked, members, learn), members)

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers of trials of the two worlds, (out, in), with failed ones."""
        outside = len(self.outside) + self.failed_outside
        return outside, len(self.inside) + self.failed_inside

    @property
    def pooled(self) -> Scores:
        """All scores, sorted."""
        both = np.concatenate([self.outside, self.inside])
        both.sort(kind="stable")  # merges parts that are sorted, in place
        return both

    def midpoints(self, most: int | None = None) -> Scores:
        """Returns thresholds, rising: midpoints of neighbouring pooled scores.

        They are those of Algorithm 4 by Cebere, Bellet, Papernot. If there are more than `most`,
        about so many of them are chosen, half of these near the ends.
        """
        pooled = self.pooled
        last = len(pooled) - 2
        if most is None or last < most:
            return _between(pooled[:-1], pooled[1:])
        # Rates near 0 and 1 make the largest ε, and change with every score there.
        near_end = np.geomspace(1, last + 1, most // 4).astype(np.int64) - 1
        evenly = np.linspace(0, last, most // 2).astype(np.int64)
        chosen = np.unique(np.concatenate([near_end, evenly, last - near_end]))
        return _midpoints_at(pooled, chosen)

    def errors(self, thresholds: ArrayLike) -> tuple[Counts, Counts]:
        """Counts false positives and false negatives at each threshold, int64 [n] each."""
        h = np.atleast_1d(as_floats(thresholds))
        true_negatives = np.searchsorted(self.outside, h, side="left")
        false_positives = len(self.outside) - true_negatives
        false_negatives = np.searchsorted(self.inside, h, side="left")
        return false_positives + self.failed_outside, false_negatives + self.failed_inside


@dataclass
class EpsDelta(Logged, Estimator):
    """Assumption-free bound on ε at a threshold that is fixed before the trials it is judged on.

    `past` and `holdout` choose the threshold by the first share of the planned trials, 0.2 and 0.5,
    and judge it on the later ones; `fixed` judges the pre-registered `value` on all. The first
    diverged trials decide how later diverged ones are guessed.
    """

    threshold: Literal["past", "holdout", "fixed"] = "past"  # how it is chosen
    value: float = math.nan  # value of the threshold, if `fixed`

    name = "eps-delta"
    status = Status.CERTIFIED
    fair = False

    def __post_init__(self) -> None:
        """Checks that only a fixed threshold has a value. Raises ValueError."""
        if self.threshold not in SHARES:
            choices = ", ".join(SHARES)
            raise ValueError(f"threshold must be one of {choices}, got {self.threshold!r}")
        if (self.threshold == "fixed") != math.isfinite(self.value):
            raise ValueError(
                f"threshold: fixed needs a finite value, others take none; got {self.value}"
            )
        self.learns = self.threshold != "fixed"
        super().__post_init__()

    def bound(self, delta: float, confidence: float) -> Estimate:
        """Bounds ε by both error rates at one threshold.

        Unless the threshold is `fixed`, the first trials choose it, where their own bound is
        largest. They are not counted afterwards.
        """
        alpha = 1 - confidence
        gain = functools.partial(epsilon_of_rates, delta=delta)
        scores, members = self._log.arrays()
        trials = len(scores)
        first = 0  # number of trials that choose the threshold: none if it is fixed
        threshold = self.value
        learn = math.ceil(LEARN * self.planned)  # number of trials that show which world diverges
        if self.threshold != "fixed":
            first = learn = math.ceil(SHARES[self.threshold] * self.planned)
            past_members = members[:first]
            # They only choose a threshold, so that they may guess themselves if they diverged.
            past_scores = with_diverged_guessed(scores[:first], past_members, learn=0)
            past = Worlds.from_scores(past_scores, past_members)
            _, threshold = best_test(past, alpha, gain)
        scores = with_diverged_guessed(scores, members, learn)[first:]
        inside = members[first:]
        sizes = int((~inside).sum()), int(inside.sum())
        epsilon = 0.0
        if min(sizes) > 0 and not math.isnan(threshold):
            # A failed trial is NaN, neither below nor above: an error in either world.
            false_positives = (~inside & ~(scores < threshold)).sum()
            false_negatives = (inside & ~(scores >= threshold)).sum()
            rates = rates_at_most((false_positives, false_negatives), sizes, alpha)
            epsilon = float(gain(*rates)[0])
        return self._estimate(epsilon, math.nan, (delta, confidence), trials, float(threshold))


def best_test(
    worlds: Worlds,
    alpha: float,
    gain: Gain,
) -> tuple[float, float]:
    """Returns the largest gain over all thresholds, and its threshold; (0, NaN) without thresholds.

    Thresholds are searched in blocks of neighbours. From a block's first threshold to its last,
    false positives become fewer and false negatives more. So no threshold of the block gains more
    than the false-positive rate of its last one would together with the false-negative rate of its
    first one. Blocks that cannot have the largest gain by this bound are excluded, and the others
    divided. Of equally good thresholds, the middle one is returned.

    Args:
        worlds: scores; there is no threshold if one world has none.
        alpha: error probability, half of which is for either error rate.
        gain: maps upper bounds on both error rates to a bound on ε or μ, and falls in either.
    """
    pooled = worlds.pooled
    if min(worlds.sizes) == 0 or len(pooled) < 2:
        return 0.0, math.nan
    threshold_count = len(pooled) - 1
    width = 1
    while threshold_count // width > _MOST_BLOCKS:
        width *= _PARTS
    starts = np.arange(0, threshold_count, width)

    def rates(indices: Counts) -> tuple[Rates, Rates]:
        """Returns upper bounds on both error rates at thresholds of these indices, [n] each."""
        errors = worlds.errors(_midpoints_at(pooled, indices))
        return rates_at_most(errors, worlds.sizes, alpha)

    while width > 1:
        fpr, fnr = rates(starts)
        ends = np.minimum(starts + width, threshold_count) - 1
        fpr_at_end, _ = rates(ends)
        largest_possible = gain(fpr_at_end, fnr)
        may_be_best = largest_possible >= gain(fpr, fnr).max()
        width //= _PARTS
        smaller_blocks = starts[may_be_best, None] + width * np.arange(_PARTS)
        starts = smaller_blocks[smaller_blocks < threshold_count]
    gains = gain(*rates(starts))
    equally_good = np.flatnonzero(gains == gains.max())
    middle = equally_good[len(equally_good) // 2]
    threshold = _midpoints_at(pooled, starts[middle])
    return float(gains[middle]), float(threshold)


def _midpoints_at(pooled: Scores, indices: Any) -> Scores:
    """Returns the midpoints of sorted scores at these indices and the next ones."""
    return _between(pooled[indices], pooled[indices + 1])


def _between(low: ArrayLike, high: ArrayLike) -> Scores:
    """Returns a threshold between each pair of scores: their midpoint.

    If one of them diverged, it is just above the lower one, or the upper one above -inf.
    """
    above = np.where(np.isinf(low), high, np.nextafter(low, np.inf))
    with np.errstate(invalid="ignore"):
        middle = np.asarray(low) / 2 + np.asarray(high) / 2
    finite = np.isfinite(low) & np.isfinite(high)
    return np.where(finite, middle, above)


def epsilon_of_rates(fpr: ArrayLike, fnr: ArrayLike, delta: float) -> Any:
    """Returns the smallest ε ≥ 0 at which a test with these error rates is possible, float64 [n].

    It is the larger of ln((1 - δ - α) / β) and ln((1 - δ - β) / α), for the rates α and β.

    Args:
        fpr: false-positive rates, float [n]. A test that is worse than chance is not inverted.
        fnr: false-negative rates, float [n].
        delta: δ, in [0, 1).
    """
    a = as_floats(fpr)  # α
    b = as_floats(fnr)  # β
    with np.errstate(divide="ignore", invalid="ignore"):
        by_power = np.log(np.maximum(1 - delta - a, 0) / b)
        by_size = np.log(np.maximum(1 - delta - b, 0) / a)
    return np.fmax(np.fmax(by_power, by_size), 0.0)


def rates_at_most(
    errors: tuple[ArrayLike, ArrayLike],
    sizes: tuple[float, float],
    alpha: float,
) -> tuple[Rates, Rates]:
    """Bounds false-positive and false-negative rates from above, float64 [n] each.

    Args:
        errors: false positives and false negatives, int [n] each, or one number each.
        sizes: trials of either world, (out, in).
        alpha: error probability, half of which is for either bound.
    """
    false_positives, false_negatives = map(np.atleast_1d, errors)
    fpr = clopper_pearson_upper(false_positives, sizes[0], alpha / 2)
    fnr = clopper_pearson_upper(false_negatives, sizes[1], alpha / 2)
    return fpr, fnr


def mu_of_rates(fpr: Rates, fnr: Rates) -> Rates:
    """Returns the μ of the Gaussian trade-off function through each pair of rates, float64 [n].

    Upper bounds on the rates give a lower bound on μ.
    """
    return np.asarray(-ndtri(fpr) - ndtri(fnr))
