"""The nodes of a cluster: how many trainers they hold, which are left out, if more may come."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import socket
import sys
import textwrap
from collections.abc import Callable
from typing import Any

from ..errors import NoClusterError
from ..sweep.resources import ResourceSpec
from . import internals
from .needs import Needs
from .sharing import Share

PENDING = 8  # trainers that may wait for nodes when few have their place
ANSWER_SECONDS = 2.0
FAULTS_PER_NODE = 2  # trainers of a node found at fault before it is left out


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a trainer runs."""

    node: str
    address: str


@dataclasses.dataclass(frozen=True)
class Room:
    """For how many trainers: `keep` may stay on their places, `start` are started in all.

    Of those started, the cluster holds `now`; the others show demand to an autoscaler.
    """

    keep: int
    start: int
    now: int


class Nodes:
    """Counts what fits. Trainers never touch the run directory, so any node will do.

    Args:
        ray: the module, connected.
        tell: takes a line for the user about a node that is left out.
        owner: the random name of the driver that holds the run.
    """

    def __init__(
        self,
        ray: Any,
        resources: ResourceSpec,
        tell: Callable[[str], None],
        owner: str | None = None,
    ) -> None:
        self._ray, self._tell = ray, tell
        self._limit = resources.max_concurrent_trainers
        self._left_out: set[str] = set()
        self._gone: set[str] = set()
        self._faults: collections.Counter[str] = collections.Counter()
        self.needs = Needs.of(resources)
        self.share = Share(ray, self.needs, owner)
        self.silent: set[str] = set()  # nodes that do not answer: left out while that lasts
        self.raylets: dict[str, str] = {}  # HOST:PORT, by node
        self.leaving: set[str] = set()  # nodes that are given no more work: drained, or left out
        self.grows = internals.autoscales(ray)

    def require_room(self) -> None:
        """Raises NoClusterError when the cluster can never hold a trainer."""
        if self._held():
            return
        types = internals.node_types(self._ray)
        if self.grows and not types:
            return
        if any(self.needs.fits(kind.resources) for kind in types):
            return
        total = self._ray.cluster_resources()
        has = ", ".join(f"{total.get(name, 0):g} {name}" for name in self.needs.resources)
        where = f"its configuration has {', '.join(t.name for t in types)}" if types else ""
        raise NoClusterError(
            f"no node of this cluster fits a trainer of {self.needs} (all nodes together have "
            f"{has}{'; ' + where if where else ''}); lower resources in the sweep file"
        )

    def room(self, ready: int) -> Room:
        """For how many trainers there is room, of which `ready` have their place now."""
        self.leaving = internals.draining(self._ray) | self._left_out | self.silent
        now = self._held()
        keep, fair = self.share.of(now)
        start = max(fair, min(ready, keep))
        if self.grows and ready <= keep:
            start += max(PENDING, ready) if self._limit == "auto" else self._limit
            start = min(start, self._most())
        if self._limit != "auto":
            keep, start = min(keep, self._limit), min(start, self._limit)
        return Room(keep, start, now)

    def tell_what_for(self, trainers: int, room: Room) -> None:
        """Says what `trainers` wait for, none of which has its place."""
        if room.now:
            held = self.share.holders()
            others = f"places are held by {held}" if held else "nothing else of ours runs on it"
            self._tell(
                f"no trainer has started: the cluster has room for {room.now} when nothing else "
                f"runs on it, and {others}; waiting"
            )
        else:
            self._tell(
                f"waiting for nodes: {trainers} trainers of {self.needs} are asked for, and no "
                "node of the cluster fits one yet"
            )

    @property
    def options(self) -> dict[str, Any]:
        """Ray's options for a trainer."""
        return self.needs.options(self._left_out | self.silent)

    def alive(self, place: Place) -> bool:
        """Whether the node of a trainer that died is still there.

        Ray itself notices after a quarter of a minute, so the node is asked, once.
        """
        if place.node in self._gone:
            return False
        for node in self._ray.nodes():
            if node["NodeID"] == place.node and node["Alive"]:
                with contextlib.suppress(OSError):
                    ports = node["NodeManagerAddress"], node["NodeManagerPort"]
                    socket.create_connection(ports, timeout=ANSWER_SECONDS).close()
                    return True
        self._gone.add(place.node)
        return False

    def fault(self, place: Place) -> None:
        """A trainer here failed at what one on another node could do.

        The last node that trainers fit on is never left out.
        """
        self._faults[place.node] += 1
        others = self._fitting().keys() - {place.node}
        if self._faults[place.node] == FAULTS_PER_NODE and (others or self.grows):
            self._left_out.add(place.node)
            self._tell(
                f"node {place.address} is left out: {FAULTS_PER_NODE} of its trainers failed at "
                "packs that other nodes could do"
            )

    def leave_out(self, place: Place, why: str) -> None:
        """A node whose trainers would not compute what others do.

        Raises:
            NoClusterError: no node is left, and none can come.
        """
        if place.node in self._left_out:
            return
        self._left_out.add(place.node)
        self.leaving = self.leaving | {place.node}
        line = f"node {place.address} is left out: {why}"
        if not self._held() and not self.grows:
            raise NoClusterError(f"{line}, and no other node is there; install the same on all")
        self._tell(line)

    def _held(self) -> int:
        return sum(self._fitting().values())

    def _fitting(self) -> dict[str, int]:
        """Trainers that fit on each node that stays."""
        nodes = self._ray.nodes()
        self.raylets = {
            node["NodeID"]: f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
            for node in nodes
            if node["Alive"]
        }
        fits = {
            node["NodeID"]: self.needs.fits(node["Resources"])
            for node in nodes
            if node["Alive"] and self.needs.matches(node["Labels"])
        }
        return {name: count for name, count in fits.items() if count and name not in self.leaving}

    def _most(self) -> int:
        """Trainers that the cluster can ever hold, as far as its configuration is known."""
        types = internals.node_types(self._ray)
        if not types or any(kind.most < 0 for kind in types):
            return sys.maxsize
        grown = sum(kind.most * self.needs.fits(kind.resources) for kind in types)
        return max(self._held(), grown)


def last_line(error: BaseException) -> str:
    """What a Ray error says in the end, without the advice that Ray adds."""
    if "low on memory" in str(error):
        return "its node ran out of memory; with resources.memory or a larger num_cpus fewer run"
    lines = [line for line in str(error).splitlines() if line.strip()]
    last = lines[-1] if lines else type(error).__name__
    return textwrap.shorten(last, 200, placeholder=" ...")


def beside_the_driver(ray: Any) -> Any:
    """Ray's scheduling strategy for what must see the run directory: this process's node only."""
    here = ray.get_runtime_context().get_node_id()
    return ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, soft=False)
