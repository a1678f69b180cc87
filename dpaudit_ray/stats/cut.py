"""The cut between two worlds, where class means do not tell it: scores of any shape and direction.

The midpoint of the class means is the best cut of scores that are about normal, and is learnt from
the fewest trials. Another unit of the scores moves it anywhere: of z³, of -exp(2z) or of losses
with a heavy tail, it cuts far from where the worlds part. So at set numbers of earlier trials it is
compared with the midpoint of the class medians. Where they lie further apart than chance has it, or
where the midpoint guesses the wrong way round, ranks tell the cut: the one of fewest mistakes near
the one that errs as often in either world. Both are learnt from earlier trials alone, as a bound by
guesses asks.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from scipy import special

from .base import Members, Scores
from .error_rates import Floats

FIRST, LAST, GROWTH = 20, 2048, 1.25  # numbers of trials after which a cut is learnt
_FAR = 3.0  # standard errors of the medians' midpoint, which normal scores hardly ever reach
_WRONG_WAY = 1.0  # standard deviation of coin tosses: waiting would cost more than a chance flip
_FEWEST = 5  # finite scores of a world
_STRAY = 0.3  # mistakes that one rank away from equal error rates must save
_TAIL = 5  # a fifth of a world's scores tells how far apart the scores at its end lie


@dataclasses.dataclass(frozen=True)
class Cut:
    """Where earlier trials part, and their scores with the canary and without, sorted."""

    threshold: float
    rising: bool  # whether scores above it are of the world with the canary
    inside: Floats
    outside: Floats

    def position(self, scores: Scores) -> Floats:
        """Distances from the cut, float64 [n], above 0 for "in"; in deviations as of normal scores.

        Another rising map of all scores, earlier ones too, hardly moves them.
        """
        above = scores > self.threshold
        away = np.abs(self._normal(scores) - self._normal(np.array([self.threshold])))
        return np.where(above == self.rising, 1.0, -1.0) * np.maximum(away, 1e-9)

    def _normal(self, scores: Scores) -> Floats:
        return (normal_scores(scores, self.inside) + normal_scores(scores, self.outside)) / 2


def learnt(scores: Scores, members: Members) -> Cut | None:
    """The cut of trials so far, float64 [n] and bool [n]; None where means tell it well."""
    scores, members = scores[:LAST], members[:LAST]
    finite = np.isfinite(scores)
    inside, outside = (scores[finite & world] for world in (members, ~members))
    if min(len(inside), len(outside)) < _FEWEST:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        means = inside.mean() / 2 + outside.mean() / 2
        medians = np.median(inside), np.median(outside)
        away = np.abs(np.concatenate([inside - medians[0], outside - medians[1]]))
        deviation = np.median(away) / special.ndtri(0.75)
        error = math.sqrt(math.pi / 8 * (1 / len(inside) + 1 / len(outside))) * deviation
        near = abs(means - (medians[0] / 2 + medians[1] / 2)) <= _FAR * error
    mistakes = int((inside <= means).sum() + (outside > means).sum())
    trials = len(inside) + len(outside)
    if near and mistakes - trials / 2 <= _WRONG_WAY * math.sqrt(trials) / 2:
        return None
    inside.sort()
    outside.sort()
    cut, fewest = _of_ranks(inside, outside)
    return cut if fewest < mistakes else None


def _of_ranks(inside: Floats, outside: Floats) -> tuple[Cut, int]:
    """The cut that ranks tell, and its mistakes."""
    pooled = np.concatenate([inside, outside])
    pooled.sort()
    trials = len(pooled)
    # Cuts below all scores, between two different ones, and above all, by how many lie below.
    below = np.flatnonzero(np.concatenate([[True], pooled[1:] != pooled[:-1], [True]]))
    ends = np.concatenate([[-np.inf], pooled])[below]
    missed = np.searchsorted(inside, ends, side="right")
    alarms = len(outside) - np.searchsorted(outside, ends, side="right")
    unequal = np.abs(missed / len(inside) - alarms / len(outside))
    equal = np.flatnonzero(unequal <= unequal.min() + 1e-12)
    middle = equal[len(equal) // 2]
    mistakes = missed + alarms
    rising = bool(2 * mistakes[middle] <= trials)
    if not rising:
        mistakes = trials - mistakes
    best = int(np.argmin(mistakes + _STRAY * np.abs(below - below[middle])))
    threshold = _between(pooled, int(below[best]))
    return Cut(threshold, rising, inside, outside), int(mistakes[best])


def _between(pooled: Floats, below: int) -> float:
    """A threshold that has so many sorted scores below it, as far from either side in its unit."""
    if below in (0, len(pooled)):
        return math.inf if below else -math.inf
    low, high = float(pooled[below - 1]), float(pooled[below])
    lower = low - float(pooled[below - 1 - (below - 1) // _TAIL])
    upper = float(pooled[below + (len(pooled) - below - 1) // _TAIL]) - high
    share = lower / (lower + upper) if 0 < lower + upper < math.inf else 0.5
    between = low * (1 - share) + high * share
    return between if low <= between < high else low


def normal_scores(scores: Scores, earlier: Floats) -> Floats:
    """The normal quantile of each score's rank among `earlier` ones, which are sorted."""
    below = np.searchsorted(earlier, scores, "left") + np.searchsorted(earlier, scores, "right")
    return np.asarray(special.ndtri((below + 1) / (2 * (len(earlier) + 1))))
