"""What Ray tells under private names only; nothing else in the package uses any of them."""

from __future__ import annotations

import atexit
import importlib
import json
import re
from typing import Any

from .executors import NodeType

_STATUS = "__autoscaling_status"  # where Ray's first autoscaler leaves its report
_BY_HAND = re.compile("node_[0-9a-f]+")  # the "type" of a node that no autoscaler has started


def reread_environment(ray: Any) -> None:
    """Ray keeps what it saw when it was imported, perhaps long before by the user."""
    ray._raylet.Config.initialize("")
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


def object_store(ray: Any) -> str:
    """The socket of this node's object store, which is a part of its raylet."""
    return str(ray._private.worker.global_worker.node.plasma_store_socket_name)


def channel(ray: Any, address: str) -> Any:
    """A gRPC channel to a server of Ray's, with its token and certificates as Ray has them."""
    opens = importlib.import_module(f"{ray.__name__}._private.grpc_utils").init_grpc_channel
    # A connection that was lost is made again at once, and not after up to two minutes.
    again = [(f"grpc.{which}_reconnect_backoff_ms", 500) for which in ("initial", "min", "max")]
    return opens(address, options=again)


def abandon(ray: Any) -> None:
    """Ray is not shut down when the interpreter ends."""
    atexit.unregister(ray._private.worker.shutdown)


def draining(ray: Any) -> set[str]:
    """Ids of nodes that are about to leave: idle, or taken back by their owner."""
    return set(ray._private.state.state.get_draining_nodes())


def node_types(ray: Any) -> tuple[NodeType, ...]:
    """The kinds of nodes in the cluster's configuration; none where it is not known.

    Ray's second autoscaler publishes them, the first does not.
    """
    config = ray._private.state.state.get_cluster_config()
    return tuple(
        NodeType(group.name, dict(group.resources), group.max_count)
        for group in (config.node_group_configs if config else ())
        if group.max_count != 0 and not _BY_HAND.fullmatch(group.name)
    )


def autoscales(ray: Any) -> bool:
    """Whether an autoscaler adds nodes to this cluster."""
    if node_types(ray):
        return True
    status = ray._private.worker.global_worker.gcs_client.internal_kv_get(_STATUS.encode(), None)
    report = json.loads(status or "{}").get("autoscaler_report") or {}
    types = (report.get("node_type_mapping") or {}).values()
    return any(not _BY_HAND.fullmatch(name) for name in types)
