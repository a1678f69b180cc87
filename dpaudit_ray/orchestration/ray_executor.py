"""Packs on a Ray cluster: a pool of trainer actors around one aggregator actor."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

from ..data.base import Dataset
from ..errors import ClusterError, DpauditError
from ..failures import Failure
from ..plan import Pack, Plan
from ..spec import Sweep
from ..storage import RunDirectory
from .aggregation import Activity, Progress
from .deadlines import Deadlines
from .executors import Done, Lost, Outcome
from .nodes import Nodes, last_line
from .pool import PACKS_PER_TRAINER, Pool, Worker


class RayExecutor:
    """Implements `Executor` on the connected cluster.

    Args:
        ray: the module, connected.
        packs: how many packs there are to run; more trainers than that are never started.
        nodes: where trainers may run, and how many.
        tell: takes a line for the user.
    """

    def __init__(
        self,
        ray: Any,
        sweep: Sweep,
        plan: Plan,
        run: RunDirectory,
        packs: int,
        nodes: Nodes,
        tell: Callable[[str], None],
    ) -> None:  # fmt: skip
        from . import actors

        self._ray, self._sweep, self._plan, self._nodes = ray, sweep, plan, nodes
        self._trainer_class = actors.Trainer
        # A namespace of its own: names stay short, and one that a killed driver left is no clash.
        self._namespace = f"dpaudit-{secrets.token_hex(4)}"
        self._shared = (ray.put(sweep.raw), ray.put(plan))
        # Ray keeps one copy on every node that asks, and all trainers there map its memory.
        self._datasets = {key: ray.put(data) for key, data in _datasets(sweep).items()}
        self._aggregator = actors.Aggregator.options(  # type: ignore[attr-defined]
            name=f"{sweep.name}-aggregator",
            namespace=self._namespace,
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=-1,
            scheduling_strategy=nodes.beside_the_driver,
        ).remote(run.location)
        # Rebuilds the estimates now, so that a damaged run directory is told before any training.
        self._seen: Progress = self._aggregator_call("progress", Activity())
        self._asked: Any = None
        self._deadlines = Deadlines(sweep.resources.pack_deadline)
        self._pool = Pool(
            self._start_worker,
            lambda actor: ray.kill(actor),
            lambda: min(nodes.room(), packs),
            tell,
        )
        self._pool.resize()

    @property
    def slots(self) -> int:
        """Twice the number of trainers that have their place."""
        return PACKS_PER_TRAINER * self.trainers

    @property
    def trainers(self) -> int:
        """Trainers that have their place."""
        return len(self._pool.ready)

    def submit(self, pack: Pack) -> None:
        """Gives the pack to the trainer with the fewest packs."""
        self._hand("run_pack", pack)

    def check(self, pack: Pack, finished: bool) -> None:
        """Has the pack run again by the trainer with the fewest packs."""
        self._hand("check_pack", pack, finished)

    def give_up(self, failed: list[Failure]) -> None:
        """See `Executor.give_up`."""
        self._aggregator_call("give_up", failed)

    def try_again(self, packs: list[Pack]) -> None:
        """See `Executor.try_again`."""
        self._aggregator_call("try_again", packs)
        self._asked = None  # its answer may be of before
        self._seen = self._aggregator_call("progress", self._seen.activity)

    def wait(self, timeout: float) -> list[Outcome]:
        """See `Executor.wait`."""
        self._pool.resize()
        owners = {reference: w for w in self._pool.workers for reference in w.references}
        waiting = list(owners)
        if not waiting:
            time.sleep(timeout)
            return []
        ready, _ = self._ray.wait(waiting, num_returns=1, timeout=timeout)
        if ready:
            ready, _ = self._ray.wait(waiting, num_returns=len(waiting), timeout=0)
        outcomes = [self._collect(owners[reference], reference) for reference in ready]
        return [*(outcome for outcome in outcomes if outcome), *self._hung()]

    def progress(self, activity: Activity) -> Progress:
        """The last answer of the aggregator; asks for the next one without waiting for it."""
        if self._asked is not None and self._ray.wait([self._asked], timeout=0)[0]:
            self._seen, self._asked = self._answer(self._asked), None
        if self._asked is None:
            self._asked = self._aggregator.progress.remote(activity)
        return self._seen

    def flush(self) -> None:
        """Writes the estimates and fetches the snapshot that belongs to them."""
        self._aggregator_call("flush")
        self._seen = self._aggregator_call("progress", self._seen.activity)

    def close(self) -> None:
        """Ends all actors of this sweep."""
        if self._asked is not None:  # Ray reports a call that is cut off by `kill` as a failure
            self._ray.wait([self._asked], timeout=10)
        for worker in self._pool.workers:
            self._ray.kill(worker.actor)
        self._ray.kill(self._aggregator)

    def _hand(self, method: str, pack: Pack, *arguments: Any) -> None:
        worker = self._pool.least_busy()
        label = self._plan.audits[pack.audit].label
        # Not the trials: Ray keeps metrics by task name, 15 kB for each, in every process.
        task = getattr(worker.actor, method).options(name=f"Trainer.{method} {label}")
        if not worker.packs:
            worker.since = time.monotonic()
        worker.packs[task.remote(pack, *arguments)] = pack

    def _aggregator_call(self, method: str, *arguments: Any) -> Any:
        return self._answer(getattr(self._aggregator, method).remote(*arguments))

    def _answer(self, reference: Any) -> Any:
        exceptions = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except exceptions.RayTaskError as error:
            raise _ours(error) or error from error
        except exceptions.RayError as error:
            raise ClusterError(
                f"the aggregator cannot be restarted ({last_line(error)}); finished packs are "
                "safe: run the same command again to resume"
            ) from error

    def _collect(self, worker: Worker, reference: Any) -> Outcome | None:
        """None for a greeting, and for what a trainer owed that is given up already."""
        if worker not in self._pool.workers:
            return None
        exceptions = self._ray.exceptions
        try:
            outcome: Outcome | None = self._ray.get(reference)
        except exceptions.RayTaskError as error:
            if (ours := _ours(error)) is not None:
                raise ours from error
            # The trainer lives, what it called did not.
            return Lost((worker.answered(reference),), last_line(error))
        except exceptions.RayError as error:
            return Lost(self._pool.remove(worker), f"{worker.name}: {last_line(error)}")
        if reference == worker.greeting:
            worker.ready = True
            return None
        worker.answered(reference)
        if isinstance(outcome, Done):
            self._deadlines.measured(outcome.pack, outcome.seconds)
        return outcome

    def _hung(self) -> list[Outcome]:
        lost: list[Outcome] = []
        for worker, seconds in list(self._pool.overdue(self._deadlines)):
            reason = f"{worker.name} was silent for {seconds:.0f} s"
            lost.append(Lost(self._pool.remove(worker), reason))
        return lost

    def _start_worker(self, number: int) -> Worker:
        resources = self._sweep.resources
        name = f"{self._sweep.name}-trainer-{number}"
        actor = self._trainer_class.options(  # type: ignore[attr-defined]
            name=name,
            namespace=self._namespace,
            num_cpus=resources.num_cpus,
            num_gpus=resources.num_gpus,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
            label_selector=self._nodes.selector,
        ).remote(*self._shared, self._aggregator, self._datasets)
        return Worker(name, actor, actor.ready.remote())


def _datasets(sweep: Sweep) -> dict[str, Dataset]:
    """Every data set of the sweep, once."""
    found: dict[str, Dataset] = {}
    for cell in sweep.cells:
        found.update(cell.mechanism.datasets())
    return found


def _ours(error: BaseException) -> DpauditError | None:
    """The error of our own that Ray wrapped, once per process it passed through."""
    while not isinstance(cause := getattr(error, "cause", None), DpauditError) or hasattr(
        cause, "cause"
    ):
        if cause is None:
            return None
        error = cause
    return cause
