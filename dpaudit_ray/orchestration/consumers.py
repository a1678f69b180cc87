"""Consumers of the trials of an audit, in their order: one for each thing that is said of them.

While a sweep runs these are the bound that is shown, the one that an alarm compares with the claim,
the rule that may end the audit, the tally of missed trials, and the estimators at every recorded
step with what their bounds are worth by now.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from .. import stats
from ..accounting import Family
from ..plan import claims, score_stream
from ..plan.model import PlannedAudit
from ..plan.outcomes import MissedTrials
from ..plan.score_stream import ConsumedPack
from ..stats import Estimate, Estimator, Status
from ..stats.base import curve_free, curve_free_method, methods_after_a_look
from ..stats.budget import SweepBudget
from ..stats.claim_verdict import ClaimTest, RunTest
from ..storage.arrays import Arrays
from ..storage.scores import EstimateRow, PackScores
from ..sweep.audit import EstimatorSpec
from ..sweep.cell import Cell
from ..sweep.spec import Sweep

_CLAIM_NO_LEVEL = (Status.PAPER, Status.CREDIBLE)


class Consumer(Protocol):
    """What takes the packs of an audit in trial order."""

    def fold(self, pack: ConsumedPack) -> None:
        """Adds a pack."""


class LiveBound:
    """A bound that may be looked at after every pack. Of one training alone, it shows nothing."""

    def __init__(self, audit: PlannedAudit, **options: str) -> None:
        method = methods_after_a_look(by_run=not audit.independent)[0]
        spec = EstimatorSpec(name=method, options=options)
        self.state = spec.make(audit.declared[0], audit.in_a_training)

    def fold(self, pack: ConsumedPack) -> None:
        score_stream.feed(self.state, pack)


class StopRule:
    """`audit.stop_when` of one audit, apart from its time budget.

    It is asked after every pack, so only time-uniform bounds may answer: `live` is the one of the
    same trials.
    """

    def __init__(
        self, sweep: Sweep, index: int, audit: PlannedAudit, live: stats.Estimator
    ) -> None:
        cell = sweep.cells[index]
        self._rule = cell.audit.stop_when
        self._level = (cell.audit.delta, cell.audit.confidence)
        self._audit, self._live = audit, live
        self._test: ClaimTest | RunTest | None = None
        if self._rule is not None and self._rule.verdict:
            # The level of `dpaudit verify`: the run's error budget, shared by its audits.
            confidence = min(c.audit.confidence for c in sweep.cells)
            self._alpha = (1 - confidence) / len(sweep.cells)
            claimed = cell.mechanism.claimed(cell.adversary, audit.horizons[-1])
            family = claims.curves(claimed, next(iter(audit.claims)), cell.audit.delta)
            self._test = claims.test(audit, family(claimed.noise_multiplier))

    def cut(self, packs: ConsumedPack) -> Iterator[ConsumedPack]:
        """The same trials pack by pack, where the audit may be over after any of them."""
        if self._rule is None or not self._rule.by_bounds:
            return iter((packs,))
        return score_stream.up_to_looks(self._audit, (packs,), lambda: 0)

    def fold(self, pack: ConsumedPack) -> None:
        if self._test is not None:
            score_stream.feed(self._test, pack)
            self._test.look()

    def enough(self) -> bool:
        """Whether the trials so far decide the audit."""
        if self._test is not None and self._test.refuted_after(self._alpha) is not None:
            return True
        claim = self._audit.claim
        if self._rule is None or self._rule.within is None or not 0 < claim < math.inf:
            return False
        return self._live.bound(*self._level).epsilon_lower >= (1 - self._rule.within) * claim


class MissedTally:
    """The trials of one audit that were missed one by one, by what was raised."""

    def __init__(self, audit: str) -> None:
        self._audit = audit
        self._kinds: dict[str, MissedTrials] = {}

    @property
    def kinds(self) -> list[MissedTrials]:
        """In the order of their first trials."""
        return list(self._kinds.values())

    def fold(self, pack: ConsumedPack) -> None:
        for trial, why in pack.missed.items() if isinstance(pack, PackScores) else ():
            kind = why.partition(": ")[0]
            before = self._kinds.get(kind, MissedTrials(self._audit, kind, 0, trial, why))
            self._kinds[kind] = dataclasses.replace(before, trials=before.trials + 1)


class Estimates:
    """Estimators of one audit at every recorded step; `budget` is that of the whole sweep.

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
        self._exact_bounds: dict[int, tuple[Estimate, ...]] | None = (
            None  # by horizon, once prepared
        )
        self._specs = specs = self._estimators()
        self._each = self._level(budget)
        self._states = [[self._made(spec, step) for spec in specs] for step in audit.horizons]
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
            curve = cell.mechanism.trade_off(cell.adversary, step)
            listed = [(bound.given(curve), bound.epsilon_lower) for bound in exact.get(step, ())]
            bounds = [
                dataclasses.replace(state.bound(level.delta, level.confidence), method=spec.name)
                for spec, state in zip(self._specs, states, strict=True)
            ]
            free = self._assumption_free([bound for bound, _ in listed], bounds, index)
            listed += [
                self._worth(state, bound.given(curve))
                for state, bound in zip(states, bounds, strict=True)
            ]
            for estimate, together in listed:
                for accountant, epsilons in audit.claims.items():
                    claim = epsilons[index] if math.isfinite(epsilons[index]) else math.inf
                    beside = {"audit": audit.id, "step": step, "accountant": accountant}
                    beside |= {"epsilon_upper": claim}
                    rows.append(_row(estimate, together, free, beside))
        return rows

    def _exact(self) -> dict[int, tuple[Estimate, ...]]:
        """What needs no trials, worked out once: it follows from the options and the target."""
        if self._exact_bounds is None:
            cell, parts = self._cell, () if self._audit.preparation is None else self._prepared()
            level = (self._audit.horizons, cell.audit.delta)
            bounds = cell.mechanism.exact(cell.adversary, *level, parts)
            if self._audit.preparation is not None and not parts:
                return bounds
            self._exact_bounds = bounds
        return self._exact_bounds

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
        declared = list(self._cell.audit.estimators)
        uniform = any(spec.method.time_uniform() for spec in declared)
        if not self._looked or uniform or self._audit.canaries == 0:
            return declared
        added = methods_after_a_look(by_run=not self._audit.independent)
        return [*declared, *(EstimatorSpec(name=name) for name in added)]

    def _curve_free(self, listed: list[EstimatorSpec]) -> Estimator | None:
        """The strongest bound without an assumption, where it is not among the others."""
        independent = self._audit.independent
        if self._looked and not independent:
            return None
        method = curve_free_method(not independent, time_uniform=self._looked)
        if not self._cell.mechanism.sampled or any(spec.name == method for spec in listed):
            return None
        return self._made(EstimatorSpec(name=method), self._audit.horizons[-1])

    def _made(self, spec: EstimatorSpec, step: int) -> Estimator:
        planned = self._audit.declared[0] if spec.method.time_uniform() else self._audit.trials
        family = None
        if spec.through_claim:
            mechanism, adversary = self._cell.mechanism, self._cell.adversary
            family = Family(mechanism.claimed(adversary, step).training)
        return spec.make(planned, self._audit.in_a_training, family)

    def _worth(self, state: Estimator, bound: Estimate) -> tuple[Estimate, float]:
        """The bound of a state under its status by now, and its ε at the sweep's split level.

        A bound for a declared number of trials holds at that one, if it was the only one. The
        second is NaN for what no decision may rest on (yet).
        """
        level = self._cell.audit
        if self._audit.mixed:
            return dataclasses.replace(bound, status=Status.MIXED), math.nan
        if not state.time_uniform() and bound.status not in _CLAIM_NO_LEVEL:
            partial = bound.trials < self._audit.trials and not state.interim_valid
            if self._audit.extended:
                bound = dataclasses.replace(bound, status=Status.EXTENDED)
            elif partial:
                bound = dataclasses.replace(bound, status=Status.INTERIM)
        if not bound.status.holds:
            return bound, math.nan
        if self._each == level.confidence:
            return bound, bound.epsilon_lower
        return bound, state.bound(level.delta, self._each).epsilon_lower

    def _assumption_free(
        self, exact: list[Estimate], bounds: list[Estimate], index: int
    ) -> Estimate | None:
        """The bound without an assumption at recorded step number `index`; None where none is.

        `bounds` are those of the states of this step.
        """
        if self._audit.mixed:
            return None
        states = zip(self._states[index], bounds, strict=True)
        candidates = [*exact, *(bound for state, bound in states if self._holds_at_last(state))]
        if self._free is not None and index == len(self._audit.horizons) - 1:
            level = self._cell.audit
            candidates.append(self._free.bound(level.delta, level.confidence))
        return curve_free(candidates)

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
