"""The only writer of results: stores packs, folds them in trial order, keeps the estimates.

A pack is written, then folded, then acknowledged, so an acknowledged pack survives anything.
All other state is rebuilt from the run directory whenever an aggregation starts.

Several threads may write packs at once; they are folded one at a time. Bounds of millions of trials
take seconds: they are computed outside of the lock that folding needs, for SHARE of a core.
"""

import contextlib
import threading
import time
from collections.abc import Collection, Iterable
from typing import Any

from .. import plan as planning
from ..errors import MissingFileError, RunDirectoryError, and_more
from ..plan import outcomes
from ..plan.compaction import Compactor
from ..plan.model import Pack, Part, Plan
from ..plan.outcomes import Failure
from ..storage.run_directory import RunDirectory
from ..storage.scores import Bounds, EstimateRow, PackScores
from ..sweep.spec import Sweep
from .audit_state import AuditState, OpenSweep, Snapshot
from .checkpoints import Checkpoints, Saved
from .progress import Activity, Progress

KEEP_UP_SECONDS = 1.0
FLUSH_SECONDS = 5.0
SHARE = 0.1  # share of a core for bounds: after a flush of 10 s come 90 s without one


class Aggregation:
    """Estimates of every audit: a function of its scores and of the record of failures alone."""

    def __init__(self, sweep: Sweep, plan: Plan, run: RunDirectory) -> None:
        """Folds all trials that the run directory has.

        Args:
            sweep: the sweep.
            plan: plan of the sweep.
            run: run directory of the sweep.
        """
        self._sweep = sweep
        self._plan = plan
        self._run = run
        self._open_sweep = OpenSweep(sweep, plan, run)
        self._prepared = self._open_sweep.prepared
        self._folding = threading.RLock()  # held while packs are folded, or folded ones are read
        self._writing = threading.Lock()  # held while files are written; acquired before `_folding`
        self._compactor = Compactor(run, len(plan.audits))
        self._checkpoints = Checkpoints(run, plan)
        # Trainers call these three methods by name.
        self.checkpoint = self._checkpoints.checkpoint
        self.keep = self._prepared.keep
        self.prepared = self._prepared.parts
        self._record = outcomes.Record(run, plan)
        self._retried = set[Pack]()  # failed packs that are run again: no misses until then
        self._audits = [
            AuditState(self._open_sweep, index, self._missed_packs(index))
            for index in range(len(plan.audits))
        ]
        if run.complete:
            self._reuse_exact_rows()
        self._next_flush = time.monotonic() + FLUSH_SECONDS

    def _reuse_exact_rows(self) -> None:
        """Reads the rows of audits without trials from the file: they cannot have changed.

        Computing them takes about half a second an audit. They are computed if the file is damaged.
        """
        with contextlib.suppress(RunDirectoryError):
            by_audit = dict(tuple(self._run.estimates().groupby("audit")))
            for state in self._audits:
                audit = state.trials.audit
                rows = by_audit.get(audit.id)
                if audit.trials > 0 or audit.preparation is not None or rows is None:
                    continue
                same_steps = set(rows["step"]) == {*audit.horizons}
                if same_steps and {*rows["accountant"]} == audit.claims.keys():
                    entries: list[dict[Any, Any]] = rows.to_dict("records")
                    state.estimates.known_rows = [EstimateRow(**entry) for entry in entries]

    @classmethod
    def rebuild(cls, run: RunDirectory) -> "Aggregation":
        """Returns the aggregation of the scores in a run directory."""
        return cls(*planning.read(run), run)

    def fold(self, pack: Pack, scores: PackScores) -> None:
        """Stores and folds one pack; folding it again changes nothing. Any thread may call it.

        Raises:
            StorageError: the pack was not written, and does not count as done.
        """
        if self._is_stored(pack):
            return
        audit = self._plan.audits[pack.audit]
        scores = self._record.store_pack(audit.id, pack, scores)
        self._checkpoints.drop(pack)
        with self._folding:
            self._retried.discard(pack)
            if pack.bounds in self._audits[pack.audit].trials.failed:
                # The pack's trainer was believed lost, and its trials are misses so far.
                self._reopen(pack.audit)
            self._audits[pack.audit].add(scores)

    def save(self, pack: Pack, saved: Saved) -> None:
        """Keeps a checkpoint of a pack, unless it is done. Raises StorageError."""
        if not self._is_stored(pack):
            self._checkpoints.save(pack, saved)

    def give_up(self, failures: Iterable[Failure]) -> None:
        """Records packs that will not be run again, then folds their trials as misses.

        A pack whose scores are stored is left alone. If a pack was on record and run again, its new
        failure replaces the old one. A part of a preparation has no trials, so its failure is
        recorded and nothing is folded.

        Raises:
            StorageError: nothing was folded.
        """
        by_pack = {failure.pack: failure for failure in failures}
        parts = [failure for failure in by_pack.values() if isinstance(failure.pack, Part)]
        if parts:
            self._record.add_parts(parts)
        with self._folding:
            recorded = self._record.failed.keys() - self._retried  # already folded as misses
            new = {}
            for pack, failure in by_pack.items():
                if isinstance(pack, Part) or pack in recorded or self._is_stored(pack):
                    continue
                new[pack] = failure
            if new:
                self._record.add_failed(new)
                self._retried -= new.keys()
            for pack in new:
                self._audits[pack.audit].miss(pack.bounds)

    def try_again(self, packs: Collection[Pack]) -> None:
        """Counts failed packs as open, since they are run again: no misses until they fail again.

        Their failures stay on record, in case this process ends before the packs are run. Whether
        the trials of their audits are enough is decided again. Raises StorageError.
        """
        with self._folding:
            self._retried.update(packs)
            for index in {pack.audit for pack in packs}:
                self._reopen(index)
        self.flush()

    def progress(self, activity: Activity | None = None) -> Progress:
        """Returns the progress of all audits; cheap."""
        activity = activity or Activity()
        with self._folding:
            audits = tuple(audit.progress(activity) for audit in self._audits)
        return Progress(audits, activity, self._checkpoints.last)

    def keep_up(self) -> None:
        """Updates estimates by the folded packs, compacts files, and writes if that is due.

        A thread calls it every KEEP_UP_SECONDS or so. Raises StorageError.
        """
        with self._writing:
            for index in range(len(self._plan.audits)):
                self._bring_up_to_date(index)
            self._compactor.compact_finished([audit.trials for audit in self._audits])
        if time.monotonic() >= self._next_flush:
            self.flush()

    def flush(self) -> None:
        """Writes the current estimates and decisions, and _SUCCESS when nothing is left to do."""
        with self._writing:
            started = time.thread_time()
            complete = True
            missed = []
            enough = {}
            rows = []
            for index in range(len(self._plan.audits)):
                audit, snapshot = self._bring_up_to_date(index)
                complete &= snapshot.complete and self._prepared.suffices(index)
                missed += snapshot.missed
                if snapshot.decided is not None:
                    enough[index] = snapshot.decided
                rows += audit.estimates.rows()
            newly_complete = complete and not self._run.complete
            if newly_complete:
                self._require_stored()
            self._run.write_estimates(rows)
            self._record.set_derived(self._sweep, missed, enough)
            if newly_complete:
                self._run.set_complete(True)
            self._compactor.compact_finished([audit.trials for audit in self._audits])
            # Flushes take the share SHARE of a core's time.
            cost = time.thread_time() - started
            self._next_flush = time.monotonic() + max(FLUSH_SECONDS, cost / SHARE - cost)

    def _require_stored(self) -> None:
        """Raises MissingFileError unless storage has all that this process has stored there."""
        missing = []
        for state in self._audits:
            for first, last in state.trials.lost():
                missing.append(self._run.score_file(state.trials.audit.id, first, last))
        missing += self._prepared.lost()
        if missing:
            raise MissingFileError(
                f"{self._run.location}/{and_more(missing)}: stored in this run, and gone; run the "
                "same command again"
            )

    def _bring_up_to_date(self, index: int) -> tuple[AuditState, Snapshot]:
        """Folds the packs of an audit, by its index, that its estimates do not have yet.

        Returns:
            The audit, and its state with these packs.
        """
        with self._folding:
            audit = self._audits[index]
            snapshot = audit.take_snapshot()
        for pack in snapshot.packs:
            audit.estimates.fold(pack)
        return audit, snapshot

    def _is_stored(self, pack: Pack) -> bool:
        """Returns whether a file has the pack's scores."""
        return pack.bounds in self._audits[pack.audit].trials.stored

    def _missed_packs(self, index: int) -> list[Bounds]:
        """Returns the packs of an audit that failed, and are not run again now."""
        failed = self._record.failed.keys() - self._retried
        return [pack.bounds for pack in failed if pack.audit == index]

    def _reopen(self, index: int) -> None:
        """Folds an audit's finished trials anew, since other packs count as misses now."""
        self._audits[index] = self._audits[index].reopened(self._missed_packs(index))
