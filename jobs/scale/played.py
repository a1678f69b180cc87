"""A driver with thousands of trainers, all of them played: what is timed is the driver alone."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import socket
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from typing import Any, Self
from unittest import mock

import ray.exceptions

from dpaudit_ray import plan as planning
from dpaudit_ray.orchestration import actors
from dpaudit_ray.orchestration.answers import Answers
from dpaudit_ray.orchestration.driver import Driver
from dpaudit_ray.orchestration.executors import Done
from dpaudit_ray.orchestration.interrupt import Stop
from dpaudit_ray.orchestration.ledger import Ledger
from dpaudit_ray.orchestration.nodes import Room
from dpaudit_ray.orchestration.progress import Progress
from dpaudit_ray.orchestration.ray_executor import RayExecutor
from dpaudit_ray.plan import provenance
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.sweep import spec

from . import empty


@dataclasses.dataclass(frozen=True)
class Rate:
    """CPU time of the driver: until all trainers have two packs, and per pack from then on."""

    trainers: int
    packs: int
    first_fill_seconds: float
    milliseconds: float


class Reference:
    """What a played call returns: answered when it is its turn, one at a time."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self._future: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def future(self) -> concurrent.futures.Future[Any]:
        """As `ray.ObjectRef.future`."""
        return self._future

    def get(self) -> Any:
        """What `ray.get` gives."""
        return self._answer

    def finish(self) -> None:
        """Now it is there."""
        self._future.set_result(self._answer)


class Cluster:
    """As much of the module `ray` as an executor needs."""

    exceptions = ray.exceptions

    def __init__(self, trainers: int, gcs: str, store: str) -> None:
        self.trainers = trainers
        self.running: collections.deque[Reference] = collections.deque()
        worker = types.SimpleNamespace(node=types.SimpleNamespace(plasma_store_socket_name=store))
        self._private = types.SimpleNamespace(worker=types.SimpleNamespace(global_worker=worker))
        self.util = types.SimpleNamespace(
            scheduling_strategies=types.SimpleNamespace(
                NodeAffinitySchedulingStrategy=lambda *_, **__: None
            )
        )
        self._context = types.SimpleNamespace(gcs_address=gcs, get_node_id=lambda: "node")

    def get_runtime_context(self) -> Any:
        """Of the driver."""
        return self._context

    def put(self, value: Any) -> Any:
        """As it is."""
        return value

    def get(self, reference: Reference) -> Any:
        """Its answer."""
        return reference.get()

    def wait(self, references: list[Reference], **_: Any) -> tuple[list[Reference], list[Any]]:
        """The aggregator answers at once."""
        return references, []

    def kill(self, actor: Any) -> None:
        """Nothing runs."""

    def cancel(self, reference: Reference, recursive: bool) -> None:
        """What waits goes on waiting, and nobody listens."""

    def call(self, method: str, arguments: tuple[Any, ...]) -> Reference:
        """A call of a trainer or of the aggregator."""
        answers: dict[str, Callable[..., Any]] = {
            "ready": lambda modules: ("node", "127.0.0.1", provenance.machine(modules, gpu=False)),
            "run_pack": lambda pack: Done(pack, 1.0),
            "progress": lambda activity: Progress((), activity),
        }
        reference = Reference(answers.get(method, lambda *_: None)(*arguments))
        if method in ("ready", "run_pack"):
            self.running.append(reference)
        return reference


class Actor:
    """An actor class, an actor and a method of it: all take options and are called by `remote`."""

    def __init__(self, cluster: Cluster, method: str = "") -> None:
        self._cluster, self._method = cluster, method

    def options(self, **_: Any) -> Self:
        """They change nothing here."""
        return self

    def remote(self, *arguments: Any) -> Any:
        """An actor, or the reference to an answer."""
        return self._cluster.call(self._method, arguments) if self._method else self

    def __getattr__(self, method: str) -> Actor:
        return Actor(self._cluster, method)


class OneByOne(Answers):
    """The worst case: every pack that ends is looked at alone. Greetings come together."""

    cluster: Cluster

    def wait(self, timeout: float) -> list[tuple[Any, Any]]:
        """The next answer."""
        if self.cluster.running:
            self.cluster.running.popleft().finish()
        return super().wait(0)


def rate(trainers: int, packs: int, run: RunDirectory) -> Rate:
    """Runs so many packs on so many trainers."""
    parsed = spec.from_raw(empty.sweep("played", packs, 1))
    plan = planning.make(parsed)
    moments: list[float] = []
    with _played(trainers) as cluster:
        nodes: Any = types.SimpleNamespace(
            share=types.SimpleNamespace(namespace="played"),
            room=lambda _: Room(trainers, trainers, trainers),
            leaving=set(),
            options={},
            tell_what_for=lambda *_: None,
        )
        executor = RayExecutor(cluster, parsed, plan, run, packs, nodes, print)
        while executor.trainers < trainers:
            executor.wait(0)
        submit = executor.submit

        def timed(pack: Any) -> None:
            submit(pack)
            moments.append(time.process_time())

        with mock.patch.object(executor, "submit", timed):
            stop = Stop(grace=60)
            started = time.process_time()
            Driver(executor, plan.remaining(run), Ledger(parsed.resources, ["x"]), stop).run()
            ended = time.process_time()
        executor.close()
    filled = moments[2 * trainers - 1]
    return Rate(trainers, packs, filled - started, 1000 * (ended - filled) / packs)


@contextlib.contextmanager
def _played(trainers: int) -> Iterator[Cluster]:
    with contextlib.ExitStack() as patches:
        head = patches.enter_context(socket.create_server(("127.0.0.1", 0)))
        store = f"{patches.enter_context(tempfile.TemporaryDirectory())}/store"
        listener = patches.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(store)
        listener.listen()
        cluster = Cluster(trainers, f"127.0.0.1:{head.getsockname()[1]}", store)
        OneByOne.cluster = cluster
        for name in ("Trainer", "Aggregator"):
            patches.enter_context(mock.patch.object(actors, name, Actor(cluster)))
        patches.enter_context(
            mock.patch("dpaudit_ray.orchestration.ray_executor.Answers", OneByOne)
        )
        yield cluster
