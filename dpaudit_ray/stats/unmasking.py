"""Which of many independent trainings to guess, learnt without looking at the bits that are judged.

The bits of the first trials are looked at, then, one small part at a time, those of the trials
that look least certain: each look improves the next choice of what to give up. What is never
looked at is guessed. Every choice is a function of the outputs and of bits looked at before, and
given all outputs the bits of independent trainings are independent, so those still masked are as
uncertain as if nothing had been looked at. (Lei and Fithian's AdaPT reveals p-values so, 2018.)
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from scipy import special

from .base import Members, Scores
from .posterior import Counts, Floats, Groups

FIRST_SHARE, FIRST_TRIALS = 0.05, 10  # of the planned trials: known from the start
_PART = 15  # at most one of so many masked trials is looked at between two choices
_EXPONENTS = np.linspace(0, 1, 64)  # of the numbers of guesses that are compared


@dataclasses.dataclass(frozen=True)
class Judged:
    """Guesses on masked trials, how many of them are right, and the lowest score guessed "in"."""

    right: int
    guesses: int
    threshold: float = math.nan


@dataclasses.dataclass(frozen=True)
class Target:
    """What the guesses are for: a lower Clopper-Pearson bound at `alpha`, of the guesses beyond
    `told` right ones, which count for nothing; `missed` wrong guesses are made already."""

    alpha: float
    told: int = 0
    missed: int = 0

    def rate(self, guesses: Floats, wrong: Floats) -> Floats:
        """The bound to expect from these guesses, float64 [n]; counts need not be whole."""
        right = np.maximum(guesses - wrong - self.told, 0.0)
        errors = np.maximum(np.minimum(wrong, guesses - self.told), 0.0) + self.missed
        bound = special.betaincinv(np.maximum(right, 1e-9), errors + 1, self.alpha)
        return np.asarray(np.where(right > 0, bound, 0.0))


def first_trials(planned: int) -> int:
    """How many trials are known from the start, for an audit of this size."""
    return max(math.ceil(FIRST_SHARE * planned), min(FIRST_TRIALS, planned // 2))


class Masks:
    """The trials of an audit, float64 [R] scores and bool [R] bits, the first `first` known."""

    def __init__(self, scores: Scores, members: Members, first: int) -> None:
        self._scores, self._members = scores, members
        self._groups = groups = Groups.of(scores)
        self._bits = groups.cumulated(members)
        # Within a group trials are in order, so the known ones are always its first.
        begun = np.concatenate([[0], np.cumsum(groups.order < first)])
        self._known: Counts = begun[groups.start + groups.size] - begun[groups.start]
        self._fit: Floats | None = None
        self._learn()

    def adaptive(self, target: Target) -> Judged:
        """Gives up trials as long as fewer, surer guesses promise more, and judges the rest."""
        while self._give_up(target):
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
        start, known = self._groups.start, self._known
        inside = self._bits[start + known] - self._bits[start]
        self._chance, self._fit = self._groups.chance_in(inside, known, self._fit)
        self._doubt = np.minimum(self._chance, 1 - self._chance)

    def _give_up(self, target: Target) -> bool:
        """Looks at the bits of some of the least certain trials, or says that none should go."""
        masked = self._groups.size - self._known
        surest = np.argsort(self._doubt, kind="stable")
        surest = surest[masked[surest] > 0]
        guesses = np.cumsum(masked[surest])
        if len(guesses) == 0:
            return False
        wrong = np.cumsum((masked * self._doubt)[surest])
        last = len(guesses) - 1
        tried = np.searchsorted(guesses, guesses[-1] ** _EXPONENTS)
        tried[-1] = last  # as it is; rounding may have put it beyond
        tried = np.unique(tried)
        rates = target.rate(guesses[tried].astype(np.float64), wrong[tried])
        best = tried[int(np.argmax(rates))]
        if rates.max() <= rates[-1]:
            return False
        part = min(int(guesses[-1] - guesses[best]), math.ceil(guesses[-1] / _PART))
        self._look(surest[:best:-1], masked, part)
        return True

    def _look(self, doubtful: Counts, masked: Counts, part: int) -> None:
        """At about `part` bits, most doubtful groups first; never at all of a large group."""
        shares = np.maximum(masked[doubtful] // _PART, 1)
        before = np.cumsum(shares) - shares
        self._known[doubtful] += np.clip(part - before, 0, shares)

    def _judge(self, taken: Counts) -> Judged:
        """Guesses the first `taken` masked trials of each group, int64 [groups]."""
        begin = self._groups.start + self._known
        inside = self._bits[begin + taken] - self._bits[begin]
        says_in = self._chance > 0.5
        right = np.where(says_in, inside, taken - inside)
        finite_in = np.flatnonzero(says_in[:-1] & (taken[:-1] > 0))
        threshold = math.nan
        if len(finite_in):
            lowest = finite_in[0]
            trials = self._groups.order[begin[lowest] : begin[lowest] + taken[lowest]]
            threshold = float(self._scores[trials].min())
        return Judged(int(right.sum()), int(taken.sum()), threshold)
