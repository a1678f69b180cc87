"""How likely "in" is at a score, learnt from the few trials whose bits may be looked at.

The log odds of "in" are taken to rise along a ramp in the rank of the score (as a normal score, so
that no scale or tail matters) and to be flat beyond its two ends. Six ramps, with ends at either
knot or nowhere, and two of them once more as even on both sides, are fitted with normal priors and
averaged by their evidence: a steady rise suits Gaussian noise, a rise between two plateaus Laplace
noise and randomised response, a rise at one end a leak that shows in some runs only. Nothing that
is certified rests on the fit: a poor one costs power.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import numpy.typing as npt
from scipy import special

from .base import Members, Scores

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

GROUPS = 256  # groups of neighbouring scores: enough to place a threshold, few enough to be fast
_KNOTS = (-9.0, -0.7, 0.7, 9.0)
_REACH = 2.5  # normal scores beyond this are too few to count in a ramp's height
_RAMPS = (*itertools.combinations(_KNOTS, 2), (_KNOTS[0], _KNOTS[3]), (_KNOTS[1], _KNOTS[2]))
_FAVOUR = np.log([[1.0], [1.0], [1.0], [4.0], [1.0], [1.0], [0.3], [0.6]])
# Of the log odds halfway up a ramp: free, or for the last two about even, as where both worlds
# look alike mirrored. Otherwise the luck of early trials makes one of two equal sides look surer.
_LEVEL_SD = np.array([[2.0], [2.0], [2.0], [2.0], [2.0], [2.0], [0.05], [0.05]])
_RISE_SD = 8.0  # of the height of a ramp
_NEWTON_STEPS, _NEWTON_REACH, _CLOSE = 12, 4.0, 5e-2


@dataclasses.dataclass(frozen=True)
class Groups:
    """Trials grouped by score, lowest first; the last group holds the diverged ones, if any.

    `order` lists the trials, int64 [R], group by group and in trial order within each; group g is
    `order[start[g] : start[g] + size[g]]`. `ramps` are the fitted shapes, float64
    [8, groups - 1]. All of it is a function of the scores alone.
    """

    order: Counts
    start: Counts
    size: Counts
    ramps: Floats

    @classmethod
    def of(cls, scores: Scores) -> Groups:
        """Groups float64 [R] scores, equal ones always together, all that are not finite too."""
        finite = np.isfinite(scores)
        rising = np.argsort(scores[finite])
        first = _changes(scores[finite][rising])
        count = np.diff(first, append=len(rising))
        place = np.arange(len(first))
        if len(first) > GROUPS:
            coarse = (first + count - count // 2 - 1) * GROUPS // len(rising)
            place = np.searchsorted(_changes(coarse), place, side="right") - 1
        total = int(place[-1]) + 1 if len(place) else 0
        group = np.full(len(scores), total, dtype=np.int16)  # so few values are sorted by digits
        group[np.flatnonzero(finite)[rising]] = np.repeat(place, count)
        size = np.bincount(group, minlength=total + 1)
        start = np.cumsum(size) - size
        rank = (start + size / 2)[:-1] / max(len(rising), 1)
        return cls(np.argsort(group, kind="stable"), start, size, _ramps(special.ndtri(rank)))

    def cumulated(self, members: Members) -> Counts:
        """Trials that are in, among the first k of `order`: int64 [R + 1]."""
        return np.concatenate([[0], np.cumsum(members[self.order])])

    def chance_in(
        self, inside: Counts, seen: Counts, start: Floats | None = None
    ) -> tuple[Floats, Floats]:
        """P(in) of each group, float64 [groups], when `inside` of `seen` known trials are in.

        Also where the fit ended, from which the next one, of a little more data, may `start`.
        """
        curve, theta = _average(self.ramps, inside[:-1], seen[:-1], start)
        return np.append(curve, (inside[-1] + 0.5) / (seen[-1] + 1)), theta


def _changes(rising: Floats | Counts) -> Counts:
    """Where a value begins, int64, of values in rising order."""
    return np.flatnonzero(np.concatenate([[len(rising) > 0], rising[1:] != rising[:-1]]))


def _ramps(normal: Floats) -> Floats:
    found = []
    for low, high in _RAMPS:
        bottom, top = max(low, -_REACH), min(high, _REACH)
        found.append((np.clip(normal, low, high) - (bottom + top) / 2) / (top - bottom))
    return np.array(found)


def _average(
    ramps: Floats, inside: Counts, seen: Counts, start: Floats | None
) -> tuple[Floats, Floats]:
    """Posterior mean of P(in): each ramp's by the probit approximation, then by evidence."""
    theta = np.zeros((2, len(ramps), 1)) if start is None else start
    for _ in range(_NEWTON_STEPS):
        step, (a, b, c), fitted = _newton(ramps, inside, seen, theta)
        furthest = float(np.abs(step).max())
        if furthest < _CLOSE:
            break
        theta = theta + step * min(1.0, _NEWTON_REACH / furthest)
    area = a * c - b * b
    variance = (c - 2 * b * ramps + a * ramps**2) / area
    prior = (theta[0] / _LEVEL_SD) ** 2 + (theta[1] / _RISE_SD) ** 2
    log_sum = np.maximum(fitted, 0) + np.log(1 + np.exp(-np.abs(fitted)))  # a fifth of logaddexp
    likelihood = (inside * fitted - seen * log_sum).sum(1, keepdims=True)
    evidence = _FAVOUR + likelihood - prior / 2 - np.log(_LEVEL_SD * np.sqrt(area))
    weight = np.exp(evidence - evidence.max())
    chances = special.expit(fitted / np.sqrt(1 + np.pi / 8 * variance))
    return (weight * chances).sum(0) / weight.sum(), theta


def _newton(
    ramps: Floats, inside: Counts, seen: Counts, theta: Floats
) -> tuple[Floats, tuple[Floats, Floats, Floats], Floats]:
    """Newton step [2, ramps, 1], the information matrix's entries, and the fitted log odds."""
    fitted = theta[0] + theta[1] * ramps
    chance = special.expit(fitted)
    rest, weight = inside - seen * chance, seen * chance * (1 - chance)
    slope = rest.sum(1, keepdims=True) - theta[0] / _LEVEL_SD**2
    rise = (rest * ramps).sum(1, keepdims=True) - theta[1] / _RISE_SD**2
    a = weight.sum(1, keepdims=True) + _LEVEL_SD**-2
    b = (weight * ramps).sum(1, keepdims=True)
    c = (weight * ramps**2).sum(1, keepdims=True) + _RISE_SD**-2
    area = a * c - b * b
    step = np.array([(c * slope - b * rise) / area, (a * rise - b * slope) / area])
    return step, (a, b, c), fitted
