"""The only writer of results: stores packs, folds them in trial order, keeps the estimates.

A pack is written, then folded, then acknowledged, so an acknowledged pack survives anything.
Everything else in here is rebuilt from the run directory whenever this starts.

Several threads may write packs at once; they are folded one at a time. Bounds of millions of trials
take seconds: they are computed outside of the lock that folding needs, for SHARE of a core.
"""

import contextlib
import functools
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from .. import plan as planning
from ..accounting import Family
from ..errors import MissingFileError, RunDirectoryError
from ..plan import claims, outcomes, score_stream
from ..plan.compaction import Compactor
from ..plan.finished_trials import FinishedTrials, RecentPacks
from ..plan.model import Pack, Part, Plan, PlannedAudit
from ..plan.outcomes import Failure, MissedTrials
from ..plan.preparing import Prepared
from ..plan.score_stream import ConsumedPack, MissedPack
from ..stats import Estimate, Estimator, Status, growth
from ..stats.base import curve_free, curve_free_method, methods_after_a_look
from ..stats.budget import SweepBudget
from ..stats.trial_log import Logged
from ..storage.arrays import Arrays
from ..storage.run_directory import RunDirectory
from ..storage.scores import Bounds, EstimateRow, PackScores
from ..sweep.audit import EstimatorSpec
from ..sweep.cell import Cell
from ..sweep.spec import Sweep
from .checkpoints import Checkpoints, Saved
from .progress import Activity, AuditProgress, Progress

KEEP_UP_SECONDS = 1.0
FLUSH_SECONDS = 5.0
_SHOWN = ("trials", "epsilon_lower", "mu_lower", "delta", "confidence", "threshold")
_CLAIM_NO_LEVEL = (Status.PAPER, Status.CREDIBLE)
State = Estimator | growth.Growing  # of an estimator, for one number of trials or for several
SHARE = 0.1  # of a core, for bounds: a flush that took 10 s is followed by 90 s without one


class Aggregation:
    """Estimates of every audit: a function of its scores and of the record of failures alone."""

    def __init__(self, sweep: Sweep, plan: Plan, run: RunDirectory) -> None:
        self._sweep = sweep
        self._plan = plan
        self._run = run
        self._opened_sweep = OpenSweep(sweep, plan, run)
        self._prepared = self._opened_sweep.prepared
        self._turn = threading.RLock()  # held while packs are folded, or folded ones are read
        self._writing = threading.Lock()  # held while files are written; acquired before `_turn`
        self._compactor = Compactor(run, len(plan.audits))
        self._checkpoints = Checkpoints(run, plan)
        self.checkpoint = self._checkpoints.checkpoint
        self.keep = self._prepared.keep
        self.prepared = self._prepared.parts
        self._record = outcomes.Record(run, plan)
        self._retried = set[Pack]()  # failed packs that are run again: no misses until then
        self._audits = [self._opened(index) for index in range(len(plan.audits))]
        if run.complete:
            self._reuse_exact_rows()
        self._due = time.monotonic() + FLUSH_SECONDS

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
                    state.known_rows = [EstimateRow(**entry) for entry in entries]

    @classmethod
    def rebuild(cls, run: RunDirectory) -> "Aggregation":
        """Returns the aggregation of the scores in a run directory."""
        return cls(*planning.read(run), run)

    def fold(self, pack: Pack, scores: PackScores) -> None:
        """Stores and folds one pack; folding it again changes nothing. Any thread may call it.

        Raises StorageError where the pack could not be written, and does not count as done.
        """
        if self._audits[pack.audit].holds(pack):
            return
        audit = self._plan.audits[pack.audit]
        scores = self._record.store_pack(audit.id, pack, scores)
        self._checkpoints.drop(pack)
        with self._turn:
            self._retried.discard(pack)
            if self._audits[pack.audit].missed(pack):
                # Its trainer was believed lost, and its trials are misses so far.
                self._audits[pack.audit] = self._opened(pack.audit)
            self._audits[pack.audit].add(pack, scores)

    def save(self, pack: Pack, saved: Saved) -> None:
        """Keeps a checkpoint of a pack, unless it is done. Raises StorageError."""
        if not self._audits[pack.audit].holds(pack):
            self._checkpoints.save(pack, saved)

    def give_up(self, failures: Iterable[Failure]) -> None:
        """Records packs that will not be run again, then folds their trials as misses.

        A pack whose scores are stored is left alone. Raises StorageError: nothing was folded.
        """
        by_pack = {failure.pack: failure for failure in failures}
        parts = [failure for failure in by_pack.values() if isinstance(failure.pack, Part)]
        if parts:
            self._record.add_parts(parts)
        with self._turn:
            recorded = self._record.failed.keys() - self._retried
            new = {}
            for pack, failure in by_pack.items():
                if isinstance(pack, Part) or pack in recorded:
                    continue
                if not self._audits[pack.audit].holds(pack):
                    new[pack] = failure
            if new:
                self._record.add_failed(new)
                self._retried -= new.keys()
            for pack in new:
                self._audits[pack.audit].miss(pack)

    def try_again(self, packs: Collection[Pack]) -> None:
        """Counts packs that are to be run again as open, until they have failed once more.

        They stay on the record for a crash; decisions are taken again. Raises StorageError.
        """
        with self._turn:
            self._retried.update(packs)
            for index in {pack.audit for pack in packs}:
                self._audits[index] = self._opened(index)
        self.flush()

    def progress(self, activity: Activity | None = None) -> Progress:
        """Returns the progress of all audits; cheap."""
        activity = activity or Activity()
        with self._turn:
            audits = [
                audit.progress(index, activity, *self._prepared.progress(index))
                for index, audit in enumerate(self._audits)
            ]
        return Progress(tuple(audits), activity, self._checkpoints.last)

    def keep_up(self) -> None:
        """Does the work besides folding, every KEEP_UP_SECONDS or so. Raises StorageError."""
        with self._writing:
            for index in range(len(self._plan.audits)):
                self._settled(index)
            self._compactor.work([audit.trials for audit in self._audits])
        if time.monotonic() >= self._due:
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
                audit, taken = self._settled(index)
                complete &= taken.complete and self._prepared.suffices(index)
                missed += taken.missed
                if taken.decided is not None:
                    enough[index] = taken.decided
                rows += audit.rows()
            newly_complete = complete and not self._run.complete
            if newly_complete:
                self._require_stored()
            self._run.write_estimates(rows)
            self._record.set_derived(self._sweep, missed, enough)
            if newly_complete:
                self._run.set_complete(True)
            self._compactor.work([audit.trials for audit in self._audits])
            cost = time.thread_time() - started
            self._due = time.monotonic() + max(FLUSH_SECONDS, cost / SHARE - cost)

    def _require_stored(self) -> None:
        """Raises MissingFileError unless storage has all that this process has stored there."""
        missing = []
        for state in self._audits:
            for first, last in state.trials.lost():
                missing.append(self._run.score_file(state.trials.audit.id, first, last))
        missing += self._prepared.lost()
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise MissingFileError(
                f"{self._run.location}/{missing[0]}{more}: stored in this run, and gone; run the "
                "same command again"
            )

    def _settled(self, index: int) -> "tuple[AuditState, Taken]":
        """Folds what was taken into an audit's estimates, too; returns the audit and that."""
        with self._turn:
            audit = self._audits[index]
            taken = audit.take()
        audit.settle(taken.packs)
        return audit, taken

    def _opened(self, index: int) -> "AuditState":
        missed = self._record.failed.keys() - self._retried
        failed = [pack.bounds for pack in missed if pack.audit == index]
        return AuditState(self._opened_sweep, index, failed)


class OpenSweep:
    """Objects that the audits of a sweep share; its budget takes as long as all audits together."""

    def __init__(self, sweep: Sweep, plan: Plan, run: RunDirectory) -> None:
        self.sweep = sweep
        self.plan = plan
        self.run = run
        self.prepared = Prepared(run, plan)
        self.recent = RecentPacks()
        self.budget = sweep.budget


@dataclass(frozen=True)
class Taken:
    """State of an audit, with the packs that its estimates do not have yet.

    Attributes:
        packs: the packs folded since the last call.
        decided: the trials that were enough by `stop_when`, None without a decision.
        complete: whether no trial is missing up to these; a miss is missing.
        missed: the trials that were missed one by one, by kind.
    """

    packs: list[ConsumedPack]
    decided: int | None
    complete: bool
    missed: list[MissedTrials]


class AuditState:
    """Folded trials of one audit, of which the packs `failed` count as misses."""

    def __init__(
        self,
        opened: OpenSweep,
        index: int,
        failed: Collection[Bounds],
    ) -> None:
        run, plan = opened.run, opened.plan
        audit = self._audit = plan.audits[index]
        cell = self._cell = opened.sweep.cells[index]
        self.trials = FinishedTrials(run, plan, index, failed, recent=opened.recent)
        gaussian = claims.is_gaussian(cell, audit.accountant)
        self._rule = cell.audit.stop_when
        self._test = None
        if self._rule is not None and self._rule.verdict:
            self._test = claims.test(audit, cell)
        # The level of `dpaudit verify`: the run's error budget, shared by its audits.
        confidences = [entry.audit.confidence for entry in opened.sweep.cells]
        self._alpha = (1 - min(confidences)) / len(confidences)
        self._each_audit = opened.budget.each_audit
        parts = functools.partial(opened.prepared.complete, index)
        self._estimates = Estimates(audit, cell, opened.budget, parts)
        self._bounds = [live_bound(audit)]  # the first is shown, the last compared with the claim
        if not gaussian:
            self._bounds.append(live_bound(audit, curve="any"))
        self._missed: dict[str, MissedTrials] = {}  # one by one, by the name of the exception
        self._unsettled: list[ConsumedPack] = []  # those that the estimates do not have yet
        self.decided: int | None = None  # trials that were enough; later ones are not folded
        self._shown: Estimate | None = None  # kept until the next fold
        self.known_rows: list[EstimateRow] | None = None  # likewise, as most audits are at rest
        self._advance(settle=True)

    def holds(self, pack: Pack) -> bool:
        """Returns whether the scores of a pack are stored."""
        return pack.bounds in self.trials.stored

    def missed(self, pack: Pack) -> bool:
        """Returns whether the trials of a pack count as misses."""
        return pack.bounds in self.trials.failed

    def add(self, pack: Pack, scores: PackScores) -> None:
        """Adds a pack that is stored, perhaps again, as of two attempts that were both stored."""
        if not self.holds(pack):
            self.trials.add(scores)
            self._advance()

    def miss(self, pack: Pack) -> None:
        """Adds a pack that was given up."""
        if not self.holds(pack):
            self.trials.failed.add(pack.bounds)
            self._advance()

    def take(self) -> Taken:
        """Returns the packs that were folded since the last call, and the state of the audit."""
        packs = self._unsettled
        self._unsettled = []
        missed = list(self._missed.values())
        return Taken(packs, self.decided, self.trials.complete, missed)

    def settle(self, packs: list[ConsumedPack]) -> None:
        """Folds packs from `take` into the estimates; no other method may need these meanwhile."""
        for pack in packs:
            self._estimates.fold(pack)
            self.known_rows = None

    def rows(self) -> list[EstimateRow]:
        """Returns the audit's part of estimates.parquet."""
        rows = self.known_rows
        if rows is None or (self._audit.trials == 0 and not rows):
            rows = self.known_rows = self._estimates.rows()
        return rows

    def progress(
        self,
        index: int,
        activity: Activity,
        parts_done: int = 0,
        parts: int = 0,
    ) -> AuditProgress:
        """Returns the progress of the audit.

        Args:
            index: its number in the plan.
            activity: of the sweep's packs.
            parts_done: parts of its preparation that are stored.
            parts: all parts of its preparation.
        """
        if self._shown is None:
            bound = self._comparable(self._cell.audit.delta, self._each_audit)
            self._shown = bound.given(self._cell.trade_off())
        missed = sum(kind.trials for kind in self._missed.values())
        return AuditProgress(
            self._audit.label,
            self._audit.trials,
            self.trials.stored_trials,
            self._shown.epsilon_lower,
            self._audit.claim,
            self._cell.audit.delta,
            activity.failed.get(index, 0) + missed,
            activity.lost.get(index, 0),
            self.decided,
            self._shown.status.assumes(self._shown.mu_lower),
            parts_done,
            parts,
            index in activity.refuted,
        )

    def _comparable(self, delta: float, confidence: float) -> Estimate:
        """Returns the live bound; if it exceeds the claim, one that may be compared with that."""
        bound = self._bounds[0].bound(delta, confidence)
        if bound.epsilon_lower > self._audit.claim:
            return self._bounds[-1].bound(delta, confidence)
        return bound

    def _advance(self, settle: bool = False) -> None:
        """Folds the packs that follow, until they are enough; `settle`: into the estimates, too."""
        if self.decided is not None:
            return
        for pack in self.trials.packs(one_by_one=self._rule is not None):
            for bound in self._bounds:
                score_stream.feed(bound, pack)
            if self._test is not None:
                score_stream.feed(self._test, pack)
                self._test.look()
            self._unsettled.append(pack)
            self._count_missed(pack)
            self._shown = None
            if settle:
                self.settle(self.take().packs)
            if self._enough():
                self.decided = self.trials.end = pack.last + 1
                return

    def _enough(self) -> bool:
        """Returns whether the trials so far decide the audit, by `stop_when`."""
        if self._test is not None and self._test.refuted_after(self._alpha) is not None:
            return True
        within = self._rule.within if self._rule else None
        claim = self._audit.claim
        if within is None or not 0 < claim < math.inf:
            return False
        level = self._cell.audit
        bound = self._comparable(level.delta, level.confidence)
        return bound.epsilon_lower >= (1 - within) * claim

    def _count_missed(self, pack: ConsumedPack) -> None:
        if isinstance(pack, MissedPack):
            return
        for trial, reason in pack.missed.items():
            kind = reason.partition(": ")[0]
            first = MissedTrials(self._audit.id, kind, 0, trial, reason)
            entry = self._missed.get(kind, first)
            self._missed[kind] = replace(entry, trials=entry.trials + 1)


def live_bound(audit: PlannedAudit, **options: str) -> Estimator:
    """Returns a bound that holds after every pack. Of a single training run, it shows nothing."""
    method = methods_after_a_look(not audit.independent, audit.paired)[0]
    return EstimatorSpec(name=method, options=options).make(audit.declared[0], audit.together)


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
            prepared: returns the parts of its preparation, none before all are stored.
        """
        self._audit = audit
        self._cell = cell
        self._prepared = prepared
        self._exact_bounds: dict[int, tuple[Estimate, ...]] | None = None  # by recorded step
        self._specs = self._estimators()
        self._each = self._level(budget)
        self._states = []  # at each recorded step, the state of each estimator
        for step in audit.horizons:
            self._states.append([self._state(spec, step) for spec in self._specs])
        self._free = self._curve_free()
        self._fed = [_without_log_of_others(states) for states in self._states]
        if self._free is not None:
            self._fed[-1] = _without_log_of_others([*self._states[-1], self._free])

    def fold(self, pack: ConsumedPack) -> None:
        """Adds a pack, in trial order."""
        for column, states in enumerate(self._fed):
            for state in states:
                score_stream.feed(state, pack, column)

    def rows(self) -> list[EstimateRow]:
        """Returns one row per step, bound and accountant."""
        cell = self._cell
        level = (cell.audit.delta, cell.audit.confidence)
        independent = cell.mechanism.independent_canaries(cell.adversary)
        exact = self._exact()
        rows = []
        for index, step in enumerate(self._audit.horizons):
            curve = cell.trade_off(step)
            bounds = [bound.given(curve) for bound in exact.get(step, ())]
            with_epsilon = [(bound, bound.epsilon_lower) for bound in bounds]  # at the split level
            for spec, state in zip(self._specs, self._states[index], strict=True):
                bound = replace(state.bound(*level), method=spec.name)
                with_epsilon.append(self._worth(state, bound.given(curve, independent)))
                if state.time_uniform() or not self._audit.extended:
                    bounds.append(bound)
            if self._free is not None and step == self._audit.horizons[-1]:
                bounds.append(self._free.bound(*level))
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

    def _exact(self) -> dict[int, tuple[Estimate, ...]]:
        """Returns the bounds that need no trials, by step; computes them once."""
        if self._exact_bounds is None:
            parts = self._prepared()
            cell = self._cell
            level = (self._audit.horizons, cell.audit.delta)
            bounds = cell.mechanism.exact(cell.adversary, *level, parts)
            if self._audit.preparation is not None and not parts:
                return bounds
            self._exact_bounds = bounds
        return self._exact_bounds

    def _level(self, budget: SweepBudget) -> float:
        """Returns the confidence of each bound that may decide this audit.

        The sweep grants the audit one share of its error per declared estimator. If estimators were
        added for early looks, all bounds that hold divide these shares equally. In an extended
        audit only the added ones hold.
        """
        declared = max(len(self._cell.budget.estimators), 1)
        added = len(self._specs) - len(self._cell.audit.estimators)
        shares_each = 1.0
        if added > 0:  # a mechanism with exact bounds has no specs, so fewer than declared
            holding = added if self._audit.extended else declared + added
            shares_each = min(declared / holding, 1.0)
        return 1 - (1 - budget.each) * shares_each

    @property
    def _looked(self) -> bool:
        """Whether bounds may be computed before all trials are run."""
        return self._audit.extended or self._cell.audit.stop_when is not None

    def _estimators(self) -> list[EstimatorSpec]:
        """Returns the declared estimators, with time-uniform ones if looks need and lack them."""
        if not self._cell.sampled:
            return []
        declared = list(self._cell.audit.estimators)
        uniform = any(spec.method.time_uniform() for spec in declared)
        if self._looked and not uniform and self._audit.canaries:
            added = methods_after_a_look(not self._audit.independent, self._audit.paired)
            declared += [EstimatorSpec(name=name) for name in added]
        return declared

    def _curve_free(self) -> State | None:
        """Returns an estimator that bounds ε for any mechanism; None if declared, or none holds."""
        last = self._audit.horizons[-1]
        if self._audit.paired:
            spec = EstimatorSpec(name="paired", options={"curve": "any"})
            return self._state(spec, last)
        if self._looked and not self._audit.independent:
            return None  # none holds where canaries that share a training run are looked at early
        method = curve_free_method(time_uniform=self._looked)
        listed = any(spec.name == method for spec in self._specs)
        if listed or not self._cell.sampled:
            return None
        return self._state(EstimatorSpec(name=method), last)

    def _state(self, spec: EstimatorSpec, step: int) -> State:
        """Makes an estimator for a recorded step, or one for each planned growth of the audit."""
        audit = self._audit
        method = spec.method
        uniform = method.time_uniform()
        family = None
        if spec.through_claim:
            family = Family(self._cell.claimed(step).training)
        planned = audit.declared[0] if uniform else audit.trials
        state = spec.make(planned, audit.together, family)
        grows = len(audit.foreseen) > 1 and not audit.extended
        if uniform or method.status in _CLAIM_NO_LEVEL or not grows:
            return state
        states = [spec.make(trials, audit.canaries or trials, family) for trials in audit.looks]
        shares = growth.shares(len(audit.foreseen))
        return growth.Growing(states, shares[: len(states)])

    def _worth(
        self,
        state: State,
        bound: Estimate,
    ) -> tuple[Estimate, float]:
        """Returns a bound with its status now, and its ε at the sweep's split level.

        That ε is NaN if the bound does not hold.
        """
        level = self._cell.audit
        if not state.time_uniform() and bound.status not in _CLAIM_NO_LEVEL:
            if self._audit.extended:
                bound = replace(bound, status=Status.EXTENDED)
            elif bound.trials < self._audit.looks[0] and not state.interim_valid:
                bound = replace(bound, status=Status.INTERIM)
        if not bound.status.holds:
            return bound, math.nan
        if self._each == level.confidence:
            return bound, bound.epsilon_lower
        return bound, state.bound(level.delta, self._each).epsilon_lower


def _without_log_of_others(states: list[State]) -> list[State]:
    """Returns the states to feed: of those that keep only a log of all trials, one does.

    An entry of the log takes 90 bytes for ten steps.
    """
    fed = []
    log = None
    for state in states:
        if isinstance(state, Logged) and state.keeps_log_only:
            if log is not None:
                state.share_log(log)
                continue
            log = state
        fed.append(state)
    return fed
