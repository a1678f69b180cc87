"""The cluster: joining one, what it can hold, and whether its nodes share the storage."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import NoClusterError, RunDirectoryError
from ..plan import Plan
from ..spec import ResourceSpec, Sweep
from ..storage import RunDirectory
from .ray_executor import RayExecutor, last_line

NAMESPACE = "dpaudit"
PROBE_SECONDS = 60.0


@contextlib.contextmanager
def connected(address: str | None, dashboard: bool = False) -> Iterator[Any]:
    """Joins the cluster at `address` (or RAY_ADDRESS), else starts one in this machine.

    Yields the module `ray`, connected.

    A process that is connected already stays so, before and after. Ray's authentication is
    always decided here, and nothing is written into the user's home: a cluster of our own gets
    a token that lives and dies with this process.

    Raises:
        NoClusterError: the cluster cannot be reached.
    """
    address = address or os.environ.get("RAY_ADDRESS")
    _prepare_environment(local=address is None)

    import ray

    if ray.is_initialized():
        yield ray
        return
    _reread_environment(ray)
    options: dict[str, Any] = {"address": "local", "include_dashboard": dashboard}
    try:
        if address is not None:
            _require_listener(address)
            options = {"address": address}
        ray.init(namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (OSError, RuntimeError, ValueError) as error:
        raise NoClusterError(
            f"cannot reach a Ray cluster at {address or 'this machine'} ({last_line(error)}); "
            "check the address, and RAY_AUTH_MODE=token with RAY_AUTH_TOKEN if it is protected"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _require_listener(address: str) -> None:
    """Raises OSError at once where Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "//" not in host:
        socket.create_connection((host, int(port)), timeout=5).close()


def _prepare_environment(local: bool) -> None:
    """Settings that Ray reads when it is imported or started."""
    if local:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    elif "RAY_AUTH_MODE" not in os.environ and (Path.home() / ".ray" / "auth_token").exists():
        # With an explicit address Ray does not look for the token file by itself.
        os.environ["RAY_AUTH_MODE"] = "token"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")


def _reread_environment(ray: Any) -> None:
    """Ray keeps the authentication it saw when it was imported, perhaps long before by the user."""
    ray._raylet.Config.initialize("")
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


def executor(
    ray: Any,
    sweep: Sweep,
    plan: Plan,
    run: RunDirectory,
    packs: int,
    tell: Callable[[str], None],
) -> RayExecutor:
    """An executor for `packs` packs on the connected cluster.

    Raises:
        NoClusterError: the cluster can never hold a trainer.
        RunDirectoryError: a node does not see the run directory, or what lies in it is damaged.
    """
    resources = sweep.resources
    limit = resources.max_concurrent_trainers

    def room() -> int:
        held = max(_room(ray, resources), _room_when_grown(ray, resources))
        return held if limit == "auto" else min(held, limit)

    if room() < 1:
        total = ray.cluster_resources()
        raise NoClusterError(
            f"no node of this cluster fits a trainer of {resources.num_cpus:g} CPU and "
            f"{resources.num_gpus:g} GPU (it has {total.get('CPU', 0):g} and "
            f"{total.get('GPU', 0):g}); lower resources.num_cpus or num_gpus"
        )
    _require_shared(ray, run)
    return RayExecutor(ray, sweep, plan, run, packs, room, tell)


def _room(ray: Any, resources: ResourceSpec) -> int:
    """Trainers that fit the nodes as they are now."""
    return sum(_fits(node["Resources"], resources) for node in ray.nodes() if node["Alive"])


def _room_when_grown(ray: Any, resources: ResourceSpec) -> int:
    """Trainers that fit what an autoscaler may grow the cluster to; 0 without an autoscaler."""
    grown = ray._private.state.state.get_max_resources_from_cluster_config()
    return _fits(grown, resources) if grown else 0


def _fits(held: dict[str, float], resources: ResourceSpec) -> int:
    fits = int(held.get("CPU", 0) / resources.num_cpus)
    if resources.num_gpus:
        fits = min(fits, int(held.get("GPU", 0) / resources.num_gpus))
    return fits


def _require_shared(ray: Any, run: RunDirectory) -> None:
    """Every node must see what the driver writes: the aggregator may be moved to any of them.

    Raises:
        RunDirectoryError: the first node that does not.
    """
    from .actors import sees

    nodes = [node for node in ray.nodes() if node["Alive"]]
    if len(nodes) < 2 and _is_here(nodes):
        return
    name, content = ".probe", secrets.token_hex(8)
    run.write_text(name, content)
    place = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    try:
        probes = [
            sees.options(
                name=f"probe {node['NodeManagerAddress']}",
                scheduling_strategy=place(node["NodeID"], soft=False),
            ).remote(run.location, name, content)
            for node in nodes
        ]
        for node, probe in zip(nodes, probes, strict=True):
            if problem := _problem(ray, probe):
                raise RunDirectoryError(
                    f"{run.location} is not shared: node {node['NodeManagerAddress']} {problem}; "
                    "use a folder that all nodes mount, or an address such as s3://bucket/folder"
                )
    finally:
        run.delete(name)


def _is_here(nodes: list[dict[str, Any]]) -> bool:
    """Whether this process runs on the only node."""
    return all(node["NodeManagerHostname"] == socket.gethostname() for node in nodes)


def _problem(ray: Any, probe: Any) -> str:
    try:
        seen = ray.get(probe, timeout=PROBE_SECONDS)
    except ray.exceptions.GetTimeoutError:
        return f"did not answer for {PROBE_SECONDS:g} s"
    except ray.exceptions.RayTaskError as error:
        return f"cannot read it ({last_line(error)})"
    except ray.exceptions.RayError:
        return ""  # the node has left: it will not be asked to store anything
    return "" if seen else "does not see what the driver wrote"
