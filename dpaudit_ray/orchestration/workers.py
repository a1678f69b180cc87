"""Trainers as the driver sees them: how many the cluster has room for, and which pack each has."""

import contextlib
import math
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from ..errors import NoClusterError, RunDirectoryError
from ..plan import provenance
from ..plan.model import Pack
from ..storage.run_directory import RunDirectory
from ..sweep.resources import ResourceSpec
from ..sweep.spec import Sweep
from .executors import Executor, Handle, Work
from .progress import Tell

RESIZE_SECONDS = 2.0
PATIENT_SECONDS = 30.0  # without any trainer, until the user is told again
PENDING = 8  # trainers that may wait for nodes while few run on one
ANSWER_SECONDS = 2.0  # time for an answer of a node's daemon
FAULTS_PER_NODE = 2  # trainers of a node found at fault before it is left out
MEMORY_KILLS = 2  # trainers of a node killed for its memory before it gets one trainer less
LONE_MEMORY_KILLS = 3  # kills of a trainer that is alone on its node before that is left out
SHORTAGE_SECONDS = 600.0  # until a node with one trainer less gets it back; doubled each time
MACHINES_FILE = "machines.json"  # addresses by kind of machine
GIB = 2**30


@dataclass(frozen=True)
class ResourceRequest:
    """The resources of a node that a trainer needs, by Ray's names, and a label selector."""

    resources: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_spec(cls, spec: ResourceSpec) -> "ResourceRequest":
        """Returns the request of a sweep file."""
        amounts = {"CPU": spec.num_cpus, "GPU": spec.num_gpus, "memory": float(spec.memory)}
        amounts |= spec.custom_resources
        return cls({name: value for name, value in amounts.items() if value}, spec.label_selector)

    def __str__(self) -> str:
        """Returns the amounts and labels in words, for messages."""
        words = [
            f"{value / GIB:.4g} GiB memory" if name == "memory" else f"{value:g} {name}"
            for name, value in self.resources.items()
        ]
        words += [f"{key} {value}" for key, value in self.labels.items()]
        return ", ".join(words)

    def fits(self, resources: Mapping[str, float]) -> int:
        """Returns how many trainers a node with these resources holds."""
        slack = 1e-9  # 0.3 / 0.1 is less than 3, by rounding
        trainers_by_resource = []
        for name, amount in self.resources.items():
            available = resources.get(name, 0)
            if name == "GPU" and amount < 1:
                # A share comes from a single device: two devices hold 0.6 twice, not three times.
                trainers_by_resource.append(int(available) * int(1 / amount + slack))
            else:
                trainers_by_resource.append(int(available / amount + slack))
        return min(trainers_by_resource)

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Returns whether labels match all selectors (`a`, `!a`, `in(a, b)` or `!in(a, b)`)."""
        for key, selector in self.labels.items():
            choice = selector.removeprefix("!")
            values = [choice]
            if choice.endswith(")"):
                names = choice.removeprefix("in").strip("()").split(",")
                values = [name.strip() for name in names]
            if (labels.get(key) in values) == selector.startswith("!"):
                return False
        return True


class Capacity:
    """Counts the trainers that fit on the nodes of the cluster, and the faults of nodes."""

    def __init__(
        self, executor: Executor, request: ResourceRequest, limit: int | None, tell: Tell
    ) -> None:
        """Reads the nodes of the cluster.

        Args:
            executor: lists the nodes.
            request: the resources that each trainer needs.
            limit: most trainers at a time; None: as many as fit.
            tell: takes a line for the user.
        """
        self._executor = executor
        self._request = request
        self._limit = limit
        self._tell = tell
        # Keys are ids of nodes.
        self.avoided = set[str]()  # nodes that no trainer is started on
        self._ended_nodes = set[str]()
        self._faults = Counter[str]()  # trainers that were found at fault
        self._cluster = executor.nodes()
        self._memory_kills = Counter(self._cluster.memory_kills())  # kills that were noticed
        self._shortages = defaultdict[str, Shortage](Shortage)

    def require_room(self) -> None:
        """Raises NoClusterError if the cluster can never hold a trainer."""
        if self._fitting() or self._cluster.grows:
            return
        totals = []
        for name in self._request.resources:
            amount = sum(node.resources.get(name, 0) for node in self._cluster.nodes)
            totals.append(f"{amount:g} {name}")
        raise NoClusterError(
            f"no node of this cluster fits a trainer of {self._request} (all nodes together have "
            f"{', '.join(totals)}); lower resources in the sweep file"
        )

    def trainer_target(self, ready: int) -> tuple[int, int]:
        """Returns how many trainers there should be, and how many fit on the nodes now.

        The first number is larger if an autoscaler adds nodes for trainers that wait.

        Args:
            ready: trainers that run on a node by now.
        """
        self._cluster = self._executor.nodes()
        fitting = sum(self._fitting().values())
        target = max(1, fitting)
        may_grow = self._cluster.grows and ready <= target
        if self._limit is None:
            target += max(PENDING, ready) if may_grow else 0
        elif may_grow:
            target = self._limit
        else:
            target = min(target, self._limit)
        return target, fitting

    @property
    def leaving(self) -> set[str]:
        """Nodes that are given no more work: drained, or left out."""
        return self.avoided | self._cluster.draining

    def crowded(self, trainers: Mapping[str, int]) -> set[str]:
        """Returns the nodes that ran out of memory and already have all trainers they may have.

        Args:
            trainers: number of trainers, by id of the node.
        """
        limits = {node: shortage.trainer_limit() for node, shortage in self._shortages.items()}
        return {node for node, limit in limits.items() if trainers.get(node, 0) >= limit}

    def new_memory_kill(self, node: str = "") -> str:
        """Returns a node where one more process was killed for its memory, or "".

        Args:
            node: the only node to consider; all nodes by default.
        """
        kills = self._cluster.memory_kills()
        for candidate in (node,) if node else kills:
            if kills.get(candidate, 0) > self._memory_kills[candidate]:
                self._memory_kills[candidate] += 1  # so that each kill is returned once
                return candidate
        return ""

    def count_memory_kill(self, node: str, address: str, trainers: int) -> bool:
        """Counts a trainer that was killed because the memory of its node ran short.

        After some kills, the node gets one trainer less. If the trainer was alone, the node is
        left out.

        Args:
            node: id of the node.
            address: the node's address, for the user.
            trainers: trainers on the node before the kill.

        Returns:
            Whether other trainers took memory as well, so that the trainer's pack may fit.

        Raises:
            NoClusterError: the node is left out, and there is no other.
        """
        shortage = self._shortages[node]
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
        """Resets the count of lone trainers killed: the node's memory holds one after all."""
        self._shortages[node].lone_kills = 0

    def tell_waiting(self, trainers: int, room: int) -> None:
        """Reports what the trainers wait for, if none of them is placed on a node.

        Args:
            trainers: number of trainers that are requested.
            room: number of trainers that fit on the nodes if nothing else runs there.
        """
        self._tell(
            f"waiting for nodes: {trainers} trainers of {self._request} are requested, and the "
            f"cluster has room for {room} when nothing else runs on it"
        )

    def alive(self, node: str) -> bool:
        """Returns whether the node of a trainer that died still answers.

        A cluster notices the end of a node only after 15 s, so a connection to the node is tried.
        If that fails once, the node counts as ended.
        """
        if node in self._ended_nodes:
            return False
        for listed in self._executor.nodes().nodes:
            if listed.id == node:
                if not listed.port:  # the node has no daemon that could answer
                    return True
                with contextlib.suppress(OSError):
                    socket.create_connection((listed.host, listed.port), ANSWER_SECONDS).close()
                    return True
        self._ended_nodes.add(node)
        return False

    def count_fault(self, node: str, address: str) -> None:
        """Counts a trainer that failed at a pack that a trainer of another node has done.

        After FAULTS_PER_NODE of them, the node is left out, unless it is the last one.

        Args:
            node: id of the trainer's node.
            address: the node's address, for the user.
        """
        self._faults[node] += 1
        is_last = not self._cluster.grows and not self._fitting().keys() - {node}
        if self._faults[node] == FAULTS_PER_NODE and not is_last:
            why = f"{FAULTS_PER_NODE} of its trainers failed at packs that other nodes could do"
            self.leave_out(node, address, why)

    def leave_out(
        self,
        node: str,
        address: str,
        why: str,
        remedy: str = "",
    ) -> None:
        """Starts no more trainers on a node.

        Args:
            node: id of the node.
            address: the node's address, for the user.
            why: the reason, for the user.
            remedy: what the user can do if there is no other node.

        Raises:
            NoClusterError: there is no other node.
        """
        if node in self.avoided:
            return
        self.avoided.add(node)
        line = f"node {address} is left out: {why}"
        if not self._fitting() and not self._cluster.grows:
            raise NoClusterError(f"{line}, and no other node is there; {remedy}")
        self._tell(line)

    def _fitting(self) -> dict[str, int]:
        """Returns how many trainers fit on each node; nodes on which none fits are left out."""
        leaving = self.leaving
        fitting = {}
        for node in self._cluster.nodes:
            if node.id in leaving or not self._request.matches(node.labels):
                continue
            count = min(
                self._request.fits(node.resources), self._shortages[node.id].trainer_limit()
            )
            if count > 0:
                fitting[node.id] = int(count)
        return fitting


@dataclass
class Shortage:
    """Trainers of a node that were killed for its memory, and the limit that follows.

    Attributes:
        kills: trainers killed while others ran there, since the node last got one less.
        trainers: the most trainers that ran there at one of these kills.
        lone_kills: trainers killed while alone there, since a pack was last done there.
        limit: number of trainers that may run there.
        until: when one more trainer is tried, by `time.monotonic`.
        wait: seconds from a reduction until then.
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

    def trainer_limit(self) -> float:
        """Returns how many trainers the node may have now."""
        if time.monotonic() >= self.until:
            self.limit += 1
            self.until = time.monotonic() + self.wait
        return self.limit


@dataclass(eq=False)
class Worker:
    """A trainer, as the driver sees it.

    Attributes:
        name: name of the trainer for the executor and the user.
        handle: the executor's reference to it.
        greeting: the answer to the first call, with node, address and machine.
        node: id of its node; "" until it is placed on one.
        address: the node's address, for the user.
        pack: the pack that it works on.
        suspected: packs that failed on it and are tried elsewhere; it gets no pack meanwhile.
        leaving: the trainer gets no more packs.
        proven: the trainer has done a pack.
        since: when the trainer got its pack, or last showed life, by `time.monotonic`.
    """

    name: str
    handle: Handle
    greeting: Future[Any]
    node: str = ""
    address: str = ""
    pack: Pack | None = None
    suspected: set[Pack] = field(default_factory=set)
    leaving: bool = False
    proven: bool = False
    since: float = 0.0

    def __str__(self) -> str:
        """Returns its name, and its node once it has one."""
        return f"{self.name} on node {self.address}" if self.node else self.name

    @property
    def trusted(self) -> bool:
        """Whether it may be given new packs."""
        return bool(self.node) and not self.leaving and not self.suspected


class Pool:
    """Keeps as many trainers as fit on the nodes, and no more than there is work for.

    No method that is called for each pack walks through all trainers: `update_idle` keeps `idle`.

    Attributes:
        workers: all trainers, in the order in which they were started.
        backlog: packs that are not handed out yet.
        idle: trusted trainers without a pack, in the order in which they became so.
    """

    def __init__(
        self,
        start: Callable[[int], Worker],
        kill: Callable[[Handle], None],
        capacity: Capacity,
    ) -> None:
        """Starts no trainer yet.

        Args:
            start: starts the trainer of a number.
            kill: ends a trainer's process.
            capacity: counts the trainers that fit.
        """
        self._start = start
        self._kill = kill
        self._capacity = capacity
        self.workers: dict[Worker, None] = {}
        self.backlog: float = math.inf
        self.idle: dict[Worker, None] = {}
        # Times are those of `time.monotonic`.
        self._saved_steps: dict[Pack, int] = {}  # the last step of each pack that was saved
        self._next_number = 0  # number of the next trainer
        self._last_resize = -math.inf  # when the number of trainers was last adjusted
        # When a trainer last ran on a node, or the user was last told that none does.
        self._waiting_since = time.monotonic()
        self._has_reported_nodes = False  # the user knows that nodes have to come first

    @property
    def ready(self) -> list[Worker]:
        """Trainers that are placed on a node."""
        return [worker for worker in self.workers if worker.node]

    def update_idle(self, worker: Worker) -> None:
        """Updates `idle`; called when a trainer is placed, gets a pack, answers or loses trust."""
        if worker in self.workers and worker.trusted and not worker.pack:
            self.idle[worker] = None
        else:
            self.idle.pop(worker, None)

    def resize(self) -> None:
        """Starts trainers if there is room and work for more, and ends those that are too many."""
        now = time.monotonic()
        if now - self._last_resize < RESIZE_SECONDS:
            return
        self._last_resize = now
        placed = [worker for worker in self.ready if not worker.leaving]
        busy = sum(worker.pack is not None for worker in placed)
        allowed, room = self._capacity.trainer_target(len(placed))
        target = int(min(allowed, busy + self.backlog))
        self._dismiss(placed, target)
        # `_dismiss` has removed some, and made others leave once their packs are done.
        missing = target - sum(not worker.leaving for worker in self.ready)
        pending = [worker for worker in self.workers if not worker.node]
        for worker in pending[max(0, missing) :]:  # the newest: the others have waited longer
            self.remove(worker)
        for _ in range(missing - len(pending)):
            self.workers[self._start(self._next_number)] = None
            self._next_number += 1
        # If no trainer is placed, the user is told at once that nodes have to come first, and
        # after each PATIENT_SECONDS.
        if placed or not target:
            self._waiting_since = now
            self._has_reported_nodes = False
        elif now - self._waiting_since > PATIENT_SECONDS or not (room or self._has_reported_nodes):
            self._waiting_since = now
            self._has_reported_nodes = True
            self._capacity.tell_waiting(target, room)

    def remove(self, worker: Worker) -> Pack | None:
        """Kills a trainer and forgets it; returns the pack that it had not finished, if any."""
        del self.workers[worker]
        self.update_idle(worker)
        self._kill(worker.handle)  # also if it only seemed dead: none may work unseen
        return worker.pack

    def replace(self, worker: Worker) -> Pack | None:
        """Ends a trainer and has another one started soon; returns the pack it did not answer."""
        self._last_resize = -math.inf
        return self.remove(worker)

    def checkpoints_saved(self, steps: Mapping[Pack, int]) -> None:
        """Takes the last saved step of each pack: a new step is a sign of life of its trainer."""
        advanced = {pack for pack, step in steps.items() if self._saved_steps.get(pack) != step}
        self._saved_steps = dict(steps)
        if advanced:
            for worker in self.ready:
                if worker.pack in advanced:
                    worker.since = time.monotonic()

    def _dismiss(self, placed: list[Worker], target: int) -> None:
        """Lets trainers leave until `target` stay: idle ones now, others after their packs.

        Args:
            placed: trainers that run on a node.
            target: most trainers that stay. None stays on a node that gets no more work.
        """
        leaving_nodes = self._capacity.leaving
        staying = [worker for worker in placed if worker.node not in leaving_nodes]
        # Idle ones leave first, and those whose numbers have more digits, as they are newer.
        staying.sort(key=lambda worker: (worker.pack is not None, -len(worker.name), worker.name))
        departing = [worker for worker in placed if worker.node in leaving_nodes]
        departing += staying[: max(0, len(staying) - target)]
        for worker in departing:
            worker.leaving = True
            self.update_idle(worker)
        for worker in list(self.workers):
            if worker.leaving and not worker.pack and not worker.suspected:
                self.remove(worker)


def threads(sweep: Sweep) -> int:
    """Returns how many threads a trainer computes on: by the sweep, whatever the machine has."""
    return max(1, int(sweep.resources.num_cpus))


def recorded_machines(run: RunDirectory) -> dict[str, list[str]]:
    """Returns addresses of the machines that trained, by kind; none if the record is damaged."""
    try:
        raw = run.read_json(MACHINES_FILE) or {}
        return {str(kind): sorted(set(map(str, addresses))) for kind, addresses in raw.items()}
    except (RunDirectoryError, AttributeError, TypeError):
        return {}


class MachineCompatibility:
    """Admits machines whose code has the driver's versions; warns if their kinds differ.

    Scores are bit-identical on one kind of machine, with one number of threads.

    Attributes:
        modules: the user's modules, whose digests a machine reports.
    """

    def __init__(self, work: Work) -> None:
        """Reads which machines have trained in earlier attempts at the sweep.

        Args:
            work: the planned sweep, whose plan has the driver's versions.
        """
        count = threads(work.sweep)
        on_cpu = work.sweep.resources.num_gpus == 0
        uses_torch = any(cell.mechanism.uses_torch for cell in work.sweep.cells)
        # The end of a kind's name: torch sums in another order on another number of threads.
        self._threads_suffix = f", {count} threads" if count > 1 and on_cpu and uses_torch else ""
        self._code = work.plan.code[-1]  # code of the driver
        self._work = work
        self._kinds = recorded_machines(work.run)  # addresses by kind of machine
        self._has_warned = False
        self.modules = tuple(self._code.modules)

    def admit(self, address: str, machine: provenance.Code) -> str | None:
        """Records the machine of a trainer, and warns if kinds of machines differ.

        Args:
            address: address of its node.
            machine: code, versions and device of the node.

        Returns:
            Why it may not train; None if it may.
        """
        if why := provenance.first_difference(self._code, machine):
            return why
        kind = machine.device + self._threads_suffix  # "AMD EPYC 9654, 4 threads"
        if address not in self._kinds.setdefault(kind, []):
            self._kinds[kind].append(address)
            self._work.run.write_json(MACHINES_FILE, self._kinds)
        if len(self._kinds) > 1 and not self._has_warned:
            self._has_warned = True
            self._work.tell(
                f"warning: trials run on several kinds of machine ({'; '.join(self._kinds)}): "
                "scores are equal in distribution, and may differ in last bits"
            )
        return None
