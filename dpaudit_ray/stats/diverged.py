"""Diverged trainings as a third outcome: which way to guess them is learnt from earlier ones.

A training that diverges in one world only gives its bit away, whatever the scores of the others
say. Nothing needs to be known beforehand: a guess may depend on all earlier bits, so the first
diverged trials decide how later ones are guessed.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from .base import Members, Scores

LEARN = 0.2  # share of the planned trials whose diverged ones teach, where all others are judged
_CLEAR = 2.0  # standard deviations from which diverging counts as a sure sign


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

    Those among the first `learn` trials teach which, and become misses (NaN), which costs power
    and never validity: a miss is an error of every test. With `learn` 0 all of them teach and are
    guessed: for choosing a test, not for judging one.
    """
    seen, taught = Diverged(), learn or len(scores)
    seen.fold(scores[:taught], members[:taught])
    guess = np.inf if seen.guessed_in else -np.inf
    lost = np.isinf(scores)
    lesson = lost & (np.arange(len(scores)) < learn)
    return np.where(lesson, np.nan, np.where(lost, guess, scores))
