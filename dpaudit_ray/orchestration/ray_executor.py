"""Packs on a Ray cluster: a pool of trainer actors around one aggregator actor."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

from ..plan.failures import Failure
from ..plan.model import Pack, Plan
from ..plan.provenance import Machine
from ..storage.run_directory import RunDirectory
from ..sweep.spec import Sweep
from . import internals
from .answers import Answers
from .deadlines import Deadlines
from .executors import Done, Lost, Outcome
from .fleet import Fleet, grouped
from .hangs import Hangs
from .link import Link, ours
from .nodes import Nodes, Place, beside_the_driver, last_line
from .pool import Pool, Reference, Worker
from .progress import Activity, Progress
from .sharing import TRAINER
from .suspects import Suspects
from .trainer import Brief
from .watch import GONE_SECONDS, Watch


class RayExecutor:
    """Implements `Executor` on the connected cluster.

    Args:
        ray: the module, connected.
        packs: how many packs there are to run; more trainers than that are never started.
        nodes: where trainers may run, and how many.
        watch: says whether they, and the head, answer.
        tell: takes a line for the user.
    """

    def __init__(  # noqa: PLR0913 (a run, and what its driver knows)
        self,
        ray: Any,
        sweep: Sweep,
        plan: Plan,
        run: RunDirectory,
        packs: int,
        nodes: Nodes,
        watch: Watch,
        tell: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._ray, self._sweep, self._plan, self._nodes = ray, sweep, plan, nodes
        self._tell, self._packs, self._watch = tell, packs, watch
        self._aggregator: Any = None
        self._here: str = ray.get_runtime_context().get_node_id()
        watch.guard(nodes.raylets[self._here], internals.object_store(ray))
        try:
            self._start(run)
        except BaseException:  # Ctrl-C too: whatever ends this, nothing stays behind
            if self._aggregator is not None:
                ray.kill(self._aggregator)  # another one may have its name
            raise

    def _start(self, run: RunDirectory) -> None:
        from . import actors

        ray, sweep, nodes, tell = self._ray, self._sweep, self._nodes, self._tell
        self._trainer_class = actors.Trainer
        self._shared = (ray.put(sweep.raw), ray.put(Brief.of(self._plan, sweep)))
        owners = [owner for cell in sweep.cells for owner in (cell.mechanism, cell.adversary)]
        data = {key: each for owner in owners for key, each in owner.datasets().items()}
        # Ray keeps one copy on every node that asks, and all trainers there map its memory.
        self._datasets = {key: ray.put(each) for key, each in data.items()}
        self._aggregator = actors.Aggregator.options(  # type: ignore[attr-defined]
            name=f"{sweep.name}-aggregator",
            namespace=nodes.share.namespace,
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=-1,
            scheduling_strategy=beside_the_driver(ray),
        ).remote(run.location, run.owner, self._plan.what(self._packs))
        # Rebuilds the estimates now, so that a damaged run directory is told before any training.
        self._link = Link(ray, self._aggregator, self._watch, tell)
        limits = ((i, cell.mechanism.trial_limit) for i, cell in enumerate(sweep.cells))
        known = {index: limit for index, limit in limits if limit is not None}
        self._deadlines = Deadlines(sweep.resources.pack_deadline, known)
        self._fleet = Fleet(self._plan, run, tell, grouped(sweep))
        self._due: collections.deque[Pack] = collections.deque()  # for another trainer
        self._in_flight = 0
        self._answers = Answers()
        self._pool = Pool(
            self._start_worker,
            lambda actor: ray.kill(actor),
            nodes.room,
            lambda: nodes.leaving,
            nodes.tell_what_for,
        )
        self._suspects = Suspects(nodes, tell, self._pool.changed)
        watched = self._deadlines, self._pool, self._suspects, self._link
        self._hangs = Hangs(self._plan, *watched, tell)
        self.backlog(self._packs)
        self._pool.resize()

    @property
    def slots(self) -> int:
        """What is in flight, and as much as lets trainers that may be given packs have two."""
        return self._in_flight + self._pool.places

    @property
    def trainers(self) -> int:
        """Trainers that have their place."""
        return len(self._pool.ready)

    def backlog(self, packs: float) -> None:
        """See `Executor.backlog`."""
        self._pool.backlog = min(packs, self._packs) + len(self._due)

    def submit(self, pack: Pack) -> None:
        """Gives the pack to the trainer with the fewest packs."""
        self._hand(self._next(), "run_pack", pack)

    def check(self, pack: Pack, finished: bool) -> None:
        """Has the pack run again by the trainer with the fewest packs."""
        self._hand(self._next(), "check_pack", pack, finished)

    def give_up(self, failed: list[Failure]) -> None:
        """See `Executor.give_up`."""
        self._link.call("give_up", failed)

    def try_again(self, packs: list[Pack]) -> None:
        """See `Executor.try_again`."""
        self._link.call("try_again", packs)
        self._link.look_again()

    def wait(self, timeout: float) -> list[Outcome]:
        """See `Executor.wait`."""
        outcomes = self._outcomes(timeout)
        for outcome in outcomes:
            self._in_flight -= len(outcome.packs) if isinstance(outcome, Lost) else 1
        return outcomes

    def _outcomes(self, timeout: float) -> list[Outcome]:
        self._watch.require()
        self._hand_due()
        if self._watch.answers:  # else a call of Ray's would wait for it
            self._even_out()
            self._pool.resize()
        arrived = self._answers.wait(timeout)
        outcomes = [self._collect(worker, reference) for worker, reference in arrived]
        hung = [self._lost(lost) for lost in (*self._hangs.found(), *self._on_silent_nodes())]
        return [*(outcome for outcome in outcomes if outcome), *hung]

    def _on_silent_nodes(self) -> list[Lost]:
        """Packs on nodes that do not answer, of which Ray hears a minute later."""
        places = {worker.place.node: worker.place for worker in self._pool.ready if worker.place}
        raylets = self._nodes.raylets
        self._watch.nodes = {
            node: raylets[node] for node in places.keys() | self._nodes.silent
            if node in raylets and node != self._here
        }  # fmt: skip
        silent = self._watch.silent_nodes
        for node in silent - self._nodes.silent:
            self._tell(
                f"node {places[node].address} has not answered for {GONE_SECONDS:.0f} s: it is "
                "left out until it does, and its packs are run again elsewhere"
            )
        self._nodes.silent = silent
        lost = []
        for worker in self._pool.ready if silent else ():
            if worker.place is not None and worker.place.node in silent:
                reason = f"{worker.name}: node {worker.place.address} does not answer"
                lost.append(Lost(self._pool.replace(worker), reason, "node", foreseen=True))
        return lost

    def progress(self, activity: Activity) -> Progress:
        """The last answer of the aggregator; asks for the next one without waiting for it."""
        seen = self._link.progress(activity)
        self._pool.heard(seen.saved)
        return seen

    def flush(self) -> None:
        """Writes the estimates and fetches the snapshot that belongs to them."""
        self._link.call("flush")
        self._link.look_again()

    def close(self) -> None:
        """Ends all actors of this sweep."""
        try:
            if self._watch.answers:  # else they end with this process
                self._link.close()
                for worker in self._pool.workers:
                    self._ray.kill(worker.actor)
                self._ray.kill(self._aggregator)
        finally:
            self._watch.close()

    def _next(self) -> Worker:
        """The trainer that a new pack goes to: one with the fewest packs."""
        self._in_flight += 1
        return self._pool.next()

    def _hand(self, worker: Worker, method: str, pack: Pack, *arguments: Any) -> None:
        label = self._plan.audits[pack.audit].label
        # Not the trials: Ray keeps metrics by task name, 15 kB for each, in every process.
        task = getattr(worker.actor, method).options(name=f"Trainer.{method} {label}")
        reference = task.remote(pack, *arguments)
        worker.given(reference, pack)
        self._pool.changed(worker)
        self._answers.expect(reference, worker)

    def _even_out(self) -> None:
        """Once no pack is left to hand out, those that wait behind another go to idle trainers.

        If one has just begun, two trainers run it: they get the same scores, stored once.
        """
        if self._pool.backlog:
            return
        for idle, full in self._pool.idle_and_full():
            reference, pack = list(full.packs.items())[-1]
            if self._suspects.case(pack) is None:
                self._ray.cancel(reference, recursive=False)
                self._answers.forget(reference)
                del full.packs[reference]
                self._pool.changed(full)
                self._hand(idle, "run_pack", pack)

    def _hand_due(self) -> None:
        """Packs that failed go to another trainer; those of a trainer that was replaced, to any."""
        for pack in [self._due.popleft() for _ in range(len(self._due))]:
            ready = [worker for worker in self._pool.ready if not worker.leaving]
            case = self._suspects.case(pack)
            if case is None:
                worker = self._pool.least_busy(ready) if ready else None
            else:
                worker = self._suspects.other(case, ready)
                if worker is None and case.worker in self._pool.workers:
                    self._due += self._pool.replace(case.worker)  # a new one is another one
            if worker is None:
                self._due.append(pack)
            elif case is None:
                self._hand(worker, "run_pack", pack)
            else:
                self._hand(worker, "retry_pack", pack, case.failure)

    def _collect(self, worker: Worker, reference: Reference) -> Outcome | None:
        """None for a greeting, for what is given up already, and for what is tried once more."""
        if worker not in self._pool.workers:
            return None
        exceptions = self._ray.exceptions
        try:
            outcome: Any = self._ray.get(reference)
        except exceptions.RayTaskError as error:
            if (known := ours(error)) is not None:
                raise known from error
            # The trainer lives, what it called did not.
            return self._lost(Lost((self._off(worker, reference),), last_line(error)))
        except exceptions.RayError as error:
            return self._died(worker, error)
        if reference == worker.greeting:
            self._greeted(worker, *outcome)
            return None
        return self._answered(worker, self._off(worker, reference), outcome)

    def _off(self, worker: Worker, reference: Reference) -> Pack:
        pack = worker.answered(reference)
        self._pool.changed(worker)
        return pack

    def _greeted(
        self, worker: Worker, node: str, address: str, machine: Machine | None = None
    ) -> None:
        """A trainer has its place, where it may stay if it would compute what the driver would."""
        worker.place = Place(node, address)
        self._pool.changed(worker)
        if why := self._fleet.admit(address, machine):
            self._pool.replace(worker)
            self._nodes.leave_out(worker.place, why)

    def _answered(self, worker: Worker, pack: Pack, outcome: Outcome) -> Outcome | None:
        if isinstance(outcome, Failure):
            if not self._suspects.failed(outcome, worker):
                return outcome
            self._due.append(pack)
            return None
        worker.proven = True
        if isinstance(outcome, Done):
            if outcome.whole and not self._link.silence.within(outcome.seconds):
                self._deadlines.measured(outcome.pack, outcome.seconds)
            guilty = self._suspects.done(pack, worker)
            if guilty in self._pool.workers:
                self._due += self._pool.replace(guilty)
        return outcome

    def _died(self, worker: Worker, error: Any) -> Lost | None:
        """A trainer that died by itself; one whose node left is nobody's failure.

        None where Ray took it back before it had its place, as when a node leaves that it waits on.
        """
        place = worker.place
        if place is None and not getattr(error, "actor_init_failed", True):
            self._pool.replace(worker)
            return None
        if not self._watch.answers:  # all nodes of a lost head go, and none can be asked about
            reason = f"{worker.name}: the cluster's head does not answer"
            return self._lost(Lost(self._pool.replace(worker), reason, "node", True))
        gone = place is not None and not self._nodes.alive(place)
        foreseen = getattr(error, "preempted", False) or (
            place is not None and place.node in self._nodes.leaving
        )
        packs = self._pool.replace(worker)
        if gone or foreseen:
            where = f"node {place.address}" if place else "its node"
            return self._lost(Lost(packs, f"{worker.name}: {where} has left", "node", foreseen))
        where = f" on node {place.address}" if place else ""
        reason = f"{worker.name}{where}: {last_line(error)}"
        return self._lost(Lost(packs, reason, begun=place is not None))

    def _lost(self, lost: Lost) -> Lost:
        for pack in lost.packs:
            self._suspects.drop(pack)
        return lost

    def _start_worker(self, number: int) -> Worker:
        name = f"{self._sweep.name}{TRAINER}{number}"
        actor = self._trainer_class.options(  # type: ignore[attr-defined]
            name=name,
            namespace=self._nodes.share.namespace,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
            **self._nodes.options,
        ).remote(*self._shared, self._aggregator, self._datasets)
        ready = actor.ready.options(name="Trainer.ready()")
        worker = Worker(name, actor, ready.remote(self._fleet.modules))
        self._answers.expect(worker.greeting, worker)
        return worker
