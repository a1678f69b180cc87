"""Defines an executor: five methods by which workers run somewhere, and the outcomes of packs.

Each is a file `<name>_executor` with a function `dispatcher(work)`, its name in `ExecutorName`.
"""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ..plan.model import Pack, Plan
from ..plan.outcomes import Failure
from ..storage.run_directory import RunDirectory
from ..sweep.spec import Sweep
from .progress import Tell, tell_nobody

Role = Literal["Trainer", "Aggregator"]  # trainers send scores to the aggregator
Handle = Any  # a reference to a worker, of a type that its executor chooses
NO_MEMORY = "its node ran out of memory; with resources.memory or a larger num_cpus fewer run"
TRAINER = "-trainer-"  # between the sweep's name and a number, in the names of trainers


@dataclass(frozen=True)
class Work:
    """A planned sweep for which workers are started.

    Attributes:
        sweep: the sweep.
        plan: plan of the sweep.
        run: run directory of the sweep.
        packs: number of packs that are to be run.
        tell: takes a line for the user.
    """

    sweep: Sweep
    plan: Plan
    run: RunDirectory
    packs: int
    tell: Tell = tell_nobody


class WorkerDiedError(Exception):
    """The worker that was called is gone.

    Attributes:
        taken_back: the worker was not placed on a node yet.
        of_memory: the worker's node ran short of memory.
    """

    def __init__(self, reason: str, taken_back: bool = False) -> None:
        """Takes the reason in the words of Ray; NO_MEMORY if memory ran short."""
        super().__init__(reason)
        self.taken_back = taken_back
        self.of_memory = reason == NO_MEMORY


class CallFailedError(Exception):
    """The worker that was called lives; another process that it called does not."""


@dataclass(frozen=True)
class Node:
    """A node that is alive, all its resources, and its daemon's address (port 0: no daemon)."""

    id: str
    host: str
    port: int
    resources: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cluster:
    """The nodes at present.

    Attributes:
        nodes: the nodes that are alive.
        draining: ids of nodes that are about to leave.
        grows: whether an autoscaler adds nodes.
        memory_kills: counts, by node, the processes that were killed because its memory ran short.
    """

    nodes: tuple[Node, ...]
    draining: frozenset[str] = frozenset()
    grows: bool = False
    memory_kills: Callable[[], Mapping[str, int]] = dict


class Executor(Protocol):
    """Runs workers.

    Attributes:
        isolates: a trainer is a separate process, which can be ended at work.
    """

    isolates: bool

    def start(
        self,
        role: Role,
        name: str,
        avoid: Collection[str] = (),
    ) -> Handle:
        """Starts a worker; returns before a node has it.

        Args:
            role: trainer or aggregator.
            name: name of the worker.
            avoid: ids of nodes that it is not started on.
        """

    def call(
        self,
        worker: Handle,
        method: str,
        *arguments: Any,
    ) -> Future[Any]:
        """Calls a method.

        The answer raises WorkerDiedError, CallFailedError, or a DpauditError of the worker.
        """

    def wait(self, timeout: float) -> list[Future[Any]]:
        """Returns new answers of trainers; waits up to `timeout` seconds for the first."""

    def kill(self, worker: Handle, restart: bool = False) -> None:
        """Ends a worker at once; with `restart`, the aggregator is started again."""

    def nodes(self) -> Cluster:
        """Returns the nodes that workers may run on."""


@dataclass(frozen=True)
class Done:
    """A pack that is stored and folded.

    Attributes:
        pack: the pack's trials, or a part of a preparation.
        seconds: time that its trainer took.
        from_start: the pack was trained from its beginning, and not from a checkpoint.
        missed: number of its trials that failed.
        opening: seconds before the training, which later packs of the audit do not take.
    """

    pack: Pack
    seconds: float = 0.0
    from_start: bool = True
    missed: int = 0
    opening: float = 0.0


@dataclass(frozen=True)
class Lost:
    """A trainer that infrastructure has ended.

    Attributes:
        pack: the trainer's pack, run again with the same bits; None if it had none.
        reason: why the trainer ended, in words for the user.
        cause: "node" if the trainer's node left with it.
        foreseen: the end was announced, and does not count against the pack.
    """

    pack: Pack | None
    reason: str
    cause: Literal["trainer", "node"] = "trainer"
    foreseen: bool = False


Outcome = Done | Failure | Lost
