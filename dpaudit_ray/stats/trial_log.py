"""The trials of an audit, kept in order, and diverged trainings among them as a third outcome.

A training that diverges in one world only gives its bit away. A guess may depend on all earlier
bits, so the first diverged trials decide how later ones are guessed.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from .base import Members, Scores

LEARN = 0.2  # share of the planned trials whose diverged ones teach, where all others are judged
_CLEAR = 2.0  # standard deviations from which diverging counts as a sure sign


class TrialLog:
    """All folded trials, for methods that need every score: diverged ones are inf, misses NaN."""

    def __init__(self) -> None:
        self._scores, self._members = np.empty(0), np.empty(0, dtype=np.bool_)
        self._trials = 0

    def append(self, scores: Scores, members: Members) -> None:
        self._add(np.where(np.isfinite(scores), scores, np.inf), members)

    def miss(self, members: Members) -> None:
        self._add(np.full(len(members), np.nan), members)

    def __len__(self) -> int:
        return self._trials

    def arrays(self) -> tuple[Scores, Members]:
        """The trials so far as two arrays, which are read only."""
        return self._scores[: self._trials], self._members[: self._trials]

    def _add(self, scores: Scores, members: Members) -> None:
        start, self._trials = self._trials, self._trials + len(scores)
        if self._trials > len(self._scores):
            room = max(self._trials, 2 * start)  # what is not written to yet takes no memory
            kept, bits = self.arrays()
            self._scores, self._members = np.empty(room), np.empty(room, dtype=np.bool_)
            self._scores[:start], self._members[:start] = kept[:start], bits[:start]
        self._scores[start : self._trials] = scores
        self._members[start : self._trials] = members


class Logged:
    """Mixin: an estimator that keeps every trial, and learns nothing from the order of the bits."""

    learns = False  # guesses, ranks and thresholds are functions of all trials at once

    def __post_init__(self) -> None:
        self._log = TrialLog()

    @property
    def keeps_log_only(self) -> bool:
        """Whether trials go into the log and nowhere else, so that the log may be shared."""
        return type(self)._fold is Logged._fold

    def share_log(self, other: Logged) -> None:
        """Keeps no trials of its own from now on: it reads those that are folded into `other`."""
        self._log = other._log

    def _fold(self, scores: Scores, members: Members) -> None:
        self._log.append(scores, members)

    def _miss(self, members: Members) -> None:
        self._log.miss(members)


@dataclasses.dataclass
class Diverged:
    """Diverged trials per world so far."""

    outside: int = 0
    inside: int = 0

    def fold(self, scores: Scores, members: Members) -> None:
        """Counts ±inf among scores float64 [n]; NaN is a miss, which teaches nothing."""
        lost = np.isinf(scores)
        self.outside += int((lost & ~members).sum())
        self.inside += int((lost & members).sum())

    @property
    def guessed_in(self) -> bool:
        """The guess for the next diverged trial: the world in which more were seen."""
        return self.inside >= self.outside

    @property
    def sure(self) -> bool:
        """Whether the two worlds diverge so unequally that this is no accident."""
        total = self.inside + self.outside
        return total > 0 and abs(self.inside - self.outside) >= _CLEAR * total**0.5


def settled(scores: Scores, members: Members, learn: int) -> Scores:
    """Scores float64 [n] with diverged trials turned into guesses: +inf "in", -inf "out".

    Those among the first `learn` trials teach which, and become misses (NaN). With `learn` 0 all
    teach and are guessed: for choosing a test, not for judging one.
    """
    seen, taught = Diverged(), learn or len(scores)
    seen.fold(scores[:taught], members[:taught])
    guess = np.inf if seen.guessed_in else -np.inf
    judged = np.where(np.isinf(scores), guess, scores)
    judged[:learn][np.isinf(scores[:learn])] = np.nan
    return judged
