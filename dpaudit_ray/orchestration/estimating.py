"""The estimators of one audit at every recorded step, and what their bounds are worth by now."""

from __future__ import annotations

import math
from typing import Any

from .. import prefix, stats
from ..estimator import EstimatorSpec
from ..plan import PlannedAudit
from ..prefix import FoldedPack
from ..spec import Cell
from ..stats import Estimate, Status

# What may be said after a look, a bound on μ and one without assumption: these take over where a
# bound for a declared number of trials no longer holds.
TIME_UNIFORM = ("anytime", "eps-delta-anytime")
_CLAIM_NO_LEVEL = (Status.PAPER, Status.CREDIBLE)


class Estimating:
    """Folds the prefix of one audit.

    A time-uniform estimator keeps the options that follow from the number of trials declared
    first: to tune it again after looking would void it.
    """

    def __init__(self, audit: PlannedAudit, cell: Cell) -> None:
        self._audit, self._cell = audit, cell
        specs = _estimators(audit, cell)
        self._states = [[self._made(one) for one in specs] for _ in audit.horizons]

    def fold(self, pack: FoldedPack) -> None:
        """Adds a pack, in trial order."""
        for column, states in enumerate(self._states):
            for state in states:
                prefix.fold(state, pack, column)

    def rows(self) -> list[dict[str, Any]]:
        """One row per step, estimator and accountant, as estimates.parquet has them."""
        audit, cell, level = self._audit, self._cell, self._cell.audit
        exact = cell.mechanism.exact(cell.adversary, audit.horizons, level.delta)
        rows = []
        for index, (step, states) in enumerate(zip(audit.horizons, self._states, strict=True)):
            found = [(one, one.status) for one in exact.get(step, ())]
            for state in states:
                estimate = state.bound(level.delta, level.confidence)
                found.append((estimate, self._status(state, estimate)))
            for estimate, status in found:
                for accountant, claims in audit.claims.items():
                    rows.append(_row(audit.id, step, estimate, status, (accountant, claims[index])))
        return rows

    def _made(self, spec: EstimatorSpec) -> stats.Estimator:
        uniform = stats.estimators()[spec.name].time_uniform()
        return spec.make(self._audit.declared[0] if uniform else self._audit.trials)

    def _status(self, state: stats.Estimator, estimate: Estimate) -> Status:
        """A bound for a declared number of trials holds at that one, if it was the only one."""
        if state.time_uniform() or estimate.status in _CLAIM_NO_LEVEL:
            return estimate.status
        if self._audit.extended:
            return Status.EXTENDED
        if estimate.trials < self._audit.trials and not state.interim_valid:
            return Status.INTERIM
        return estimate.status


def _estimators(audit: PlannedAudit, cell: Cell) -> list[EstimatorSpec]:
    """Those asked for; after a look at the trials, time-uniform ones as well if there are none."""
    if not cell.mechanism.sampled:
        return []
    asked = list(cell.audit.estimators)
    looked = audit.extended or (cell.audit.stop_when is not None and cell.audit.stop_when.by_bounds)
    uniform = any(stats.estimators()[one.name].time_uniform() for one in asked)
    if not looked or uniform or cell.adversary.one_run:
        return asked
    return [*asked, *(EstimatorSpec(name=name) for name in TIME_UNIFORM)]


def _row(
    audit: str, step: int, estimate: Estimate, status: Status, claimed: tuple[str, float]
) -> dict[str, Any]:
    accountant, claim = claimed
    return {
        "audit": audit,
        "step": step,
        "trials": estimate.trials,
        "estimator": estimate.method,
        "status": status.value,
        "epsilon_lower": estimate.epsilon_lower,
        "mu_lower": estimate.mu_lower,
        "delta": estimate.delta,
        "confidence": estimate.confidence,
        "epsilon_upper": claim if math.isfinite(claim) else math.inf,
        "accountant": accountant,
        "threshold": estimate.threshold,
    }
