"""Trials of an audit in order, with diverged ones as a third outcome.

A training run that diverges in one world only reveals its bit. A guess may depend on all earlier
bits, so the first diverged trials decide how later ones are guessed.
"""

from dataclasses import dataclass

import numpy as np

from .base import Members, Scores

# Share of the planned trials, the first ones, of which the diverged ones decide how later ones are
# guessed.
LEARN = 0.2
_CLEAR = 2.0  # standard deviations of fair coins from which diverging is a sure sign of the bit


class TrialLog:
    """All folded trials, for methods that need every score: diverged ones are inf, misses NaN."""

    def __init__(self) -> None:
        self._scores = np.empty(0)
        self._members = np.empty(0, dtype=bool)
        self._trials = 0

    def append(self, scores: Scores, members: Members) -> None:
        """Adds trials in order.

        Args:
            scores: float64 [n], not finite where diverged.
            members: the secret bits, bool [n].
        """
        self._add(np.where(np.isfinite(scores), scores, np.inf), members)

    def miss(self, members: Members) -> None:
        """Adds trials without an output, with bits bool [n]."""
        self._add(np.full(len(members), np.nan), members)

    def __len__(self) -> int:
        return self._trials

    def arrays(self) -> tuple[Scores, Members]:
        """Returns scores and bits of the trials so far; callers must not write to them."""
        return self._scores[: self._trials], self._members[: self._trials]

    def _add(self, scores: Scores, members: Members) -> None:
        """Appends trials; memory grows by doubling."""
        start = self._trials
        self._trials += len(scores)
        if self._trials > len(self._scores):
            # Pages of memory are not taken before they are written.
            size = max(self._trials, 2 * start)
            earlier, bits = self._scores, self._members
            self._scores = np.empty(size)
            self._members = np.empty(size, dtype=bool)
            self._scores[:start] = earlier[:start]
            self._members[:start] = bits[:start]
        self._scores[start : self._trials] = scores
        self._members[start : self._trials] = members


class Logged:
    """Mixin: an estimator that keeps every trial, and learns nothing from the order of the bits."""

    learns = False  # guesses, ranks and thresholds are functions of all trials at once

    def __post_init__(self) -> None:
        self._log = TrialLog()

    @property
    def keeps_log_only(self) -> bool:
        """Whether trials are only stored in the log, so that the log may be shared."""
        return type(self)._fold is Logged._fold

    def share_log(self, other: "Logged") -> None:
        """Reads the trials that are folded into `other` from now on, instead of storing them."""
        self._log = other._log

    def _fold(self, scores: Scores, members: Members) -> None:
        self._log.append(scores, members)

    def _miss(self, members: Members) -> None:
        self._log.miss(members)


@dataclass
class Diverged:
    """Numbers of trials so far that diverged in each world."""

    outside: int = 0
    inside: int = 0

    def fold(self, scores: Scores, members: Members) -> None:
        """Counts ±inf among scores float64 [n] by their bits; NaN, a failed trial, is ignored."""
        diverged = np.isinf(scores)
        self.outside += int((diverged & ~members).sum())
        self.inside += int((diverged & members).sum())

    @property
    def guessed_in(self) -> bool:
        """The guess for the next diverged trial: the world in which more have diverged."""
        return self.inside >= self.outside

    @property
    def sure(self) -> bool:
        """Whether the two worlds diverge too unequally for chance."""
        total = self.inside + self.outside
        return total > 0 and abs(self.inside - self.outside) >= _CLEAR * total**0.5


def with_diverged_guessed(scores: Scores, members: Members, learn: int) -> Scores:
    """Returns scores in which diverged trials are guesses: +inf for "in", -inf for "out".

    The guess is the world in which more of the first `learn` trials diverged. These become failed
    trials, since their bits were used. With `learn` 0 all trials decide and are guessed: for the
    choice of a threshold, not for a bound.

    Args:
        scores: float64 [n], ±inf where diverged, NaN where there was no output.
        members: the secret bits, bool [n].
        learn: number of first trials that decide the guess and are not guessed.

    Returns:
        float64 [n], NaN for failed trials.
    """
    deciding = Diverged()
    end = learn or len(scores)
    deciding.fold(scores[:end], members[:end])
    guess = np.inf if deciding.guessed_in else -np.inf
    diverged = np.isinf(scores)
    guessed = np.where(diverged, guess, scores)
    guessed[:learn][diverged[:learn]] = np.nan
    return guessed
