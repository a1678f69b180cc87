"""Hands packs to trainers, and turns their answers into outcomes: done, failed, or lost."""

import collections
import concurrent.futures
import math
import time
from concurrent.futures import Future
from typing import Any

from ..errors import ClusterError
from ..plan.model import Pack
from ..plan.outcomes import Failure
from .executors import (
    NO_MEMORY,
    TRAINER,
    CallFailedError,
    Done,
    Executor,
    Handle,
    Lost,
    Outcome,
    Work,
    WorkerDiedError,
)
from .faults import Deadlines, FaultAttribution
from .interruption import GONE_SECONDS, HEALTH_CHECK_SECONDS, RESUME, HeadLiveness
from .progress import Activity, Progress, Tell
from .trainer import runs_of
from .workers import Capacity, MachineCompatibility, Pool, Worker

HANG_SECONDS = 0.5  # between two checks for trainers that hang
START_SECONDS = 120.0  # time for the imports of a new aggregator, while other processes import, too
CLOSE_SECONDS = 10.0  # time for the last answer of the aggregator
QUIET_SECONDS = 10.0  # without an answer of the aggregator: longer than it takes to fold a pack


class Dispatcher:
    """Runs packs by trainers and one aggregator, which any executor may start."""

    def __init__(
        self, executor: Executor, work: Work, capacity: Capacity, liveness: HeadLiveness
    ) -> None:
        """Starts the aggregator, waits until it has read the run directory, and starts trainers.

        Args:
            executor: starts and calls trainers and aggregator.
            work: the planned sweep.
            capacity: counts the trainers that fit on the nodes.
            liveness: watches the head of the cluster.

        Raises:
            RunDirectoryError: the run directory is damaged.
        """
        self._executor = executor
        self._work = work
        self._capacity = capacity
        self._liveness = liveness
        self._owners: dict[Future[Any], Worker] = {}  # trainers, by the answer that they still owe
        self._to_retry: list[Pack] = []  # packs that another trainer is to run again
        self._last_hang_check = -math.inf  # time of the last check, by `time.monotonic`
        self._aggregator = executor.start("Aggregator", f"{work.sweep.name}-aggregator")
        try:
            # Rebuilds the estimates now: a damaged run directory is reported before any training.
            self._client = AggregatorClient(
                executor, self._aggregator, liveness, work.tell, capacity
            )
            self._compatibility = MachineCompatibility(work)
            trial_limits = {
                index: cell.mechanism.trial_limit for index, cell in enumerate(work.sweep.cells)
            }
            self._deadlines = Deadlines(work.sweep.resources.pack_deadline, trial_limits)
            self._pool = Pool(self._start_worker, executor.kill, capacity)
            self._attribution = FaultAttribution(capacity, work.tell, self._pool.update_idle)
            self.set_backlog(work.packs)
            self._pool.resize()
        except BaseException:  # Ctrl-C too: whatever ends this, nothing stays behind
            executor.kill(self._aggregator)  # another one may have its name
            raise

    @property
    def free(self) -> int:
        """The number of packs that trainers can take now."""
        return len(self._pool.idle)

    @property
    def trainers(self) -> int:
        """The number of trainers that run on a node by now."""
        return len(self._pool.ready)

    def set_backlog(self, packs: float) -> None:
        """Sets how many packs are still to be submitted; inf if that is not known."""
        self._pool.backlog = min(packs, self._work.packs) + len(self._to_retry)

    def submit(self, pack: Pack) -> None:
        """Gives the pack to an idle trainer, if any is `free`; never waits for its result."""
        self._hand_out(next(iter(self._pool.idle)), pack)

    def give_up(self, failures: list[Failure]) -> None:
        """Has the aggregator record packs whose trials are misses; returns when that is done."""
        self._client.call("give_up", failures)

    def try_again(self, failures: list[Failure]) -> None:
        """Discards failures of an earlier attempt at the sweep, since their packs are run again."""
        self._attribution.earlier = {failure.pack: failure for failure in failures}
        self._client.call("try_again", list(self._attribution.earlier))
        self._client.refresh()

    def wait(self, timeout: float) -> list[Outcome]:
        """Waits for trainers, and returns the outcomes of packs since the last call.

        Args:
            timeout: seconds to wait for the first outcome.

        Raises:
            StorageError: the aggregator cannot write.
            LeaseLostError: another driver has the run.
            ClusterError: the aggregator cannot be restarted.
        """
        self._liveness.require()
        if self._liveness.answers:  # else a call of Ray's would wait for it
            self._pool.resize()
        outcomes = []
        for answer in self._executor.wait(timeout):
            worker = self._owners.pop(answer, None)
            outcome = self._collect(worker, answer) if worker else None
            if outcome:
                outcomes.append(outcome)
        outcomes += self._replace_hanging()
        for outcome in outcomes:
            if isinstance(outcome, Lost) and outcome.pack:
                # A lost second trainer shows neither the pack nor the first trainer at fault.
                self._attribution.forget(outcome.pack)
        self._hand_retries()  # retries come before new packs, which `submit` hands to idle trainers
        return outcomes

    def progress(self, activity: Activity) -> Progress:
        """Returns the latest snapshot without waiting; `activity` goes into the next one."""
        snapshot = self._client.progress(activity)
        self._pool.checkpoints_saved(snapshot.saved)
        return snapshot

    def flush(self) -> None:
        """Has estimates written; returns once they are, and a snapshot of them has arrived."""
        self._client.call("flush")
        self._client.refresh()

    def close(self) -> None:
        """Ends aggregator and trainers."""
        try:
            if self._liveness.answers:  # else Ray ends the workers with this process
                self._client.close()
                for worker in self._pool.workers:
                    self._executor.kill(worker.handle)
                self._executor.kill(self._aggregator)
        finally:
            self._liveness.close()

    def _start_worker(self, number: int) -> Worker:
        """Starts a trainer, on no node that is full or left out, and requests its greeting."""
        name = f"{self._work.sweep.name}{TRAINER}{number}"
        trainers = collections.Counter(worker.node for worker in self._pool.ready)
        avoid = self._capacity.avoided | self._capacity.crowded(trainers)
        handle = self._executor.start("Trainer", name, avoid)
        greeting = self._executor.call(handle, "set_up", self._compatibility.modules)
        worker = Worker(name, handle, greeting)
        self._owners[greeting] = worker
        return worker

    def _hand_out(self, worker: Worker, pack: Pack) -> None:
        """Gives a pack to a trainer, with its earlier failure if it has failed before."""
        earlier_failure = self._attribution.failure(pack)
        worker.pack = pack
        worker.since = time.monotonic()
        self._pool.update_idle(worker)
        answer = self._executor.call(worker.handle, "run_pack", pack, earlier_failure)
        self._owners[answer] = worker

    def _hand_retries(self) -> None:
        """Hands each pack to retry to the best trainer, or keeps it until that one is idle.

        A pack that failed goes to another trainer than the one that failed at it (its suspect). If
        there is no other, the suspect is replaced: its successor counts as another one.
        """
        packs = self._to_retry
        self._to_retry = []
        for pack in packs:
            suspect = self._attribution.suspect(pack)
            ready = [worker for worker in self._pool.ready if not worker.leaving]
            other = self._attribution.next_trainer(suspect, ready)
            if other and not other.pack:
                self._hand_out(other, pack)
                continue
            self._to_retry.append(pack)
            if not other and suspect in self._pool.workers:  # its successor is another one
                self._replace(suspect)

    def _replace(self, worker: Worker) -> None:
        """Ends a trainer and has another one started; the pack that it had is run again."""
        pack = self._pool.replace(worker)
        if pack:
            self._to_retry.append(pack)

    def _collect(
        self,
        worker: Worker,
        answer: Future[Any],
    ) -> Outcome | None:
        """Returns the outcome of a pack; None for a greeting, and if the pack is tried again.

        Args:
            worker: a trainer.
            answer: the answer to its greeting or its pack, which has arrived.
        """
        if worker not in self._pool.workers:
            return None  # it was replaced, and its pack counted as lost
        try:
            outcome = answer.result()
        except WorkerDiedError as error:
            return self._record_death(worker, error)
        except CallFailedError as error:
            if answer is worker.greeting:  # without `set_up`, the trainer does not know the sweep
                return self._record_death(worker, WorkerDiedError(str(error)))
            outcome = Lost(worker.pack, str(error))
        if answer is worker.greeting:  # the answer is the trainer's place, not an outcome
            worker.node, worker.address, machine = outcome
            self._pool.update_idle(worker)
            if why := self._compatibility.admit(worker.address, machine):
                self._pool.replace(worker)
                remedy = "install the same on all"
                self._capacity.leave_out(worker.node, worker.address, why, remedy)
            return None
        worker.pack = None
        self._pool.update_idle(worker)
        return self._settle(worker, outcome)

    def _settle(self, worker: Worker, outcome: Outcome) -> Outcome | None:
        """Records what a trainer has answered to a pack.

        Returns:
            The outcome to report; None if another trainer is to try the pack.
        """
        if isinstance(outcome, Failure):
            try_elsewhere = self._executor.isolates and self._attribution.record_failure(
                outcome, worker
            )
            if not try_elsewhere:
                return outcome
            self._to_retry.append(outcome.pack)
            return None
        if isinstance(outcome, Done):
            worker.proven = True
            self._capacity.pack_done(worker.node)
            started = time.monotonic() - outcome.seconds
            # Only a run from the start, without a wait for the aggregator, is a fair measure.
            if outcome.from_start and self._client.silent_until <= started:
                self._deadlines.record_seconds(outcome.pack, outcome.seconds)
            # Another trainer that failed at this pack is at fault, since this one has done it.
            culprit = self._attribution.record_success(outcome.pack, worker)
            if culprit in self._pool.workers:
                self._replace(culprit)
        return outcome

    def _record_death(self, worker: Worker, error: WorkerDiedError) -> Lost | None:
        """Replaces a dead trainer; returns its pack as lost, with the reason.

        Returns None for a trainer that was not placed on a node yet, so had no pack either.
        """
        head_answers = self._liveness.answers
        lost_pack = self._killed_for_memory(worker, error) if head_answers else None
        if lost_pack:
            return lost_pack
        pack = self._pool.replace(worker)
        if not worker.node and error.taken_back:  # the node left before the trainer ran there
            return None
        if not head_answers:  # all nodes end with their head, and no one lists them
            reason = f"{worker.name}: the cluster's head does not answer"
            return Lost(pack, reason, "node", foreseen=True)
        foreseen = worker.node in self._capacity.leaving
        if foreseen or (worker.node and not self._capacity.alive(worker.node)):
            return Lost(pack, f"{worker.name}: node {worker.address} has left", "node", foreseen)
        return Lost(pack, f"{worker}: {error}")

    def _killed_for_memory(self, worker: Worker, error: WorkerDiedError) -> Lost | None:
        """Returns what is lost if a trainer was killed because its node ran short of memory."""
        node = self._capacity.new_memory_kill(worker.node)
        if not node and not error.of_memory:
            return None
        node = node or worker.node
        crowded = False
        if node:
            trainers = sum(other.node == node for other in self._pool.ready)
            address = worker.address or node[:8]
            crowded = self._capacity.count_memory_kill(node, address, max(trainers, 1))
        # A pack is not to blame if others ran on the node.
        return Lost(self._pool.replace(worker), f"{worker}: {NO_MEMORY}", foreseen=crowded)

    def _replace_hanging(self) -> list[Lost]:
        """Replaces trainers that hang; returns their packs as lost.

        While the aggregator is silent, trainers wait for it, so none of them counts as hanging.
        """
        now = time.monotonic()
        if now - self._last_hang_check < HANG_SECONDS or self._client.silent:
            return []
        self._last_hang_check = now
        hanging = []
        for worker in self._pool.ready:
            pack = worker.pack
            if not pack:
                continue
            # A pack that failed before is run several times.
            runs = runs_of(pack) if self._attribution.failure(pack) else 1
            limit = self._deadlines.limit_seconds(pack) * runs
            if now - max(worker.since, self._client.silent_until) > limit:
                self._pool.replace(worker)
                self._deadlines.record_timeout(pack)
                hanging.append(Lost(pack, f"{worker} was silent for {limit:.0f} s"))
        return hanging


class AggregatorClient:
    """The aggregator, as the driver sees it: it is started again if it stops answering.

    Attributes:
        silent_until: when the aggregator was silent last, by `time.monotonic`.
    """

    def __init__(
        self,
        executor: Executor,
        aggregator: Handle,
        liveness: HeadLiveness,
        tell: Tell,
        capacity: Capacity,
    ) -> None:
        """Waits for the first snapshot.

        Args:
            executor: calls the aggregator.
            aggregator: handle of the aggregator.
            liveness: watches the head of the cluster.
            tell: takes a line for the user if the aggregator is started again.
            capacity: counts processes that were killed for memory.
        """
        self._executor = executor
        self._aggregator = aggregator
        self._capacity = capacity
        self._liveness = liveness
        self._tell = tell
        # Times are those of `time.monotonic`.
        self._snapshot: Future[Progress] | None = None  # requested at `_requested_at`
        self._requested_at = 0.0
        self.silent_until = -math.inf
        self._pulse: Future[bool] | None = None  # an answer shows that the process runs
        self._has_pulse = False  # whether the last pulse was answered
        self._seconds_without_pulse = 0.0
        self._last_pulse_check = 0.0
        self._last: Progress = self.call("progress", Activity())

    def call(self, method: str, *arguments: Any) -> Any:
        """Returns the result of the aggregator's method, or raises its error.

        Raises:
            ClusterError: the aggregator cannot be restarted.
        """
        return self._result(self._executor.call(self._aggregator, method, *arguments))

    def progress(self, activity: Activity) -> Progress:
        """Returns the last snapshot; requests the next one without waiting for it."""
        self._take_snapshot()
        self._check_pulse()
        if not self._snapshot:
            self._requested_at = time.monotonic()
            self._snapshot = self._executor.call(self._aggregator, "progress", activity)
            self._take_snapshot()
        return self._last

    def refresh(self) -> None:
        """Waits for a snapshot of now: the one that was requested may be older."""
        self._snapshot = None
        self._last = self.call("progress", self._last.activity)

    @property
    def silent(self) -> bool:
        """Whether the requested snapshot is overdue, as after a restart: trainers wait then.

        If it is, `silent_until` becomes the present time.
        """
        now = time.monotonic()
        if not self._snapshot or now - self._requested_at < QUIET_SECONDS:
            return False
        self.silent_until = now
        return True

    def close(self) -> None:
        """Waits for the last answer: Ray reports a call that `kill` interrupts as a failure."""
        if self._snapshot:
            concurrent.futures.wait([self._snapshot], CLOSE_SECONDS)

    def _take_snapshot(self) -> None:
        """Keeps the requested snapshot once it has arrived."""
        if self._snapshot and self._snapshot.done():
            snapshot = self._snapshot
            self._snapshot = None
            self._last = self._result(snapshot)

    def _check_pulse(self) -> None:
        """Requests a pulse at each health check; kills a process that gives none for too long."""
        now = time.monotonic()
        if now - self._last_pulse_check < HEALTH_CHECK_SECONDS:
            return
        self._last_pulse_check = now
        if self._pulse and self._pulse.done():
            self._has_pulse = self._pulse.exception() is None  # else it died: Ray starts it again
            self._pulse = None
            if not self._has_pulse and self._capacity.new_memory_kill():
                self._tell(f"the aggregator was killed, as {NO_MEMORY}; it is started again")
        if not self._pulse:
            self._pulse = self._executor.call(self._aggregator, "pulse")
            self._seconds_without_pulse = 0.0
            return
        # Adds up checks instead of reading the clock: this process may have been paused itself.
        self._seconds_without_pulse += HEALTH_CHECK_SECONDS
        limit = GONE_SECONDS if self._has_pulse else START_SECONDS
        if self._seconds_without_pulse >= limit:
            why = f", as {NO_MEMORY}" if self._capacity.new_memory_kill() else ""
            self._tell(
                f"the aggregator has not answered for {self._seconds_without_pulse:.0f} s{why}: "
                "it is killed and started again, and continues from the run directory"
            )
            self._executor.kill(self._aggregator, restart=True)
            self._pulse = None
            self._has_pulse = False

    def _result(self, answer: Future[Any]) -> Any:
        """Waits for an answer of the aggregator, as long as its process shows life."""
        while not concurrent.futures.wait([answer], HEALTH_CHECK_SECONDS).done:
            self._liveness.require()  # a call waits for ever if no head can restart an actor
            self._check_pulse()
        try:
            return answer.result()
        except WorkerDiedError as error:
            raise ClusterError(f"the aggregator cannot be restarted ({error}); {RESUME}") from error
