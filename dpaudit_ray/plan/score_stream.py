"""Packs of trials as estimators take them: in the order of trials, misses among them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..stats.base import Estimator, Members, Scores, stretches_of_equal
from ..stats.claim_verdict import BoundTest, ClaimTest, DeclaredTest, RunTest
from ..stats.growth import Growing
from ..stats.guess_count_bound import GuessCounter
from ..storage.scores import PackScores
from .model import PlannedAudit


@dataclass(frozen=True)
class MissedPack:
    """Trials first..first+n-1, all of which failed: `members` bool [n], and no scores."""

    first: int
    members: Members

    @property
    def last(self) -> int:
        """The last of the trials."""
        return self.first + len(self.members) - 1

    @property
    def failed(self) -> Members:
        """Trials that failed, bool [n]: all."""
        return np.ones(len(self.members), bool)

    def part(self, first: int, last: int) -> MissedPack:
        """Returns trials `first` to `last` of the pack."""
        start = first - self.first
        return MissedPack(first, self.members[start : last - self.first + 1])


ConsumedPack = PackScores | MissedPack


def parts_between_looks(
    audit: PlannedAudit, packs: ConsumedPack, due: Callable[[], int]
) -> Iterator[ConsumedPack]:
    """Yields the packs of a file in parts, so that a test can look as soon as a look is due.

    Args:
        audit: the audit of the packs.
        packs: one or more packs that follow each other.
        due: called before each part; returns the number of the audit's trials after which the next
            look is due. The part ends with the pack that has the last of these trials.
    """
    first = packs.first
    while first <= packs.last:
        # The last of `due()` trials has this number less one: the first trial is 0.
        number = audit.pack_number(max(due() - 1, first))
        _, end = audit.packs[number]
        yield packs.part(first, min(end, packs.last))
        first = end + 1


def feed(
    state: Estimator | Growing | ClaimTest | RunTest | GuessCounter | DeclaredTest | BoundTest,
    pack: ConsumedPack | Trials,
    column: int = -1,
) -> None:
    """Folds a pack into an estimator or test, in the order of its trials.

    Args:
        state: the estimator or test.
        pack: one pack, several that follow each other, or all of a prefix.
        column: number of the recorded step whose scores are folded.
    """
    if isinstance(pack, MissedPack):
        state.miss(pack.members)
    elif isinstance(pack, PackScores) and not pack.missed:
        state.fold(pack.scores[:, column], pack.members)
    else:
        for rows, missed in stretches_of_equal(pack.failed):
            if missed:
                state.miss(pack.members[rows])
            else:
                state.fold(pack.scores[rows, column], pack.members[rows])


@dataclass(frozen=True)
class Trials:
    """All trials of a prefix.

    Attributes:
        steps: the recorded steps.
        members: secret bits, bool [n].
        scores: float64 [n, steps].
        missed: trials that failed, bool [n]; their scores are NaN at every step.
        utility: other measurements by their names, each like `scores`.
    """

    steps: tuple[int, ...]
    members: Members
    scores: Scores
    missed: Members
    utility: Mapping[str, Scores]

    @classmethod
    def joined(cls, audit: PlannedAudit, packs: Iterable[ConsumedPack]) -> Trials:
        """Puts the packs of a prefix together."""
        n = audit.packs[-1][1] + 1 if audit.packs else 0
        shape = n, len(audit.horizons)
        members, missed = np.zeros((2, n), bool)
        scores = np.full(shape, math.nan)
        utility: dict[str, Scores] = {}
        end = 0
        for pack in packs:
            end = pack.last + 1
            rows = slice(pack.first, end)
            members[rows] = pack.members
            missed[rows] = pack.failed
            if isinstance(pack, PackScores):
                scores[rows] = pack.scores
                for name, values in pack.utility.items():
                    column = utility.setdefault(name, np.full(shape, math.nan))
                    column[rows] = values
        return cls(audit.horizons, members, scores, missed, utility).part(slice(end))

    @property
    def failed(self) -> Members:
        """The trials that were missed, as `failed` of a pack."""
        return self.missed

    @property
    def scored(self) -> Trials:
        """The trials that were not missed."""
        return self.part(~self.missed) if self.missed.any() else self

    def part(self, rows: slice | Members) -> Trials:
        """Returns the trials of these rows."""
        utility = {name: values[rows] for name, values in self.utility.items()}
        members, scores = self.members[rows], self.scores[rows]
        return Trials(self.steps, members, scores, self.missed[rows], utility)

    def with_errors(self) -> Scores:
        """Returns scores at the last step by which every missed trial is guessed wrong.

        Returns:
            float64 [n]: below all others in missed trials with the canary, above all others in
            missed trials without it.
        """
        scores = self.scores[:, -1].copy()
        if self.missed.any():
            finite = scores[np.isfinite(scores)]
            if not len(finite):
                finite = np.zeros(1)
            below = np.nextafter(finite.min(), -np.inf)
            above = np.nextafter(finite.max(), np.inf)
            errors = np.where(self.members, below, above)
            scores[self.missed] = errors[self.missed]
        return scores
