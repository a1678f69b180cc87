"""What an executor is: five methods by which workers run somewhere, and how packs end in them.

`inline_executor` and `ray_executor` have them, and nothing above these knows of Ray. Another is a
file `<name>_executor` with a function `dispatcher(work)`, and its name in `ExecutorName`. A worker
is a trainer or the aggregator; scores go from trainers to it without passing the driver.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any, Literal, Protocol

from ..plan.model import Pack, Plan
from ..plan.outcomes import Failure
from ..storage.run_directory import RunDirectory
from ..sweep.spec import Sweep

Role = Literal["Trainer", "Aggregator"]
Handle = Any  # of a worker: what its executor makes of it
TRAINER = "-trainer-"  # between the sweep's name and a number, in the names of trainers


@dataclasses.dataclass(frozen=True)
class Work:
    """What workers are started for: so many packs of a planned sweep, whose results go to `run`.

    `tell` takes a line for the user.
    """

    sweep: Sweep
    plan: Plan
    run: RunDirectory
    packs: int
    tell: Callable[[str], None] = lambda line: None


class WorkerDiedError(Exception):
    """The worker that was called is not there any more.

    `taken_back`: it was ended before it had its place, and not by its own code. `preempted`: its
    node was taken back by its owner.
    """

    def __init__(self, reason: str, taken_back: bool = False, preempted: bool = False) -> None:
        super().__init__(reason)
        self.taken_back, self.preempted = taken_back, preempted


class CallFailedError(Exception):
    """The worker that was called lives; something that it called does not."""


@dataclasses.dataclass(frozen=True)
class Node:
    """A node that is alive: what it has in all, and the address of its daemon."""

    id: str
    host: str
    port: int
    resources: Mapping[str, float]
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The nodes as they are now.

    `draining` are ids of nodes that are about to leave. An autoscaler adds nodes where it `grows`.
    """

    nodes: tuple[Node, ...]
    draining: frozenset[str] = frozenset()
    grows: bool = False

    def total(self, resource: str) -> float:
        """How much of a resource all nodes have together."""
        return sum(node.resources.get(resource, 0.0) for node in self.nodes)


class Executor(Protocol):
    """Where workers run.

    `isolates` says that each trainer is a process of its own: it can be ended while it works, and
    what fails with one may work with another.
    """

    isolates: bool

    def start(self, role: Role, name: str, avoid: Collection[str] = ()) -> Handle:
        """Starts a worker, on none of the nodes to `avoid`; returns before it has its place."""

    def call(self, worker: Handle, method: str, *arguments: Any, label: str = "") -> Future[Any]:
        """Calls a method of a worker; the label says in the executor's own displays what for.

        The answer raises `WorkerDiedError`, `CallFailedError`, or an error of ours that the worker
        raised.
        """

    def wait(self, timeout: float) -> list[Future[Any]]:
        """Answers of trainers since the last call; waits up to `timeout` seconds for the first."""

    def kill(self, worker: Handle, restart: bool = False) -> None:
        """Ends a worker, whatever it does; the aggregator may be started again."""

    def nodes(self) -> Cluster:
        """The nodes that workers may run on."""


@dataclasses.dataclass(frozen=True)
class Done:
    """The pack is stored and folded; its trainer worked on it for `seconds`.

    Which says nothing of how long a whole one takes where it went on from a checkpoint. Before
    it trained, it read the data and opened the audit for `opening` of them. `missed` of its trials
    failed.
    """

    pack: Pack
    seconds: float = 0.0
    whole: bool = True
    missed: int = 0
    opening: float = 0.0


@dataclasses.dataclass(frozen=True)
class Lost:
    """Infrastructure failed: the pack is run again with the same bits and seeds.

    It had run if the trainer had `begun`; None when that died idle. `cause` is "node" when the
    trainer's node left with it, `foreseen` when that was announced: a node that was drained, or
    taken back by its owner.
    """

    pack: Pack | None
    reason: str
    cause: Literal["trainer", "node"] = "trainer"
    foreseen: bool = False
    begun: bool = True


Outcome = Done | Failure | Lost
