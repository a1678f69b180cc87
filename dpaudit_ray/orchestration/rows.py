"""Rows of estimates.parquet: what the folded trials of one audit show, and how far that holds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..plan import PlannedAudit
from ..spec import Cell
from ..stats import Estimate, Estimator, preferred
from ..stats.budget import SweepBudget


@dataclasses.dataclass(frozen=True)
class Table:
    """Makes the rows of one audit; `budget` is that of the whole sweep."""

    audit: PlannedAudit
    cell: Cell
    budget: SweepBudget

    def rows(
        self, states: Mapping[int, Sequence[Estimator]], curve_free: Estimator | None
    ) -> list[dict[str, Any]]:
        """One row per step, estimator and accountant.

        Args:
            states: the audit's estimators at each recorded step.
            curve_free: the bound without an assumption at the last step, where none of the
                audit's own is one.
        """
        level, cell = self.cell.audit, self.cell
        exact = cell.mechanism.exact(cell.adversary, self.audit.horizons, level.delta)
        rows = []
        for index, step in enumerate(self.audit.horizons):
            known = cell.mechanism.trade_off(cell.adversary, step)
            found = [(estimate, estimate.epsilon_lower) for estimate in exact.get(step, ())]
            for state in states[step]:
                bound = state.bound(level.delta, level.confidence)
                found.append((bound, self._together(state, bound)))
            unassuming = [estimate for estimate, _ in found]
            if curve_free is not None and step == self.audit.horizons[-1]:
                unassuming.append(curve_free.bound(level.delta, level.confidence))
            free = preferred.curve_free(unassuming)
            for estimate, together in found:
                row = _row(estimate.given(known), together, free)
                for accountant, claims in self.audit.claims.items():
                    claim = claims[index] if math.isfinite(claims[index]) else math.inf
                    named = {"audit": self.audit.id, "step": step, "accountant": accountant}
                    rows.append(row | named | {"epsilon_upper": claim})
        return rows

    def _together(self, state: Estimator, bound: Estimate) -> float:
        """ε at the sweep's split level; NaN for what no decision may rest on (yet)."""
        partial = bound.trials < self.audit.trials and not state.interim_valid
        if partial or not bound.status.holds:
            return math.nan
        if self.budget.each == bound.confidence:
            return bound.epsilon_lower
        return state.bound(bound.delta, self.budget.each).epsilon_lower


def _row(estimate: Estimate, together: float, free: Estimate | None) -> dict[str, Any]:
    return {
        "trials": estimate.trials,
        "estimator": estimate.method,
        "status": estimate.status.value,
        "epsilon_lower": estimate.epsilon_lower,
        "mu_lower": estimate.mu_lower,
        "delta": estimate.delta,
        "confidence": estimate.confidence,
        "threshold": estimate.threshold,
        "epsilon_lower_together": together,
        "epsilon_lower_free": math.nan if free is None else free.epsilon_lower,
        "free_estimator": "" if free is None else free.method,
    }
