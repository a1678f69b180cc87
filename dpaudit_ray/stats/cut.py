"""The cut between two worlds, where class means do not tell it: scores of any shape and direction.

The midpoint of the class means is the best cut of scores that are about normal, and is learnt from
the fewest trials. Another unit of the scores moves it anywhere: of z³, of -exp(2z) or of losses
with a heavy tail, it cuts far from where the worlds part. So at set numbers of earlier trials it is
compared with the midpoint of the class medians. Where they lie further apart than chance has it,
where some scores lie so far out that means swing, or where the midpoint guesses the wrong way
round, ranks tell the cut: the one of fewest mistakes near the midpoint of the means of normal
scores. All is learnt from earlier trials alone, as a bound by guesses asks.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
from scipy import special

from .base import Members, Scores
from .error_rates import Floats

FIRST, LAST, GROWTH = 20, 2048, 1.25  # numbers of trials after which a cut is learnt
_FAR = 3.0  # standard errors of the medians' midpoint, which normal scores hardly ever reach
_WRONG_WAY = 1.0  # standard deviation of coin tosses: waiting would cost more than a chance flip
_HEAVY = 3.0  # standard deviations by the middle half of the scores; normal ones are at 1
_FEWEST = 5  # finite scores of a world
_STRAY = 0.5  # mistakes that one rank away from the midpoint of normal scores must save
_MORE = 0.5  # standard deviations of coin tosses by which a cut of ranks may err more than means
_TAIL = 5  # a fifth of a world's scores tells how far apart the scores at its end lie


@dataclasses.dataclass(frozen=True)
class Cut:
    """Where earlier trials part, and their scores with the canary and without, sorted."""

    threshold: float
    rising: bool  # whether scores above it are of the world with the canary
    inside: Floats
    outside: Floats

    def guesses(self, scores: Scores) -> Members:
        """Which finite scores are guessed to be of the world with the canary, bool [n]."""
        return np.asarray((scores > self.threshold) == self.rising)

    def position(self, scores: Scores) -> Floats:
        """Distances from the cut, float64 [n], above 0 for "in"; in deviations as of normal scores.

        Another rising map of all scores, earlier ones too, hardly moves them.
        """
        away = np.abs(self._normal(scores) - self._normal(np.array([self.threshold])))
        return np.where(self.guesses(scores), 1.0, -1.0) * np.maximum(away, 1e-9)

    def _normal(self, scores: Scores) -> Floats:
        return (normal_scores(scores, self.inside) + normal_scores(scores, self.outside)) / 2


def learnt(scores: Scores, members: Members) -> Cut | None:
    """The cut of trials so far, float64 [n] and bool [n]; None where means tell it well."""
    return _learnt(scores[:LAST].tobytes(), members[:LAST].tobytes())


@functools.lru_cache(maxsize=1024)  # 5 MB; bounds, tests and stop rule learn from the same trials
def _learnt(of_scores: bytes, of_members: bytes) -> Cut | None:
    scores, members = np.frombuffer(of_scores), np.frombuffer(of_members, np.bool_)
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
        steady = math.sqrt(inside.var() / 2 + outside.var() / 2) <= _HEAVY * deviation
    mistakes = int((inside <= means).sum() + (outside > means).sum())
    trials = len(inside) + len(outside)
    right_way = mistakes - trials / 2 <= _WRONG_WAY * math.sqrt(trials) / 2
    if near and steady and right_way:
        return None
    inside.sort()
    outside.sort()
    cut, fewest = _of_ranks(inside, outside)
    differ = sum(int(((x > means) != cut.guesses(x)).sum()) for x in (inside, outside))
    return cut if fewest <= mistakes + _MORE * math.sqrt(differ) else None


def _of_ranks(inside: Floats, outside: Floats) -> tuple[Cut, int]:
    """The cut that ranks tell, and its mistakes."""
    pooled = np.concatenate([inside, outside])
    pooled.sort()
    trials = len(pooled)
    means = normal_scores(inside, pooled).mean(), normal_scores(outside, pooled).mean()
    rising, middle = bool(means[0] >= means[1]), means[0] / 2 + means[1] / 2
    below_middle = np.searchsorted(normal_scores(pooled, pooled), middle, side="right")
    # Cuts below all scores, between two different ones, and above all, by how many lie below.
    below = np.flatnonzero(np.concatenate([[True], pooled[1:] != pooled[:-1], [True]]))
    ends = np.concatenate([[-np.inf], pooled])[below]
    missed = np.searchsorted(inside, ends, side="right")
    alarms = len(outside) - np.searchsorted(outside, ends, side="right")
    mistakes = missed + alarms if rising else trials - missed - alarms
    best = int(np.argmin(mistakes + _STRAY * np.abs(below - below_middle)))
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
