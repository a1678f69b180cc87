"""The nodes of a cluster: which of them see the run directory, and how many trainers they hold."""

from __future__ import annotations

import dataclasses
import secrets
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..errors import NoClusterError, RunDirectoryError
from ..spec import ResourceSpec
from ..storage import RunDirectory

PROBE = ".probe"
PROBE_SECONDS = 60.0
REMEDY = "use a folder that all nodes mount, or an address such as s3://bucket/folder"


@dataclasses.dataclass(frozen=True)
class Probe:
    """A node that was asked whether it sees what the driver wrote."""

    address: str
    answer: Any
    since: float


class Nodes:
    """Counts the nodes that see the run directory; one that joins later is asked first.

    This process's own node is not asked. The aggregator lives there, but the next driver may
    start on any other. Trainers with `num_gpus` fit nodes with a GPU, those without fit all.

    Args:
        ray: the module, connected.
        tell: takes a line for the user about a node that has joined and is left out.
    """

    def __init__(
        self, ray: Any, resources: ResourceSpec, run: RunDirectory, tell: Callable[[str], None]
    ) -> None:
        self._ray, self._resources, self._run, self._tell = ray, resources, run, tell
        self._here: str = ray.get_runtime_context().get_node_id()
        self._sharing = {self._here}
        self._left_out: set[str] = set()
        self._probes: dict[str, Probe] = {}
        self._content = secrets.token_hex(8)

    def require_room(self) -> None:
        """Raises NoClusterError when the cluster can never hold a trainer."""
        if self._held(self._alive().values()) < 1:
            needs, total = self._resources, self._ray.cluster_resources()
            raise NoClusterError(
                f"no node of this cluster fits a trainer of {needs.num_cpus:g} CPU and "
                f"{needs.num_gpus:g} GPU (it has {total.get('CPU', 0):g} and "
                f"{total.get('GPU', 0):g}); lower resources.num_cpus or num_gpus"
            )

    def require_shared(self) -> None:
        """Raises RunDirectoryError for a node that does not see the run directory."""
        self._ask()
        if not self._probes:
            return
        try:
            while self._probes:
                for name, probe, problem in self._answers():
                    if problem:
                        raise RunDirectoryError(
                            f"{self._run.location} is not shared: node {probe.address} {problem}; "
                            f"{REMEDY}"
                        )
                    self._sharing.add(name)
                time.sleep(0.02)
        finally:
            self._run.delete(PROBE)

    def room(self) -> int:
        """How many trainers the nodes hold that are known to see the run directory."""
        self._ask()
        for name, probe, problem in self._answers():
            if problem:
                self._left_out.add(name)
                self._tell(f"node {probe.address} has joined, {problem} and is not used; {REMEDY}")
            else:
                self._sharing.add(name)
            if not self._probes:
                self._run.delete(PROBE)
        held = self._held(n for name, n in self._alive().items() if name in self._sharing)
        limit = self._resources.max_concurrent_trainers
        return held if limit == "auto" else min(held, limit)

    @property
    def beside_the_driver(self) -> Any:
        """Ray's scheduling strategy for what must see the run directory."""
        return self._on(self._here, soft=True)

    @property
    def selector(self) -> dict[str, str]:
        """A label selector for trainers: any node but those that are left out."""
        names = ",".join(sorted(self._left_out))
        return {"ray.io/node-id": f"!in({names})"} if names else {}

    def _on(self, name: str, soft: bool) -> Any:
        return self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(name, soft=soft)

    def _alive(self) -> dict[str, dict[str, Any]]:
        return {node["NodeID"]: node for node in self._ray.nodes() if node["Alive"]}

    def _held(self, nodes: Iterable[dict[str, Any]]) -> int:
        """Trainers that fit these nodes, or what an autoscaler may grow the cluster to."""
        now = sum(_fits(node["Resources"], self._resources) for node in nodes)
        grown = self._ray._private.state.state.get_max_resources_from_cluster_config()
        return max(now, _fits(grown, self._resources)) if grown else now

    def _ask(self) -> None:
        """Has every node that is new here look for what this process writes."""
        from .actors import sees

        known = self._sharing | self._left_out | self._probes.keys()
        new = {name: node for name, node in self._alive().items() if name not in known}
        if new:
            self._run.write_text(PROBE, self._content)
        for name, node in new.items():
            address = node["NodeManagerAddress"]
            answer = sees.options(
                name=f"probe {address}", scheduling_strategy=self._on(name, soft=False)
            ).remote(self._run.location, PROBE, self._content)
            self._probes[name] = Probe(address, answer, time.monotonic())

    def _answers(self) -> Iterator[tuple[str, Probe, str]]:
        """Nodes that have answered, or kept silent for too long, and what is wrong with them."""
        for name, probe in list(self._probes.items()):
            late = time.monotonic() - probe.since > PROBE_SECONDS
            if late or self._ray.wait([probe.answer], timeout=0)[0]:
                del self._probes[name]
                yield name, probe, self._problem(probe)

    def _problem(self, probe: Probe) -> str:
        exceptions = self._ray.exceptions
        try:
            seen = self._ray.get(probe.answer, timeout=0)
        except exceptions.GetTimeoutError:
            return f"did not answer for {PROBE_SECONDS:g} s"
        except exceptions.RayTaskError as error:
            return f"cannot read it ({last_line(error)})"
        except exceptions.RayError:
            return ""  # the node has left
        return "" if seen else "does not see what the driver wrote"


def _fits(held: dict[str, float], resources: ResourceSpec) -> int:
    fits = int(held.get("CPU", 0) / resources.num_cpus)
    if resources.num_gpus:
        fits = min(fits, int(held.get("GPU", 0) / resources.num_gpus))
    return fits


def last_line(error: BaseException) -> str:
    """What a Ray error says in the end, without the advice that Ray adds."""
    if "low on memory" in str(error):
        return "its node ran out of memory; with a larger resources.num_cpus fewer run at once"
    lines = [line for line in str(error).splitlines() if line.strip()]
    last = lines[-1] if lines else type(error).__name__
    return textwrap.shorten(last, 200, placeholder=" ...")
