"""The only writer of results: stores packs, folds them in trial order, keeps the estimates.

A pack is written, then folded, then acknowledged, so an acknowledged pack survives anything.
Everything else in here is rebuilt from the run directory whenever this starts.

Several threads may write packs at once; they are folded one at a time. Bounds of millions of trials
take seconds: they are computed outside of the lock that folding needs, for SHARE of a core.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from .. import plan as planning
from .. import stats
from ..accounting import Family
from ..errors import MissingFileError, RunDirectoryError, StorageError
from ..plan import claims, compaction, outcomes, score_stream
from ..plan.compaction import Bounds, Stretch
from ..plan.model import Pack, Part, Plan, PlannedAudit
from ..plan.outcomes import Failure, MissedTrials
from ..plan.preparing import Prepared
from ..plan.score_stream import ConsumedPack, RecentPacks
from ..stats import Estimate, Estimator, Status, growth
from ..stats.base import curve_free, curve_free_method, methods_after_a_look
from ..stats.budget import SweepBudget
from ..stats.claim_verdict import ClaimTest, RunTest
from ..stats.trial_log import Logged
from ..storage.arrays import Arrays
from ..storage.run_directory import RunDirectory
from ..storage.scores import EstimateRow, PackScores
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
        self._sweep, self._plan, self._run = sweep, plan, run
        self._opened_sweep = OpenSweep(sweep, plan, run)
        self._prepared = self._opened_sweep.prepared
        self._turn = threading.RLock()  # held by whoever reads or changes what was folded
        self._writing = threading.Lock()  # held by whoever flushes or gathers; the turn comes after
        self._compactor = Compactor(run, plan)
        self._checkpoints = Checkpoints(run, plan)
        self.checkpoint = self._checkpoints.checkpoint
        self.keep, self.prepared = self._prepared.keep, self._prepared.parts
        self._record = outcomes.Record(run, plan)
        self._failures = {failure.pack: failure for failure in outcomes.failed(run, plan)}
        self._retried: set[Pack] = set()  # of them, those that are run again: no misses until then
        self._audits = [self._opened(index) for index in range(len(plan.audits))]
        if run.complete:
            self._reuse_exact_rows()
        self._due = time.monotonic() + FLUSH_SECONDS

    def _reuse_exact_rows(self) -> None:
        """Takes the rows of audits without trials from the file: they cannot have changed.

        Computing them takes about half a second an audit. They are computed if the file is damaged.
        """
        with contextlib.suppress(RunDirectoryError):
            by_audit = dict(tuple(self._run.estimates().groupby("audit")))
            for audit, state in zip(self._plan.audits, self._audits, strict=True):
                rows = by_audit.get(audit.id)
                if audit.trials > 0 or audit.preparation is not None or rows is None:
                    continue
                steps = set(rows["step"])
                if steps == {*audit.horizons} and {*rows["accountant"]} == audit.claims.keys():
                    entries: list[dict[Any, Any]] = rows.to_dict("records")
                    state.reuse([EstimateRow(**entry) for entry in entries])

    @classmethod
    def rebuild(cls, run: RunDirectory) -> Aggregation:
        """The state that the run directory holds; needs nothing else."""
        return cls(*planning.read(run), run)

    def fold(self, pack: Pack, scores: PackScores) -> None:
        """Stores and folds one pack; folding it again changes nothing. Any thread may call it.

        Raises StorageError where the pack could not be written, and does not count as done.
        """
        if self._audits[pack.audit].holds(pack):
            return
        audit = self._plan.audits[pack.audit].id
        scores = outcomes.keep_outputs(self._run, audit, scores)
        self._run.write_scores(audit, scores)
        self._checkpoints.drop(pack)
        with self._turn:
            if pack in self._failures:  # of a trainer that was taken for lost: a score after all
                self._forget(pack)
            self._audits[pack.audit].add(pack, scores)

    def save(self, pack: Pack, saved: Saved) -> None:
        """Keeps a checkpoint of a pack, unless it is done. Raises StorageError."""
        if not self._audits[pack.audit].holds(pack):
            self._checkpoints.save(pack, saved)

    def give_up(self, failed: Iterable[Failure]) -> None:
        """Records packs that will not be run again, then folds their trials as misses.

        A pack whose scores are stored is left alone. Raises StorageError: nothing was folded.
        """
        by_pack = {failure.pack: failure for failure in failed}
        if parts := [f for f in by_pack.values() if isinstance(f.pack, Part)]:
            self._record.add_parts(parts)
        with self._turn:
            new = {
                pack: failure
                for pack, failure in by_pack.items()
                if not isinstance(pack, Part)
                and (pack not in self._failures or pack in self._retried)
                and not self._audits[pack.audit].holds(pack)
            }
            if new:
                self._record.set_failed((self._failures | new).values())
                self._failures |= new
                self._retried -= new.keys()
            for pack in new:
                self._audits[pack.audit].miss(pack)

    def try_again(self, packs: Collection[Pack]) -> None:
        """Packs that are to be run again are misses no more, until they have failed once more.

        They stay on the record for a crash; decisions are taken again. Raises StorageError.
        """
        with self._turn:
            self._retried.update(packs)
            for index in {pack.audit for pack in packs}:
                self._audits[index] = self._opened(index)
        self.flush()

    def progress(self, activity: Activity | None = None) -> Progress:
        """What to show now; cheap."""
        activity = activity or Activity()
        with self._turn:
            audits = [
                audit.progress(index, activity, *self._prepared.progress(index))
                for index, audit in enumerate(self._audits)
            ]
        return Progress(tuple(audits), activity, self._checkpoints.last)

    def keep_up(self) -> None:
        """What is to be done beside folding, every KEEP_UP_SECONDS or so. Raises StorageError."""
        with self._writing:
            for index in range(len(self._plan.audits)):
                self._settled(index)
            self._compactor.work([audit.folded for audit in self._audits])
        if time.monotonic() >= self._due:
            self.flush()

    def flush(self) -> None:
        """Writes the current estimates and decisions, and _SUCCESS when nothing is left to do."""
        with self._writing:
            started = time.thread_time()
            settled = [self._settled(index) for index in range(len(self._plan.audits))]
            takes = [taken for _, taken in settled]
            complete = all(t.complete and self._prepared.suffices(i) for i, t in enumerate(takes))
            newly_complete = complete and not self._run.complete
            if newly_complete:
                self._require_stored(takes)
            self._run.write_estimates([row for audit, _ in settled for row in audit.rows()])
            missed = [kind for taken in takes for kind in taken.missed]
            enough = {i: t.decided for i, t in enumerate(takes) if t.decided is not None}
            self._record.set_derived(self._sweep, missed, enough)
            if newly_complete:
                self._run.set_complete(True)
            self._compactor.work([audit.folded for audit in self._audits])
            cost = time.thread_time() - started
            self._due = time.monotonic() + max(FLUSH_SECONDS, cost / SHARE - cost)

    def _require_stored(self, takes: Sequence[Taken]) -> None:
        """Raises MissingFileError unless storage has all that this process believes to be there."""
        missing = []
        for audit, taken in zip(self._plan.audits, takes, strict=True):
            end = audit.trials if taken.decided is None else taken.decided
            for first, last in compaction.lost(self._run, audit, end):
                missing.append(self._run.score_file(audit.id, first, last))
        missing += self._prepared.lost()
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise MissingFileError(
                f"{self._run.location}/{missing[0]}{more}: stored in this run, and gone; run the "
                "same command again"
            )

    def _settled(self, index: int) -> tuple[AuditState, Taken]:
        """An audit, whose estimates know all that was folded by now."""
        with self._turn:
            audit = self._audits[index]
            taken = audit.take()
        audit.settle(taken.packs)
        return audit, taken

    def _forget(self, pack: Pack) -> None:
        left = {other: failure for other, failure in self._failures.items() if other != pack}
        self._record.set_failed(left.values())
        self._failures = left
        if pack in self._retried:
            self._retried.remove(pack)
        else:
            self._audits[pack.audit] = self._opened(pack.audit)

    def _opened(self, index: int) -> AuditState:
        missed = self._failures.keys() - self._retried
        given_up = {(pack.first, pack.last) for pack in missed if pack.audit == index}
        files = self._run.score_files(self._plan.audits[index].id)
        return AuditState(self._opened_sweep, index, given_up, files)


class OpenSweep:
    """What the audits of a sweep share; its budget takes as long as all audits together."""

    def __init__(self, sweep: Sweep, plan: Plan, run: RunDirectory) -> None:
        self.sweep, self.plan, self.run = sweep, plan, run
        self.prepared, self.recent, self.budget = Prepared(run, plan), RecentPacks(), sweep.budget


@dataclasses.dataclass(frozen=True)
class Taken:
    """What the estimates are to know, the trials that were enough, and those missed one by one."""

    packs: list[ConsumedPack]
    decided: int | None
    complete: bool
    missed: list[MissedTrials]


class AuditState:
    """What was folded of one audit; packs `given_up` are misses, `files` the score files there."""

    def __init__(
        self, opened: OpenSweep, index: int, given_up: set[Bounds], files: set[Bounds]
    ) -> None:
        plan, run = opened.plan, opened.run
        self._audit, self._cell = plan.audits[index], opened.sweep.cells[index]
        self._budget, self._run, self._recent = opened.budget, run, opened.recent
        there = compaction.resolved(self._audit.packs, files)
        self._finished = compaction.packs_of(self._audit, there)
        self._missed = given_up - self._finished
        self._done = sum(last - first + 1 for first, last in self._finished)
        self.folded = 0  # packs of the prefix
        parts = functools.partial(opened.prepared.complete, index)
        self._estimates = Estimates(self._audit, self._cell, opened.budget, parts)
        self._live = live_bound(self._audit)
        # Where the claim is not Gaussian, only a bound for any curve may be held against it.
        self._alarm = self._live
        if not claims.is_gaussian(self._cell, next(iter(self._audit.claims))):
            self._alarm = live_bound(self._audit, curve="any")
        self._rule = StopRule(opened.sweep, index, self._audit, self._comparable)
        self._kinds: dict[str, MissedTrials] = {}  # of trials missed one by one, by what was raised
        self._taken: list[ConsumedPack] = []  # those that the estimates do not know yet
        self.decided: int | None = None  # trials that were enough; later ones are not folded
        self._shown: stats.Estimate | None = None  # kept until the next fold, as
        self._rows: list[EstimateRow] | None = None  # are these: most audits are at rest
        self._read = functools.partial(score_stream.read_stretch, run, plan, index)
        self._advance(compaction.prefix(self._audit, there, self._missed), settle=True)

    @property
    def complete(self) -> bool:
        """Whether no trial is missing, up to the one that was enough; a miss is missing."""
        end = self._audit.trials if self.decided is None else self.decided
        over = self.decided is not None or self.folded == len(self._audit.packs)
        return over and not any(first < end for first, _ in self._missed)

    def holds(self, pack: Pack) -> bool:
        """Whether the scores of a pack are stored."""
        return (pack.first, pack.last) in self._finished

    def add(self, pack: Pack, scores: PackScores) -> None:
        """Takes a pack that is stored, perhaps again, as of two tries that were stored at once."""
        if self.holds(pack):
            return
        self._finished.add((pack.first, pack.last))
        self._done += pack.size
        if self.decided is None:
            self._recent.put(self, scores)
            self._advance(self._next())

    def miss(self, pack: Pack) -> None:
        """Takes a pack that was given up."""
        if not self.holds(pack):
            self._missed.add((pack.first, pack.last))
            if self.decided is None:
                self._advance(self._next())

    def take(self) -> Taken:
        """The packs that were folded since the last call, and how far the audit is now."""
        packs, self._taken = self._taken, []
        return Taken(packs, self.decided, self.complete, list(self._kinds.values()))

    def settle(self, packs: list[ConsumedPack]) -> None:
        """Lets the estimates know what was taken; nobody else needs them meanwhile."""
        for pack in packs:
            self._estimates.fold(pack)
            self._rows = None

    def reuse(self, rows: list[EstimateRow]) -> None:
        """Takes rows that were computed before, of an audit without trials."""
        self._rows = rows

    def rows(self) -> list[EstimateRow]:
        """The audit's part of estimates.parquet."""
        if self._rows is None or (self._audit.trials == 0 and not self._rows):
            self._rows = self._estimates.rows()
        return self._rows

    def progress(
        self, index: int, activity: Activity, parts_done: int = 0, parts: int = 0
    ) -> AuditProgress:
        """What is shown of it now."""
        bound = self._shown = self._shown or self._live_bound()
        return AuditProgress(
            self._audit.label,
            self._audit.trials,
            self._done,
            bound.epsilon_lower,
            self._audit.claim,
            self._cell.audit.delta,
            activity.failed.get(index, 0) + sum(kind.trials for kind in self._kinds.values()),
            activity.lost.get(index, 0),
            self.decided,
            bound.status.assumes(bound.mu_lower),
            parts_done,
            parts,
            index in activity.refuted,
        )

    def _live_bound(self) -> stats.Estimate:
        """Returns the bound that is shown, with the status that the mechanism's curve gives it."""
        cell = self._cell
        bound = self._comparable(cell.audit.delta, self._budget.each_audit)
        curve = cell.mechanism.trade_off(cell.adversary, self._audit.horizons[-1])
        return bound.given(curve)

    def _comparable(self, delta: float, confidence: float) -> stats.Estimate:
        """Returns the live bound; if it exceeds the claim, one that may be compared with that."""
        bound = self._live.bound(delta, confidence)
        if bound.epsilon_lower > self._audit.claim:
            return self._alarm.bound(delta, confidence)
        return bound

    def _next(self) -> Iterable[Stretch]:
        numbers = range(self.folded, len(self._audit.packs))
        packs, stored, missed = self._audit.packs, self._finished, self._missed
        ready = itertools.takewhile(lambda n: packs[n] in stored or packs[n] in missed, numbers)
        some = [(n, packs[n]) for n in itertools.islice(ready, compaction.FEWEST)]
        if len(some) == compaction.FEWEST:  # they waited for a late one; some may be gathered
            there = compaction.stored(self._run, self._audit)
            return compaction.prefix(self._audit, there, self._missed, self.folded)
        return [Stretch(None if pack in self._missed else pack, n, n + 1) for n, pack in some]

    def _advance(self, stretches: Iterable[Stretch], settle: bool = False) -> None:
        """Folds packs that follow, until they are enough; lets the estimates `settle` at once."""
        ahead = score_stream.read_ahead(self._audit)
        for packs in score_stream.in_order(self._run, self._read, stretches, ahead, self._kept):
            for pack in self._rule.cut(packs):
                self._taken.append(pack)
                self.folded = compaction.number(self._audit, pack.last) + 1
                score_stream.feed(self._live, pack)
                if self._alarm is not self._live:
                    score_stream.feed(self._alarm, pack)
                self._rule.fold(pack)
                self._count_missed(pack)
                self._shown = None
                if settle:
                    self.settle(self.take().packs)
                if self._rule.enough():
                    self.decided = pack.last + 1
                    return

    def _count_missed(self, pack: ConsumedPack) -> None:
        for trial, why in pack.missed.items() if isinstance(pack, PackScores) else ():
            kind = why.partition(": ")[0]
            before = self._kinds.get(kind, MissedTrials(self._audit.id, kind, 0, trial, why))
            self._kinds[kind] = dataclasses.replace(before, trials=before.trials + 1)

    def _kept(self, packs: Stretch) -> PackScores | None:
        pack = self._audit.packs[packs.start]
        return self._recent.take(self, pack[0]) if packs.file == pack else None


def live_bound(audit: PlannedAudit, **options: str) -> Estimator:
    """A bound that may be looked at after every pack. Of one training alone, it shows nothing."""
    method = methods_after_a_look(not audit.independent, audit.paired)[0]
    return EstimatorSpec(name=method, options=options).make(audit.declared[0], audit.together)


class StopRule:
    """`audit.stop_when`, asked after every pack, so of the time-uniform bound that is `live`."""

    def __init__(
        self, sweep: Sweep, index: int, audit: PlannedAudit, bound: Callable[..., Estimate]
    ) -> None:
        cell = sweep.cells[index]
        self._rule = cell.audit.stop_when
        self._level = (cell.audit.delta, cell.audit.confidence)
        self._audit = audit
        self._bound = bound  # takes δ and a confidence
        self._test: ClaimTest | RunTest | None = None
        if self._rule is not None and self._rule.verdict:
            # The level of `dpaudit verify`: the run's error budget, shared by its audits.
            self._alpha = (1 - min(c.audit.confidence for c in sweep.cells)) / len(sweep.cells)
            claimed = cell.mechanism.claimed(cell.adversary, audit.horizons[-1])
            family = claims.curves(claimed, next(iter(audit.claims)), cell.audit.delta)
            self._test = claims.test(audit, family(claimed.noise_multiplier))

    def cut(self, packs: ConsumedPack) -> Iterator[ConsumedPack]:
        """The same trials pack by pack, where the audit may be over after any of them."""
        if self._rule is None:
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
        return self._bound(*self._level).epsilon_lower >= (1 - self._rule.within) * claim


class Estimates:
    """Estimators of one audit at every recorded step; `budget` is that of the whole sweep.

    `prepared` gives the parts of its preparation, none before all are there. A time-uniform
    estimator keeps the options that follow from the number of trials declared first: to tune it
    again after looking would void it.
    """

    def __init__(
        self,
        audit: PlannedAudit,
        cell: Cell,
        budget: SweepBudget,
        prepared: Callable[[], tuple[Arrays, ...]] = tuple,
    ) -> None:
        self._audit, self._cell, self._prepared = audit, cell, prepared
        self._exact_bounds: dict[int, tuple[Estimate, ...]] | None = None  # by horizon
        self._specs = specs = self._estimators()
        self._each = self._level(budget)
        self._states = [[self._made(spec, step) for spec in specs] for step in audit.horizons]
        self._free = self._curve_free(specs)
        self._fed = [_without_log_of_others(states) for states in self._states]
        free = [] if self._free is None else [self._free]
        self._fed[-1] = _without_log_of_others([*self._states[-1], *free])

    def fold(self, pack: ConsumedPack) -> None:
        """Adds a pack, in trial order."""
        for column, states in enumerate(self._fed):
            for state in states:
                score_stream.feed(state, pack, column)

    def rows(self) -> list[EstimateRow]:
        """One row per step, estimator and accountant."""
        cell, level = self._cell, self._cell.audit
        exact, last = self._exact(), len(self._audit.horizons) - 1
        rows: list[EstimateRow] = []
        steps = zip(self._audit.horizons, self._states, strict=True)
        for index, (step, states) in enumerate(steps):
            curve = cell.mechanism.trade_off(cell.adversary, step)
            apart = cell.mechanism.independent_canaries(cell.adversary)
            bounds = [
                dataclasses.replace(state.bound(level.delta, level.confidence), method=spec.name)
                for spec, state in zip(self._specs, states, strict=True)
            ]
            listed = [(bound.given(curve), bound.epsilon_lower) for bound in exact.get(step, ())]
            free = [bound for bound, _ in listed]  # those that hold without an assumption may be in
            for state, bound in zip(states, bounds, strict=True):
                listed.append(self._worth(state, bound.given(curve, apart)))
                if state.time_uniform() or not self._audit.extended:
                    free.append(bound)
            if self._free is not None and index == last:
                free.append(self._free.bound(level.delta, level.confidence))
            best = curve_free(free)
            rows += [
                EstimateRow(
                    audit=self._audit.id,
                    step=step,
                    estimator=estimate.method,
                    status=estimate.status.value,
                    epsilon_upper=epsilons[index] if math.isfinite(epsilons[index]) else math.inf,
                    accountant=accountant,
                    epsilon_lower_together=together,
                    epsilon_lower_free=math.nan if best is None else best.epsilon_lower,
                    free_estimator="" if best is None else best.method,
                    **{name: getattr(estimate, name) for name in _SHOWN},
                )
                for estimate, together in listed
                for accountant, epsilons in self._audit.claims.items()
            ]
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
        """The confidence of each bound that decides: those that hold divide the sweep's shares."""
        added = max(0, len(self._specs) - len(self._cell.audit.estimators))  # exact: no specs
        shares = max(len(self._cell.budget.estimators), 1)
        holding = added if self._audit.extended else shares + added
        return 1 - (1 - budget.each) * (min(shares / holding, 1.0) if added else 1.0)

    @property
    def _looked(self) -> bool:
        return self._audit.extended or self._cell.audit.stop_when is not None

    def _estimators(self) -> list[EstimatorSpec]:
        """Those asked for; where trials are looked at, time-uniform ones too if there are none."""
        if not self._cell.mechanism.sampled:
            return []
        declared = list(self._cell.audit.estimators)
        uniform = any(spec.method.time_uniform() for spec in declared)
        if not self._looked or uniform or self._audit.canaries == 0:
            return declared
        added = methods_after_a_look(not self._audit.independent, self._audit.paired)
        return [*declared, *(EstimatorSpec(name=name) for name in added)]

    def _curve_free(self, listed: list[EstimatorSpec]) -> State | None:
        """The estimator that bounds ε for any mechanism, where those asked for lack it."""
        if self._audit.paired:
            spec = EstimatorSpec(name="paired", options={"curve": "any"})
            return self._made(spec, self._audit.horizons[-1])
        if self._looked and not self._audit.independent:
            return None  # none holds where canaries that share a training are looked at early
        method = curve_free_method(time_uniform=self._looked)
        if not self._cell.mechanism.sampled or any(spec.name == method for spec in listed):
            return None
        return self._made(EstimatorSpec(name=method), self._audit.horizons[-1])

    def _made(self, spec: EstimatorSpec, step: int) -> State:
        family = None
        if spec.through_claim:
            mechanism, adversary = self._cell.mechanism, self._cell.adversary
            family = Family(mechanism.claimed(adversary, step).training)
        audit, method = self._audit, spec.method
        planned = audit.declared[0] if method.time_uniform() else audit.trials
        state = spec.make(planned, audit.together, family)
        grows = len(audit.foreseen) > 1 and not audit.extended
        if method.time_uniform() or method.status in _CLAIM_NO_LEVEL or not grows:
            return state
        states = [spec.make(trials, audit.canaries or trials, family) for trials in audit.looks]
        return growth.Growing(states, growth.shares(len(audit.foreseen))[: len(states)])

    def _worth(self, state: State, bound: Estimate) -> tuple[Estimate, float]:
        """The bound under its status now; its ε at the sweep's split level, NaN if none holds."""
        level = self._cell.audit
        if not state.time_uniform() and bound.status not in _CLAIM_NO_LEVEL:
            if self._audit.extended:
                bound = dataclasses.replace(bound, status=Status.EXTENDED)
            elif bound.trials < self._audit.looks[0] and not state.interim_valid:
                bound = dataclasses.replace(bound, status=Status.INTERIM)
        if not bound.status.holds:
            return bound, math.nan
        if self._each == level.confidence:
            return bound, bound.epsilon_lower
        return bound, state.bound(level.delta, self._each).epsilon_lower


def _without_log_of_others(states: list[State]) -> list[State]:
    """The states to feed: of those that keep every trial (90 bytes for ten steps), one does."""
    logs = [state for state in states if isinstance(state, Logged) and state.keeps_log_only]
    for other in logs[1:]:
        other.share_log(logs[0])
    return [state for state in states if all(state is not other for other in logs[1:])]


class Compactor:
    """Gathers finished packs into larger files (`plan.compaction`), until storage refuses it."""

    def __init__(self, run: RunDirectory, plan: Plan) -> None:
        self._run, self._plan = run, plan
        self._seen = [0] * len(plan.audits)  # packs of each audit that were looked at
        self._ended = False

    def work(self, folded: Sequence[int]) -> None:
        """Gathers the groups of which all packs were folded, as so many of each audit were."""
        if self._ended:
            return
        try:
            for index, audit in enumerate(self._plan.audits):
                start, stop, size = self._seen[index], folded[index], compaction.group_size(audit)
                if stop < len(audit.packs):
                    stop -= stop % max(size, 1)
                if size and start < stop:
                    files = self._run.score_files(audit.id)
                    for parts, inside in compaction.gatherings(audit, files, start, stop):
                        self._gather(index, parts, inside)
                    self._seen[index] = stop
        except (StorageError, RunDirectoryError):
            self._ended = True

    def _gather(self, index: int, parts: list[Stretch], files: list[Bounds]) -> None:
        """Writes them once under a new name, reads that back, and only then deletes the others."""
        audit = self._plan.audits[index]
        file = compaction.span(audit, parts)
        read = functools.partial(score_stream.read_stretch, self._run, self._plan, index)
        if file not in files:
            packs = score_stream.in_order(self._run, read, parts, score_stream.UNDERWAY)
            scores = PackScores.joined([pack for pack in packs if isinstance(pack, PackScores)])
            self._run.write_scores(audit.id, scores)
        read(Stretch(file, parts[0].start, parts[-1].stop))
        if file not in self._run.score_files(audit.id):
            return  # lists lag behind, and a reader that does not find this file needs the others
        for other in files:
            if other != file:
                self._run.delete_scores(audit.id, *other)
