"""Estimators of one audit: the bounds of its trials so far, as `estimates.parquet` has them."""

import math
from collections.abc import Callable
from dataclasses import replace

from ..accounting import Family
from ..plan import score_stream
from ..plan.model import PlannedAudit
from ..plan.score_stream import ConsumedPack
from ..stats import Estimate, Estimator, Status, growth
from ..stats.base import curve_free, curve_free_method, default_time_uniform_methods
from ..stats.budget import SweepBudget
from ..stats.trial_log import Logged
from ..storage.arrays import Arrays
from ..storage.scores import EstimateRow
from ..sweep.audit import EstimatorSpec
from ..sweep.cell import Cell

_SHOWN = ("trials", "epsilon_lower", "mu_lower", "delta", "confidence", "threshold")
_CLAIM_NO_LEVEL = (Status.PAPER, Status.CREDIBLE)
State = Estimator | growth.Growing  # an estimator, for one number of trials or for several


class Estimates:
    """Estimators of one audit at every recorded step.

    A time-uniform estimator keeps the options that follow from the number of trials declared first:
    to tune it again after looking would void it.
    """

    def __init__(
        self,
        audit: PlannedAudit,
        cell: Cell,
        budget: SweepBudget,
        prepared: Callable[[], tuple[Arrays, ...]] = tuple,
    ) -> None:
        """Makes the estimators.

        Args:
            audit: the audit as planned.
            cell: the audit as the sweep has it.
            budget: error budget of the whole sweep.
            prepared: returns the parts of the audit's preparation; none before all are stored.
        """
        self._audit = audit
        self._cell = cell
        self._prepared = prepared
        self.known_rows: list[EstimateRow] | None = None  # computed since a pack was last folded
        self._exact_bounds: dict[int, tuple[Estimate, ...]] | None = None  # bounds by recorded step
        self._specs = self._declared_and_added()
        self._split_confidence = self._deciding_confidence(budget)
        self._states = []  # states of all estimators, at each recorded step
        for step in audit.horizons:
            self._states.append([self._make_state(spec, step) for spec in self._specs])
        # An additional state at the last step.
        self._curve_free_state = self._make_curve_free_state()
        self._states_to_feed = [_without_log_of_others(states) for states in self._states]
        if self._curve_free_state is not None:
            self._states_to_feed[-1] = _without_log_of_others(
                [*self._states[-1], self._curve_free_state]
            )

    def fold(self, pack: ConsumedPack) -> None:
        """Adds a pack to the estimators of every recorded step.

        The caller must fold packs in the order of their trials.
        """
        self.known_rows = None  # the known rows lack this pack
        for step_number, states in enumerate(self._states_to_feed):
            for state in states:
                score_stream.feed(state, pack, column=step_number)

    def rows(self) -> list[EstimateRow]:
        """Returns one row per step, bound and accountant; keeps them until a pack is folded."""
        # Exact bounds have no rows until the preparation that they wait for is complete.
        if self.known_rows is None or (self._audit.trials == 0 and not self.known_rows):
            self.known_rows = self._computed_rows()
        return self.known_rows

    def _computed_rows(self) -> list[EstimateRow]:
        """Computes the rows of all steps: exact bounds first, then the bounds of estimators.

        Each bound has a row for every accountant.
        """
        cell = self._cell
        level = (cell.audit.delta, cell.audit.confidence)
        independent = cell.mechanism.independent_canaries(cell.adversary)
        exact = self._bounds_without_trials()
        rows = []
        for index, step in enumerate(self._audit.horizons):
            curve = cell.trade_off(step)
            bounds = [bound.given(curve) for bound in exact.get(step, ())]
            # Each bound with its ε at the split level, at which all bounds of the sweep hold.
            with_epsilon = [(bound, bound.epsilon_lower) for bound in bounds]
            for spec, state in zip(self._specs, self._states[index], strict=True):
                bound = replace(state.bound(*level), method=spec.name)
                with_epsilon.append(self._with_status(state, bound.given(curve, independent)))
                if state.time_uniform() or not self._audit.extended:
                    bounds.append(bound)
            if self._curve_free_state is not None and step == self._audit.horizons[-1]:
                bounds.append(self._curve_free_state.bound(*level))
            free = curve_free(bounds)
            free_epsilon = math.nan if free is None else free.epsilon_lower
            free_method = "" if free is None else free.method
            for bound, epsilon in with_epsilon:
                values = {name: getattr(bound, name) for name in _SHOWN}
                for accountant, epsilons in self._audit.claims.items():
                    claim = epsilons[index]
                    row = EstimateRow(
                        audit=self._audit.id,
                        step=step,
                        estimator=bound.method,
                        status=bound.status.value,
                        epsilon_upper=claim if math.isfinite(claim) else math.inf,
                        accountant=accountant,
                        epsilon_lower_together=epsilon,
                        epsilon_lower_free=free_epsilon,
                        free_estimator=free_method,
                        **values,
                    )
                    rows.append(row)
        return rows

    def _bounds_without_trials(self) -> dict[int, tuple[Estimate, ...]]:
        """Returns the bounds that need no trials, by step.

        They are computed once; while parts of the preparation are missing, anew on each call.
        """
        if self._exact_bounds is None:
            parts = self._prepared()
            cell = self._cell
            audit = self._audit
            bounds = cell.mechanism.exact(cell.adversary, audit.horizons, cell.audit.delta, parts)
            if audit.preparation is not None and not parts:
                return bounds
            self._exact_bounds = bounds
        return self._exact_bounds

    def _deciding_confidence(self, budget: SweepBudget) -> float:
        """Returns the confidence of each bound that may decide this audit.

        The sweep's error is split into equal shares, one for each declared estimator and step;
        `budget.each` is the confidence of a bound with one share. Estimators that were added for
        early looks bring no share: the audit's shares are split evenly over its valid bounds. If
        the audit was extended, only the added estimators are valid, since the declared ones hold
        for a fixed number of trials.
        """
        declared = max(len(self._cell.budget.estimators), 1)
        added = len(self._specs) - len(self._cell.audit.estimators)
        shares_per_bound = 1.0
        if added > 0:  # negative for a mechanism with exact bounds, which has no specs
            valid = added if self._audit.extended else declared + added
            shares_per_bound = min(declared / valid, 1.0)
        return 1 - (1 - budget.each) * shares_per_bound

    @property
    def _may_look_early(self) -> bool:
        """Whether bounds may be computed before all trials are run."""
        return self._audit.extended or self._cell.audit.stop_when is not None

    def _declared_and_added(self) -> list[EstimatorSpec]:
        """Returns the declared estimators, and time-uniform ones if early looks need and lack them.

        A bound for a declared number of trials does not hold earlier. At δ = 0, where a Gaussian
        has no finite ε, the added one assumes no trade-off curve. A mechanism whose bounds are
        computed without trials has no estimators.
        """
        if not self._cell.sampled:
            return []
        specs = list(self._cell.audit.estimators)
        has_uniform = any(spec.method.time_uniform() for spec in specs)
        if self._may_look_early and not has_uniform and self._audit.canaries:
            methods = default_time_uniform_methods(not self._audit.independent, self._audit.paired)
            if self._cell.audit.delta:
                specs += [EstimatorSpec(name=name) for name in methods]
            elif self._audit.independent:
                specs.append(EstimatorSpec(name=curve_free_method(time_uniform=True)))
            else:
                specs.append(EstimatorSpec(name=methods[0], options={"curve": "any"}))
        return specs

    def _make_curve_free_state(self) -> State | None:
        """Makes an estimator that bounds ε for any mechanism, at the last step.

        Returns:
            The estimator; None if it is among the declared ones, or if none is valid.
        """
        last = self._audit.horizons[-1]
        if self._audit.paired:
            return self._make_state(EstimatorSpec(name="paired", options={"curve": "any"}), last)
        if self._may_look_early and not self._audit.independent:
            return None  # none holds where canaries that share a training run are looked at early
        method = curve_free_method(time_uniform=self._may_look_early)
        listed = any(spec.name == method for spec in self._specs)
        if listed or not self._cell.sampled:
            return None
        return self._make_state(EstimatorSpec(name=method), last)

    def _make_state(self, spec: EstimatorSpec, step: int) -> State:
        """Makes an estimator for a recorded step, or one for each planned growth of the audit.

        Args:
            spec: name and options of the estimator.
            step: the recorded step, for the claimed curves.
        """
        audit = self._audit
        method = spec.method
        uniform = method.time_uniform()
        family = Family(self._cell.claimed(step)) if spec.through_claim else None
        planned = audit.declared[0] if uniform else audit.trials
        log_odds = self._cell.adversary.log_odds
        state = spec.make(planned, audit.together, family, log_odds)
        grows = len(audit.foreseen) > 1 and not audit.extended
        if uniform or method.status in _CLAIM_NO_LEVEL or not grows:
            return state
        # One estimator for each declared number of trials; they share the error.
        canaries = audit.canaries or audit.trials
        states = [spec.make(trials, canaries, family, log_odds) for trials in audit.looks]
        shares = growth.shares(len(audit.foreseen))
        return growth.Growing(states, shares[: len(states)])

    def _with_status(
        self,
        state: State,
        bound: Estimate,
    ) -> tuple[Estimate, float]:
        """Returns a bound with its status now, and its ε at the sweep's split level.

        A bound for a declared number of trials is interim before these are in, and extended if the
        number was raised. The ε is NaN if the bound does not hold.

        Args:
            state: the estimator.
            bound: bound of the estimator at the audit's own level.
        """
        level = self._cell.audit
        if not state.time_uniform() and bound.status not in _CLAIM_NO_LEVEL:
            if self._audit.extended:
                bound = replace(bound, status=Status.EXTENDED)
            elif bound.trials < self._audit.looks[0] and not state.interim_valid:
                bound = replace(bound, status=Status.INTERIM)
        if not bound.status.holds:
            return bound, math.nan
        if self._split_confidence == level.confidence:
            return bound, bound.epsilon_lower
        return bound, state.bound(level.delta, self._split_confidence).epsilon_lower


def _without_log_of_others(states: list[State]) -> list[State]:
    """Returns the states to feed. Of the states that keep only a log of trials, one is fed.

    The other such states share its log: an entry takes 90 bytes for ten steps.
    """
    to_feed = []
    with_log = None  # the fed state whose log the others share
    for state in states:
        if isinstance(state, Logged) and state.keeps_log_only:
            if with_log is not None:
                state.share_log(with_log)
                continue
            with_log = state
        to_feed.append(state)
    return to_feed
