"""One audit while it runs: which packs are there, what was folded, and what that shows."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator

from .. import stats
from ..plan import compaction, score_stream
from ..plan.compaction import Bounds, Stretch
from ..plan.model import Pack, Plan, PlannedAudit
from ..plan.outcomes import MissedTrials
from ..plan.score_stream import ConsumedPack
from ..stats.base import methods_after_a_look
from ..stats.budget import SweepBudget
from ..storage.arrays import Arrays
from ..storage.run_directory import RunDirectory
from ..storage.scores import EstimateRow, PackScores
from ..sweep.audit import EstimatorSpec
from ..sweep.spec import Sweep
from .early_stopping import Decider
from .estimates import Estimating
from .progress import Activity, AuditProgress
from .replay import Ahead, Replay


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

    `asked` is the sweep, its plan and its budget, which takes as long as all audits together.
    """

    def __init__(
        self,
        index: int,
        asked: tuple[Sweep, Plan, SweepBudget],
        run: RunDirectory,
        given_up: set[Bounds],
        files: set[Bounds],
        ahead: Ahead,
        prepared: Callable[[], tuple[Arrays, ...]],
    ) -> None:
        sweep, plan, budget = asked
        audit, cell = plan.audits[index], sweep.cells[index]
        self._audit, self._cell, self._budget, self._run = audit, cell, budget, run
        there = compaction.resolved(audit.packs, files)
        self._finished = compaction.packs_of(audit, there)
        self._missed = given_up - self._finished
        self._there = self._finished | self._missed
        self._estimates = Estimating(audit, cell, budget, prepared)
        self._live = _time_uniform(audit)
        gaussian = self._claimed_gaussian()
        self._alarm = self._live if gaussian else _time_uniform(audit, curve="any")
        self._decider = Decider(sweep, audit, cell, self._live)
        self._done = sum(last - first + 1 for first, last in self._finished)
        self._folded = 0  # packs of the prefix
        self._missed_kinds: dict[str, MissedTrials] = {}  # one by one, by what was raised
        self._taken: list[ConsumedPack] = []  # those that the estimates do not know yet
        self.decided: int | None = None  # trials that were enough; later ones are not folded
        self._shown: tuple[stats.Estimate, float] | None = None  # kept until the next fold, as
        self._rows: list[EstimateRow] | None = None  # are these: most audits are at rest
        read = functools.partial(score_stream.read_stretch, run, plan, index)
        self._replay = Replay(read, audit, ahead)
        for _ in self._advance(compaction.prefix(audit, there, self._missed)):
            self.settle(self.take().packs)

    @property
    def complete(self) -> bool:
        """Whether no trial is missing, up to the one that was enough; a miss is missing."""
        end = self._audit.trials if self.decided is None else self.decided
        if any(first < end for first, _ in self._missed):
            return False
        return self.decided is not None or self._folded == len(self._audit.packs)

    def holds(self, pack: Pack) -> bool:
        return (pack.first, pack.last) in self._finished

    def add(self, pack: Pack, scores: PackScores) -> bool:
        """Takes a pack that is stored; False where it has it, as of two tries stored at once."""
        if self.holds(pack):
            return False
        self._finished.add((pack.first, pack.last))
        self._there.add((pack.first, pack.last))
        self._done += pack.size
        if self.decided is None:
            self._replay.keep(scores)
            self._go_on()
        return True

    def miss(self, pack: Pack) -> None:
        if self.holds(pack):
            return
        self._missed.add((pack.first, pack.last))
        self._there.add((pack.first, pack.last))
        if self.decided is None:
            self._go_on()

    def take(self) -> Taken:
        """What was folded since the last call, and how far it is now."""
        packs, self._taken = self._taken, []
        return Taken(packs, self.decided, self.complete, [*self._missed_kinds.values()])

    def settle(self, packs: list[ConsumedPack]) -> None:
        """Lets the estimates know what was taken; nobody else needs them meanwhile."""
        for pack in packs:
            self._estimates.fold(pack)
            self._rows = None

    def _go_on(self) -> None:
        """Folds every pack that is next in trial order."""
        for _ in self._advance(self._next()):
            pass

    def _next(self) -> Iterable[Stretch]:
        numbers = range(self._folded, len(self._audit.packs))
        found = itertools.takewhile(lambda n: self._audit.packs[n] in self._there, numbers)
        ready = list(itertools.islice(found, compaction.FEWEST))
        if len(ready) == compaction.FEWEST:  # they waited for a late one; some may be gathered
            there = compaction.stored(self._run, self._audit)
            return compaction.prefix(self._audit, there, self._missed, self._folded)
        return [
            Stretch(None if pack in self._missed else pack, n, n + 1)
            for n in ready
            for pack in self._audit.packs[n : n + 1]
        ]

    def _advance(self, stretches: Iterable[Stretch]) -> Iterator[ConsumedPack]:
        """Folds packs, until they are enough; yields what was folded."""
        for packs in self._replay.packs(stretches):
            for pack in self._decider.cut(packs):
                self._fold(pack)
                yield pack
                if self._decider.enough():
                    self.decided = pack.last + 1
                    return

    def _fold(self, pack: ConsumedPack) -> None:
        self._taken.append(pack)
        self._folded = compaction.number(self._audit, pack.last) + 1
        score_stream.feed(self._live, pack)
        if self._alarm is not self._live:
            score_stream.feed(self._alarm, pack)
        self._decider.fold(pack)
        for trial, why in pack.missed.items() if isinstance(pack, PackScores) else ():
            kind = why.partition(": ")[0]
            first = MissedTrials(self._audit.id, kind, 0, trial, why)
            before = self._missed_kinds.get(kind, first)
            self._missed_kinds[kind] = dataclasses.replace(before, trials=before.trials + 1)
        self._shown = None

    def progress(self, index: int, activity: Activity) -> AuditProgress:
        audit = self._audit
        if self._shown is None:
            self._shown = self._live_bounds()
        bound, together = self._shown
        missed = sum(kind.trials for kind in self._missed_kinds.values())
        return AuditProgress(
            audit.label,
            audit.trials,
            self._done,
            bound.epsilon_lower,
            audit.claim,
            activity.failed.get(index, 0) + missed,
            activity.lost.get(index, 0),
            self.decided,
            bound.status,
            together,
        )

    def _live_bounds(self) -> tuple[stats.Estimate, float]:
        """The bound that is shown, and the ε that an alarm may compare with the claim."""
        cell, last = self._cell, self._audit.horizons[-1]
        bound = self._live.bound(cell.audit.delta, cell.audit.confidence)
        alarm = self._alarm.bound(cell.audit.delta, self._budget.each_audit)
        known = cell.mechanism.trade_off(cell.adversary, last)
        shown = bound.given(known)
        if self._audit.mixed:
            shown = dataclasses.replace(shown, status=stats.Status.MIXED)
        return shown, alarm.epsilon_lower

    def _claimed_gaussian(self) -> bool:
        cell = self._cell
        return cell.mechanism.claimed(cell.adversary, self._audit.horizons[-1]).gaussian

    def rows(self) -> list[EstimateRow]:
        """The audit's part of estimates.parquet."""
        if self._rows is None or (self._audit.trials == 0 and not self._rows):
            self._rows = self._estimates.rows()
        return self._rows


def _time_uniform(audit: PlannedAudit, **options: str) -> stats.Estimator:
    """What may be looked at after every pack. Of one training alone, that shows nothing."""
    method = methods_after_a_look(by_run=not audit.independent)[0]
    return EstimatorSpec(name=method, options=options).make(audit.declared[0], audit.in_a_training)
