"""Hands packs to trainers, and makes outcomes of their answers: done, failed, or lost."""

from __future__ import annotations

import collections
import time
from concurrent.futures import Future
from typing import Any

from ..plan.model import Pack
from ..plan.outcomes import Failure
from ..plan.provenance import Machine
from .aggregator_client import AggregatorClient
from .executors import (
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
from .faults import Deadlines, FaultAttribution, HangDetection
from .interruption import HeadLiveness
from .progress import Activity, Progress
from .workers import PACKS_PER_TRAINER, MachineCompatibility, Places, Pool, Worker


class Dispatcher:
    """Runs packs by trainers around one aggregator, whatever executor runs these."""

    def __init__(
        self, executor: Executor, work: Work, places: Places, liveness: HeadLiveness
    ) -> None:
        self._executor, self._work, self._places = executor, work, places
        self._liveness, sweep, tell = liveness, work.sweep, work.tell
        self._owners: dict[Future[Any], Worker] = {}
        self._due: collections.deque[Pack] = collections.deque()  # for another trainer
        self._in_flight = 0
        self._aggregator = executor.start("Aggregator", f"{sweep.name}-aggregator")
        try:
            # Rebuilds the estimates now: a damaged run directory is told before any training.
            self._client = AggregatorClient(executor, self._aggregator, liveness, tell)
            self._compatibility = MachineCompatibility(work)
            limits = {
                index: limit
                for index, cell in enumerate(sweep.cells)
                if (limit := cell.mechanism.trial_limit) is not None
            }
            self._deadlines = Deadlines(sweep.resources.pack_deadline, limits)
            # Without a process of its own a trainer works while it is called: none waits behind.
            packs_each = PACKS_PER_TRAINER if executor.isolates else 1
            self._pool = Pool(self._start_worker, executor.kill, places, packs_each)
            self._attribution = FaultAttribution(places, tell, self._pool.changed)
            self._hangs = HangDetection(
                self._deadlines, self._pool, self._attribution, self._client
            )
            self.backlog(work.packs)
            self._pool.resize()
        except BaseException:  # Ctrl-C too: whatever ends this, nothing stays behind
            executor.kill(self._aggregator)  # another one may have its name
            raise

    @property
    def slots(self) -> int:
        """How many packs may be in flight now; 0 while nothing can run.

        Those that are, and as many as let trainers that may be given packs have two.
        """
        return self._in_flight + self._pool.slots

    @property
    def trainers(self) -> int:
        """Trainers that have their place."""
        return len(self._pool.ready)

    def backlog(self, packs: float) -> None:
        """Takes how many packs are still to be handed over, inf while that is not known."""
        self._pool.backlog = min(packs, self._work.packs) + len(self._due)

    def submit(self, pack: Pack) -> None:
        """Gives the pack to the trainer with the fewest packs; never waits for its result."""
        self._in_flight += 1
        self._hand(self._pool.next(), pack)

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

        Raises StorageError where results can no longer be stored, LeaseLostError where another
        driver stores them, ClusterError where the aggregator cannot be brought back.
        """
        self._liveness.require()
        self._hand_due()
        if self._liveness.answers:  # else a call of Ray's would wait for it
            self._even_out()
            self._pool.resize()
        arrived = [(self._owners.pop(a, None), a) for a in self._executor.wait(timeout)]
        collected = [self._collect(worker, answer) for worker, answer in arrived if worker]
        hung = [self._lost(lost) for lost in self._hangs.lost()]
        outcomes = [*(outcome for outcome in collected if outcome), *hung]
        for outcome in outcomes:
            self._in_flight -= len(outcome.packs) if isinstance(outcome, Lost) else 1
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
        """Ends all workers."""
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
        handle: Handle = self._executor.start("Trainer", name, self._places.avoided)
        greeting = self._executor.call(handle, "ready", self._compatibility.modules)
        worker = Worker(name, handle, greeting)
        self._owners[greeting] = worker
        return worker

    def _hand(self, worker: Worker, pack: Pack) -> None:
        # Not labelled with its trials: Ray keeps metrics by task name, 15 kB each, everywhere.
        label = self._work.plan.audits[pack.audit].label
        before = self._attribution.failure(pack)
        answer = self._executor.call(worker.handle, "run_pack", pack, before, label=label)
        worker.take(answer, pack)
        self._pool.changed(worker)
        self._owners[answer] = worker

    def _even_out(self) -> None:
        """Once no pack is left to hand out, those that wait behind another go to idle trainers.

        If one has just begun, two trainers run it: they get the same scores, stored once.
        """
        if self._pool.backlog:
            return
        for idle, full in self._pool.idle_and_full():
            answer, pack = list(full.packs.items())[-1]
            if self._attribution.suspicion(pack) is None:
                self._owners.pop(answer, None)
                answer.cancel()
                del full.packs[answer]
                self._pool.changed(full)
                self._hand(idle, pack)

    def _hand_due(self) -> None:
        """Packs that failed go to another trainer; those of a trainer that was replaced, to any."""
        for pack in [self._due.popleft() for _ in range(len(self._due))]:
            ready = [worker for worker in self._pool.ready if not worker.leaving]
            suspicion = self._attribution.suspicion(pack)
            if suspicion is None and ready:
                least = min(ready, key=lambda worker: len(worker.packs))
                self._hand(least, pack)
            elif suspicion and (other := self._attribution.other(suspicion, ready)):
                self._hand(other, pack)
            else:
                self._due.append(pack)
                if suspicion and suspicion.worker in self._pool.workers:
                    self._due += self._pool.replace(suspicion.worker)  # a new one is another one

    def _collect(self, worker: Worker, answer: Future[Any]) -> Outcome | None:
        """None for a greeting, for what is given up already, and for what is tried once more."""
        if worker not in self._pool.workers:
            return None
        try:
            outcome: Any = answer.result()
        except CallFailedError as error:
            return self._lost(Lost((self._finished(worker, answer),), str(error)))
        except WorkerDiedError as error:
            return self._died(worker, error)
        if answer is worker.greeting:
            self._greeted(worker, *outcome)
            return None
        return self._answered(worker, self._finished(worker, answer), outcome)

    def _finished(self, worker: Worker, answer: Future[Any]) -> Pack:
        """Takes an answer, of a trained pack or an error, off its worker; returns the pack."""
        pack = worker.finish(answer)
        self._pool.changed(worker)
        return pack

    def _greeted(self, worker: Worker, node: str, address: str, machine: Machine) -> None:
        """A trainer has its place, where it may stay if it would compute what the driver would."""
        worker.node, worker.address = node, address
        self._pool.changed(worker)
        if why := self._compatibility.admit(address, machine):
            self._pool.replace(worker)
            self._places.leave_out(node, address, why)

    def _answered(self, worker: Worker, pack: Pack, outcome: Outcome) -> Outcome | None:
        if isinstance(outcome, Failure):
            if not self._executor.isolates or not self._attribution.failed(outcome, worker):
                return outcome
            self._due.append(pack)
            return None
        worker.proven = True
        if isinstance(outcome, Done):
            began = time.monotonic() - outcome.seconds
            if outcome.whole and self._client.silent_until <= began:
                self._deadlines.measured(outcome.pack, outcome.seconds)
            guilty = self._attribution.done(pack, worker)
            if guilty in self._pool.workers:
                self._due += self._pool.replace(guilty)
        return outcome

    def _died(self, worker: Worker, error: WorkerDiedError) -> Lost | None:
        """A trainer that died by itself; one whose node left is nobody's failure.

        None where it was taken back before it had its place, as when a node leaves that it awaits.
        """
        if not worker.ready and error.taken_back:
            self._pool.replace(worker)
            return None
        if not self._liveness.answers:  # all nodes of a lost head go, and none can be asked about
            reason = f"{worker.name}: the cluster's head does not answer"
            return self._lost(Lost(self._pool.replace(worker), reason, "node", True))
        gone = worker.ready and not self._places.alive(worker.node)
        foreseen = error.preempted or worker.node in self._places.leaving
        packs = self._pool.replace(worker)
        if gone or foreseen:
            where = f"node {worker.address}" if worker.ready else "its node"
            return self._lost(Lost(packs, f"{worker.name}: {where} has left", "node", foreseen))
        where = f" on node {worker.address}" if worker.ready else ""
        return self._lost(Lost(packs, f"{worker.name}{where}: {error}", begun=worker.ready))

    def _lost(self, lost: Lost) -> Lost:
        for pack in lost.packs:
            self._attribution.drop(pack)
        return lost
