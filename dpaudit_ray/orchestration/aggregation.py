"""The only writer of results: stores packs, folds them in trial order, keeps the estimates.

A pack is written, then folded, then acknowledged, so an acknowledged pack survives anything.
Everything else in here can be rebuilt from the run directory, and is, whenever this starts.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

from .. import plan as planning
from .. import stats
from ..plan import Pack, Plan, PlannedAudit
from ..spec import Cell, Sweep
from ..storage import PackScores, RunDirectory


@dataclasses.dataclass(frozen=True)
class AuditProgress:
    """What is shown of one audit while it runs. `epsilon_lower` holds at every look at once."""

    label: str
    trials: int
    done: int
    epsilon_lower: float
    claim: float


@dataclasses.dataclass(frozen=True)
class Progress:
    """A snapshot of the whole sweep."""

    audits: tuple[AuditProgress, ...]

    @property
    def done(self) -> int:
        """Finished trials."""
        return sum(audit.done for audit in self.audits)

    @property
    def trials(self) -> int:
        """Planned trials."""
        return sum(audit.trials for audit in self.audits)


class Aggregation:
    """Estimates of every audit, a function of the finished prefix of its trials alone."""

    def __init__(self, sweep: Sweep, plan: Plan, run: RunDirectory) -> None:
        self._run = run
        self._audits = [
            _AuditState(audit, cell, run)
            for audit, cell in zip(plan.audits, sweep.cells, strict=True)
        ]

    @classmethod
    def rebuild(cls, run: RunDirectory) -> Aggregation:
        """The state that the run directory holds; needs nothing else."""
        return cls(*planning.read(run), run)

    def fold(self, pack: Pack, scores: PackScores) -> None:
        """Stores and folds one pack; folding it again changes nothing.

        Raises:
            StorageError: the pack could not be written; it does not count as done.
        """
        self._audits[pack.audit].add(pack, scores)

    def progress(self) -> Progress:
        """What to show now; cheap."""
        return Progress(tuple(audit.progress() for audit in self._audits))

    def flush(self) -> None:
        """Writes the current estimates, and _SUCCESS when every pack is done."""
        self._run.write_estimates([row for audit in self._audits for row in audit.rows()])
        if all(audit.complete for audit in self._audits) and not self._run.complete:
            self._run.set_complete(True)


class _AuditState:
    def __init__(self, audit: PlannedAudit, cell: Cell, run: RunDirectory) -> None:
        self._audit, self._cell, self._run = audit, cell, run
        self._states = {
            step: [e.make(planned=audit.trials) for e in cell.audit.estimators]
            for step in audit.horizons
        }
        self._live = stats.make("anytime", planned=audit.trials)
        self._finished = run.finished(audit.id) & set(audit.packs)
        self._done = sum(last - first + 1 for first, last in self._finished)
        self._folded = 0  # packs of the prefix that the estimates are a function of
        self._live_epsilon: float | None = None  # kept until the next fold, as are the rows:
        self._rows: list[dict[str, Any]] | None = None  # most audits of a sweep are at rest
        self._advance(None)

    @property
    def complete(self) -> bool:
        return self._folded == len(self._audit.packs)

    def add(self, pack: Pack, scores: PackScores) -> None:
        bounds = (pack.first, pack.last)
        if bounds in self._finished:
            return
        self._run.write_scores(self._audit.id, scores)
        self._finished.add(bounds)
        self._done += pack.size
        self._advance(scores)

    def _advance(self, arrived: PackScores | None) -> None:
        """Folds every pack that is next in trial order; late neighbours are read back."""
        for first, last in itertools.islice(self._audit.packs, self._folded, None):
            if (first, last) not in self._finished:
                return
            if arrived is not None and arrived.first == first:
                self._fold(arrived)
            else:
                self._fold(self._run.read_scores(self._audit.id, first, last))
            self._folded += 1

    def _fold(self, pack: PackScores) -> None:
        for column, step in enumerate(pack.steps):
            for state in self._states[step]:
                state.fold(pack.scores[:, column], pack.members)
        self._live.fold(pack.scores[:, -1], pack.members)
        self._live_epsilon = self._rows = None

    def progress(self) -> AuditProgress:
        audit, level = self._audit, self._cell.audit
        if self._live_epsilon is None:
            bound = self._live.bound(level.delta, level.confidence)
            self._live_epsilon = bound.epsilon_lower
        return AuditProgress(audit.label, audit.trials, self._done, self._live_epsilon, audit.claim)

    def rows(self) -> list[dict[str, Any]]:
        """One row per step, estimator and accountant, as estimates.parquet has them."""
        if self._rows is None:
            self._rows = self._estimated()
        return self._rows

    def _estimated(self) -> list[dict[str, Any]]:
        level = self._cell.audit
        rows = []
        for index, step in enumerate(self._audit.horizons):
            for state in self._states[step]:
                estimate = state.bound(level.delta, level.confidence)
                for accountant, claims in self._audit.claims.items():
                    rows.append(_row(self._audit.id, step, estimate, accountant, claims[index]))
        return rows


def _row(
    audit: str, step: int, estimate: stats.Estimate, accountant: str, claim: float
) -> dict[str, Any]:
    return {
        "audit": audit,
        "step": step,
        "trials": estimate.trials,
        "estimator": estimate.method,
        "status": estimate.status.value,
        "epsilon_lower": estimate.epsilon_lower,
        "mu_lower": estimate.mu_lower,
        "delta": estimate.delta,
        "confidence": estimate.confidence,
        "epsilon_upper": claim if math.isfinite(claim) else math.inf,
        "accountant": accountant,
        "threshold": estimate.threshold,
    }
