"""What an executor is: five methods by which workers run somewhere, and how packs end in them.

Each is a file `<name>_executor` with a function `dispatcher(work)`, its name in `ExecutorName`.
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

Role = Literal["Trainer", "Aggregator"]  # scores go from trainers to it, not past the driver
Handle = Any  # of a worker: what its executor makes of it
NO_MEMORY = "its node ran out of memory; with resources.memory or a larger num_cpus fewer run"
TRAINER = "-trainer-"  # between the sweep's name and a number, in the names of trainers


@dataclasses.dataclass(frozen=True)
class Work:
    """What workers are started for: packs of a planned sweep; `tell` takes a line for the user."""

    sweep: Sweep
    plan: Plan
    run: RunDirectory
    packs: int
    tell: Callable[[str], None] = lambda line: None


class WorkerDiedError(Exception):
    """The worker that was called is gone.

    Attributes:
        taken_back: it had no place yet.
        of_memory: its node ran short of memory.
    """

    def __init__(self, reason: str, taken_back: bool = False) -> None:
        super().__init__(reason)
        self.taken_back = taken_back
        self.of_memory = reason == NO_MEMORY


class CallFailedError(Exception):
    """The worker that was called lives; something that it called does not."""


@dataclasses.dataclass(frozen=True)
class Node:
    """A node that is alive: what it has in all, and the address of its daemon (port 0: none)."""

    id: str
    host: str
    port: int
    resources: Mapping[str, float]
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The nodes now; those that are about to leave, by id; whether an autoscaler adds nodes.

    `memory_kills` counts, by node, the processes that were killed because its memory ran short.
    """

    nodes: tuple[Node, ...]
    draining: frozenset[str] = frozenset()
    grows: bool = False
    memory_kills: Callable[[], Mapping[str, int]] = dict


class Executor(Protocol):
    """Where workers run. Where it `isolates`, a trainer is a process that can be ended at work."""

    isolates: bool

    def start(self, role: Role, name: str, avoid: Collection[str] = ()) -> Handle:
        """Starts a worker, on none of the nodes to `avoid`; returns before it has its place."""

    def call(self, worker: Handle, method: str, *arguments: Any) -> Future[Any]:
        """Calls a method; the answer raises an error above, or what the worker raised of ours."""

    def wait(self, timeout: float) -> list[Future[Any]]:
        """Answers of trainers since the last call; waits up to `timeout` seconds for the first."""

    def kill(self, worker: Handle, restart: bool = False) -> None:
        """Ends a worker, whatever it does; the aggregator may be started again."""

    def nodes(self) -> Cluster:
        """The nodes that workers may run on."""


@dataclasses.dataclass(frozen=True)
class Done:
    """The pack is stored and folded; `missed` of its trials failed.

    Its trainer worked on it for `seconds`, on the whole of it where it began no checkpoint's. Of
    these, `opening` were spent before the training, on what other packs of the audit find done.
    """

    pack: Pack
    seconds: float = 0.0
    whole: bool = True
    missed: int = 0
    opening: float = 0.0


@dataclasses.dataclass(frozen=True)
class Lost:
    """Infrastructure failed: the pack is run again with the same bits; None where none ran.

    Its node left with the trainer where that is the `cause`, announced where it was `foreseen`.
    """

    pack: Pack | None
    reason: str
    cause: Literal["trainer", "node"] = "trainer"
    foreseen: bool = False


Outcome = Done | Failure | Lost
