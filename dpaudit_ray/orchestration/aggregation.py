"""The only writer of results: stores packs, folds them in trial order, keeps the estimates.

A pack is written, then folded, then acknowledged, so an acknowledged pack survives anything.
Everything else in here can be rebuilt from the run directory, and is, whenever this starts.

Several packs may be written at once, by as many threads; they are folded one at a time. Packs that
are given up are recorded here too, before their trials are folded as misses.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from .. import failures, prefix, stats, stop_when
from .. import plan as planning
from ..failures import Failure
from ..plan import Pack, Plan, PlannedAudit
from ..prefix import Bounds, FoldedPack
from ..spec import Sweep
from ..storage import PackScores, RunDirectory
from .deciding import Decider
from .estimating import Estimating
from .replay import Ahead, Replay

FLUSH_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class Activity:
    """What only the driver knows: its packs, its trainers, and trials failed and lost by audit.

    `pack_seconds` is how long the last finished pack took, `last_result` when it came (Unix time).
    """

    packs_in_flight: int = 0
    trainers: int = 0
    pack_seconds: float | None = None
    last_result: float | None = None
    failed: Mapping[int, int] = dataclasses.field(default_factory=dict)
    lost: Mapping[int, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class AuditProgress:
    """What is shown of one audit while it runs. Its bounds hold at every look at once.

    `epsilon_lower` is as far to be trusted as `status` says. `epsilon_together` is what may be
    held against the claim: it allows for the number of audits, and for claims that no Gaussian
    curve has. `decided` is the number of trials that were enough by `stop_when`; None while it
    goes on.
    """

    label: str
    trials: int
    done: int
    epsilon_lower: float
    claim: float
    failed: int = 0
    lost: int = 0
    decided: int | None = None
    status: stats.Status = stats.Status.IF_GAUSSIAN
    epsilon_together: float = 0.0


@dataclasses.dataclass(frozen=True)
class Progress:
    """A snapshot of the whole sweep."""

    audits: tuple[AuditProgress, ...]
    activity: Activity = Activity()

    @property
    def done(self) -> int:
        """Finished trials."""
        return sum(audit.done for audit in self.audits)

    @property
    def trials(self) -> int:
        """Planned trials; of a decided audit, those that are done."""
        return sum(a.trials if a.decided is None else a.done for a in self.audits)


class Aggregation:
    """Estimates of every audit: a function of its scores and of the record of failures alone."""

    def __init__(self, sweep: Sweep, plan: Plan, run: RunDirectory) -> None:
        self._sweep, self._plan, self._run = sweep, plan, run
        self._turn = threading.RLock()  # held by whoever reads or changes the estimates
        self._ahead = Ahead()
        self._failures = {failure.pack: failure for failure in failures.read(run, plan)}
        self._audits = [self._opened(index) for index in range(len(plan.audits))]
        self._flushed = time.monotonic()
        self._recorded = stop_when.decided(run, sweep)

    @classmethod
    def rebuild(cls, run: RunDirectory) -> Aggregation:
        """The state that the run directory holds; needs nothing else."""
        return cls(*planning.read(run), run)

    def fold(self, pack: Pack, scores: PackScores) -> None:
        """Stores and folds one pack; folding it again changes nothing. Any thread may call it.

        Raises:
            StorageError: the pack could not be written, and does not count as done; or the
                estimates, which are due every few seconds, could not.
        """
        if self._audits[pack.audit].holds(pack):
            return
        self._run.write_scores(self._plan.audits[pack.audit].id, scores)
        with self._turn:
            if pack in self._failures:  # of a trainer that was taken for lost: a score after all
                self._forget([pack])
            self._audits[pack.audit].add(pack, scores)
            if time.monotonic() - self._flushed > FLUSH_SECONDS:
                self.flush()

    def give_up(self, failed: Iterable[Failure]) -> None:
        """Records packs that will not be run again, then folds their trials as misses.

        A pack whose scores are stored is left alone; telling it twice changes nothing.

        Raises:
            StorageError: the record could not be written, and nothing was folded.
        """
        with self._turn:
            new = {
                failure.pack: failure
                for failure in failed
                if failure.pack not in self._failures
                and not self._audits[failure.pack.audit].holds(failure.pack)
            }
            if not new:
                return
            failures.write(self._run, (self._failures | new).values())
            self._failures |= new
            for pack in new:
                self._audits[pack.audit].miss(pack)

    def try_again(self, packs: Collection[Pack]) -> None:
        """Takes packs that are to be run again off the record; they are misses no more.

        A decision that rested on them is taken again: it held for the trials as they counted
        then, and what replaces them may put it off.

        Raises:
            StorageError: the record could not be written.
        """
        with self._turn:
            self._forget(packs)
            self.flush()

    def difference(self, pack: Pack, again: PackScores) -> str | None:
        """How the stored scores of a pack differ from these, in words; None where they do not."""
        stored = self._run.read_scores(self._plan.audits[pack.audit].id, pack.first, pack.last)
        return stored.difference(again)

    def progress(self, activity: Activity = Activity()) -> Progress:
        """What to show now; cheap."""
        with self._turn:
            audits = [audit.progress(i, activity) for i, audit in enumerate(self._audits)]
        return Progress(tuple(audits), activity)

    def flush(self) -> None:
        """Writes the current estimates and decisions, and _SUCCESS when nothing is left to do."""
        with self._turn:
            self._run.write_estimates([row for audit in self._audits for row in audit.rows()])
            enough = {i: a.decided for i, a in enumerate(self._audits) if a.decided is not None}
            if enough != self._recorded:
                stop_when.record(self._run, self._sweep, enough)
                self._recorded = enough
            if all(audit.complete for audit in self._audits) and not self._run.complete:
                self._run.set_complete(True)
            self._flushed = time.monotonic()

    def _forget(self, packs: Collection[Pack]) -> None:
        """Rebuilds the audits whose failures are forgotten."""
        left = {pack: failure for pack, failure in self._failures.items() if pack not in packs}
        failures.write(self._run, left.values())
        self._failures = left
        for index in {pack.audit for pack in packs}:
            self._audits[index] = self._opened(index)

    def _opened(self, index: int) -> _AuditState:
        missed = {(pack.first, pack.last) for pack in self._failures if pack.audit == index}
        return _AuditState(index, (self._sweep, self._plan), self._run, missed, self._ahead)


class _AuditState:
    def __init__(
        self,
        index: int,
        asked: tuple[Sweep, Plan],
        run: RunDirectory,
        missed: set[Bounds],
        ahead: Ahead,
    ) -> None:
        sweep, plan = asked
        audit, cell = plan.audits[index], sweep.cells[index]
        self._audit, self._cell, self._budget = audit, cell, sweep.budget
        self._finished = run.finished(audit.id) & set(audit.packs)
        self._missed = missed - self._finished
        self._there = self._finished | self._missed
        self._estimates = Estimating(audit, cell, sweep.budget)
        self._live = stats.make("anytime", planned=audit.declared[0])
        self._alarm = self._live if self._claimed_gaussian() else _any_curve(audit)
        self._decider = Decider(sweep, audit, cell, self._live)
        self._done = sum(last - first + 1 for first, last in self._finished)
        self._folded = 0  # packs of the prefix that the estimates are a function of
        self.decided: int | None = None  # trials that were enough; later ones are not folded
        self._shown: tuple[stats.Estimate, float] | None = None  # kept until the next fold, as
        self._rows: list[dict[str, Any]] | None = None  # are these: most audits are at rest
        self._replay = Replay(functools.partial(prefix.read, run, plan, index, self._missed), ahead)
        self._advance()

    @property
    def complete(self) -> bool:
        """Whether no trial is missing, up to the one that was enough; a miss is missing."""
        end = self._audit.trials if self.decided is None else self.decided
        if any(first < end for first, _ in self._missed):
            return False
        return self.decided is not None or self._folded == len(self._audit.packs)

    def holds(self, pack: Pack) -> bool:
        return (pack.first, pack.last) in self._finished

    def add(self, pack: Pack, scores: PackScores) -> None:
        if self.holds(pack):
            return  # two tries of one pack were stored at once
        self._finished.add((pack.first, pack.last))
        self._there.add((pack.first, pack.last))
        self._done += pack.size
        if self.decided is None:
            self._replay.keep(scores)
            self._advance()

    def miss(self, pack: Pack) -> None:
        if self.holds(pack):
            return
        self._missed.add((pack.first, pack.last))
        self._there.add((pack.first, pack.last))
        if self.decided is None:
            self._advance()

    def _advance(self) -> None:
        """Folds every pack that is next in trial order."""
        next_ones = prefix.bounds(self._audit, self._there, self._folded)
        for pack in self._replay.packs(next_ones):
            self._fold(pack)
            self._folded += 1
            if self._decider.enough():
                self.decided = pack.last + 1
                return

    def _fold(self, pack: FoldedPack) -> None:
        self._estimates.fold(pack)
        prefix.fold(self._live, pack)
        if self._alarm is not self._live:
            prefix.fold(self._alarm, pack)
        self._decider.fold(pack)
        self._shown = self._rows = None

    def progress(self, index: int, activity: Activity) -> AuditProgress:
        audit = self._audit
        if self._shown is None:
            self._shown = self._live_bounds()
        bound, together = self._shown
        return AuditProgress(
            audit.label,
            audit.trials,
            self._done,
            bound.epsilon_lower,
            audit.claim,
            activity.failed.get(index, 0),
            activity.lost.get(index, 0),
            self.decided,
            bound.status,
            together,
        )

    def _live_bounds(self) -> tuple[stats.Estimate, float]:
        """The bound that is shown, and the ε that an alarm may compare with the claim."""
        cell, last = self._cell, self._audit.horizons[-1]
        bound = self._live.bound(cell.audit.delta, cell.audit.confidence)
        alarm = self._alarm.bound(cell.audit.delta, self._budget.each_audit)
        known = cell.mechanism.trade_off(cell.adversary, last)
        shown = bound.given(known)
        if self._audit.mixed:
            shown = dataclasses.replace(shown, status=stats.Status.MIXED)
        return shown, alarm.epsilon_lower

    def _claimed_gaussian(self) -> bool:
        cell = self._cell
        return cell.mechanism.claimed(cell.adversary, self._audit.horizons[-1]).gaussian

    def rows(self) -> list[dict[str, Any]]:
        """The audit's part of estimates.parquet."""
        if self._rows is None:
            self._rows = self._estimates.rows()
        return self._rows


def _any_curve(audit: PlannedAudit) -> stats.Estimator:
    return stats.make("anytime", planned=audit.declared[0], curve="any")
