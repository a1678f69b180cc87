"""Runs workers as actors of a Ray cluster, which is joined, or started on this machine."""

import logging
import os
import queue
import re
import secrets
import signal
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from functools import cached_property, partial
from typing import Any

from ..errors import DpauditError, NoClusterError
from . import interruption, ray_internals
from .addresses import has_port, host_port, lacks_brackets
from .dispatcher import Dispatcher
from .executors import (
    TRAINER,
    CallFailedError,
    Cluster,
    Handle,
    Node,
    Role,
    Work,
    WorkerDiedError,
)
from .interruption import HeadLiveness, HealthChecks
from .ray_errors import joining_trouble, last_line, starting_trouble
from .trainer import Brief
from .workers import Capacity, ResourceRequest

NAMESPACE = "dpaudit"
ANSWER_SECONDS = 10.0  # time for an answer of a head that is joined
SHUTDOWN_SECONDS = 10.0  # processes of a local cluster that stay longer end with this process
_NODE_ID = "ray.io/node-id"  # the label that Ray gives every node


class RayExecutor:
    """Implements `Executor` on the connected cluster."""

    isolates = True

    def __init__(self, ray: Any, work: Work, request: ResourceRequest) -> None:
        """Starts nothing yet.

        Args:
            ray: the module, connected to a cluster.
            work: the planned sweep.
            request: the resources that a trainer needs.
        """
        self._ray = ray
        self._work = work
        self._request = request
        # Actors of a killed driver may still have their names, so random digits give each executor
        # a new namespace. `end_actors_of` finds all namespaces of an owner by what precedes them.
        self._namespace = f"dpaudit-{(work.run.owner or '')[:8]}-{secrets.token_hex(4)}"
        self._aggregator: Any = None
        # Threads of Ray put answers here, since `ray.wait` on 16,000 references takes 50 ms.
        self._arrived: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()

    def start(
        self,
        role: Role,
        name: str,
        avoid: Collection[str] = (),
    ) -> Handle:
        """Starts an actor; the aggregator on the driver's node, which has the run directory.

        Args:
            role: trainer or aggregator.
            name: name of the actor.
            avoid: ids of nodes that no trainer is started on.
        """
        from . import actors

        options: dict[str, Any] = {"name": name, "namespace": self._namespace}
        if role == "Trainer":
            options |= trainer_options(self._request, avoid)
            # If memory runs short, Ray kills actors that it may restart first, the newest of them
            # before others: trainers, not the aggregator. A restarted trainer ends itself.
            options |= {"max_restarts": 1, "max_task_retries": 0, "scheduling_strategy": "SPREAD"}
            trainer = actors.Trainer.options(**options)  # type: ignore[attr-defined]
            return trainer.remote(self._work.sweep.name)
        node = self._ray.get_runtime_context().get_node_id()
        strategies = self._ray.util.scheduling_strategies
        options["scheduling_strategy"] = strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        options |= {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1}
        aggregator = actors.Aggregator.options(**options)  # type: ignore[attr-defined]
        self._aggregator = aggregator.remote(self._work.run.location, self._work.run.owner)
        return self._aggregator

    def call(
        self,
        worker: Handle,
        method: str,
        *arguments: Any,
    ) -> Future[Any]:
        """Calls a method of an actor; `set_up` also gets the sweep, and references to data."""
        from . import actors

        is_trainer = worker is not self._aggregator
        role = "Trainer" if is_trainer else "Aggregator"
        name = actors.task_name(role, method, self._brief, arguments)
        if method == "set_up":
            sweep = self._work.sweep.raw
            arguments = (*arguments, sweep, self._brief, self._aggregator, self._datasets)
        task = getattr(worker, method, None)
        if not task:  # a method of the aggregation
            task = worker.call
            arguments = (method, *arguments)
        if method not in ("progress", "pulse"):  # the dashboard does not list these
            task = task.options(name=name)
        reference = task.remote(*arguments)
        answer: Future[Any] = Future()
        reference.future().add_done_callback(partial(self._arrive, answer, is_trainer))
        return answer

    def wait(self, timeout: float) -> list[Future[Any]]:
        """Returns trainers' answers that have arrived; waits up to `timeout` s for the first."""
        answers = []
        with suppress(queue.Empty):
            answers.append(self._arrived.get(timeout=timeout))
            while True:
                answers.append(self._arrived.get_nowait())
        return answers

    def kill(self, worker: Handle, restart: bool = False) -> None:
        """Kills an actor, which Ray starts again only if `restart` is true."""
        self._ray.kill(worker, no_restart=not restart)

    def nodes(self) -> Cluster:
        """Lists the nodes that are alive, those that are drained, and memory kills."""
        keys = ("NodeID", "NodeManagerAddress", "NodeManagerPort", "Resources", "Labels")
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        nodes = tuple(Node(*map(node.get, keys)) for node in alive)
        draining = ray_internals.draining_nodes(self._ray)
        memory_kills = partial(ray_internals.memory_kills, self._ray)
        return Cluster(nodes, draining, self._grows, memory_kills)

    def end_actors_of(self, owner: str) -> int:
        """Ends all actors of a driver that had this run; returns how many trainers it had.

        Args:
            owner: the driver's lease, by the run directory, in which a stranger may have written.
        """
        if not re.fullmatch("[0-9a-f]{16}", owner):
            return 0
        ended = 0
        for actor in self._ray.util.list_named_actors(all_namespaces=True):
            if actor["namespace"].startswith(f"dpaudit-{owner[:8]}"):
                with suppress(ValueError):  # the actor has just ended
                    self._ray.kill(self._ray.get_actor(actor["name"], actor["namespace"]))
                    ended += TRAINER in actor["name"]  # the aggregator does not count
        return ended

    @cached_property
    def _grows(self) -> bool:
        """Whether an autoscaler adds nodes for actors that wait."""
        return ray_internals.autoscales(self._ray)

    @cached_property
    def _brief(self) -> Brief:
        """The part of the plan that each trainer needs."""
        # Neither the brief nor the sweep is an object in Ray's store: while the node of such an
        # object leaves, Ray ends a driver that reads it, with an exit code that means a violation.
        return Brief.from_plan(self._work.plan, self._work.sweep)

    @cached_property
    def _datasets(self) -> dict[str, Any]:
        """References by key: Ray keeps one copy on every node, and all trainers there map it."""
        data: dict[str, Any] = {}
        for cell in self._work.sweep.cells:
            data.update(cell.mechanism.datasets())
            data.update(cell.adversary.datasets())
        return {key: self._ray.put(value) for key, value in data.items()}

    def _arrive(
        self,
        answer: Future[Any],
        is_trainers: bool,
        future: Future[Any],
    ) -> None:
        """Passes on a result; Ray calls this in one of its threads.

        Args:
            answer: gets the result, or the error in the words of this package.
            is_trainers: whether a trainer answers: its answers are also queued for the driver.
            future: the future of Ray, which is done.
        """
        error = future.exception()
        if not error:
            answer.set_result(future.result())
        else:
            answer.set_exception(_translated(error, self._ray.exceptions))
        if is_trainers:
            self._arrived.put(answer)


def _translated(error: BaseException, exceptions: Any) -> BaseException:
    """Returns the DpauditError in an error of Ray's, or an error that `Executor.call` names."""
    if not isinstance(error, exceptions.RayError):
        return error
    translated: Exception
    if isinstance(error, exceptions.RayTaskError):
        cause = error
        # Ray wraps an error once per process that it passed through; the innermost one counts.
        while (cause := getattr(cause, "cause", None)) is not None:
            if isinstance(cause, DpauditError) and not hasattr(cause, "cause"):
                return cause
        translated = CallFailedError(last_line(error))
    else:
        taken_back = not getattr(error, "actor_init_failed", True)
        translated = WorkerDiedError(last_line(error), taken_back)
    translated.__cause__ = error
    return translated


def trainer_options(
    request: ResourceRequest,
    avoid: Collection[str] = (),
) -> dict[str, Any]:
    """Returns Ray's options for an actor with these resources, on no node to `avoid`."""
    resources = dict(request.resources)
    selector = dict(request.labels)
    if avoid:
        selector.setdefault(_NODE_ID, f"!in({','.join(sorted(avoid))})")
    return {
        "num_cpus": resources.pop("CPU", 0),
        "num_gpus": resources.pop("GPU", 0),
        "memory": resources.pop("memory", None),
        "resources": resources,
        "label_selector": selector,
    }


def dispatcher(
    ray: Any,
    work: Work,
    previous_owner: str | None = None,
) -> Dispatcher:
    """Returns a dispatcher on the cluster.

    Args:
        ray: the module, connected to the cluster.
        work: the planned sweep.
        previous_owner: the lease of a driver that had the run, whose actors are ended; None if
            there was none.

    Raises:
        NoClusterError: the cluster can never hold a trainer.
        RunDirectoryError: the run directory is damaged.
    """
    from .actors import Trainer

    context = ray.get_runtime_context()
    channel = partial(ray_internals.channel, ray)
    liveness = HeadLiveness(context.gcs_address, channel, work.tell)
    try:
        request = ResourceRequest.from_spec(work.sweep.resources)
        executor = RayExecutor(ray, work, request)
        limit = work.sweep.resources.max_concurrent_trainers
        capacity = Capacity(executor, request, None if limit == "auto" else limit, work.tell)
        try:  # Ray has more rules, such as against three TPUs
            Trainer.options(**trainer_options(request))  # type: ignore[attr-defined]
        except ValueError as error:
            raise NoClusterError(
                f"Ray refuses the resources of a trainer ({last_line(error)}); change resources in "
                "the sweep file"
            ) from error
        capacity.require_room()
        ended = 0 if previous_owner is None else executor.end_actors_of(previous_owner)
        if ended:
            work.tell(f"{ended} trainers of the driver that had this run before are ended")
        # The node that this process runs on.
        (node,) = (node for node in executor.nodes().nodes if node.id == context.get_node_id())
        liveness.guard(host_port(node.host, node.port), ray_internals.object_store_socket(ray))
        return Dispatcher(executor, work, capacity, liveness)
    except BaseException:  # Ctrl-C too: there is nothing more to watch
        liveness.close()
        raise


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Yields the module `ray`, connected to a cluster.

    A process that is connected already stays so. Nothing is written into the user's home: the token
    of a local cluster exists as long as this process.

    Args:
        address: address of the head; RAY_ADDRESS by default, else a local cluster is started.

    Raises:
        NoClusterError: the cluster cannot be joined, or does not start.
    """
    origin = "" if address else " (from RAY_ADDRESS)"
    address = address or os.environ.get("RAY_ADDRESS") or None
    if address:
        _require_head_address(address, origin)
        # With an explicit address, Ray does not look for a token.
        ray_internals.take_token_at_hand()
    else:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray ends a driver whose head is gone after a minute, with an exit code that means a violation.
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "3600")
    # In every version of Ray, actors without a GPU keep CUDA_VISIBLE_DEVICES as it is.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():
        yield ray
        return
    ray_internals.read_authentication_again(ray)
    if address:
        _join(ray, address, origin)
    else:
        _start(ray)
    try:
        yield ray
    finally:
        _leave(ray)


def _require_head_address(address: str, origin: str) -> None:
    """Raises NoClusterError for an address that no head of a cluster can have."""
    if "://" in address:
        remedy = ""
        if origin:
            remedy = "unset RAY_ADDRESS to run on this machine, or give --address HOST:6379; "
        raise NoClusterError(
            f"{address}{origin} is not the address of a cluster's head, which is HOST:6379; "
            f"{remedy}from a machine outside the cluster, dpaudit submit sends the sweep to "
            "http://HOST:8265"
        )
    if lacks_brackets(address):
        raise NoClusterError(
            f"{address}{origin} is an IPv6 address without brackets; write [HOST]:PORT, such as "
            "[fd00::1]:6379"
        )


def _init(ray: Any, **options: Any) -> None:
    """Starts or joins Ray; processes that it starts ignore a closed terminal."""
    # Processes that Ray starts inherit the blocked SIGHUP of a closed terminal: only the driver
    # reacts to the signal, once it is unblocked.
    mask_before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        ray.init(namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR, **options)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask_before)


def _join(ray: Any, address: str, origin: str) -> None:
    """Joins the cluster at `address`. Raises NoClusterError with a reason and a remedy.

    Args:
        ray: the module.
        address: HOST:PORT of the head, or "auto".
        origin: where the address comes from, for messages; may be "".
    """
    try:
        if has_port(address):  # else "auto": Ray looks for it
            # Ray would try for minutes, or for ever where the head is a stopped process.
            channel = partial(ray_internals.channel, ray)
            with closing(HealthChecks(channel)) as checks:
                checks.ask({address}, ANSWER_SECONDS)
                if checks.silent.get(address):
                    raise TimeoutError("nothing answers there")
        _init(ray, address=address)
    except Exception as error:  # process boundary: Ray may raise anything
        trouble = joining_trouble(error)
        raise NoClusterError(
            f"cannot reach a Ray cluster at {address}{origin} ({trouble.reason}); {trouble.remedy}"
        ) from error


def _start(ray: Any) -> None:
    """Starts a local cluster; twice if that takes more than Ray's limit of 30 s."""
    for may_repeat in (True, False):
        try:
            _init(ray, address="local", include_dashboard=False)
            return
        except Exception as error:  # process boundary: Ray raises a bare Exception
            ray.shutdown()
            if may_repeat and "timed out" in str(error):
                continue
            trouble = starting_trouble(error)
            raise NoClusterError(
                f"Ray does not start on this machine ({trouble.reason}); {trouble.remedy}"
            ) from error


def _leave(ray: Any) -> None:
    """Shuts Ray down, with a limit, as it waits for nodes that do not answer."""
    ending = threading.Thread(target=ray.shutdown, name="shutdown", daemon=True)
    ending.start()
    head_is_lost = interruption.head_lost.is_set()
    ending.join(interruption.LEAVE_SECONDS / 2 if head_is_lost else SHUTDOWN_SECONDS)
    if ending.is_alive():
        interruption.head_lost.set()
        ray_internals.leave_without_shutdown(ray)
