"""A driver with thousands of trainers, all of them played: what is timed is the driver alone."""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any
from unittest import mock

from dpaudit_ray import plan as planning
from dpaudit_ray.orchestration.dispatcher import Dispatcher
from dpaudit_ray.orchestration.driver import Driver, FailureBudget
from dpaudit_ray.orchestration.executors import TRAINER, Cluster, Done, Handle, Node, Role, Work
from dpaudit_ray.orchestration.interruption import HeadLiveness, Stop
from dpaudit_ray.orchestration.progress import Progress
from dpaudit_ray.orchestration.workers import Capacity, ResourceRequest
from dpaudit_ray.plan import provenance
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.sweep import spec

from . import empty


@dataclasses.dataclass(frozen=True)
class Rate:
    """CPU time of the driver: until all trainers have a pack, and per pack from then on."""

    trainers: int
    packs: int
    first_fill_seconds: float
    milliseconds: float


class PlayedExecutor:
    """An executor whose trainers answer when it is their turn, one at a time: the worst case.

    The aggregator answers at once.
    """

    isolates = True

    def __init__(self, trainers: int) -> None:
        self._node = Node("node", "127.0.0.1", 1, {"CPU": float(trainers)})
        self._running: collections.deque[tuple[Future[Any], Any]] = collections.deque()

    def start(self, role: Role, name: str, avoid: Collection[str] = ()) -> Handle:
        """Its name stands for a worker."""
        return name

    def call(self, worker: Handle, method: str, *arguments: Any) -> Future[Any]:
        """A call of a trainer or of the aggregator."""
        answers: dict[str, Callable[..., Any]] = {
            "set_up": lambda modules: ("node", "127.0.0.1", provenance.machine(modules, gpu=False)),
            "run_pack": lambda pack, before: Done(pack, 1.0),
            "progress": lambda activity: Progress((), activity),
        }
        answer: Future[Any] = Future()
        value = answers.get(method, lambda *_: None)(*arguments)
        if TRAINER in worker:
            self._running.append((answer, value))
        else:
            answer.set_result(value)
        return answer

    def wait(self, timeout: float) -> list[Future[Any]]:
        """The next answer."""
        if not self._running:
            return []
        answer, value = self._running.popleft()
        answer.set_result(value)
        return [answer]

    def kill(self, worker: Handle, restart: bool = False) -> None:
        """Nothing runs."""

    def nodes(self) -> Cluster:
        """One node, on which all trainers fit."""
        return Cluster((self._node,))


def rate(trainers: int, packs: int, run: RunDirectory) -> Rate:
    """Runs so many packs on so many trainers."""
    parsed = spec.from_raw(empty.sweep("played", packs, 1))
    plan = planning.make(parsed)
    moments: list[float] = []
    executor = PlayedExecutor(trainers)
    places = Capacity(executor, ResourceRequest({"CPU": 1.0}), None, print)
    dispatcher = Dispatcher(executor, Work(parsed, plan, run, packs, print), places, HeadLiveness())
    while dispatcher.trainers < trainers:
        dispatcher.wait(0)
    submit = dispatcher.submit

    def timed(pack: Any) -> None:
        submit(pack)
        moments.append(time.process_time())

    with mock.patch.object(dispatcher, "submit", timed):
        budget, stop = FailureBudget(parsed.resources, ["x"]), Stop(grace=60)
        started = time.process_time()
        Driver(dispatcher, planning.remaining(run, plan), budget, stop).run()
        ended = time.process_time()
    dispatcher.close()
    filled = moments[trainers - 1]
    return Rate(trainers, packs, filled - started, 1000 * (ended - filled) / packs)
