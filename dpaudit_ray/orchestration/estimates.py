"""The estimators of one audit at every recorded step, and what their bounds are worth by now."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from ..accounting import Family
from ..plan import score_stream
from ..plan.model import PlannedAudit
from ..plan.score_stream import ConsumedPack
from ..stats import Estimate, Estimator, Status
from ..stats.base import curve_free, curve_free_method, methods_after_a_look
from ..stats.budget import SweepBudget
from ..storage.arrays import Arrays
from ..storage.scores import EstimateRow
from ..sweep.audit import EstimatorSpec
from ..sweep.cell import Cell

_CLAIM_NO_LEVEL = (Status.PAPER, Status.CREDIBLE)


class Estimating:
    """Folds the prefix of one audit; `budget` is that of the whole sweep.

    `prepared` gives the parts of its preparation, none before all are there.

    A time-uniform estimator keeps the options that follow from the number of trials declared
    first: to tune it again after looking would void it.
    """

    def __init__(
        self,
        audit: PlannedAudit,
        cell: Cell,
        budget: SweepBudget,
        prepared: Callable[[], tuple[Arrays, ...]] = tuple,
    ) -> None:
        self._audit, self._cell, self._prepared = audit, cell, prepared
        self._known: dict[int, tuple[Estimate, ...]] | None = None  # by horizon, once prepared
        self._specs = specs = self._estimators()
        self._each = self._level(budget)
        self._states = [[self._made(one, step) for one in specs] for step in audit.horizons]
        self._free = self._curve_free(specs)

    def fold(self, pack: ConsumedPack) -> None:
        """Adds a pack, in trial order."""
        for column, states in enumerate(self._states):
            for state in states:
                score_stream.feed(state, pack, column)
        if self._free is not None:
            score_stream.feed(self._free, pack)

    def rows(self) -> list[EstimateRow]:
        """One row per step, estimator and accountant."""
        audit, cell, level = self._audit, self._cell, self._cell.audit
        exact = self._exact()
        rows: list[EstimateRow] = []
        for index, (step, states) in enumerate(zip(audit.horizons, self._states, strict=True)):
            known = cell.mechanism.trade_off(cell.adversary, step)
            found = [(one.given(known), one.epsilon_lower) for one in exact.get(step, ())]
            bounds = [
                dataclasses.replace(state.bound(level.delta, level.confidence), method=spec.name)
                for spec, state in zip(self._specs, states, strict=True)
            ]
            free = self._assumption_free([one for one, _ in found], bounds, index)
            found += [
                self._worth(state, bound.given(known))
                for state, bound in zip(states, bounds, strict=True)
            ]
            for estimate, together in found:
                for accountant, claims in audit.claims.items():
                    claim = claims[index] if math.isfinite(claims[index]) else math.inf
                    beside = {"audit": audit.id, "step": step, "accountant": accountant}
                    beside |= {"epsilon_upper": claim}
                    rows.append(_row(estimate, together, free, beside))
        return rows

    def _exact(self) -> dict[int, tuple[Estimate, ...]]:
        """What needs no trials, worked out once: it follows from the options and the target."""
        if self._known is None:
            cell, parts = self._cell, () if self._audit.preparation is None else self._prepared()
            level = (self._audit.horizons, cell.audit.delta)
            found = cell.mechanism.exact(cell.adversary, *level, parts)
            if self._audit.preparation is not None and not parts:
                return found
            self._known = found
        return self._known

    def _level(self, budget: SweepBudget) -> float:
        """The confidence of each bound that decides: the sweep has shares for those asked for, and
        all that hold divide these. After an extension only those that were added do."""
        added = max(0, len(self._specs) - len(self._cell.audit.estimators))  # exact: no specs
        shares = max(len(self._cell.budget.estimators), 1)
        holding = added if self._audit.extended else shares + added
        divided = min(shares / holding, 1.0) if added else 1.0
        return 1 - (1 - budget.each) * divided

    @property
    def _looked(self) -> bool:
        """Whether the number of trials follows from the trials, or may yet."""
        rule = self._cell.audit.stop_when
        return self._audit.extended or (rule is not None and rule.by_bounds)

    def _estimators(self) -> list[EstimatorSpec]:
        """Those asked for; where trials are looked at, time-uniform ones too if there are none."""
        if not self._cell.mechanism.sampled:
            return []
        asked = list(self._cell.audit.estimators)
        uniform = any(one.method.time_uniform() for one in asked)
        if not self._looked or uniform or self._audit.canaries == 0:
            return asked
        added = methods_after_a_look(by_run=not self._audit.independent)
        return [*asked, *(EstimatorSpec(name=name) for name in added)]

    def _curve_free(self, listed: list[EstimatorSpec]) -> Estimator | None:
        """The strongest bound without an assumption, where it is not among the others."""
        independent = self._audit.independent
        if self._looked and not independent:
            return None
        method = curve_free_method(not independent, time_uniform=self._looked)
        if not self._cell.mechanism.sampled or any(one.name == method for one in listed):
            return None
        return self._made(EstimatorSpec(name=method), self._audit.horizons[-1])

    def _made(self, spec: EstimatorSpec, step: int) -> Estimator:
        planned = self._audit.declared[0] if spec.method.time_uniform() else self._audit.trials
        family = None
        if spec.through_claim:
            mechanism, adversary = self._cell.mechanism, self._cell.adversary
            family = Family(mechanism.claimed(adversary, step).training)
        return spec.make(planned, self._audit.in_a_training, family)

    def _worth(self, state: Estimator, found: Estimate) -> tuple[Estimate, float]:
        """The bound of a state under its status by now, and its ε at the sweep's split level.

        A bound for a declared number of trials holds at that one, if it was the only one. The
        second is NaN for what no decision may rest on (yet).
        """
        level = self._cell.audit
        if self._audit.mixed:
            return dataclasses.replace(found, status=Status.MIXED), math.nan
        if not state.time_uniform() and found.status not in _CLAIM_NO_LEVEL:
            partial = found.trials < self._audit.trials and not state.interim_valid
            if self._audit.extended:
                found = dataclasses.replace(found, status=Status.EXTENDED)
            elif partial:
                found = dataclasses.replace(found, status=Status.INTERIM)
        if not found.status.holds:
            return found, math.nan
        if self._each == level.confidence:
            return found, found.epsilon_lower
        return found, state.bound(level.delta, self._each).epsilon_lower

    def _assumption_free(
        self, exact: list[Estimate], bounds: list[Estimate], index: int
    ) -> Estimate | None:
        """The bound without an assumption at recorded step number `index`; None where none is.

        `bounds` are those of the states of this step.
        """
        if self._audit.mixed:
            return None
        states = zip(self._states[index], bounds, strict=True)
        found = [*exact, *(bound for state, bound in states if self._holds_at_last(state))]
        if self._free is not None and index == len(self._audit.horizons) - 1:
            level = self._cell.audit
            found.append(self._free.bound(level.delta, level.confidence))
        return curve_free(found)

    def _holds_at_last(self, state: Estimator) -> bool:
        """Whether its bound holds once all trials are in."""
        return state.time_uniform() or not self._audit.extended


def _row(
    estimate: Estimate, together: float, free: Estimate | None, beside: dict[str, Any]
) -> EstimateRow:
    return EstimateRow(
        trials=estimate.trials,
        estimator=estimate.method,
        status=estimate.status.value,
        epsilon_lower=estimate.epsilon_lower,
        mu_lower=estimate.mu_lower,
        delta=estimate.delta,
        confidence=estimate.confidence,
        threshold=estimate.threshold,
        epsilon_lower_together=together,
        epsilon_lower_free=math.nan if free is None else free.epsilon_lower,
        free_estimator="" if free is None else free.method,
        **beside,
    )
