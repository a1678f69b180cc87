"""The cluster: joining one, or starting one in this machine."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import NoClusterError
from ..plan.model import Plan
from ..storage.run_directory import RunDirectory
from ..sweep.spec import Sweep
from . import internals
from . import watch as watching
from .nodes import Nodes, last_line
from .ray_executor import RayExecutor

NAMESPACE = "dpaudit"
ANSWER_SECONDS = 10.0  # for a head that is joined
SHUTDOWN_SECONDS = 10.0  # what is left of a cluster of our own ends with this process


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
    if address is None:
        _start(ray, dashboard)
    else:
        _join(ray, address)
    try:
        yield ray
    finally:
        _leave(ray)


def _init(ray: Any, **options: Any) -> None:
    with _deaf_to_hangups():
        ray.init(namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR, **options)


def _join(ray: Any, address: str) -> None:
    try:
        _require_answer(ray, address)
        _init(ray, address=address)
    except Exception as error:  # process boundary: Ray raises what it likes
        raise NoClusterError(
            f"cannot reach a Ray cluster at {address} ({last_line(error)}); check the address, and "
            "RAY_AUTH_MODE=token with RAY_AUTH_TOKEN if it is protected"
        ) from error


def _start(ray: Any, dashboard: bool) -> None:
    """Twice where it takes too long: Ray gives itself 30 s, which a busy machine may exceed."""
    for again in (True, False):
        try:
            _init(ray, address="local", include_dashboard=dashboard)
            return
        except Exception as error:  # process boundary: Ray raises a bare one
            ray.shutdown()
            if again and "timed out" in str(error):
                continue
            raise NoClusterError(
                f"Ray does not start on this machine ({last_line(error)}); run the same command "
                "again when less runs here, or use --executor inline"
            ) from error


def _leave(ray: Any) -> None:
    """Shuts Ray down, and does not wait for ever where it waits for what does not answer."""
    ending = threading.Thread(target=ray.shutdown, name="shutdown", daemon=True)
    ending.start()
    ending.join(watching.LEAVE_SECONDS / 2 if watching.lost.is_set() else SHUTDOWN_SECONDS)
    if ending.is_alive():
        watching.lost.set()
        internals.abandon(ray)


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


def _require_answer(ray: Any, address: str) -> None:
    """Raises TimeoutError where Ray would try for minutes, or for ever: of a stopped process."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return  # "auto": Ray looks for it
    with contextlib.closing(watching.Questions(functools.partial(internals.channel, ray))) as asks:
        asks.ask({address}, ANSWER_SECONDS)
        if asks.silent[address]:
            raise TimeoutError("nothing answers there")


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


def executor(  # noqa: PLR0913 (a run, and what its driver knows)
    ray: Any,
    sweep: Sweep,
    plan: Plan,
    run: RunDirectory,
    packs: int,
    tell: Callable[[str], None],
    leaving: Callable[[], bool] = lambda: False,
    before: str | None = None,
) -> RayExecutor:
    """An executor for `packs` packs on the connected cluster.

    Once the sweep was asked to stop, which `leaving` tells, a head that does not answer is not
    waited for. Actors of the driver whose run was taken over, `before`, are ended.

    Raises:
        NoClusterError: the cluster can never hold a trainer.
        RunDirectoryError: what lies in the run directory is damaged.
    """
    head = ray.get_runtime_context().gcs_address
    watch = watching.Watch(head, functools.partial(internals.channel, ray), tell)
    watch.leaving = leaving
    try:
        nodes = Nodes(ray, sweep.resources, tell, run.owner)
        _require_sense(nodes)
        nodes.require_room()
        if before is not None and (ended := nodes.share.end(before)):
            tell(f"{ended} trainers of the driver that had this run before are ended")
        return RayExecutor(ray, sweep, plan, run, packs, nodes, watch, tell)
    except BaseException:  # Ctrl-C too: nothing is left to watch
        watch.close()
        raise


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
