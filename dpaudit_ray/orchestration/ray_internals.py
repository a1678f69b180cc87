"""Reads what Ray's public interface does not give, each by a probe with a default.

Ray may rename any of these names in a minor version. A sweep runs all the same: it notices a dead
head, a leaving node or an autoscaler later, or not at all.
"""

import atexit
import collections
import importlib
import json
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

_STATUS = "__autoscaling_status"  # key of the report of Ray's first autoscaler
_BY_HAND = re.compile("node_[0-9a-f]+")  # the "type" of a node that no autoscaler has started
JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # Ray sets it for the driver of a job
Value = TypeVar("Value")


def take_token_at_hand() -> None:
    """Has Ray use a token that is configured, even if its mode is not set."""
    named = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    # expanduser leaves the ~ where a user has neither HOME nor an entry in passwd.
    if named or Path(os.path.expanduser("~/.ray/auth_token")).exists():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def read_authentication_again(ray: Any) -> None:
    """Has Ray read token and mode again. If this Ray cannot, those from its import stay."""
    _probe(lambda: ray._raylet.Config.initialize(""), None)
    _probe(lambda: ray._raylet.AuthenticationTokenLoader.instance().reset_cache(), None)


def draining_nodes(ray: Any) -> frozenset[str]:
    """Returns ids of nodes that will leave; none if this Ray does not list them."""
    return frozenset(_probe(lambda: ray._private.state.state.get_draining_nodes(), ()))


def memory_kills(ray: Any) -> dict[str, int]:
    """Counts worker processes that Ray killed because memory ran short, by node.

    The result is empty if this Ray does not list them.

    The error of a call to an actor that Ray may restart does not name the reason of its death.
    """

    def read() -> dict[str, int]:
        """Counts the processes that Ray killed on each node because its memory ran short."""
        generated = f"{ray.__name__}.core.generated"
        gcs_pb2 = importlib.import_module(f"{generated}.gcs_pb2")
        common_pb2 = importlib.import_module(f"{generated}.common_pb2")
        kills = collections.Counter[str]()
        for row in ray._private.state.state._connect_and_get_accessor().get_worker_table():
            worker = gcs_pb2.WorkerTableData.FromString(row)
            if worker.exit_type == common_pb2.WorkerExitType.NODE_OUT_OF_MEMORY:
                kills[worker.worker_address.node_id.hex()] += 1
        return dict(kills)

    return _probe(read, {})


def autoscales(ray: Any) -> bool:
    """Returns whether an autoscaler, Ray's first or second, adds nodes; False without a report."""
    config = _probe(lambda: ray._private.state.state.get_cluster_config(), None)
    groups = config.node_group_configs if config else ()
    if any(group.max_count != 0 and not _BY_HAND.fullmatch(group.name) for group in groups):
        return True
    client = _probe(lambda: ray._private.worker.global_worker.gcs_client, None)
    status = _probe(lambda: client.internal_kv_get(_STATUS.encode(), None), None)
    report = json.loads(status or "{}").get("autoscaler_report") or {}
    types = (report.get("node_type_mapping") or {}).values()
    return any(not _BY_HAND.fullmatch(name) for name in types)


def object_store_socket(ray: Any) -> str:
    """Returns the path of this node's object store; "" if it is unknown, and not watched."""
    return str(_probe(lambda: ray._private.worker.global_worker.node.plasma_store_socket_name, ""))


def dashboard(ray: Any) -> str:
    """Returns the address of the dashboard; "" without one, and in a job, which has a page."""
    url = _probe(lambda: ray._private.worker.get_dashboard_url(), None)
    return f"http://{url}" if url and JOB not in os.environ else ""


def leave_without_shutdown(ray: Any) -> None:
    """Keeps Ray from shutting down at the end of this process, where it might wait for ever."""
    _probe(lambda: atexit.unregister(ray._private.worker.shutdown), None)


def channel(ray: Any, address: str) -> Any:
    """Opens a gRPC channel with Ray's token and certificates; None if this Ray cannot open it."""
    # A lost connection is made again at once, and not after up to two minutes.
    options = [(f"grpc.{name}_reconnect_backoff_ms", 500) for name in ("initial", "min", "max")]

    def open_channel() -> Any:
        """Opens the channel by a function that only some versions of Ray have."""
        utils = importlib.import_module(f"{ray.__name__}._private.grpc_utils")
        return utils.init_grpc_channel(address, options=options)

    return _probe(open_channel, None)


def _probe(read: Callable[[], Value], default: Value) -> Value:
    """Reads a private name of Ray; returns the default if this version lacks it."""
    try:
        return read()
    except (AttributeError, ImportError, TypeError) as error:  # the name is gone, or changed
        logging.getLogger("dpaudit").debug("this Ray does not have it: %s", error)
        return default
