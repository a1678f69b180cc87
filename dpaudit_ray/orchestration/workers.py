"""The trainers: how many there is room for, what each needs of a node, and which packs it has.

The pool follows the cluster and the work. Several sweeps may use one cluster at once: each gets as
much as it wants, up to an equal part.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

from ..errors import NoClusterError, RunDirectoryError
from ..plan import provenance
from ..plan.model import Pack
from ..plan.provenance import Machine
from ..storage.run_directory import RunDirectory
from ..sweep.resources import ResourceSpec
from ..sweep.spec import Sweep
from .executors import Cluster, Executor, Handle, Work

PACKS_PER_TRAINER = 2  # one running, one waiting: no trainer idles while the driver reacts
RESIZE_SECONDS = 2.0
PATIENT_SECONDS = 30.0  # without any trainer, before the user is told again
PENDING = 8  # trainers that may wait for nodes when few have their place
ANSWER_SECONDS = 2.0
FAULTS_PER_NODE = 2  # trainers of a node found at fault before it is left out
MACHINES_FILE = "machines.json"  # addresses by kind of machine
GIB = 2**30
_SELECTOR = re.compile(r"(!?)(?:(?:in)?\((.*)\)|(.*))", re.DOTALL)
_SHARED = ("CPU", "GPU")  # resources that sweeps share
_NAMESPACE = re.compile(r"dpaudit-[0-9a-f]+-(?P<CPU>[0-9.]+)-(?P<GPU>[0-9.]+)")
_CLOSE = 1e-9  # between floats


@dataclasses.dataclass(frozen=True)
class ResourceRequest:
    """What a trainer needs of a node: resources by Ray's names, and a label selector."""

    resources: Mapping[str, float]
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_spec(cls, spec: ResourceSpec) -> ResourceRequest:
        """What the sweep file asks for."""
        counted = {"CPU": spec.num_cpus, "GPU": spec.num_gpus, "memory": float(spec.memory)}
        amounts = counted | spec.custom_resources
        return cls({name: value for name, value in amounts.items() if value}, spec.label_selector)

    def __str__(self) -> str:
        parts = [
            f"{value / GIB:.3g} GiB memory" if name == "memory" else f"{value:g} {name}"
            for name, value in self.resources.items()
        ]
        parts += [f"{key} {value}" for key, value in self.labels.items()]
        return ", ".join(parts[:-1]) + (" and " if parts[:-1] else "") + parts[-1]

    def fits(self, resources: Mapping[str, float]) -> int:
        """How many trainers a node with these resources holds."""
        shares = [resources.get(name, 0) / value for name, value in self.resources.items()]
        return int(min(shares) + _CLOSE)  # 0.3 / 0.1 is less than 3

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels is one that the selector names."""
        for key, selector in self.labels.items():
            match = _SELECTOR.fullmatch(selector)
            assert match is not None, selector
            negated, several, single = match.groups()
            names = [single] if several is None else [name.strip() for name in several.split(",")]
            if (labels.get(key) in names) == bool(negated):
                return False
        return True

    def namespace(self, owner: str | None) -> str:
        """A name for the actors of a sweep: whose they are, and how much its trainers take.

        Other sweeps read the amounts. The random part of a driver, `owner`, stays short in it, and
        two more digits keep one that a killed driver left from clashing.
        """
        amounts = "-".join(f"{self.resources.get(name, 0):.4f}" for name in _SHARED)
        return f"{namespace_prefix(owner or secrets.token_hex(8))}{secrets.token_hex(2)}-{amounts}"


def namespace_prefix(owner: str) -> str:
    """What the namespaces of a driver begin with."""
    return f"dpaudit-{owner[:8]}"


def fair_part(others: Iterable[float]) -> float:
    """The largest part of 1 that one sweep may have beside `others`, which hold or want theirs.

    Parts are max-min fair: what one does not want is divided among the rest.
    """
    left = 1.0
    wanted = sorted(others)
    for position, want in enumerate(wanted):
        sweeps = len(wanted) - position + 1
        if want > left / sweeps:
            return left / sweeps
        left -= want
    return left


def fair_share(request: ResourceRequest, cluster: Cluster, room: int) -> tuple[int, int]:
    """Of `room` trainers, how many this sweep may keep and how many it may ask for.

    They differ by less than one trainer, so that sweeps do not pass it to and fro. Sweeps find each
    other by the names of their trainers, so what a dead one had is free at once. CPUs and GPUs are
    shared apart: who trains on GPUs is not held back by one that has all CPUs but a few.
    """
    trainers = collections.Counter(namespace for namespace, _ in cluster.foreign_trainers)
    part = 1.0
    for resource in _SHARED:
        total = cluster.total(resource)
        wanted = room * request.resources.get(resource, 0.0)
        if not total or not wanted:
            continue
        fair = fair_part(
            count * float(amounts[resource]) / total
            for namespace, count in trainers.items()
            if (amounts := _NAMESPACE.fullmatch(namespace))
        )
        if wanted / total > fair + _CLOSE:  # else it is not contended
            part = min(part, fair)
    part *= room
    return max(1, math.ceil(part - _CLOSE)), max(1, math.floor(part + _CLOSE))


@dataclasses.dataclass(frozen=True)
class Room:
    """For how many trainers: `keep` may stay on their places, `start` are started in all.

    Of those started, the cluster holds `now`; the others show demand to an autoscaler.
    """

    keep: int
    start: int
    now: int


class Places:
    """Counts what fits: at most `limit` trainers, each of which needs what `request` says.

    They never touch the run directory, so any node will do. `tell` takes a line for the user.
    """

    def __init__(
        self,
        executor: Executor,
        request: ResourceRequest,
        limit: int | None,
        tell: Callable[[str], None],
    ) -> None:
        self._executor, self._request, self._limit, self._tell = executor, request, limit, tell
        self._left_out: set[str] = set()
        self._gone: set[str] = set()
        self._faults: collections.Counter[str] = collections.Counter()
        self.daemons: dict[str, str] = {}  # HOST:PORT, by node
        self._look()

    def require_room(self) -> None:
        """Raises NoClusterError when the cluster can never hold a trainer."""
        cluster, request = self._cluster, self._request
        if self._held() or cluster.grows:
            return
        has = ", ".join(f"{cluster.total(name):g} {name}" for name in request.resources)
        raise NoClusterError(
            f"no node of this cluster fits a trainer of {request} (all nodes together have "
            f"{has}); lower resources in the sweep file"
        )

    def room(self, ready: int) -> Room:
        """For how many trainers there is room, of which `ready` have their place now."""
        self._look()
        now = self._held()
        keep, fair = fair_share(self._request, self._cluster, now)
        start = max(fair, min(ready, keep))
        if self._cluster.grows and ready <= keep:
            start += max(PENDING, ready) if self._limit is None else self._limit
        if self._limit is not None:
            keep, start = min(keep, self._limit), min(start, self._limit)
        return Room(keep, start, now)

    @property
    def leaving(self) -> set[str]:
        """Nodes that are given no more work: drained, or left out."""
        return self._left_out | self._cluster.draining

    @property
    def avoided(self) -> set[str]:
        """Nodes that no trainer is started on."""
        return self._left_out

    def tell_what_for(self, trainers: int, room: Room) -> None:
        """Says what `trainers` wait for, none of which has its place."""
        self._tell(
            f"waiting for nodes: {trainers} trainers of {self._request} are asked for, and the "
            f"cluster has room for {room.now} when nothing else runs on it"
        )

    def alive(self, node: str) -> bool:
        """Whether the node of a trainer that died is still there.

        A cluster itself notices after a quarter of a minute, so the node is asked, once.
        """
        if node in self._gone:
            return False
        for there in self._executor.nodes().nodes:
            if there.id == node:
                with contextlib.suppress(OSError):
                    socket.create_connection((there.host, there.port), ANSWER_SECONDS).close()
                    return True
        self._gone.add(node)
        return False

    def fault(self, node: str, address: str) -> None:
        """Counts a trainer that failed at what one on another node could do.

        The last node that trainers fit on is never left out.
        """
        self._faults[node] += 1
        others = self._fitting().keys() - {node}
        if self._faults[node] == FAULTS_PER_NODE and (others or self._cluster.grows):
            self._left_out.add(node)
            self._tell(
                f"node {address} is left out: {FAULTS_PER_NODE} of its trainers failed at packs "
                "that other nodes could do"
            )

    def leave_out(self, node: str, address: str, why: str) -> None:
        """Leaves out a node whose trainers would not compute what others do.

        Raises NoClusterError where no node is left, and none can come.
        """
        if node in self._left_out:
            return
        self._left_out.add(node)
        line = f"node {address} is left out: {why}"
        if not self._held() and not self._cluster.grows:
            raise NoClusterError(f"{line}, and no other node is there; install the same on all")
        self._tell(line)

    def _look(self) -> None:
        self._cluster = self._executor.nodes()
        self.daemons = {node.id: f"{node.host}:{node.port}" for node in self._cluster.nodes}

    def _held(self) -> int:
        return sum(self._fitting().values())

    def _fitting(self) -> dict[str, int]:
        """Trainers that fit on each node that stays."""
        leaving = self.leaving
        return {
            node.id: count
            for node in self._cluster.nodes
            if node.id not in leaving
            and self._request.matches(node.labels)
            and (count := self._request.fits(node.resources))
        }


@dataclasses.dataclass(eq=False)
class Worker:
    """A trainer. It is given packs once it has its place, which the answer to `greeting` tells.

    Its place is a `node`, by id, with an `address`.
    `packs` are those it has not answered: the first one runs, since `since`. It is given no more
    while packs that failed with it are tried elsewhere (`suspected`), and never again when it is
    `leaving`.
    """

    name: str
    handle: Handle
    greeting: Future[Any]
    node: str = ""
    address: str = ""
    packs: dict[Future[Any], Pack] = dataclasses.field(default_factory=dict)
    suspected: set[Pack] = dataclasses.field(default_factory=set)
    leaving: bool = False
    proven: bool = False  # it has done a pack
    since: float = 0.0

    @property
    def ready(self) -> bool:
        """Whether it has its place."""
        return bool(self.node)

    @property
    def running(self) -> Pack | None:
        """The pack that it works on."""
        return next(iter(self.packs.values()), None)

    @property
    def trusted(self) -> bool:
        """Whether it may be given new packs."""
        return self.ready and not self.leaving and not self.suspected

    def take(self, answer: Future[Any], pack: Pack) -> None:
        """Takes a pack on; it runs from now on if it is the only one."""
        if not self.packs:
            self.since = time.monotonic()
        self.packs[answer] = pack

    def finish(self, answer: Future[Any]) -> Pack:
        """Takes a pack off; the next one runs from now on."""
        self.since = time.monotonic()
        return self.packs.pop(answer)


class Pool:
    """Keeps as many trainers as there is room for, and no more than there is work for.

    With thousands of trainers nothing here looks at all of them for each pack: whoever changes a
    trainer says so (`changed`), and trainers wait by how many packs they have.

    `start` starts the trainer of a number. Each has at most `packs_per_trainer` packs at once.
    """

    def __init__(
        self,
        start: Callable[[int], Worker],
        kill: Callable[[Handle], None],
        places: Places,
        packs_per_trainer: int = PACKS_PER_TRAINER,
    ) -> None:
        self._start, self._kill, self._places, self._full = start, kill, places, packs_per_trainer
        self.workers: dict[Worker, None] = {}  # in the order in which they were started
        self.backlog: float = math.inf  # packs that are still to be handed out
        self.slots = 0  # packs that may be given to trainers now
        # Trusted trainers by how many packs they have; who came first is first.
        self._by_load: list[dict[Worker, None]] = [{} for _ in range(packs_per_trainer + 1)]
        self._loads: dict[Worker, int] = {}  # where they are listed
        self._saved: dict[Pack, int] = {}  # the last step of each pack that was told of
        self._started = 0
        self._resized = -math.inf
        self._quiet_since = time.monotonic()  # some trainer had its place, or the user was told
        self._nodes_told = False  # that nodes have to come first

    @property
    def ready(self) -> list[Worker]:
        """Trainers that have their place."""
        return [worker for worker in self.workers if worker.ready]

    def changed(self, worker: Worker) -> None:
        """To be called whenever a trainer is placed, given a pack, answers, or is not trusted."""
        before = self._loads.pop(worker, None)
        if before is not None:
            del self._by_load[before][worker]
            self.slots -= self._full - before
        if worker in self.workers and worker.trusted:
            load = self._loads[worker] = min(len(worker.packs), self._full)
            self._by_load[load][worker] = None
            self.slots += self._full - load

    def next(self) -> Worker:
        """The trainer that a new pack goes to: one with the fewest packs, where `slots` are."""
        return next(next(iter(workers)) for workers in self._by_load[:-1] if workers)

    def idle_and_full(self) -> Iterator[tuple[Worker, Worker]]:
        """Each trainer with a pack to spare, beside one that has none, while there is one."""
        idle, full = self._by_load[0], self._by_load[self._full]
        for worker in list(full) if idle else ():
            if not idle:
                return
            yield next(iter(idle)), worker

    def resize(self) -> None:
        """Starts trainers where there is room and work; gives back those that are too many."""
        now = time.monotonic()
        if now - self._resized < RESIZE_SECONDS:
            return
        self._resized = now
        ready = [worker for worker in self.ready if not worker.leaving]
        room = self._places.room(len(ready))
        work = sum(bool(worker.packs) for worker in ready) + self.backlog
        self._give_back(ready, min(room.keep, work))
        pending = [worker for worker in self.workers if not worker.ready]
        placed = sum(worker.ready and not worker.leaving for worker in self.workers)
        start = int(min(room.start, work))
        for worker in pending[max(0, start - placed) :]:  # the newest: the others wait longer
            self.remove(worker)
        for _ in range(start - placed - len(pending)):
            self.workers[self._start(self._started)] = None
            self._started += 1
        if ready or not start:
            self._quiet_since, self._nodes_told = now, False
        elif now - self._quiet_since > PATIENT_SECONDS or not (room.now or self._nodes_told):
            self._quiet_since, self._nodes_told = now, True
            self._places.tell_what_for(start, room)

    def remove(self, worker: Worker) -> tuple[Pack, ...]:
        """Ends a trainer; returns the packs it did not answer."""
        del self.workers[worker]
        self.changed(worker)
        self._kill(worker.handle)  # also when it only seemed dead: none may work unseen
        return tuple(worker.packs.values())

    def replace(self, worker: Worker) -> tuple[Pack, ...]:
        """Ends a trainer whose place is filled at once; returns the packs it did not answer."""
        self._resized = -math.inf
        return self.remove(worker)

    def checkpoints_saved(self, steps: Mapping[Pack, int]) -> None:
        """Takes the last saved step of each pack: a new one is a sign of life of its trainer."""
        fresh = {pack for pack, step in steps.items() if self._saved.get(pack) != step}
        self._saved = dict(steps)
        for worker in self.ready if fresh else ():
            if worker.running in fresh:
                worker.since = time.monotonic()

    def overdue(
        self, limit: Callable[[Pack], float], since: float = -math.inf
    ) -> Iterator[tuple[Worker, float]]:
        """Trainers silent for longer than their pack may take, from `since` on; and that time."""
        now = time.monotonic()
        for worker in self.ready:
            silent = now - max(worker.since, since)
            if worker.running is not None and silent > (seconds := limit(worker.running)):
                yield worker, seconds

    def _give_back(self, ready: list[Worker], keep: float) -> None:
        """Idle trainers go first; busy ones end their packs."""
        nodes = self._places.leaving
        staying = [worker for worker in ready if worker.node not in nodes]
        staying.sort(key=lambda worker: (len(worker.packs), -len(worker.name), worker.name))
        too_many = staying[: int(max(0, len(staying) - keep))]
        for worker in (*(worker for worker in ready if worker.node in nodes), *too_many):
            worker.leaving = True
            self.changed(worker)
        for worker in list(self.workers):
            if worker.leaving and not worker.packs and not worker.suspected:
                self.remove(worker)


def threads(sweep: Sweep) -> int:
    """How many threads a trainer computes on: by the sweep, whatever the machine has."""
    return max(1, int(sweep.resources.num_cpus))


def recorded_machines(run: RunDirectory) -> dict[str, list[str]]:
    """Addresses of the machines that trained, by kind; damage counts as nothing known."""
    try:
        raw: Any = run.read_json(MACHINES_FILE) or {}
        return {
            str(kind): sorted({str(address) for address in addresses})
            for kind, addresses in raw.items()
        }
    except (RunDirectoryError, AttributeError, TypeError):
        return {}


class MachineCompatibility:
    """Admits machines to the run of a plan.

    Scores are bit-identical on one kind of machine, with one number of threads: another instruction
    set adds in another order, and threads share the models out in other groups. Both are recorded
    in the run directory and told; versions of the code must be the driver's.
    """

    def __init__(self, work: Work) -> None:
        sweep, plan = work.sweep, work.plan
        on_cpu = sweep.resources.num_gpus == 0
        grouped = threads(sweep) > 1 and on_cpu and any(c.mechanism.uses_torch for c in sweep.cells)
        self._grouping = f", {threads(sweep)} threads" if grouped else ""
        self._code = plan.code[-1]
        self._run, self._tell = work.run, work.tell
        self._kinds = recorded_machines(work.run)
        self._mixing_told = False

    @property
    def modules(self) -> tuple[str, ...]:
        """The user's, which a machine is to be asked about."""
        return tuple(self._code.modules)

    def admit(self, address: str, machine: Machine) -> str | None:
        """Takes what a trainer says of its machine; why it may not train, None where it may."""
        if why := provenance.unlike(self._code, machine):
            return why
        kind = machine.device + self._grouping
        if address not in self._kinds.setdefault(kind, []):
            self._kinds[kind].append(address)
            self._run.write_json(MACHINES_FILE, self._kinds)
        if len(self._kinds) > 1 and not self._mixing_told:
            self._mixing_told = True
            self._tell(
                f"warning: trials run on several kinds of machine ({'; '.join(self._kinds)}): "
                "scores are equal in distribution, and may differ in last bits"
            )
        return None
