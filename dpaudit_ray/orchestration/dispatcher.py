"""Hands packs to trainers, and makes outcomes of their answers: done, failed, or lost."""

from __future__ import annotations

import collections
import concurrent.futures
import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ..errors import ClusterError
from ..plan.model import Pack
from ..plan.outcomes import Failure
from ..plan.provenance import Machine
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
from .interruption import GONE_SECONDS, LOOK_SECONDS, RESUME, HeadLiveness
from .progress import Activity, Progress
from .trainer import runs_of
from .workers import Capacity, MachineCompatibility, Pool, Worker

HANG_SECONDS = 0.5  # between two looks for trainers that hang
START_SECONDS = 120.0  # for a new process of the aggregator: it imports, perhaps beside many others
CLOSE_SECONDS = 10.0
QUIET = 10.0  # seconds without an answer: longer than it takes to fold a pack


class Dispatcher:
    """Runs packs by trainers around one aggregator, whatever executor runs these."""

    def __init__(
        self, executor: Executor, work: Work, capacity: Capacity, liveness: HeadLiveness
    ) -> None:
        self._executor, self._work, self._capacity = executor, work, capacity
        self._liveness, sweep, tell = liveness, work.sweep, work.tell
        self._owners: dict[Future[Any], Worker] = {}
        self._due: collections.deque[Pack] = collections.deque()  # for another trainer
        self._looked = -math.inf  # for trainers that hang
        self._aggregator = executor.start("Aggregator", f"{sweep.name}-aggregator")
        try:
            # Rebuilds the estimates now: a damaged run directory is told before any training.
            self._client = AggregatorClient(executor, self._aggregator, liveness, tell, capacity)
            self._compatibility = MachineCompatibility(work)
            limits = {i: cell.mechanism.trial_limit for i, cell in enumerate(sweep.cells)}
            self._deadlines = Deadlines(sweep.resources.pack_deadline, limits)
            self._pool = Pool(self._start_worker, executor.kill, capacity)
            self._attribution = FaultAttribution(capacity, tell, self._pool.changed)
            self.backlog(work.packs)
            self._pool.resize()
        except BaseException:  # Ctrl-C too: whatever ends this, nothing stays behind
            executor.kill(self._aggregator)  # another one may have its name
            raise

    @property
    def free(self) -> int:
        """How many packs trainers can take now."""
        return len(self._pool.idle)

    @property
    def trainers(self) -> int:
        """Trainers that have their place."""
        return len(self._pool.ready)

    def backlog(self, packs: float) -> None:
        """Takes how many packs are still to be handed over, inf while that is not known."""
        self._pool.backlog = min(packs, self._work.packs) + len(self._due)

    def submit(self, pack: Pack) -> None:
        """Gives the pack to an idle trainer, of which `free` tells; never waits for its result."""
        self._hand(next(iter(self._pool.idle)), pack)

    def give_up(self, failed: list[Failure]) -> None:
        """Has the aggregator record packs whose trials are misses; returns when that is done."""
        self._client.call("give_up", failed)

    def try_again(self, failed: list[Failure]) -> None:
        """Has packs that failed in an earlier try count no longer: they are run again now."""
        self._attribution.earlier = {failure.pack: failure for failure in failed}
        self._client.call("try_again", list(self._attribution.earlier))
        self._client.refresh()

    def wait(self, timeout: float) -> list[Outcome]:
        """Outcomes since the last call; waits up to `timeout` seconds for the first.

        Raises StorageError, LeaseLostError, and ClusterError: the aggregator cannot be restarted.
        """
        self._liveness.require()
        if self._liveness.answers:  # else a call of Ray's would wait for it
            self._pool.resize()
        arrived = [(self._owners.pop(a, None), a) for a in self._executor.wait(timeout)]
        collected = [self._collect(worker, answer) for worker, answer in arrived if worker]
        outcomes = [*(outcome for outcome in collected if outcome), *self._hanging()]
        self._hand_due()  # before trainers are given new ones
        return outcomes

    def progress(self, activity: Activity) -> Progress:
        """The latest snapshot, without waiting for a newer one; `activity` goes into the next."""
        seen = self._client.progress(activity)
        self._pool.checkpoints_saved(seen.saved)
        return seen

    def flush(self) -> None:
        """Has estimates written; returns when they, and the snapshot of them, are there."""
        self._client.call("flush")
        self._client.refresh()

    def close(self) -> None:
        try:
            if self._liveness.answers:  # else they end with this process
                self._client.close()
                for worker in self._pool.workers:
                    self._executor.kill(worker.handle)
                self._executor.kill(self._aggregator)
        finally:
            self._liveness.close()

    def _start_worker(self, number: int) -> Worker:
        name = f"{self._work.sweep.name}{TRAINER}{number}"
        trainers = collections.Counter(worker.node for worker in self._pool.ready)
        avoid = self._capacity.avoided | self._capacity.crowded(trainers)
        handle: Handle = self._executor.start("Trainer", name, avoid)
        greeting = self._executor.call(handle, "ready", self._compatibility.modules)
        worker = Worker(name, handle, greeting)
        self._owners[greeting] = worker
        return worker

    def _hand(self, worker: Worker, pack: Pack) -> None:
        before = self._attribution.failure(pack)
        worker.pack, worker.since = pack, time.monotonic()
        self._pool.changed(worker)
        self._owners[self._executor.call(worker.handle, "run_pack", pack, before)] = worker

    def _hand_due(self) -> None:
        """Packs that failed go to another trainer; those of a trainer that was replaced, to any."""
        for pack in [self._due.popleft() for _ in range(len(self._due))]:
            suspect = self._attribution.suspect(pack)
            ready = [worker for worker in self._pool.ready if not worker.leaving]
            other = self._attribution.other(suspect, ready)
            if other is not None and other.pack is None:
                self._hand(other, pack)
                continue
            self._due.append(pack)
            if other is None and suspect in self._pool.workers:  # a new one is another one
                self._replace(suspect)

    def _replace(self, worker: Worker) -> None:
        if (pack := self._pool.replace(worker)) is not None:
            self._due.append(pack)

    def _collect(self, worker: Worker, answer: Future[Any]) -> Outcome | None:
        """None for a greeting, for what is given up already, and for what is tried once more."""
        if worker not in self._pool.workers:
            return None
        try:
            outcome: Any = answer.result()
        except CallFailedError as error:
            if answer is worker.greeting:  # it has none of its work
                return self._died(worker, WorkerDiedError(str(error)))
            pack, worker.pack = worker.pack, None
            self._pool.changed(worker)
            return self._lost(Lost(pack, str(error)))
        except WorkerDiedError as error:
            return self._died(worker, error)
        if answer is worker.greeting:
            self._greeted(worker, *outcome)
            return None
        worker.pack = None
        self._pool.changed(worker)
        return self._answered(worker, outcome)

    def _greeted(self, worker: Worker, node: str, address: str, machine: Machine) -> None:
        worker.node, worker.address = node, address
        self._pool.changed(worker)
        if why := self._compatibility.admit(address, machine):
            self._pool.replace(worker)
            self._capacity.leave_out(node, address, why, "install the same on all")

    def _answered(self, worker: Worker, outcome: Outcome) -> Outcome | None:
        if isinstance(outcome, Failure):
            if not self._executor.isolates or not self._attribution.failed(outcome, worker):
                return outcome
            self._due.append(outcome.pack)
            return None
        worker.proven = True
        if isinstance(outcome, Done):
            self._capacity.pack_done(worker.node)
            if outcome.whole and self._client.silent_until <= time.monotonic() - outcome.seconds:
                self._deadlines.measured(outcome.pack, outcome.seconds)
            if (guilty := self._attribution.done(outcome.pack, worker)) in self._pool.workers:
                self._replace(guilty)
        return outcome

    def _died(self, worker: Worker, error: WorkerDiedError) -> Lost | None:
        """None where it was taken back before it had its place, as when its node leaves."""
        if self._liveness.answers and (lost := self._killed_for_memory(worker, error)):
            return lost
        if not worker.node and error.taken_back:
            self._pool.replace(worker)
            return None
        if not self._liveness.answers:  # all nodes of a lost head go, and none can be asked about
            reason = f"{worker.name}: the cluster's head does not answer"
            return self._lost(Lost(self._pool.replace(worker), reason, "node", True))
        gone = bool(worker.node) and not self._capacity.alive(worker.node)
        foreseen = worker.node in self._capacity.leaving
        pack = self._pool.replace(worker)
        if gone or foreseen:
            where = f"node {worker.address}" if worker.node else "its node"
            return self._lost(Lost(pack, f"{worker.name}: {where} has left", "node", foreseen))
        where = f" on node {worker.address}" if worker.node else ""
        return self._lost(Lost(pack, f"{worker.name}{where}: {error}"))

    def _killed_for_memory(self, worker: Worker, error: WorkerDiedError) -> Lost | None:
        """Returns what is lost if a trainer was killed because its node ran short of memory."""
        node = self._capacity.new_memory_kill(worker.node)
        if not node and error.of_memory:
            node = worker.node
        if not node and not error.of_memory:
            return None
        crowded = False
        if node:
            trainers = sum(other.node == node for other in self._pool.ready)
            address = worker.address or node[:8]
            crowded = self._capacity.trainer_killed(node, address, max(trainers, 1))
        where = f" on node {worker.address}" if worker.node else ""
        pack = self._pool.replace(worker)
        # A pack beside which others ran is not to blame.
        return self._lost(Lost(pack, f"{worker.name}{where}: {NO_MEMORY}", foreseen=crowded))

    def _hanging(self) -> list[Lost]:
        """Packs of trainers that hang, and are replaced; none while the aggregator is silent."""
        if (now := time.monotonic()) - self._looked < HANG_SECONDS or self._client.silent:
            return []
        self._looked, lost = now, []
        for worker in self._pool.ready:
            if (pack := worker.pack) is None:
                continue
            runs = runs_of(pack) if self._attribution.failure(pack) else 1
            limit = self._deadlines.seconds(pack) * runs
            if now - max(worker.since, self._client.silent_until) > limit:
                self._pool.replace(worker)
                self._deadlines.missed(pack)
                reason = f"{worker.name} on node {worker.address} was silent for {limit:.0f} s"
                lost.append(self._lost(Lost(pack, reason)))
        return lost

    def _lost(self, lost: Lost) -> Lost:
        if lost.pack is not None:
            self._attribution.drop(lost.pack)
        return lost


class AggregatorClient:
    """The aggregator, as the driver sees it; `tell` takes a line when it is started again."""

    def __init__(
        self,
        executor: Executor,
        aggregator: Handle,
        liveness: HeadLiveness,
        tell: Callable[[str], None],
        capacity: Capacity | None = None,
    ) -> None:
        self._executor, self._aggregator = executor, aggregator
        self._capacity = capacity
        self._liveness, self._tell = liveness, tell
        self._snapshot: Future[Progress] | None = None  # asked for `_since` then
        self._since = 0.0
        self.silent_until = -math.inf  # when it was silent last, by `time.monotonic`
        self._pulse: Future[bool] | None = None  # the answer that shows that its process runs
        self._mute, self._looked, self._beats = 0.0, 0.0, False
        self._seen: Progress = self.call("progress", Activity())

    def call(self, method: str, *arguments: Any) -> Any:
        """What the aggregator's method returns or raises; ClusterError where that cannot be had."""
        return self._result(self._executor.call(self._aggregator, method, *arguments))

    def progress(self, activity: Activity) -> Progress:
        """Its last answer; asks for the next one without waiting for it."""
        self._take_snapshot()
        self._check_pulse()
        if self._snapshot is None:
            self._since = time.monotonic()
            self._snapshot = self._executor.call(self._aggregator, "progress", activity)
            self._take_snapshot()
        return self._seen

    def refresh(self) -> None:
        """Waits for a snapshot of now: the answer that it owes may be of before."""
        self._snapshot = None
        self._seen = self.call("progress", self._seen.activity)

    @property
    def silent(self) -> bool:
        """Whether it owes an answer for too long, as after a restart: trainers wait then."""
        now = time.monotonic()
        if self._snapshot is None or now - self._since < QUIET:
            return False
        self.silent_until = now
        return True

    def close(self) -> None:
        """Lets it answer: Ray reports a call that is cut off by `kill` as a failure."""
        if self._snapshot is not None:
            concurrent.futures.wait([self._snapshot], CLOSE_SECONDS)

    def _take_snapshot(self) -> None:
        if self._snapshot is not None and self._snapshot.done():
            snapshot, self._snapshot = self._snapshot, None
            self._seen = self._result(snapshot)

    def _check_pulse(self) -> None:
        if (now := time.monotonic()) - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        if self._pulse is not None and self._pulse.done():
            self._beats = self._pulse.exception() is None  # else it died, and is started again
            self._pulse = None
            if not self._beats and self._was_killed_for_memory():
                self._tell(f"the aggregator was killed, as {NO_MEMORY}; it is started again")
        if self._pulse is None:
            self._pulse, self._mute = self._executor.call(self._aggregator, "pulse"), 0.0
            return
        self._mute += LOOK_SECONDS  # not what this process was paused for
        if self._mute >= (GONE_SECONDS if self._beats else START_SECONDS):
            why = f", as {NO_MEMORY}" if self._was_killed_for_memory() else ""
            self._tell(
                f"the aggregator has not answered for {self._mute:.0f} s{why}: it is killed and "
                "started again, and continues from the run directory"
            )
            self._executor.kill(self._aggregator, restart=True)
            self._pulse, self._beats = None, False

    def _was_killed_for_memory(self) -> bool:
        return self._capacity is not None and self._capacity.new_memory_kill() != ""

    def _result(self, answer: Future[Any]) -> Any:
        while not concurrent.futures.wait([answer], LOOK_SECONDS).done:
            self._liveness.require()  # a call waits for ever where nobody can restart an actor
            self._check_pulse()
        try:
            return answer.result()
        except WorkerDiedError as error:
            raise ClusterError(f"the aggregator cannot be restarted ({error}); {RESUME}") from error
