"""The only writer of results: stores packs, folds them in trial order, keeps the estimates.

A pack is written, then folded, then acknowledged, so an acknowledged pack survives anything.
Everything else in here can be rebuilt from the run directory, and is, whenever this starts.

Several packs may be written at once, by as many threads; they are folded one at a time.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .. import plan as planning
from .. import seeds, stats, stop_when
from ..errors import RunDirectoryError
from ..plan import Pack, Plan
from ..spec import Sweep
from ..stats import preferred
from ..storage import PackScores, RunDirectory
from .deciding import Decider
from .replay import Ahead, Replay
from .rows import Table

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
    """Estimates of every audit, a function of the finished prefix of its trials alone."""

    def __init__(self, sweep: Sweep, plan: Plan, run: RunDirectory) -> None:
        self._sweep, self._run = sweep, run
        self._turn = threading.RLock()  # held by whoever reads or changes the estimates
        ahead = Ahead()
        budget = sweep.budget
        self._audits = [
            _AuditState(Table(audit, cell, budget), sweep, plan, run, ahead)
            for audit, cell in zip(plan.audits, sweep.cells, strict=True)
        ]
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
        audit = self._audits[pack.audit]
        if audit.holds(pack):
            return
        audit.store(scores)
        with self._turn:
            audit.add(pack, scores)
            if time.monotonic() - self._flushed > FLUSH_SECONDS:
                self.flush()

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


class _AuditState:
    def __init__(
        self, table: Table, sweep: Sweep, plan: Plan, run: RunDirectory, ahead: Ahead
    ) -> None:
        audit, cell = table.audit, table.cell
        self._table, self._audit, self._cell = table, audit, cell
        self._run, self._seed = run, plan.seed
        estimators = cell.audit.estimators if cell.mechanism.sampled else []
        independent = not cell.adversary.one_run
        self._states = {
            step: [e.make(audit.trials, independent) for e in estimators] for step in audit.horizons
        }
        self._free = self._curve_free()
        self._live = stats.make("anytime", planned=audit.trials)
        self._alarm = self._live if self._claimed_gaussian() else _any_curve(audit.trials)
        self._decider = Decider(sweep, audit, cell, self._live)
        self._finished = run.finished(audit.id) & set(audit.packs)
        self._done = sum(last - first + 1 for first, last in self._finished)
        self._folded = 0  # packs of the prefix that the estimates are a function of
        self.decided: int | None = None  # trials that were enough; later ones are not folded
        self._shown: tuple[stats.Estimate, float] | None = None  # kept until the next fold, as
        self._rows: list[dict[str, Any]] | None = None  # are these: most audits are at rest
        self._replay = Replay(self._stored, ahead)
        self._advance()

    @property
    def complete(self) -> bool:
        return self.decided is not None or self._folded == len(self._audit.packs)

    def _curve_free(self) -> stats.Estimator | None:
        """The strongest bound without an assumption, where the audit does not list it itself."""
        one_run = self._cell.adversary.one_run
        method = preferred.curve_free_method(one_run)
        listed = any(e.name == method for e in self._cell.audit.estimators)
        if listed or not self._cell.mechanism.sampled:
            return None
        return stats.make(method, planned=self._audit.trials, independent=not one_run)

    def holds(self, pack: Pack) -> bool:
        return (pack.first, pack.last) in self._finished

    def store(self, scores: PackScores) -> None:
        self._run.write_scores(self._audit.id, scores)

    def add(self, pack: Pack, scores: PackScores) -> None:
        if self.holds(pack):
            return  # two tries of one pack were stored at once
        self._finished.add((pack.first, pack.last))
        self._done += pack.size
        if self.decided is None:
            self._replay.keep(scores)
            self._advance()

    def _advance(self) -> None:
        """Folds every pack that is next in trial order."""
        for pack in self._replay.packs(self._next_finished()):
            self._fold(pack)
            self._folded += 1
            if self._decider.enough():
                self.decided = pack.last + 1
                return

    def _next_finished(self) -> Iterator[tuple[int, int]]:
        for index in range(self._folded, len(self._audit.packs)):
            if (bounds := self._audit.packs[index]) not in self._finished:
                return
            yield bounds

    def _stored(self, first: int, last: int) -> PackScores:
        """A pack from the run directory, whose bits must be those that the plan commits to."""
        pack = self._run.read_scores(self._audit.id, first, last)
        bits = seeds.bits(self._seed, self._audit.fingerprint, first, last)
        if pack.steps != self._audit.horizons or not np.array_equal(pack.members, bits):
            raise RunDirectoryError(
                f"{self._run.location}/scores/{self._audit.id}/{first}-{last}.parquet does not "
                "have the bits or steps of this plan; delete it to have its trials run again"
            )
        return pack

    def _fold(self, pack: PackScores) -> None:
        for column, step in enumerate(pack.steps):
            for state in self._states[step]:
                state.fold(pack.scores[:, column], pack.members)
        if self._free is not None:
            self._free.fold(pack.scores[:, -1].copy(), pack.members)  # of all steps, the last
        self._live.fold(pack.scores[:, -1], pack.members)
        if self._alarm is not self._live:
            self._alarm.fold(pack.scores[:, -1], pack.members)
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
        alarm = self._alarm.bound(cell.audit.delta, self._table.budget.each_audit)
        known = cell.mechanism.trade_off(cell.adversary, last)
        return bound.given(known), alarm.epsilon_lower

    def _claimed_gaussian(self) -> bool:
        cell = self._cell
        return cell.mechanism.claimed(cell.adversary, self._audit.horizons[-1]).gaussian

    def rows(self) -> list[dict[str, Any]]:
        """One row per step, estimator and accountant, as estimates.parquet has them."""
        if self._rows is None:
            self._rows = self._table.rows(self._states, self._free)
        return self._rows


def _any_curve(planned: int) -> stats.Estimator:
    return stats.make("anytime", planned=planned, curve="any")
