"""The driver: keeps packs in flight and reacts to how they end; it never holds scores."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping

from ..errors import ClusterError, StorageError, out_of_memory
from ..plan import outcomes
from ..plan.model import Pack, Part
from ..plan.outcomes import Failure
from ..sweep.resources import ResourceSpec
from .dispatcher import Dispatcher
from .executors import Done, Lost, Outcome
from .interruption import RESUME, Stop
from .progress import Activity, Progress

SHOW_SECONDS = 0.5
SAME_FAILURES = 3  # packs of an audit that fail the same way in a row: the others would as well
LOSSES_PER_PACK = 5  # trainers that die under one pack before the pack is held responsible
NODES_PER_PACK = 20  # nodes that vanish under one pack: it may be what ends them


@dataclasses.dataclass
class Summary:
    """How a run ended. `stopped`: there is more to run, and nothing is wrong with it."""

    progress: Progress
    failures: list[Failure]
    lost: int
    stopped: bool


class Driver:
    """Runs packs to the end of the sweep, or until a budget, `stop` or `require` ends it."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        packs: Iterable[Pack],
        budget: FailureBudget,
        stop: Stop,
        show: Callable[[Progress], None] = lambda progress: None,
        require: Callable[[], None] = lambda: None,
    ) -> None:
        self._dispatcher, self._budget, self._stop = dispatcher, budget, stop
        self._show, self._require = show, require
        self._queue = PackQueue(packs, self._over)
        self._decided: set[int] = set()
        self._in_flight: set[Pack] = set()
        self._given_up = 0  # failures that were passed on
        self._pack_seconds: float | None = None
        self._training_since: float | None = None
        self._last_result: float | None = None
        self._shown = -math.inf

    def run(self) -> Summary:
        """Returns when no pack is left to run. Raises as `Dispatcher.wait` does."""
        try:
            self._look(force=True)
            while not self._stop.expired and (self._top_up() or self._in_flight):
                self._require()
                self._dispatcher.backlog(0 if self._ending else self._queue.backlog)
                for outcome in self._dispatcher.wait(timeout=SHOW_SECONDS):
                    self._settle(outcome)
                self._look()
        except ClusterError:
            with contextlib.suppress(ClusterError, StorageError):  # what comes up says more
                self._dispatcher.flush()
            raise
        self._dispatcher.flush()
        self._look(force=True)
        self._show(final := self._progress())
        return Summary(final, self._budget.failures, self._budget.losses, self._stop.requested)

    def _look(self, force: bool = False) -> None:
        if not force and time.monotonic() - self._shown < SHOW_SECONDS:
            return
        progress = self._progress()
        self._decided |= {i for i, a in enumerate(progress.audits) if a.decided is not None}
        self._show(progress)
        self._shown = time.monotonic()

    def _progress(self) -> Progress:
        activity = self._activity()
        return dataclasses.replace(self._dispatcher.progress(activity), activity=activity)

    def _top_up(self) -> bool:
        """Fills the window; False when no pack is left to hand out."""
        while not self._ending:
            if (pack := self._queue.next()) is None:
                return False
            if not self._dispatcher.free:
                self._queue.put_back(pack)
                return True
            self._dispatcher.submit(pack)
            self._in_flight.add(pack)
        return False

    @property
    def _ending(self) -> bool:
        return self._stop.requested or self._budget.exhausted

    def _over(self, audit: int) -> bool:
        return audit in self._budget.closed or audit in self._decided

    def _settle(self, outcome: Outcome) -> None:
        self._last_result = time.time()
        if outcome.pack is not None:
            self._in_flight.discard(outcome.pack)
        if isinstance(outcome, Lost):
            if self._budget.lost(outcome) and outcome.pack is not None:
                self._queue.put_back(outcome.pack)
        elif isinstance(outcome, Failure):
            self._budget.failed(outcome)
        elif isinstance(outcome, Done):
            self._budget.done(outcome.pack, outcome.missed)
            self._queue.done(outcome.pack)
            if not isinstance(outcome.pack, Part):
                self._pack_seconds = outcome.seconds
                if self._training_since is None:
                    self._training_since = time.monotonic() - (outcome.seconds - outcome.opening)
        if given_up := self._budget.failures[self._given_up :]:
            self._dispatcher.give_up(given_up)
            self._given_up += len(given_up)

    def _activity(self) -> Activity:
        since = self._training_since
        audits = (p.waiting if isinstance(p, Part) else (p.audit,) for p in self._in_flight)
        return Activity(
            packs_in_flight=len(self._in_flight),
            trainers=self._dispatcher.trainers,
            pack_seconds=self._pack_seconds,
            last_result=self._last_result,
            failed=dict(self._budget.trials_failed),
            lost=dict(self._budget.trials_lost),
            training_seconds=None if since is None else time.monotonic() - since,
            running=frozenset(itertools.chain.from_iterable(audits)),
            over=frozenset(self._budget.closed | self._decided),
            stopping=self._ending,
        )


class PackQueue:
    """Which pack is next: what was lost, then what is new; none before the parts that it awaits.

    Parts come first among `packs`. `over` says of an audit that none of its packs is run any more.
    """

    def __init__(self, packs: Iterable[Pack], over: Callable[[int], bool]) -> None:
        self._packs, self._over = iter(packs), over
        self._returned: collections.deque[Pack] = collections.deque()
        self._awaited: dict[int, set[Part]] = {}  # parts that are not done, by audit that waits
        self._held: dict[int, list[Pack]] = {}  # packs that wait, by audit
        self._all_out = False  # every pack was looked at once

    def next(self) -> Pack | None:
        """None when no pack is left that can be run now; some may still wait for a part."""
        while True:
            pack = self._returned.popleft() if self._returned else next(self._packs, None)
            if pack is None:
                self._all_out = True
                return None
            if isinstance(pack, Part):
                waiting = [audit for audit in pack.waiting if not self._over(audit)]
                for audit in waiting:
                    self._awaited.setdefault(audit, set()).add(pack)
                if waiting:
                    return pack
            elif not self._over(pack.audit):
                if not self._awaited.get(pack.audit):
                    return pack
                self._held.setdefault(pack.audit, []).append(pack)

    def put_back(self, pack: Pack) -> None:
        """It comes next."""
        self._returned.appendleft(pack)

    def done(self, pack: Pack) -> None:
        """A pack is done; those that waited for it, and for nothing else, come next."""
        for audit in pack.waiting if isinstance(pack, Part) else ():
            awaited = self._awaited.get(audit, set())
            awaited.discard(pack)
            if not awaited:
                self._returned.extend(self._held.pop(audit, ()))

    @property
    def backlog(self) -> float:
        """Packs that are still to be handed out, inf while that is not known."""
        held = sum(map(len, self._held.values()))
        return len(self._returned) + held if self._all_out else math.inf


class FailureBudget:
    """What went wrong so far, and what follows from it: two budgets and a circuit breaker.

    Failed packs (the user's code) and lost trainers (infrastructure) are counted apart. `recorded`
    failed in an earlier try, in a row where no pack behind trial `reached` of their audit was done.
    """

    def __init__(
        self,
        resources: ResourceSpec,
        labels: list[str],
        tell: Callable[[str], None] = lambda line: None,
        recorded: Iterable[Failure] = (),
        reached: Mapping[int, int] | None = None,
    ) -> None:
        self._resources, self._labels, self._tell = resources, labels, tell
        self._streaks: dict[int, list[str]] = {}  # kinds of failures in a row, by audit
        self._lost_under = collections.Counter[tuple[str, Pack]]()
        self.failures: list[Failure] = []  # of this try
        self.with_misses = 0  # packs of this try that are done, but for trials that failed
        self.losses = 0
        self.trials_failed = collections.Counter[int]()
        self.trials_lost = collections.Counter[int]()
        self.closed: set[int] = set()  # audits that are given up
        self.exhausted = False  # more packs failed than the sweep allows
        for failure in recorded:
            self.trials_failed[failure.pack.audit] += failure.pack.size
            if failure.pack.first > (reached or {}).get(failure.pack.audit, -1):
                self._in_a_row(failure)

    def done(self, pack: Pack, missed: int = 0) -> None:
        """A pack that worked shows that its audit can, though `missed` of its trials did not."""
        self._streaks.pop(pack.audit, None)
        if missed:
            self.with_misses += 1
            self._hold_to_budget()

    def failed(self, failure: Failure) -> None:
        """Counts a pack or part that raised, and ends the sweep where that is one too many."""
        self.failures.append(failure)
        self.trials_failed[failure.pack.audit] += failure.pack.size
        if isinstance(failure.pack, Part):  # audits that wait for it are not started; told once
            new = [audit for audit in failure.pack.waiting if audit not in self.closed]
            self.closed.update(new)
            if new:
                self._tell(outcomes.part_line([self._labels[audit] for audit in new], failure))
        else:
            self._in_a_row(failure)
        self._hold_to_budget()

    def lost(self, lost: Lost) -> bool:
        """Counts a trainer that died; whether its pack is to be run again.

        Raises ClusterError where more died by themselves than the sweep allows: nodes come and go.
        """
        pack, of_node = lost.pack, lost.cause == "node"
        if pack is not None:
            self.trials_lost[pack.audit] += pack.size
        if of_node:
            self._tell(f"{lost.reason} (not a failure: what it worked on is run again)")
        else:
            self._lose(lost.reason)
        if lost.foreseen or pack is None:
            return True
        self._lost_under[lost.cause, pack] += 1
        limit = NODES_PER_PACK if of_node else LOSSES_PER_PACK
        if self._lost_under[lost.cause, pack] < limit:
            return True
        died = f"its {'node' if of_node else 'worker'} died {limit} times (last: {lost.reason})"
        failure = Failure(pack, "WorkerLost", died, lost.reason)
        self.failed(Failure.of_memory(pack, died) if out_of_memory(lost.reason) else failure)
        return False

    def _hold_to_budget(self) -> None:
        limit = self._resources.max_trial_failures
        if (failed := len(self.failures) + self.with_misses) > limit and not self.exhausted:
            self.exhausted = True
            some = f" ({self.with_misses} of them in some trials only)" if self.with_misses else ""
            self._tell(
                f"{failed} packs failed{some}, more than resources.max_trial_failures = {limit}: "
                "no more are started"
            )

    def _lose(self, reason: str) -> None:
        self.losses += 1
        if self.losses > (limit := self._resources.max_worker_losses):
            raise ClusterError(
                f"lost {self.losses} workers, more than resources.max_worker_losses = {limit} "
                f"(last: {reason}); {RESUME}"
            )
        self._tell(f"worker lost ({self.losses} of at most {limit}): {reason}")

    def _in_a_row(self, failure: Failure) -> None:
        audit = failure.pack.audit
        if failure.kind not in (streak := self._streaks.setdefault(audit, [])):
            streak.clear()
        streak.append(failure.kind)
        if len(streak) >= SAME_FAILURES and audit not in self.closed:
            self.closed.add(audit)
            self._tell(
                f"{self._labels[audit]}: stopped, {SAME_FAILURES} packs in a row failed the same "
                f"way ({failure.message}); the other audits go on"
            )
