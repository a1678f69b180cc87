"""Packs of trials as estimators take them: in the order of trials, misses among them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from ..stats.base import Estimator, alike_in_a_row
from ..stats.claim_verdict import ClaimTest, DeclaredTest, RunTest
from ..stats.growth import Growing
from ..stats.guess_count_bound import GuessCounter
from ..storage.scores import PackScores
from .model import PlannedAudit


@dataclasses.dataclass(frozen=True)
class MissedPack:
    """Trials first..first+n-1, all of which failed: `members` bool [n], and no scores."""

    first: int
    members: npt.NDArray[np.bool_]

    @property
    def last(self) -> int:
        return self.first + len(self.members) - 1

    @property
    def lost(self) -> npt.NDArray[np.bool_]:
        """Which trials were missed, bool [n]: all."""
        return np.ones(len(self.members), dtype=np.bool_)

    def part(self, first: int, last: int) -> MissedPack:
        return MissedPack(first, self.members[first - self.first : last - self.first + 1])


ConsumedPack = PackScores | MissedPack


def up_to_looks(
    audit: PlannedAudit, packs: ConsumedPack, due: Callable[[], int]
) -> Iterator[ConsumedPack]:
    """Divides the packs of a file where bounds are looked at.

    Args:
        audit: the audit that they belong to.
        packs: one or more packs that follow each other.
        due: called after each part; the number of trials after which the next look is due. The
            part ends where a pack does and that many trials are in.
    """
    first = packs.first
    while first <= packs.last:
        end = audit.packs[audit.pack_number(max(due() - 1, first))][1]
        yield packs.part(first, min(end, packs.last))
        first = end + 1


def feed(
    state: Estimator | Growing | ClaimTest | RunTest | GuessCounter | DeclaredTest,
    pack: ConsumedPack,
    column: int = -1,
) -> None:
    """Folds a pack into `state`, in the order of its trials, by scores at step number `column`."""
    if isinstance(pack, MissedPack):
        state.miss(pack.members)
    elif not pack.missed:
        state.fold(pack.scores[:, column], pack.members)
    else:
        for rows, missed in alike_in_a_row(pack.lost):
            if missed:
                state.miss(pack.members[rows])
            else:
                state.fold(pack.scores[rows, column], pack.members[rows])


@dataclasses.dataclass(frozen=True)
class Trials:
    """A whole prefix: `members` bool [n], `scores` float64 [n, steps], `missed` bool [n]."""

    steps: tuple[int, ...]
    members: npt.NDArray[np.bool_]
    scores: npt.NDArray[np.float64]
    missed: npt.NDArray[np.bool_]  # these have NaN at every step
    utility: Mapping[str, npt.NDArray[np.float64]]  # what was measured beside, like `scores`

    @classmethod
    def joined(cls, audit: PlannedAudit, packs: Iterable[ConsumedPack]) -> Trials:
        """Puts the packs of a prefix together."""
        n = audit.packs[-1][1] + 1 if audit.packs else 0
        k, reached = len(audit.horizons), 0
        members, missed = np.zeros((2, n), dtype=np.bool_)
        scores = np.full((n, k), math.nan)
        utility: dict[str, npt.NDArray[np.float64]] = {}
        for pack in packs:
            here = slice(pack.first, pack.last + 1)
            members[here], missed[here] = pack.members, pack.lost
            if isinstance(pack, PackScores):
                scores[here] = pack.scores
                for name, values in pack.utility.items():
                    utility.setdefault(name, np.full((n, k), math.nan))[here] = values
            reached = pack.last + 1
        return cls(audit.horizons, members, scores, missed, utility)._of(slice(reached))

    @property
    def shown(self) -> Trials:
        """Without those that were missed."""
        return self._of(~self.missed) if self.missed.any() else self

    def first(self, number: int) -> Trials:
        return self._of(slice(number))

    def _of(self, rows: slice | npt.NDArray[np.bool_]) -> Trials:
        utility = {name: values[rows] for name, values in self.utility.items()}
        members, scores = self.members[rows], self.scores[rows]
        return Trials(self.steps, members, scores, self.missed[rows], utility)

    def with_errors(self) -> npt.NDArray[np.float64]:
        """Scores at the last step, float64 [n]; missed trials err: "out" highest, "in" lowest."""
        last = self.scores[:, -1].copy()
        if self.missed.any():
            finite = last[np.isfinite(last)]
            low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
            errors = np.nextafter(low, -np.inf), np.nextafter(high, np.inf)
            last[self.missed] = np.where(self.members[self.missed], *errors)
        return last
