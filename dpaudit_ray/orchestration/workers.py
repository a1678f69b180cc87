"""The trainers: how many there is room for, what each needs of a node, and which pack it has."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import re
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from ..errors import NoClusterError, RunDirectoryError
from ..plan import provenance
from ..plan.model import Pack
from ..plan.provenance import Machine
from ..storage.run_directory import RunDirectory
from ..sweep.resources import ResourceSpec
from ..sweep.spec import Sweep
from .executors import Executor, Handle, Work

RESIZE_SECONDS = 2.0
PATIENT_SECONDS = 30.0  # without any trainer, before the user is told again
PENDING = 8  # trainers that may wait for nodes when few have their place
ANSWER_SECONDS = 2.0
FAULTS_PER_NODE = 2  # trainers of a node found at fault before it is left out
MEMORY_KILLS = 2  # trainers of a node killed for its memory before it gets one trainer less
LONE_MEMORY_KILLS = 3  # the same of a trainer that is alone, before its node is left out
SHORTAGE_SECONDS = 600.0  # with a trainer less, before one more is tried; doubled each time
MACHINES_FILE = "machines.json"  # addresses by kind of machine
GIB = 2**30
_SELECTOR = re.compile(r"(!?)(?:(?:in)?\((.*)\)|(.*))", re.DOTALL)


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
            f"{value / GIB:.4g} GiB memory" if name == "memory" else f"{value:g} {name}"
            for name, value in self.resources.items()
        ]
        return ", ".join([*parts, *(f"{key} {value}" for key, value in self.labels.items())])

    def fits(self, resources: Mapping[str, float]) -> int:
        """How many trainers a node with these resources holds."""
        return min(
            _parts(resources.get(name, 0), amount, whole_devices=name == "GPU")
            for name, amount in self.resources.items()
        )

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


def _parts(available: float, amount: float, whole_devices: bool) -> int:
    """Returns how often an amount fits into what is available.

    Args:
        available: of a node.
        amount: of a trainer.
        whole_devices: an amount below 1 comes from one device: two GPUs hold 0.6 twice.
    """
    slack = 1e-9  # 0.3 / 0.1 is less than 3
    if whole_devices and amount < 1:
        return int(available) * int(1 / amount + slack)
    return int(available / amount + slack)


class Places:
    """Counts what fits: at most `limit` trainers, each of which needs what `request` says."""

    def __init__(
        self,
        executor: Executor,
        request: ResourceRequest,
        limit: int | None,
        tell: Callable[[str], None],
    ) -> None:
        self._executor, self._request, self._limit, self._tell = executor, request, limit, tell
        self.avoided: set[str] = set()  # nodes that no trainer is started on
        self._gone: set[str] = set()
        self._faults: collections.Counter[str] = collections.Counter()
        self._cluster = executor.nodes()
        self._memory_kills = collections.Counter(self._cluster.memory_kills())
        self._shortages: dict[str, Shortage] = {}

    def require_room(self) -> None:
        """Raises NoClusterError when the cluster can never hold a trainer."""
        cluster, request = self._cluster, self._request
        if self._fitting() or cluster.grows:
            return
        has = ", ".join(
            f"{sum(node.resources.get(name, 0) for node in cluster.nodes):g} {name}"
            for name in request.resources
        )
        raise NoClusterError(
            f"no node of this cluster fits a trainer of {request} (all nodes together have "
            f"{has}); lower resources in the sweep file"
        )

    def room(self, ready: int) -> tuple[int, int]:
        """Trainers to have, `ready` ones too, others to show demand; how many of them fit now."""
        self._cluster = self._executor.nodes()
        now = sum(self._fitting().values())
        wanted = max(1, now)
        if self._cluster.grows and ready <= wanted:
            wanted += max(PENDING, ready) if self._limit is None else self._limit
        return wanted if self._limit is None else min(wanted, self._limit), now

    @property
    def leaving(self) -> set[str]:
        """Nodes that are given no more work: drained, or left out."""
        return self.avoided | self._cluster.draining

    def crowded(self, trainers: Mapping[str, int]) -> set[str]:
        """Returns the nodes that ran out of memory and have as many trainers as they may have."""
        return {node for node in self._shortages if trainers.get(node, 0) >= self._most(node)}

    def new_memory_kill(self, node: str = "") -> str:
        """Returns a node where one more process was killed for its memory; "" if there is none.

        Args:
            node: the only node to consider; all nodes by default.
        """
        kills = self._cluster.memory_kills()
        for there in (node,) if node else kills:
            if kills.get(there, 0) > self._memory_kills[there]:
                self._memory_kills[there] += 1
                return there
        return ""

    def trainer_killed(self, node: str, address: str, trainers: int) -> bool:
        """Counts a trainer that was killed because the memory of its node ran short.

        After some, the node gets one trainer less. If the trainer was alone, the node is left out.

        Args:
            node: id of the node.
            address: the node's address, for the user.
            trainers: trainers on the node before that, the killed one too.

        Returns:
            Whether other trainers took memory as well, so that its pack may fit.

        Raises:
            NoClusterError: no other node is there.
        """
        shortage = self._shortages.setdefault(node, Shortage())
        shortage.trainers = max(shortage.trainers, trainers)
        crowd = shortage.trainers
        if crowd == 1:
            shortage.lone_kills += 1
            if shortage.lone_kills >= LONE_MEMORY_KILLS:
                times = f"killed {shortage.lone_kills} times"
                why = f"its memory does not hold a single trainer, {times}"
                remedy = "lower mechanism.batch_size or resources.pack_size, or use a larger node"
                self.leave_out(node, address, why, remedy)
            return False
        shortage.kills += 1
        if shortage.kills >= MEMORY_KILLS:
            shortage.reduce(crowd - 1)
            self._tell(
                f"node {address} ran out of memory {MEMORY_KILLS} times: it runs {crowd - 1} of "
                f"{crowd} trainers for a while; set resources.memory to what one trainer needs"
            )
        return True

    def pack_done(self, node: str) -> None:
        """Takes note that the memory of a node holds a trainer."""
        if node in self._shortages:
            self._shortages[node].lone_kills = 0

    def _most(self, node: str) -> float:
        """Returns how many trainers a node may have, as far as its memory is known."""
        shortage = self._shortages.get(node)
        return math.inf if shortage is None else shortage.most()

    def tell_what_for(self, trainers: int, room: int) -> None:
        """Says what `trainers` wait for, none of which has its place."""
        self._tell(
            f"waiting for nodes: {trainers} trainers of {self._request} are asked for, and the "
            f"cluster has room for {room} when nothing else runs on it"
        )

    def alive(self, node: str) -> bool:
        """Whether the node of a trainer that died answers, once: a cluster notices after 15 s."""
        if node in self._gone:
            return False
        for there in self._executor.nodes().nodes:
            if there.id == node:
                if not there.port:
                    return True
                with contextlib.suppress(OSError):
                    socket.create_connection((there.host, there.port), ANSWER_SECONDS).close()
                    return True
        self._gone.add(node)
        return False

    def fault(self, node: str, address: str) -> None:
        """Counts a trainer that failed at what one elsewhere could do; the last node is kept."""
        self._faults[node] += 1
        others = self._fitting().keys() - {node}
        if self._faults[node] == FAULTS_PER_NODE and (others or self._cluster.grows):
            self.avoided.add(node)
            self._tell(
                f"node {address} is left out: {FAULTS_PER_NODE} of its trainers failed at packs "
                "that other nodes could do"
            )

    def leave_out(self, node: str, address: str, why: str, remedy: str) -> None:
        """Starts no more trainers on a node; NoClusterError without another one."""
        if node in self.avoided:
            return
        self.avoided.add(node)
        line = f"node {address} is left out: {why}"
        if not self._fitting() and not self._cluster.grows:
            raise NoClusterError(f"{line}, and no other node is there; {remedy}")
        self._tell(line)

    def _fitting(self) -> dict[str, int]:
        leaving = self.leaving
        fitting: dict[str, int] = {}
        for node in self._cluster.nodes:
            if node.id in leaving or not self._request.matches(node.labels):
                continue
            count = self._request.fits(node.resources)
            if count > 0:
                fitting[node.id] = int(min(count, self._most(node.id)))
        return fitting


@dataclasses.dataclass
class Shortage:
    """Trainers of a node that were killed for its memory.

    Attributes:
        kills: killed beside others since the node last got a trainer less.
        trainers: the most that were there at one of these kills.
        lone_kills: killed alone since a pack was last done there.
        limit: how many may be there.
        until: when one more is tried, by `time.monotonic`.
        wait: seconds until then.
    """

    kills: int = 0
    trainers: int = 0
    lone_kills: int = 0
    limit: float = math.inf
    until: float = math.inf
    wait: float = SHORTAGE_SECONDS

    def reduce(self, limit: int) -> None:
        """Lets the node have no more than `limit` trainers for a while."""
        self.kills = self.trainers = 0
        self.limit = limit
        self.until = time.monotonic() + self.wait
        self.wait *= 2

    def most(self) -> float:
        """Returns how many trainers the node may have now."""
        if time.monotonic() >= self.until:
            self.limit += 1
            self.until = time.monotonic() + self.wait
        return self.limit


@dataclasses.dataclass(eq=False)
class Worker:
    """A trainer, which has worked on its `pack` since `since`.

    Its place is a `node`, by id, with an `address`: the answer to `greeting` tells. It gets no pack
    while some that failed with it are tried elsewhere (`suspected`), nor when it is `leaving`.
    """

    name: str
    handle: Handle
    greeting: Future[Any]
    node: str = ""
    address: str = ""
    pack: Pack | None = None
    suspected: set[Pack] = dataclasses.field(default_factory=set)
    leaving: bool = False
    proven: bool = False  # it has done a pack
    since: float = 0.0

    @property
    def trusted(self) -> bool:
        """Whether it may be given new packs."""
        return bool(self.node) and not self.leaving and not self.suspected


class Pool:
    """Keeps as many trainers as there is room for, and no more than there is work for.

    `start` starts the trainer of a number, in a place on a node; `kill` ends its process. Nothing
    here looks at all of them for each pack: whoever changes a trainer says so (`changed`).
    """

    def __init__(
        self, start: Callable[[int], Worker], kill: Callable[[Handle], None], places: Places
    ) -> None:
        self._start, self._kill, self._places = start, kill, places
        self.workers: dict[Worker, None] = {}  # in the order in which they were started
        self.backlog: float = math.inf  # packs that are still to be handed out
        self.idle: dict[Worker, None] = {}  # trusted, without a pack; who came first is first
        self._saved: dict[Pack, int] = {}  # the last step of each pack that was told of
        self._started = 0  # trainers so far: the next one's number
        self._resized = -math.inf  # when their number was last fitted to room and work
        self._quiet_since = time.monotonic()  # some trainer had its place, or the user was told
        self._nodes_told = False  # that nodes have to come first

    @property
    def ready(self) -> list[Worker]:
        """Trainers that have their place."""
        return [worker for worker in self.workers if worker.node]

    def changed(self, worker: Worker) -> None:
        """To be called whenever a trainer is placed, given a pack, answers, or is not trusted."""
        if worker in self.workers and worker.trusted and worker.pack is None:
            self.idle[worker] = None
        else:
            self.idle.pop(worker, None)

    def resize(self) -> None:
        """Starts trainers where there is room and work; gives back those that are too many."""
        if (now := time.monotonic()) - self._resized < RESIZE_SECONDS:
            return
        self._resized = now
        ready = [worker for worker in self.ready if not worker.leaving]
        wanted, room = self._places.room(len(ready))
        start = int(min(wanted, sum(worker.pack is not None for worker in ready) + self.backlog))
        self._give_back(ready, start)
        pending = [worker for worker in self.workers if not worker.node]
        placed = sum(bool(worker.node) and not worker.leaving for worker in self.workers)
        for worker in pending[max(0, start - placed) :]:  # the newest: the others wait longer
            self.remove(worker)
        for _ in range(start - placed - len(pending)):
            self.workers[self._start(self._started)] = None
            self._started += 1
        if ready or not start:
            self._quiet_since, self._nodes_told = now, False
        elif now - self._quiet_since > PATIENT_SECONDS or not (room or self._nodes_told):
            self._quiet_since, self._nodes_told = now, True
            self._places.tell_what_for(start, room)

    def remove(self, worker: Worker) -> Pack | None:
        """Ends a trainer; returns the pack that it did not answer."""
        del self.workers[worker]
        self.changed(worker)
        self._kill(worker.handle)  # also when it only seemed dead: none may work unseen
        return worker.pack

    def replace(self, worker: Worker) -> Pack | None:
        """Ends a trainer whose place is filled at once; returns the pack it did not answer."""
        self._resized = -math.inf
        return self.remove(worker)

    def checkpoints_saved(self, steps: Mapping[Pack, int]) -> None:
        """Takes the last saved step of each pack: a new one is a sign of life of its trainer."""
        fresh = {pack for pack, step in steps.items() if self._saved.get(pack) != step}
        self._saved = dict(steps)
        for worker in self.ready if fresh else ():
            if worker.pack in fresh:
                worker.since = time.monotonic()

    def _give_back(self, ready: list[Worker], keep: int) -> None:
        """Idle trainers go first; busy ones end their packs."""
        nodes = self._places.leaving
        staying = [worker for worker in ready if worker.node not in nodes]
        staying.sort(key=lambda worker: (worker.pack is not None, -len(worker.name), worker.name))
        too_many = staying[: max(0, len(staying) - keep)]
        for worker in (*(worker for worker in ready if worker.node in nodes), *too_many):
            worker.leaving = True
            self.changed(worker)
        for worker in list(self.workers):
            if worker.leaving and worker.pack is None and not worker.suspected:
                self.remove(worker)


def threads(sweep: Sweep) -> int:
    """How many threads a trainer computes on: by the sweep, whatever the machine has."""
    return max(1, int(sweep.resources.num_cpus))


def recorded_machines(run: RunDirectory) -> dict[str, list[str]]:
    """Addresses of the machines that trained, by kind; damage counts as nothing known."""
    try:
        raw: Any = run.read_json(MACHINES_FILE) or {}
        return {str(kind): sorted(set(map(str, those))) for kind, those in raw.items()}
    except (RunDirectoryError, AttributeError, TypeError):
        return {}


class MachineCompatibility:
    """Admits machines whose code has the driver's versions; tells when their kinds differ.

    Scores are bit-identical on one kind of machine, with one number of threads.
    """

    def __init__(self, work: Work) -> None:
        sweep = work.sweep
        on_cpu = sweep.resources.num_gpus == 0
        grouped = threads(sweep) > 1 and on_cpu and any(c.mechanism.uses_torch for c in sweep.cells)
        self._grouping = f", {threads(sweep)} threads" if grouped else ""
        self._code = work.plan.code[-1]
        self._run, self._tell = work.run, work.tell
        self._kinds = recorded_machines(work.run)
        self._mixing_told = False
        self.modules = tuple(self._code.modules)  # the user's, which a machine is to be asked about

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
