"""The cluster: joining one, or starting one in this machine."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import NoClusterError
from ..plan.model import Plan
from ..storage.run_directory import RunDirectory
from ..sweep.spec import Sweep
from . import internals
from .nodes import Nodes, last_line
from .ray_executor import RayExecutor

NAMESPACE = "dpaudit"


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
    if address is not None and "://" in address:
        raise NoClusterError(
            f"{address} is not the address of a cluster's head, which is HOST:6379; from a machine "
            "outside the cluster, dpaudit submit sends the sweep to http://HOST:8265"
        )
    _prepare_environment(local=address is None)

    import ray

    if ray.is_initialized():
        yield ray
        return
    internals.reread_environment(ray)
    options: dict[str, Any] = {"address": "local", "include_dashboard": dashboard}
    try:
        if address is not None:
            _require_listener(address)
            options = {"address": address}
        with _deaf_to_hangups():
            ray.init(
                namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR, **options
            )
    except (OSError, RuntimeError, ValueError) as error:
        raise NoClusterError(
            f"cannot reach a Ray cluster at {address or 'this machine'} ({last_line(error)}); "
            "check the address, and RAY_AUTH_MODE=token with RAY_AUTH_TOKEN if it is protected"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _deaf_to_hangups() -> Iterator[None]:
    """Processes that are started meanwhile never hear of a terminal that is closed.

    Only the driver may decide what it means, and does after this, should it have come meanwhile.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
    # Ray ends a driver whose head is gone after a minute, with an exit code that means a violation.
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "3600")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")


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
        RunDirectoryError: what lies in the run directory is damaged.
    """
    nodes = Nodes(ray, sweep.resources, tell)
    _require_sense(nodes)
    nodes.require_room()
    return RayExecutor(ray, sweep, plan, run, packs, nodes, tell)


def _require_sense(nodes: Nodes) -> None:
    """Raises NoClusterError for resources that Ray has rules against, such as three TPUs."""
    from .actors import Trainer

    try:
        Trainer.options(**nodes.options)  # type: ignore[attr-defined]
    except ValueError as error:
        raise NoClusterError(
            f"Ray refuses the resources of a trainer ({last_line(error)}); change resources in the "
            "sweep file"
        ) from error
