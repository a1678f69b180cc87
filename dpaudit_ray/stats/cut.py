"""Threshold between two worlds for scores whose class means do not separate them.

The midpoint of the class means is the best threshold of scores that are about normal, and needs the
fewest trials. But it depends on the scale of the scores: for z³, -exp(2z), or losses with a heavy
tail, it is far from the best threshold. So at set numbers of earlier trials it is compared with the
midpoint of the class medians. Ranks replace it in three cases: if the two midpoints lie further
apart than by chance, if some scores lie so far out that means depend on them, or if the midpoint
guesses the wrong way round. By ranks, the threshold has the fewest mistakes near the midpoint of
the means of normal scores. Only earlier trials are used, as a bound by guesses requires.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from .base import Members, Scores
from .error_rates import Floats

# A cut is fitted after these numbers of trials: from FIRST to LAST, GROWTH times as many each time.
FIRST = 20
LAST = 2048
GROWTH = 1.25
# Largest distance of the two midpoints, in standard errors of that of the medians: normal scores
# hardly ever exceed it.
_FAR = 3.0
# Mistakes above half of the trials, in standard deviations of coin tosses, that show that guesses
# are the wrong way round: more certainty would take trials that cost more than a wrong change.
_WRONG_WAY = 1.0
# Largest standard deviation of the scores over that of normal scores with the same middle half.
_HEAVY = 3.0
_FEWEST_SCORES = 5  # finite scores of each world without which no cut is fitted
# Mistakes that a cut must save for each rank between it and the midpoint of normal scores.
_MISTAKES_PER_RANK = 0.5
_MORE = 0.5  # standard deviations of coin tosses by which a cut of ranks may err more than means
_TAIL = 5  # the nearest fifth of the scores on either side of a gap shows how sparse scores are


@dataclass(frozen=True)
class Cut:
    """A threshold that was fitted to earlier trials, with their scores.

    Attributes:
        threshold: score at which the guess changes.
        rising: whether scores above it are guessed "in".
        inside: earlier scores with the canary, sorted.
        outside: earlier scores without it, sorted.
    """

    threshold: float
    rising: bool
    inside: Floats
    outside: Floats

    def guesses(self, scores: Scores) -> Members:
        """Returns whether finite scores are on the side of the world with the canary, bool [n]."""
        return np.asarray((scores > self.threshold) == self.rising)

    def position(self, scores: Scores) -> Floats:
        """Returns distances from the cut, float64 [n], above 0 for "in".

        They are distances of normal scores, so a rising map of all scores, including the earlier
        ones, hardly changes them.
        """
        threshold = self._normal(np.array([self.threshold]))
        distance = np.abs(self._normal(scores) - threshold)
        sign = np.where(self.guesses(scores), 1.0, -1.0)
        return sign * np.maximum(distance, 1e-9)  # 0 would lose the guess

    def _normal(self, scores: Scores) -> Floats:
        """Averages scores' normal scores among the earlier scores of either world, float64 [n]."""
        inside = normal_scores(scores, self.inside)
        return (inside + normal_scores(scores, self.outside)) / 2


def fit(scores: Scores, members: Members) -> Cut | None:
    """Fits a cut to the first `LAST` trials; None if the midpoint of the means is about as good.

    Args:
        scores: float64 [n], not finite where diverged.
        members: the secret bits, bool [n].
    """
    return _fit_bytes(scores[:LAST].tobytes(), members[:LAST].tobytes())


@functools.lru_cache(maxsize=1024)  # 5 MB; bounds, tests and stop rule fit the same trials
def _fit_bytes(score_bytes: bytes, member_bytes: bytes) -> Cut | None:
    """Implements `fit`, on bytes.

    The midpoint of the means stays without a search if scores look normal: means are near medians,
    the standard deviation fits the middle half, and not too many trials are guessed wrong.

    Args:
        score_bytes: the bytes of scores, float64 [n]: unlike arrays, they are keys of the cache.
        member_bytes: the bytes of the secret bits, bool [n].
    """
    scores = np.frombuffer(score_bytes)
    members = np.frombuffer(member_bytes, bool)
    finite = np.isfinite(scores)
    inside = scores[finite & members]
    outside = scores[finite & ~members]
    if min(len(inside), len(outside)) < _FEWEST_SCORES:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        means_middle = inside.mean() / 2 + outside.mean() / 2
        median_in = np.median(inside)
        median_out = np.median(outside)
        medians_middle = median_in / 2 + median_out / 2
        differences = np.concatenate([inside - median_in, outside - median_out])
        # The median of absolute differences is 0.67 σ.
        deviation = np.median(np.abs(differences)) / ndtri(0.75)
        inverse_counts = 1 / len(inside) + 1 / len(outside)
        # Variance of the midpoint of two medians, each of which has a variance of σ² π / (2 n).
        variance = math.pi / 8 * inverse_counts
        error = math.sqrt(variance) * deviation
        is_near = abs(means_middle - medians_middle) <= _FAR * error
        mean_variance = inside.var() / 2 + outside.var() / 2
        spread = math.sqrt(mean_variance)
        is_steady = spread <= _HEAVY * deviation
    false_negatives = (inside <= means_middle).sum()
    mistakes = int(false_negatives + (outside > means_middle).sum())
    trials = len(inside) + len(outside)
    is_right_way = mistakes - trials / 2 <= _WRONG_WAY * math.sqrt(trials) / 2
    if is_near and is_steady and is_right_way:
        return None
    inside.sort()
    outside.sort()
    cut, cut_mistakes = _fit_ranks(inside, outside)
    disagreements = 0  # number of trials that cut and means guess differently
    for world in (inside, outside):
        guesses_by_means = world > means_middle
        disagreements += int((guesses_by_means != cut.guesses(world)).sum())
    return cut if cut_mistakes <= mistakes + _MORE * math.sqrt(disagreements) else None


def _fit_ranks(inside: Floats, outside: Floats) -> tuple[Cut, int]:
    """Fits a cut to ranks; returns it with its number of mistakes.

    Args:
        inside: scores with the canary, sorted.
        outside: scores without the canary, sorted.
    """
    pooled = np.concatenate([inside, outside])
    pooled.sort()
    trials = len(pooled)
    mean_in = normal_scores(inside, pooled).mean()
    mean_out = normal_scores(outside, pooled).mean()
    rising = bool(mean_in >= mean_out)
    middle = mean_in / 2 + mean_out / 2
    below_middle = np.searchsorted(normal_scores(pooled, pooled), middle, side="right")
    # Cuts are tried below all scores, between two different ones, and above all.
    differs_from_last = pooled[1:] != pooled[:-1]
    may_cut = np.concatenate([[True], differs_from_last, [True]])
    below = np.flatnonzero(may_cut)  # number of scores below each cut
    highest_below = np.concatenate([[-np.inf], pooled])[below]
    false_negatives = np.searchsorted(inside, highest_below, side="right")
    false_positives = len(outside) - np.searchsorted(outside, highest_below, side="right")
    mistakes = false_negatives + false_positives
    if not rising:
        mistakes = trials - mistakes
    distance = np.abs(below - below_middle)
    best = int(np.argmin(mistakes + _MISTAKES_PER_RANK * distance))
    threshold = _between(pooled, int(below[best]))
    return Cut(threshold, rising, inside, outside), int(mistakes[best])


def _between(pooled: Floats, below: int) -> float:
    """Returns a threshold between the first `below` of the sorted scores and all others.

    It divides the gap in the ratio of two spreads: that of the scores just below the gap, and that
    of the scores just above it. So it lies further from the side where scores are sparse.

    Args:
        pooled: scores of both worlds, sorted.
        below: number of scores below the threshold.
    """
    if below in (0, len(pooled)):
        return math.inf if below else -math.inf
    last = below - 1
    low = float(pooled[last])
    high = float(pooled[below])
    # A spread reaches from the gap over a fifth of the scores on its side.
    lower_spread = low - float(pooled[last - last // _TAIL])
    upper_end = below + (len(pooled) - below - 1) // _TAIL
    upper_spread = float(pooled[upper_end]) - high
    spread = lower_spread + upper_spread
    share = lower_spread / spread if 0 < spread < math.inf else 0.5
    between = low * (1 - share) + high * share
    # Rounding may lead out of the gap. Only greater scores count as above, so `low` itself is a
    # threshold, too.
    return between if low <= between < high else low


def normal_scores(scores: Scores, earlier: Floats) -> Floats:
    """Returns the normal quantile of each score's rank among the sorted scores `earlier`.

    Among n of them, the relative rank of a score above k is (k + 1/2) / (n + 1); a tie gets the
    mean of its ranks.
    """
    below = np.searchsorted(earlier, scores, "left")
    up_to = np.searchsorted(earlier, scores, "right")
    intervals = len(earlier) + 1
    rank = (below + up_to + 1) / (2 * intervals)
    return np.asarray(ndtri(rank))
