"""The numbers of a run as tables: every estimate, and one line per audit."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pandas as pd

from .. import plan as planning
from .. import stats
from ..plan import Plan, PlannedAudit
from ..spec import AuditSpec, Sweep
from ..stats import Estimate
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
    """The one that stands for the audit: its first, or `exact` where no trials are run."""
    cell = run.sweep.cells[run.plan.audits.index(audit)]
    return cell.audit.estimators[0].name if cell.mechanism.sampled else EXACT


def _anytime() -> set[str]:
    """Estimators that may be looked at before all trials are in."""
    return {name for name, cls in stats.estimators().items() if cls.interim_valid}


def assumption_free(run: Run, audit: PlannedAudit, scores: pd.DataFrame) -> Estimate:
    """The (ε, δ) bound at the last step, which no μ-converted number may stand without."""
    level = run.settings(audit)
    last = scores[scores["step"] == audit.horizons[-1]]
    state = stats.make("eps-delta", planned=audit.trials)
    state.fold(last["score"].to_numpy(), last["member"].to_numpy())
    return state.bound(level.delta, level.confidence)
