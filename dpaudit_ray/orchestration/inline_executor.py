"""Runs packs in this process, one at a time: for debuggers, tests and tiny sweeps."""

import math
import socket
import time
from collections.abc import Collection
from concurrent.futures import Future
from typing import Any

from ..plan import provenance
from .aggregation import KEEP_UP_SECONDS, Aggregation
from .dispatcher import Dispatcher
from .executors import Cluster, Handle, Node, Role, Work
from .interruption import HeadLiveness
from .progress import Activity, Progress
from .trainer import Brief, PackTrainer
from .workers import Capacity, ResourceRequest

REQUEST = ResourceRequest({"process": 1.0})  # whatever a sweep requests: there is one process
_NODE = Node("here", socket.gethostname(), 0, REQUEST.resources)


class InlineExecutor:
    """Implements `Executor` without Ray: a worker works while it is called."""

    isolates = False

    def __init__(self, work: Work) -> None:
        """Makes no worker yet."""
        self._work = work
        self._aggregator: InlineAggregator
        self._answers: list[Future[Any]] = []

    def start(
        self,
        role: Role,
        name: str,
        avoid: Collection[str] = (),
    ) -> Handle:
        """Makes the aggregator, or a trainer that calls it; names and nodes are for clusters."""
        if role == "Aggregator":
            self._aggregator = InlineAggregator(self._work.sweep, self._work.plan, self._work.run)
            return self._aggregator
        return InlineTrainer(self._work, self._aggregator)

    def call(
        self,
        worker: Handle,
        method: str,
        *arguments: Any,
    ) -> Future[Any]:
        """Calls the method at once; answers of trainers are handed out by `wait`."""
        answer: Future[Any] = Future()
        try:
            answer.set_result(getattr(worker, method)(*arguments))
        except Exception as error:  # noqa: BLE001 (as at a process boundary: the answer raises it)
            answer.set_exception(error)
        if isinstance(worker, InlineTrainer):
            self._answers.append(answer)
        return answer

    def wait(self, timeout: float) -> list[Future[Any]]:
        """Returns all new answers of trainers; there is nothing to wait for."""
        answers = self._answers
        self._answers = []
        return answers

    def kill(self, worker: Handle, restart: bool = False) -> None:
        """Does nothing: a worker is no separate process."""

    def nodes(self) -> Cluster:
        """Returns a cluster of one node, which has room for one trainer."""
        return Cluster((_NODE,))


class InlineAggregator(Aggregation):
    """Updates estimates when a snapshot is requested, as it has no thread to do so."""

    _kept_up = -math.inf

    def progress(self, activity: Activity | None = None) -> Progress:
        """Returns the progress of all audits; also updates estimates, at most once a second."""
        if time.monotonic() - self._kept_up > KEEP_UP_SECONDS:
            self.keep_up()
            self._kept_up = time.monotonic()
        return super().progress(activity)

    def pulse(self) -> bool:
        """Returns True, as `actors.Aggregator.pulse` does."""
        return True


class InlineTrainer(PackTrainer):
    """A trainer that calls the aggregator in its own process."""

    def __init__(self, work: Work, aggregator: Aggregation) -> None:
        """Takes the work that Ray's trainers get by `set_up`."""
        super().__init__(
            work.sweep.raw,
            Brief.from_plan(work.plan, work.sweep),
            lambda method, *arguments: getattr(aggregator, method)(*arguments),
        )
        self._gpu = work.sweep.resources.num_gpus > 0

    def set_up(
        self,
        modules: tuple[str, ...] = (),
    ) -> tuple[str, str, provenance.Code]:
        """Returns what `Trainer.set_up` does; this trainer has its work from its constructor."""
        return _NODE.id, _NODE.host, provenance.machine(modules, gpu=self._gpu)


def dispatcher(work: Work) -> Dispatcher:
    """Returns a dispatcher in this process. Raises RunDirectoryError for a damaged directory."""
    executor = InlineExecutor(work)
    return Dispatcher(executor, work, Capacity(executor, REQUEST, None, work.tell), HeadLiveness())
