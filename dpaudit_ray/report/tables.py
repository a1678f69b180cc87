"""The numbers of a run as tables: every estimate, and one line per audit."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd

from .. import plan as planning
from .. import prefix, stats, stop_when
from ..plan import Plan, PlannedAudit
from ..prefix import FoldedPack
from ..spec import AuditSpec, Sweep
from ..stats import Estimate, Status
from ..storage import RunDirectory

EXACT = "exact"  # the estimator of an audit without trials that certifies something


@dataclasses.dataclass(frozen=True)
class Run:
    """A run directory opened for reading."""

    directory: RunDirectory
    sweep: Sweep
    plan: Plan
    estimates: pd.DataFrame

    @classmethod
    def open(cls, location: str) -> Run:
        """Raises RunDirectoryError when there is no readable run at `location`."""
        directory = RunDirectory(location)
        sweep, plan = planning.read(directory)
        return cls(directory, sweep, plan, directory.estimates())

    def done(self, audit: PlannedAudit) -> int:
        """Finished trials of an audit."""
        finished = self.directory.finished(audit.id) & set(audit.packs)
        return sum(last - first + 1 for first, last in finished)

    def settings(self, audit: PlannedAudit) -> AuditSpec:
        """The audit's level and estimators."""
        return self.sweep.cells[self.plan.audits.index(audit)].audit

    def prefix(self, audit: PlannedAudit) -> Iterator[FoldedPack]:
        """The trials that the audit's estimates rest on."""
        return prefix.of(self.directory, self.sweep, self.plan, self.plan.audits.index(audit))

    def looked_at(self, audit: PlannedAudit) -> bool:
        """Whether its number of trials follows from its trials: only time-uniform bounds hold."""
        return audit.extended or self.plan.audits.index(audit) in self._decided

    @functools.cached_property
    def _decided(self) -> dict[int, int]:
        return stop_when.decided(self.directory, self.sweep)


def all_estimates(run: Run) -> pd.DataFrame:
    """Every row of estimates.parquet, with the audit's label and whether it is interim.

    A fixed-R bound before all R trials are in is interim: it holds at its level for that number
    of trials, not for whoever looks until it suits.
    """
    labels = {audit.id: audit.label for audit in run.plan.audits}
    planned = {audit.id: audit.trials for audit in run.plan.audits}
    table = run.estimates.copy()
    table.insert(1, "label", table["audit"].map(labels))
    partial = table["trials"] < table["audit"].map(planned).astype("int64")
    table["interim"] = partial & ~table["estimator"].isin(_anytime())
    return table


def overview(run: Run) -> list[dict[str, Any]]:
    """One entry per audit: progress, and its first estimator at the last step with the claim."""
    rows = []
    for audit in run.plan.audits:
        first = representative(run, audit)
        mine = run.estimates[
            (run.estimates["audit"] == audit.id)
            & (run.estimates["step"] == audit.horizons[-1])
            & (run.estimates["estimator"] == first)
        ]
        lower = float(mine["epsilon_lower"].iloc[0]) if len(mine) else math.nan
        used = int(mine["trials"].iloc[0]) if len(mine) else 0
        rows.append(
            {
                "audit": audit.id,
                "label": audit.label,
                "trials": audit.trials,
                "done": run.done(audit),
                "estimator": first,
                "status": str(mine["status"].iloc[0]) if len(mine) else "",
                "epsilon_lower": lower,
                "epsilon_upper": audit.claim,
                "ratio": lower / audit.claim if audit.claim > 0 else math.nan,
                "interim": used < audit.trials and first not in _anytime(),
            }
        )
    return rows


def representative(run: Run, audit: PlannedAudit) -> str:
    """The one that stands for the audit: its first, or `exact` where no trials are run.

    Where the number of trials follows from the trials, the first that is certified all the same.
    """
    cell = run.sweep.cells[run.plan.audits.index(audit)]
    if not cell.mechanism.sampled:
        return EXACT
    if run.looked_at(audit):
        mine = run.estimates[run.estimates["audit"] == audit.id]
        for name in mine.loc[mine["status"] == Status.CERTIFIED, "estimator"].head(1):
            return str(name)
    return cell.audit.estimators[0].name


def _anytime() -> set[str]:
    """Estimators that may be looked at before all trials are in."""
    return {name for name, cls in stats.estimators().items() if cls.interim_valid}


def assumption_free(run: Run, audit: PlannedAudit, packs: Iterable[FoldedPack]) -> Estimate:
    """The (ε, δ) bound at the last step, which no μ-converted number may stand without.

    `packs` are those of `Run.prefix`.
    """
    level = run.settings(audit)
    name = "eps-delta-anytime" if run.looked_at(audit) else "eps-delta"
    state = stats.make(name, planned=audit.declared[0])
    for pack in packs:
        prefix.fold(state, pack)
    return state.bound(level.delta, level.confidence)
