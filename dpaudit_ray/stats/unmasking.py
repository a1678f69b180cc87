"""The choice of which independent trainings to guess, without a look at the bits that are judged.

The bits of the first trials are looked at, then, one small part at a time, those of the trials that
look least certain; what is never looked at is guessed. Every choice is a function of the outputs
and of bits looked at before, and given all outputs the bits of independent trainings are
independent, so those still masked are as uncertain as if nothing had been looked at. (Lei and
Fithian's AdaPT reveals p-values so, 2018.)

How likely "in" is at a score is learnt from the bits looked at. The log odds of "in" are taken to
rise along a ramp in the rank of the score (as a normal score) and to be flat beyond its two ends.
Six ramps, with ends at either knot or nowhere, and two of them once more as even on both sides, are
fitted with normal priors and averaged by their evidence: a steady rise suits Gaussian noise, a rise
between two plateaus Laplace noise and randomised response, a rise at one end a leak in some runs
only. Nothing that is certified rests on the fit.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import numpy.typing as npt
from scipy import special

from .base import Members, Scores
from .error_rates import Counts, Floats

FIRST_SHARE, FIRST_TRIALS = 0.05, 10  # of the planned trials: known from the start
_PART = 15  # at most one of so many masked trials is looked at between two choices
_EXPONENTS = np.linspace(0, 1, 64)  # of the numbers of guesses that are compared
GROUPS = 256  # groups of neighbouring scores: enough to place a threshold, few enough to be fast
_KNOTS = (-9.0, -0.7, 0.7, 9.0)  # normal scores at which ramps end; beyond ±9 is nowhere
_REACH = 2.5  # normal scores beyond this are too few to count in a ramp's height
_RAMPS = (*itertools.combinations(_KNOTS, 2), (_KNOTS[0], _KNOTS[3]), (_KNOTS[1], _KNOTS[2]))
_LOW, _HIGH = np.array(_RAMPS).T[:, :, None]
_BOTTOM, _TOP = np.maximum(_LOW, -_REACH), np.minimum(_HIGH, _REACH)
# Prior weights of the ramps: a steady rise, as of Gaussian noise, before all others.
_FAVOUR = np.log([[1.0], [1.0], [1.0], [4.0], [1.0], [1.0], [0.3], [0.6]])
# Of the log odds halfway up a ramp: free, or for the last two about even, as where both worlds
# look alike mirrored. Otherwise the luck of early trials makes one of two equal sides look surer.
_LEVEL_SD = np.repeat([[2.0], [0.05]], [6, 2], axis=0)
_RISE_SD = 8.0  # of the height of a ramp
_NEWTON_STEPS, _NEWTON_REACH, _CLOSE = 12, 4.0, 5e-2  # in log odds: the fit need not be finer


@dataclasses.dataclass(frozen=True)
class Judged:
    """Guesses on masked trials, how many of them are right, and the lowest score guessed "in"."""

    right: int
    guesses: int
    threshold: float = math.nan


def hit_rate(guesses: Floats, wrong: Floats, alpha: float, revealed: int, missed: int) -> Floats:
    """Hit rates to expect, at least, at `alpha`; `revealed` are left out, `missed` are wrong."""
    right = np.maximum(guesses - wrong - revealed, 0.0)
    bound = special.betaincinv(np.maximum(right, 1e-9), wrong + missed + 1, alpha)
    return np.asarray(np.where(right > 0, bound, 0.0))


def first_trials(planned: int) -> int:
    """How many trials are known from the start, for an audit of this size."""
    return max(math.ceil(FIRST_SHARE * planned), min(FIRST_TRIALS, planned // 2))


class Masks:
    """The trials of an audit, float64 [R] scores and bool [R] bits, the first `first` known."""

    def __init__(self, scores: Scores, members: Members, first: int) -> None:
        self._scores, self._members = scores, members
        self._groups = groups = Groups.from_scores(scores)
        # Trials that are in, among the first k of the order.
        self._bits = _counted(members[groups.order])
        # Within a group trials are in order, so the known ones are always its first.
        begun = _counted(groups.order < first)
        self._known = (begun[groups.start + groups.size] - begun[groups.start]).astype(np.int64)
        self._fit: Floats | None = None
        self._learn()

    def adaptive(self, alpha: float, revealed: int = 0, missed: int = 0) -> Judged:
        """Gives up trials while fewer, surer guesses promise more `hit_rate`; judges the rest."""
        while self._give_up(alpha, revealed, missed):
            self._learn()
        return self._judge(self._groups.size - self._known)

    def fixed(self, guesses: int) -> Judged:
        """Judges this many of the surest masked trials, by what is known now."""
        masked = self._groups.size - self._known
        surest = np.argsort(self._doubt, kind="stable")
        room = np.maximum(guesses - (np.cumsum(masked[surest]) - masked[surest]), 0)
        taken = np.zeros_like(masked)
        taken[surest] = np.minimum(masked[surest], room)
        return self._judge(taken)

    def _learn(self) -> None:
        start, seen = self._groups.start, self._known
        inside = self._bits[start + seen] - self._bits[start]
        self._chance, self._fit = self._groups.chance_in(inside, seen, self._fit)
        self._doubt = np.minimum(self._chance, 1 - self._chance)

    def _give_up(self, alpha: float, revealed: int, missed: int) -> bool:
        """Looks at the bits of some of the least certain trials, or says that none should go."""
        masked = self._groups.size - self._known
        surest = np.argsort(self._doubt, kind="stable")
        surest = surest[masked[surest] > 0]
        guesses, wrong = np.cumsum(masked[surest]), np.cumsum((masked * self._doubt)[surest])
        if len(guesses) == 0:
            return False
        tried = np.searchsorted(guesses, guesses[-1] ** _EXPONENTS)  # the last may be rounded up
        tried = np.unique(np.minimum(tried, len(guesses) - 1))
        rates = hit_rate(guesses[tried] * 1.0, wrong[tried], alpha, revealed, missed)
        best = tried[int(np.argmax(rates))]
        if rates.max() <= rates[-1]:
            return False
        part = min(int(guesses[-1] - guesses[best]), math.ceil(guesses[-1] / _PART))
        # About `part` bits, most doubtful groups first; never all of a large group.
        doubtful = surest[:best:-1]
        shares = np.maximum(masked[doubtful] // _PART, 1)
        self._known[doubtful] += np.clip(part - (np.cumsum(shares) - shares), 0, shares)
        return True

    def _judge(self, taken: Counts) -> Judged:
        """Guesses the first `taken` masked trials of each group, int64 [groups]."""
        begin = self._groups.start + self._known
        inside = self._bits[begin + taken] - self._bits[begin]
        says_in = self._chance > 0.5
        right = int(np.where(says_in, inside, taken - inside).sum())
        threshold = math.nan
        if len(finite_in := np.flatnonzero(says_in[:-1] & (taken[:-1] > 0))):
            first = begin[lowest := finite_in[0]]
            threshold = float(self._scores[self._groups.order[first : first + taken[lowest]]].min())
        return Judged(right, int(taken.sum()), threshold)


@dataclasses.dataclass(frozen=True)
class Groups:
    """Trials grouped by score, lowest first; the last group holds the diverged ones, if any.

    `order` lists the trials, int32 [R], group by group and in trial order within each; group g is
    `order[start[g] : start[g] + size[g]]`. `ramps` are the fitted shapes, float64 [8, groups - 1].
    """

    order: npt.NDArray[np.int32]
    start: Counts
    size: Counts
    ramps: Floats

    @classmethod
    def from_scores(cls, scores: Scores) -> Groups:
        """Groups float64 [R] scores, equal ones always together, all that are not finite too."""
        rising = np.flatnonzero(np.isfinite(scores)).astype(np.int32)
        rising = rising[np.argsort(scores[rising])]
        first = np.flatnonzero(_changes(scores[rising])).astype(np.int32)
        count = np.diff(first, append=np.int32(len(rising)))
        place = np.arange(min(len(first), GROUPS), dtype=np.int16)  # sorted by digits below
        if len(first) > GROUPS:
            coarse = np.multiply(first + count - count // 2 - 1, GROUPS, dtype=np.int64)
            place = np.cumsum(_changes(coarse // len(rising)), dtype=np.int16) - 1
        total = int(place[-1]) + 1 if len(place) else 0
        group = np.full(len(scores), total, dtype=np.int16)
        group[rising] = np.repeat(place, count)
        del first, count, place, rising  # arrays as long as the scores
        size = np.bincount(group, minlength=total + 1)
        start = np.cumsum(size) - size
        rank = (start + size / 2)[:-1] / max(len(scores) - int(size[-1]), 1)
        order = np.argsort(group, kind="stable").astype(np.int32)
        normal = np.clip(special.ndtri(rank), _LOW, _HIGH)
        ramps = (normal - (_BOTTOM + _TOP) / 2) / (_TOP - _BOTTOM)
        return cls(order, start, size, ramps)

    def chance_in(
        self, inside: Counts, seen: Counts, start: Floats | None = None
    ) -> tuple[Floats, Floats]:
        """P(in) of each group when `inside` of `seen` trials are in, and the fit's end."""
        curve, theta = _average(self.ramps, inside[:-1], seen[:-1], start)
        return np.append(curve, (inside[-1] + 0.5) / (seen[-1] + 1)), theta


def _counted(marked: Members) -> npt.NDArray[np.int32]:
    """How many of the first k are marked, for k = 0..R: int32 [R + 1]."""
    counts = np.zeros(len(marked) + 1, dtype=np.int32)
    np.cumsum(marked, dtype=np.int32, out=counts[1:])
    return counts


def _changes(rising: Floats | Counts) -> Members:
    """Which of values in rising order is the first of its kind, bool [n]."""
    return np.concatenate([np.ones(min(len(rising), 1), np.bool_), rising[1:] != rising[:-1]])


def _average(
    ramps: Floats, inside: Counts, seen: Counts, start: Floats | None
) -> tuple[Floats, Floats]:
    """Posterior mean of P(in) by Newton's method, probit approximation and ramps' evidence."""
    theta = np.zeros((2, len(ramps), 1)) if start is None else start
    for _ in range(_NEWTON_STEPS):
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
        furthest = float(np.abs(step).max())
        if furthest < _CLOSE:
            break
        theta = theta + step * min(1.0, _NEWTON_REACH / furthest)
    variance = (c - 2 * b * ramps + a * ramps**2) / area
    prior = (theta[0] / _LEVEL_SD) ** 2 + (theta[1] / _RISE_SD) ** 2
    log_sum = np.maximum(fitted, 0) + np.log(1 + np.exp(-np.abs(fitted)))  # a fifth of logaddexp
    likelihood = (inside * fitted - seen * log_sum).sum(1, keepdims=True)
    evidence = _FAVOUR + likelihood - prior / 2 - np.log(_LEVEL_SD * np.sqrt(area))
    shares = np.exp(evidence - evidence.max())
    chances = special.expit(fitted / np.sqrt(1 + np.pi / 8 * variance))
    return (shares * chances).sum(0) / shares.sum(), theta
