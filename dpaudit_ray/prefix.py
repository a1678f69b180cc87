"""The prefix of an audit: its trials, in order, that all that is said of it rests on.

A pack belongs to it once its scores are stored, or its training has raised: bits are committed
before training, so a trial that failed counts as a miss and is not left out. The prefix ends at
the first pack that is neither, or with the trials that were enough by `stop_when`.

Estimates, live bound, `stop_when`, the verdict and the report all take it from here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd

from . import failures, seeds, stop_when
from .errors import RunDirectoryError
from .plan import Plan, PlannedAudit
from .spec import Sweep
from .stats.base import Members, Scores
from .storage import PackScores, RunDirectory, score_frame

Bounds = tuple[int, int]  # first and last trial of a pack


@dataclasses.dataclass(frozen=True)
class MissedPack:
    """Trials first..first+n-1, whose training raised: `members` bool [n], and no scores."""

    first: int
    members: npt.NDArray[np.bool_]

    @property
    def last(self) -> int:
        """The last trial."""
        return self.first + len(self.members) - 1


FoldedPack = PackScores | MissedPack


def of(run: RunDirectory, sweep: Sweep, plan: Plan, index: int) -> Iterator[FoldedPack]:
    """The prefix of audit number `index`, as its run directory has it.

    Raises:
        RunDirectoryError: a file of it is damaged, or is not what the plan says.
    """
    audit = plan.audits[index]
    finished = stored(run, audit)
    packs = [failure.pack for failure in failures.recorded(run, plan)]
    given_up = {(pack.first, pack.last) for pack in packs if pack.audit == index} - finished
    end = stop_when.decided(run, sweep).get(index, audit.trials)
    for first, last in bounds(audit, finished | given_up):
        if first >= end:
            return
        yield read(run, plan, index, given_up, first, last)


def stored(run: RunDirectory, audit: PlannedAudit) -> set[Bounds]:
    """Packs whose scores are stored. Files with other bounds may hold the same trials again."""
    return run.finished(audit.id).intersection(audit.packs)


def bounds(audit: PlannedAudit, there: Collection[Bounds], start: int = 0) -> Iterator[Bounds]:
    """Packs from number `start` on, up to the first that is not `there`."""
    for number in range(start, len(audit.packs)):
        if audit.packs[number] not in there:
            return
        yield audit.packs[number]


def read(
    run: RunDirectory, plan: Plan, index: int, given_up: Collection[Bounds], first: int, last: int
) -> FoldedPack:
    """One pack, whose bits are those that the plan commits to."""
    audit = plan.audits[index]
    bits = seeds.bits(plan.seed, audit.fingerprint, first, last)
    if (first, last) in given_up:
        return MissedPack(first, bits)
    scores = run.read_scores(audit.id, first, last)
    if scores.steps != audit.horizons or not np.array_equal(scores.members, bits):
        raise RunDirectoryError(
            f"{run.location}/scores/{audit.id}/{first}-{last}.parquet does not have the bits or "
            "steps of this plan; delete it to have its trials run again"
        )
    return scores


class Folding(Protocol):
    """What takes trials in order: an estimator or a test."""

    def fold(self, scores: Scores, members: Members) -> None:
        """Adds trials by their scores."""

    def miss(self, members: Members) -> None:
        """Adds trials that gave no output."""


def fold(state: Folding, pack: FoldedPack, column: int = -1) -> None:
    """Folds a pack into `state`, by its scores at recorded step number `column`."""
    if isinstance(pack, MissedPack):
        state.miss(pack.members)
    else:
        state.fold(pack.scores[:, column], pack.members)


def values(pack: FoldedPack, column: int = -1) -> npt.NDArray[np.float64]:
    """Scores at recorded step number `column`, float64 [n]; NaN where a trial was missed."""
    if isinstance(pack, MissedPack):
        return np.full(len(pack.members), np.nan)
    return pack.scores[:, column]


def scores(audit: PlannedAudit, packs: list[FoldedPack]) -> pd.DataFrame:
    """What a prefix shows, as the columns of a score file; a missed trial has NaN at every step."""
    return _frame(audit, packs, (math.nan, math.nan))


def scores_with_errors(audit: PlannedAudit, packs: list[FoldedPack]) -> pd.DataFrame:
    """The same, with missed trials as errors at every threshold: "out" above all, "in" below."""
    real = [pack.scores for pack in packs if isinstance(pack, PackScores)]
    finite = np.concatenate([part[np.isfinite(part)] for part in real] or [np.zeros(1)])
    low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
    return _frame(audit, packs, (np.nextafter(high, np.inf), np.nextafter(low, -np.inf)))


def _frame(
    audit: PlannedAudit, packs: list[FoldedPack], missed: tuple[float, float]
) -> pd.DataFrame:
    """`missed`: the score of a missed trial whose bit is "out", and of one that is "in"."""
    shown = [
        pack if isinstance(pack, PackScores) else _filled(audit, pack, missed) for pack in packs
    ]
    return score_frame(audit.id, shown)


def _filled(audit: PlannedAudit, pack: MissedPack, missed: tuple[float, float]) -> PackScores:
    column = np.where(pack.members, missed[1], missed[0])[:, None]
    content = np.repeat(column, len(audit.horizons), axis=1)
    return PackScores(pack.first, pack.members, audit.horizons, content)
