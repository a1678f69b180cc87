"""Drives a sweep: keeps packs in flight and reacts to how they end; never holds scores."""

import contextlib
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from ..errors import ClusterError, StorageError, out_of_memory
from ..plan import outcomes
from ..plan.model import Pack, Part
from ..plan.outcomes import Failure
from ..sweep.resources import ResourceSpec
from .dispatcher import Dispatcher
from .executors import Lost, Outcome
from .interruption import RESUME, Stop
from .progress import Activity, Progress, Tell, tell_nobody

SHOW_SECONDS = 0.5
SAME_FAILURES = 3  # packs in a row that fail the same way end their audit: others would fail, too
LOSSES_PER_PACK = 5  # trainers that die under one pack before the pack is held responsible
NODES_PER_PACK = 20  # nodes that vanish under one pack before it is held responsible


@dataclass
class Summary:
    """The end of a run.

    Attributes:
        progress: the last snapshot.
        failures: packs that failed.
        losses: trainers that died, without those whose node left.
        stopped: the run ended early by request.
    """

    progress: Progress
    failures: list[Failure]
    losses: int
    stopped: bool


class Driver:
    """Runs packs to the end of the sweep, or until a budget, `stop` or `require` ends it."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        packs: Iterable[Pack],
        budget: "FailureBudget",
        stop: Stop,
        show: Callable[[Progress], None] = lambda progress: None,
        require: Callable[[], None] = lambda: None,
    ) -> None:
        """Runs nothing yet.

        Args:
            dispatcher: hands packs to trainers.
            packs: all that are to be run, parts of preparations first.
            budget: limits failures and losses.
            stop: the user's request to end early.
            show: takes a snapshot about twice a second.
            require: raises if this process may not continue, as when it has lost its lease.
        """
        self._dispatcher = dispatcher
        self._budget = budget
        self._stop = stop
        self._show = show
        self._require = require
        self._queue = PackQueue(packs, self._is_over)
        self._decided = set[int]()  # audits that need no more trials
        self._in_flight = set[Pack]()
        self._recorded_failures = 0  # failures that the aggregator has on record
        self._pack_seconds: float | None = None  # duration of the last pack
        self._training_since: float | None = None  # a time of `time.monotonic`
        self._last_result: float | None = None  # Unix time
        self._last_shown = -math.inf  # a time of `time.monotonic`
        self._core_hours = 0.0  # time that finished packs took on all cores

    def run(self) -> Summary:
        """Returns when no pack is left to run. Raises as `Dispatcher.wait` does."""
        try:
            self._take_snapshot()
            while not self._stop.expired and (self._top_up() or self._in_flight):
                self._require()
                self._dispatcher.set_backlog(0 if self._ending else self._queue.backlog)
                for outcome in self._dispatcher.wait(timeout=SHOW_SECONDS):
                    self._settle(outcome)
                if time.monotonic() - self._last_shown >= SHOW_SECONDS:
                    self._take_snapshot()
        except ClusterError:
            with contextlib.suppress(ClusterError, StorageError):  # the first error says more
                self._dispatcher.flush()
            raise
        self._dispatcher.flush()
        self._take_snapshot()  # notes decided audits; the next snapshot shows them as over
        final = self._take_snapshot()
        return Summary(final, self._budget.failures, self._budget.losses, self._stop.requested)

    def _take_snapshot(self) -> Progress:
        """Shows a snapshot of now, and notes the audits that are decided."""
        activity = self._activity()
        progress = replace(self._dispatcher.progress(activity), activity=activity)
        for index, audit in enumerate(progress.audits):
            if audit.decided is not None:
                self._decided.add(index)
        self._show(progress)
        self._last_shown = time.monotonic()
        return progress

    def _top_up(self) -> bool:
        """Submits packs while trainers are free; returns whether there are more to submit."""
        while not self._ending:
            pack = self._queue.next()
            if not pack:
                return False
            if not self._dispatcher.free:
                self._queue.put_back(pack)
                return True
            self._dispatcher.submit(pack)
            self._in_flight.add(pack)
        return False

    @property
    def _ending(self) -> bool:
        """Whether no more packs are started."""
        return self._stop.requested or self._budget.exhausted

    def _is_over(self, audit: int) -> bool:
        """Returns whether an audit, by its index, gets no more packs."""
        return audit in self._budget.closed or audit in self._decided

    def _settle(self, outcome: Outcome) -> None:
        """Records how a pack ended: queues a lost pack again, passes failures to the aggregator."""
        self._last_result = time.time()
        if outcome.pack:
            self._in_flight.discard(outcome.pack)
        if isinstance(outcome, Lost):
            if self._budget.lost(outcome) and outcome.pack:
                self._queue.put_back(outcome.pack)
        elif isinstance(outcome, Failure):
            self._budget.failed(outcome)
        else:
            self._budget.done(outcome.pack, outcome.missed)
            self._queue.done(outcome.pack)
            self._spend(outcome.seconds)
            if not isinstance(outcome.pack, Part):
                self._pack_seconds = outcome.seconds
                if self._training_since is None:  # the time to open the audit does not count
                    trained_seconds = outcome.seconds - outcome.opening
                    self._training_since = time.monotonic() - trained_seconds
        given_up = self._budget.failures[self._recorded_failures :]
        if given_up:
            self._dispatcher.give_up(given_up)
            self._recorded_failures += len(given_up)

    def _spend(self, seconds: float) -> None:
        """Counts the time of a pack, and stops the run once it has used all that it may."""
        resources = self._budget.resources
        self._core_hours += seconds * resources.num_cpus / 3600
        limit = resources.max_core_hours
        if limit is not None and self._core_hours >= limit:
            self._stop.request(
                f"packs took {self._core_hours:.2g} core-hours, and resources.max_core_hours = "
                f"{limit:g}: no more are started; {RESUME}, for as many core-hours again"
            )

    def _activity(self) -> Activity:
        """Returns the part of a snapshot that the driver knows."""
        since = self._training_since
        running = set[int]()
        for pack in self._in_flight:
            running.update(pack.waiting if isinstance(pack, Part) else (pack.audit,))
        return Activity(
            packs_in_flight=len(self._in_flight),
            trainers=self._dispatcher.trainers,
            pack_seconds=self._pack_seconds,
            last_result=self._last_result,
            failed=dict(self._budget.trials_failed),
            lost=dict(self._budget.trials_lost),
            training_seconds=None if since is None else time.monotonic() - since,
            running=frozenset(running),
            over=frozenset(self._budget.closed | self._decided),
            stopping=self._ending,
        )


class PackQueue:
    """Chooses the next pack: a lost one before new ones, none before the parts it waits for."""

    def __init__(
        self,
        packs: Iterable[Pack],
        is_over: Callable[[int], bool],
    ) -> None:
        """Reads no pack yet.

        Args:
            packs: all packs, parts of preparations first.
            is_over: returns whether none of the packs of an audit, by index, is run any more.
        """
        self._packs = iter(packs)
        self._is_over = is_over
        self._returned = deque[Pack]()  # packs to run before any that was not read yet
        # Parts that are not done, by audit, and packs that wait for them.
        self._awaited: dict[int, set[Part]] = {}
        self._waiting: dict[int, list[Pack]] = {}
        self._all_read = False

    def next(self) -> Pack | None:
        """Returns a pack that can be run now, or None; some may still wait for a part."""
        while True:
            pack = self._returned.popleft() if self._returned else next(self._packs, None)
            if not pack:
                self._all_read = True
                return None
            if isinstance(pack, Part):  # a part is skipped unless an audit still needs it
                waiting = [audit for audit in pack.waiting if not self._is_over(audit)]
                for audit in waiting:
                    self._awaited.setdefault(audit, set()).add(pack)
                if waiting:
                    return pack
            elif not self._is_over(pack.audit):
                if not self._awaited.get(pack.audit):
                    return pack
                self._waiting.setdefault(pack.audit, []).append(pack)

    def put_back(self, pack: Pack) -> None:
        """Makes a pack the next one."""
        self._returned.appendleft(pack)

    def done(self, pack: Pack) -> None:
        """Takes a pack that is done; packs that waited for no other part than this come next."""
        if not isinstance(pack, Part):
            return
        for audit in pack.waiting:
            awaited = self._awaited.get(audit, set())
            awaited.discard(pack)
            if not awaited:
                self._returned.extend(self._waiting.pop(audit, ()))

    @property
    def backlog(self) -> float:
        """Packs that are still to be submitted, inf while that is not known."""
        if not self._all_read:
            return math.inf
        return len(self._returned) + sum(map(len, self._waiting.values()))


class FailureBudget:
    """Counts failures and losses: two budgets, and a circuit breaker for each audit.

    Failed packs are due to the user's code, dead trainers to the infrastructure.

    Attributes:
        failures: packs that failed in this attempt at the sweep.
        with_misses: number of packs of this attempt that are done, but for trials that failed.
        losses: number of trainers that died, without those whose node left.
        trials_failed: number of trials in failed packs, by audit.
        trials_lost: number of trials in packs whose trainer died, by audit.
        closed: indices of audits that get no more packs.
        exhausted: whether more packs failed than the sweep allows.
        resources: the section of the sweep file that has the limits.
    """

    def __init__(
        self,
        resources: ResourceSpec,
        labels: list[str],
        tell: Tell = tell_nobody,
        recorded: Iterable[Failure] = (),
        last_done: Mapping[int, int] | None = None,
    ) -> None:
        """Counts failures of earlier attempts at the sweep.

        Args:
            resources: the section of the sweep file that has the limits.
            labels: names of the audits.
            tell: takes a line for the user.
            recorded: packs that failed earlier.
            last_done: the first trial of the last pack that is done, by audit; None if no audit has
                such a pack. The recorded failures after that pack count as failures in a row.
        """
        self.resources = resources
        self._labels = labels
        self._tell = tell
        self._streaks: dict[int, list[str]] = {}  # kinds of failures in a row, by audit
        # Trainers, or nodes, that died while they had a pack; keys are ("worker" or "node", pack).
        self._deaths_under = Counter[tuple[str, Pack]]()
        self.failures: list[Failure] = []
        self.with_misses = 0
        self.losses = 0
        self.trials_failed = Counter[int]()
        self.trials_lost = Counter[int]()
        self.closed = set[int]()
        self.exhausted = False
        for failure in recorded:
            self.trials_failed[failure.pack.audit] += failure.pack.size
            if failure.pack.first > (last_done or {}).get(failure.pack.audit, -1):
                self._extend_streak(failure)

    def done(self, pack: Pack, missed: int = 0) -> None:
        """Takes a pack that is done, but for `missed` of its trials: its audit can work."""
        self._streaks.pop(pack.audit, None)
        if missed:
            self.with_misses += 1
            self._check_failures()

    def failed(self, failure: Failure) -> None:
        """Counts a pack or part that raised, and ends the sweep if that is one too many."""
        audit = failure.pack.audit
        self.failures.append(failure)
        self.trials_failed[audit] += failure.pack.size
        if isinstance(failure.pack, Part):  # audits that wait for it are not started
            closed = [audit for audit in failure.pack.waiting if audit not in self.closed]
            self.closed.update(closed)
            if closed:
                self._tell(outcomes.part_line([self._labels[audit] for audit in closed], failure))
        else:
            self._extend_streak(failure)
        self._check_failures()

    def lost(self, loss: Lost) -> bool:
        """Counts a trainer that died; returns whether its pack, if it had one, is to be run again.

        Raises:
            ClusterError: more died than the sweep allows, apart from those whose node left.
        """
        pack = loss.pack
        if pack:
            self.trials_lost[pack.audit] += pack.size
        if loss.cause == "node":
            victim = "node"
            limit = NODES_PER_PACK
            self._tell(f"{loss.reason} (not a failure: what it worked on is run again)")
        else:
            victim = "worker"
            limit = LOSSES_PER_PACK
            self.losses += 1
            most = self.resources.max_worker_losses
            if self.losses > most:
                raise ClusterError(
                    f"lost {self.losses} workers, more than resources.max_worker_losses = {most} "
                    f"(last: {loss.reason}); {RESUME}"
                )
            self._tell(f"worker lost ({self.losses} of at most {most}): {loss.reason}")
        if loss.foreseen or not pack:  # the pack is not to blame
            return True
        self._deaths_under[victim, pack] += 1
        if self._deaths_under[victim, pack] < limit:
            return True
        message = f"its {victim} died {limit} times (last: {loss.reason})"
        failure = Failure(pack, "WorkerLost", message, loss.reason)
        if out_of_memory(loss.reason):
            failure = Failure.of_memory(pack, message)
        self.failed(failure)
        return False

    def _check_failures(self) -> None:
        """Ends the sweep once more packs have failed than the sweep allows."""
        limit = self.resources.max_trial_failures
        failed_packs = len(self.failures) + self.with_misses
        if failed_packs > limit and not self.exhausted:
            self.exhausted = True
            partly = (
                f" ({self.with_misses} of them in some trials only)" if self.with_misses else ""
            )
            self._tell(
                f"{failed_packs} packs failed{partly}, more than resources.max_trial_failures = "
                f"{limit}: no more are started"
            )

    def _extend_streak(self, failure: Failure) -> None:
        """Counts a failure in a row of equal ones; closes the audit after SAME_FAILURES of them."""
        audit = failure.pack.audit
        streak = self._streaks.setdefault(audit, [])
        if failure.kind not in streak:  # all entries are of one kind
            streak.clear()
        streak.append(failure.kind)
        if len(streak) >= SAME_FAILURES and audit not in self.closed:
            self.closed.add(audit)
            self._tell(
                f"{self._labels[audit]}: stopped, {SAME_FAILURES} packs in a row failed the same "
                f"way ({failure.message}); the other audits continue"
            )
