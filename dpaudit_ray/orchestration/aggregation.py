"""The only writer of results: stores packs, folds them in trial order, keeps the estimates.

A pack is written, then folded, then acknowledged, so an acknowledged pack survives anything.
Everything else in here can be rebuilt from the run directory, and is, whenever this starts.

Several packs may be written at once, by as many threads; they are folded one at a time. Packs that
are given up are recorded here too, before their trials are folded as misses.

Bounds for the run directory take seconds where trials go into the millions. They are computed from
a copy of their own, outside of the lock that folding needs, and no more often than takes SHARE of
a core. Packs are gathered into larger files there, too.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Collection, Iterable

from .. import plan as planning
from ..plan import compaction, outcomes, score_stream
from ..plan.compaction import Stretch
from ..plan.model import Pack, Part, Plan
from ..plan.outcomes import Failure, MissedTrials, TrialOutputs
from ..storage.arrays import Arrays
from ..storage.run_directory import RunDirectory
from ..storage.scores import EstimateRow, PackScores
from ..sweep.spec import Sweep
from .audit_state import AuditState, OpenSweep, Taken
from .checkpoints import Checkpoints, Saved
from .compactor import Gatherer
from .progress import Activity, AuditProgress, Progress

KEEP_UP_SECONDS = 1.0
FLUSH_SECONDS = 5.0
SHARE = 0.1  # of a core, for bounds: a flush that took 10 s is followed by 90 s without one


class Aggregation:
    """Estimates of every audit: a function of its scores and of the record of failures alone."""

    def __init__(self, sweep: Sweep, plan: Plan, run: RunDirectory) -> None:
        self._sweep, self._plan, self._run = sweep, plan, run
        self._opened_sweep = OpenSweep.from_run(sweep, plan, run)
        self._prepared = self._opened_sweep.prepared
        self._turn = threading.RLock()  # held by whoever reads or changes what was folded
        self._writing = threading.Lock()  # held by whoever flushes or gathers; the turn comes after
        self._gatherer = Gatherer(run, plan)
        self._checkpoints = Checkpoints(run, plan)
        self._outputs = TrialOutputs(run, plan)
        self._record = outcomes.Record(run, plan)
        self._failures = {failure.pack: failure for failure in outcomes.failed(run, plan)}
        self._audits = [self._opened(index) for index in range(len(plan.audits))]
        self._due = time.monotonic() + FLUSH_SECONDS

    @classmethod
    def rebuild(cls, run: RunDirectory) -> Aggregation:
        """The state that the run directory holds; needs nothing else."""
        return cls(*planning.read(run), run)

    def fold(self, pack: Pack, scores: PackScores) -> None:
        """Stores and folds one pack; folding it again changes nothing. Any thread may call it.

        Raises:
            StorageError: the pack could not be written, and does not count as done.
        """
        if self._audits[pack.audit].holds(pack):
            return
        scores = self._outputs.keep(pack, scores)
        self._run.write_scores(self._plan.audits[pack.audit].id, scores)
        self._checkpoints.drop(pack)
        with self._turn:
            if pack in self._failures:  # of a trainer that was taken for lost: a score after all
                self._forget([pack])
            if self._audits[pack.audit].add(pack, scores):
                self._gatherer.stored(pack, scores)

    def checkpoint(self, pack: Pack) -> Saved | None:
        """The last checkpoint of a pack that is whole."""
        return self._checkpoints.checkpoint(pack)

    def save(self, pack: Pack, saved: Saved) -> None:
        """Keeps a checkpoint of a pack that is not done. Raises StorageError."""
        if not self._audits[pack.audit].holds(pack):
            self._checkpoints.save(pack, saved)

    def keep(self, part: Part, arrays: Arrays) -> None:
        """Stores a part of a preparation; storing it again changes nothing.

        Raises:
            StorageError: it could not be written, and does not count as done.
        """
        self._prepared.keep(part, arrays)

    def prepared(self, audit: int) -> tuple[Arrays, ...]:
        """The parts of what an audit waits for. Raises DamagedArraysError."""
        return self._prepared.parts(audit)

    def give_up(self, failed: Iterable[Failure]) -> None:
        """Records packs that will not be run again, then folds their trials as misses.

        A pack whose scores are stored is left alone; telling it twice changes nothing. Parts of
        preparations that failed are recorded apart: they have no trials.

        Raises:
            StorageError: the record could not be written, and nothing was folded.
        """
        told = list(failed)
        failed = [failure for failure in told if not isinstance(failure.pack, Part)]
        if len(failed) < len(told):
            self._record.add_parts(failure for failure in told if isinstance(failure.pack, Part))
        with self._turn:
            new = {
                failure.pack: failure
                for failure in failed
                if failure.pack not in self._failures
                and not self._audits[failure.pack.audit].holds(failure.pack)
            }
            if not new:
                return
            self._record.set_failed((self._failures | new).values())
            self._failures |= new
            for pack in new:
                self._audits[pack.audit].miss(pack)
                self._gatherer.missed(pack)

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
        number = compaction.number(self._plan.audits[pack.audit], pack.first)
        here = Stretch((pack.first, pack.last), number, number + 1)
        stored = score_stream.read_stretch(self._run, self._plan, pack.audit, here)
        return stored.difference(again) if isinstance(stored, PackScores) else None

    def progress(self, activity: Activity | None = None) -> Progress:
        """What to show now; cheap."""
        activity = activity or Activity()
        with self._turn:
            audits = [self._shown(index, activity) for index in range(len(self._audits))]
        return Progress(tuple(audits), activity, self._checkpoints.last)

    def keep_up(self) -> None:
        """What is to be done beside folding: to be called every KEEP_UP_SECONDS or so.

        Raises:
            StorageError: the estimates could not be written.
        """
        with self._writing:
            for index in range(len(self._plan.audits)):
                self._settled(index)
            self._gatherer.work()
        if time.monotonic() >= self._due:
            self.flush()

    def flush(self) -> None:
        """Writes the current estimates and decisions, and _SUCCESS when nothing is left to do."""
        with self._writing:
            started = time.thread_time()
            rows: list[EstimateRow] = []
            enough: dict[int, int] = {}
            missed: list[MissedTrials] = []
            complete = True
            for index in range(len(self._plan.audits)):
                audit, taken = self._settled(index)
                rows += audit.rows()
                missed += taken.missed
                complete &= taken.complete and self._prepared.suffices(index)
                if taken.decided is not None:
                    enough[index] = taken.decided
            self._run.write_estimates(rows)
            self._record.set_derived(self._sweep, missed, enough)
            if complete and not self._run.complete:
                self._run.set_complete(True)
            self._gatherer.work()
            cost = time.thread_time() - started
            self._due = time.monotonic() + max(FLUSH_SECONDS, cost / SHARE - cost)

    def _shown(self, index: int, activity: Activity) -> AuditProgress:
        done, parts = self._prepared.progress(index)
        shown = self._audits[index].progress(index, activity)
        judged = index in activity.refuted
        return dataclasses.replace(shown, parts_done=done, parts=parts, judged=judged)

    def _settled(self, index: int) -> tuple[AuditState, Taken]:
        """An audit, whose estimates know all that was folded by now."""
        with self._turn:
            audit = self._audits[index]
            taken = audit.take()
        audit.settle(taken.packs)
        return audit, taken

    def _forget(self, packs: Collection[Pack]) -> None:
        """Rebuilds the audits whose failures are forgotten."""
        left = {pack: failure for pack, failure in self._failures.items() if pack not in packs}
        self._record.set_failed(left.values())
        self._failures = left
        for index in {pack.audit for pack in packs}:
            self._audits[index] = self._opened(index)

    def _opened(self, index: int) -> AuditState:
        given_up = {(pack.first, pack.last) for pack in self._failures if pack.audit == index}
        files = self._run.score_files(self._plan.audits[index].id)
        self._gatherer.opened(index, files, given_up)
        return AuditState(self._opened_sweep, index, given_up, files)
