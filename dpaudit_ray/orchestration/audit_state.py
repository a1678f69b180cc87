"""One audit while it runs: which packs are there, what was folded, and what that shows.

Trials are folded in their order, each once, by a list of consumers: the bound that is shown, the
one that an alarm compares with the claim, the rule that may end the audit, and the tally of missed
trials. The estimates take the same packs a little later, outside of the lock that folding needs.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Protocol

from .. import stats
from ..plan import claims, compaction, score_stream
from ..plan.compaction import Bounds, Stretch
from ..plan.model import Pack, Plan, PlannedAudit
from ..plan.outcomes import MissedTrials
from ..plan.preparing import Prepared
from ..plan.score_stream import ConsumedPack, RecentPacks
from ..stats.base import methods_after_a_look
from ..stats.budget import SweepBudget
from ..stats.claim_verdict import ClaimTest, RunTest
from ..storage.run_directory import RunDirectory
from ..storage.scores import EstimateRow, PackScores
from ..sweep.audit import EstimatorSpec
from ..sweep.spec import Sweep
from .estimates import Estimating
from .progress import Activity, AuditProgress


class Consumer(Protocol):
    """What takes the packs of an audit in trial order."""

    def fold(self, pack: ConsumedPack) -> None:
        """Adds a pack."""


@dataclasses.dataclass(frozen=True)
class OpenSweep:
    """What the audits of a sweep share; its budget takes as long as all audits together."""

    sweep: Sweep
    plan: Plan
    run: RunDirectory
    prepared: Prepared
    recent: RecentPacks
    budget: SweepBudget

    @classmethod
    def from_run(cls, sweep: Sweep, plan: Plan, run: RunDirectory) -> OpenSweep:
        """The sweep of a run directory; no audit of it is read yet."""
        return cls(sweep, plan, run, Prepared(run, plan), RecentPacks(), sweep.budget)

    def estimates(self, index: int) -> Estimating:
        """Estimators of audit number `index` before the first trial."""
        parts = functools.partial(self.prepared.complete, index)
        return Estimating(self.plan.audits[index], self.sweep.cells[index], self.budget, parts)


@dataclasses.dataclass(frozen=True)
class Taken:
    """Packs that the estimates are to know, the trials that were enough, and whether all are in.

    `missed` has the trials that were missed one by one.
    """

    packs: list[ConsumedPack]
    decided: int | None
    complete: bool
    missed: list[MissedTrials]


class AuditState:
    """What was folded of one audit. Estimates follow when they are settled: see `take`.

    `given_up` are packs that count as misses, `files` the score files that are there.
    """

    def __init__(
        self, opened: OpenSweep, index: int, given_up: set[Bounds], files: set[Bounds]
    ) -> None:
        plan, run = opened.plan, opened.run
        self._audit, self._cell = plan.audits[index], opened.sweep.cells[index]
        self._budget, self._run, self._recent = opened.budget, run, opened.recent
        there = compaction.resolved(self._audit.packs, files)
        self._finished = compaction.packs_of(self._audit, there)
        self._missed = given_up - self._finished
        self._there = self._finished | self._missed
        self._done = sum(last - first + 1 for first, last in self._finished)
        self._folded = 0  # packs of the prefix
        self._estimates = opened.estimates(index)
        self._live = _LiveBound(self._audit)
        # Where the claim is not Gaussian, only a bound for any curve may be held against it.
        gaussian = self._cell.mechanism.claimed(self._cell.adversary, self._last_step).gaussian
        self._alarm = self._live if gaussian else _LiveBound(self._audit, curve="any")
        self._rule = _StopRule(opened.sweep, index, self._audit, self._live.state)
        self._tally = _MissedTally(self._audit.id)
        self._consumers: list[Consumer] = [self._live, self._rule, self._tally]
        if not gaussian:
            self._consumers.append(self._alarm)
        self._taken: list[ConsumedPack] = []  # those that the estimates do not know yet
        self.decided: int | None = None  # trials that were enough; later ones are not folded
        self._shown: tuple[stats.Estimate, float] | None = None  # kept until the next fold, as
        self._rows: list[EstimateRow] | None = None  # are these: most audits are at rest
        self._read = functools.partial(score_stream.read_stretch, run, plan, index)
        for _ in self._advance(compaction.prefix(self._audit, there, self._missed)):
            self.settle(self.take().packs)

    @property
    def complete(self) -> bool:
        """Whether no trial is missing, up to the one that was enough; a miss is missing."""
        end = self._audit.trials if self.decided is None else self.decided
        if any(first < end for first, _ in self._missed):
            return False
        return self.decided is not None or self._folded == len(self._audit.packs)

    def holds(self, pack: Pack) -> bool:
        """Whether the scores of a pack are stored."""
        return (pack.first, pack.last) in self._finished

    def add(self, pack: Pack, scores: PackScores) -> bool:
        """Takes a pack that is stored; False where it has it, as of two tries stored at once."""
        if self.holds(pack):
            return False
        self._finished.add((pack.first, pack.last))
        self._there.add((pack.first, pack.last))
        self._done += pack.size
        if self.decided is None:
            self._recent.put(self, scores)
            self._go_on()
        return True

    def miss(self, pack: Pack) -> None:
        """Takes a pack that was given up."""
        if self.holds(pack):
            return
        self._missed.add((pack.first, pack.last))
        self._there.add((pack.first, pack.last))
        if self.decided is None:
            self._go_on()

    def take(self) -> Taken:
        """What was folded since the last call, and how far it is now."""
        packs, self._taken = self._taken, []
        return Taken(packs, self.decided, self.complete, self._tally.kinds)

    def settle(self, packs: list[ConsumedPack]) -> None:
        """Lets the estimates know what was taken; nobody else needs them meanwhile."""
        for pack in packs:
            self._estimates.fold(pack)
            self._rows = None

    def rows(self) -> list[EstimateRow]:
        """The audit's part of estimates.parquet."""
        if self._rows is None or (self._audit.trials == 0 and not self._rows):
            self._rows = self._estimates.rows()
        return self._rows

    def progress(self, index: int, activity: Activity) -> AuditProgress:
        """What is shown of it now."""
        audit = self._audit
        if self._shown is None:
            self._shown = self._live_bounds()
        bound, together = self._shown
        return AuditProgress(
            audit.label,
            audit.trials,
            self._done,
            bound.epsilon_lower,
            audit.claim,
            activity.failed.get(index, 0) + sum(kind.trials for kind in self._tally.kinds),
            activity.lost.get(index, 0),
            self.decided,
            bound.status,
            together,
        )

    @property
    def _last_step(self) -> int:
        return self._audit.horizons[-1]

    def _live_bounds(self) -> tuple[stats.Estimate, float]:
        """The bound that is shown, and the ε that an alarm may compare with the claim."""
        cell = self._cell
        bound = self._live.state.bound(cell.audit.delta, cell.audit.confidence)
        alarm = self._alarm.state.bound(cell.audit.delta, self._budget.each_audit)
        shown = bound.given(cell.mechanism.trade_off(cell.adversary, self._last_step))
        if self._audit.mixed:
            shown = dataclasses.replace(shown, status=stats.Status.MIXED)
        return shown, alarm.epsilon_lower

    def _go_on(self) -> None:
        """Folds every pack that is next in trial order."""
        for _ in self._advance(self._next()):
            pass

    def _next(self) -> Iterable[Stretch]:
        numbers = range(self._folded, len(self._audit.packs))
        ready = itertools.takewhile(lambda n: self._audit.packs[n] in self._there, numbers)
        some = [(n, self._audit.packs[n]) for n in itertools.islice(ready, compaction.FEWEST)]
        if len(some) == compaction.FEWEST:  # they waited for a late one; some may be gathered
            there = compaction.stored(self._run, self._audit)
            return compaction.prefix(self._audit, there, self._missed, self._folded)
        return [Stretch(None if pack in self._missed else pack, n, n + 1) for n, pack in some]

    def _advance(self, stretches: Iterable[Stretch]) -> Iterator[ConsumedPack]:
        """Folds packs, until they are enough; yields what was folded."""
        ahead = score_stream.read_ahead(self._audit)
        for packs in score_stream.in_order(self._read, stretches, ahead, self._kept):
            for pack in self._rule.cut(packs):
                self._taken.append(pack)
                self._folded = compaction.number(self._audit, pack.last) + 1
                for consumer in self._consumers:
                    consumer.fold(pack)
                self._shown = None
                yield pack
                if self._rule.enough():
                    self.decided = pack.last + 1
                    return

    def _kept(self, packs: Stretch) -> PackScores | None:
        """The pack of a file of its own, where it came a short while ago."""
        if packs.file != self._audit.packs[packs.start]:
            return None
        return self._recent.take(self, self._audit.packs[packs.start][0])


class _LiveBound:
    """A bound that may be looked at after every pack. Of one training alone, it shows nothing."""

    def __init__(self, audit: PlannedAudit, **options: str) -> None:
        method = methods_after_a_look(by_run=not audit.independent)[0]
        spec = EstimatorSpec(name=method, options=options)
        self.state = spec.make(audit.declared[0], audit.in_a_training)

    def fold(self, pack: ConsumedPack) -> None:
        score_stream.feed(self.state, pack)


class _StopRule:
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


class _MissedTally:
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
