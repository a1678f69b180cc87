"""Packs on a Ray cluster: a pool of trainer actors around one aggregator actor."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import ClusterError, DpauditError
from ..plan import Pack, Plan
from ..spec import Sweep
from ..storage import RunDirectory
from .aggregation import Progress
from .driver import Lost, Outcome

NAMESPACE = "dpaudit"
PACKS_PER_TRAINER = 2  # one running, one waiting: no trainer idles while the driver reacts


@contextlib.contextmanager
def connected(address: str | None, dashboard: bool = False) -> Iterator[None]:
    """Joins the cluster at `address` (or RAY_ADDRESS), else starts one in this machine.

    A process that is connected already stays so, before and after. Ray's authentication is
    always decided here, and nothing is written into the user's home: a cluster of our own gets
    a token that lives and dies with this process.

    Raises:
        ClusterError: the cluster cannot be reached.
    """
    address = address or os.environ.get("RAY_ADDRESS")
    _prepare_environment(local=address is None)

    import ray

    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"address": "local", "include_dashboard": dashboard}
    try:
        if address is not None:
            _require_listener(address)
            options = {"address": address}
        ray.init(namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (OSError, RuntimeError, ValueError) as error:
        raise ClusterError(
            f"cannot reach a Ray cluster at {address or 'this machine'} ({_last_line(error)}); "
            "check the address, and RAY_AUTH_MODE=token with RAY_AUTH_TOKEN if it is protected"
        ) from error
    try:
        yield
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


@dataclasses.dataclass
class _Worker:
    """A trainer actor and the number of packs it was handed and has not answered."""

    name: str
    actor: Any
    packs: int = 0


class RayExecutor:
    """Implements `Executor` on the connected cluster."""

    def __init__(self, sweep: Sweep, plan: Plan, run: RunDirectory) -> None:
        import ray

        from . import actors

        self._ray = ray
        self._sweep = sweep
        self._trainer_class = actors.Trainer
        self._shared = (ray.put(sweep.raw), ray.put(plan))
        self._aggregator = actors.Aggregator.options(  # type: ignore[attr-defined]
            name=f"{sweep.name}-aggregator",
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=-1,
        ).remote(run.location)
        # Rebuilds the estimates now, so that a damaged run directory is told before any training.
        self._seen: Progress = self._aggregator_call("progress")
        self._started = 0
        self._workers = [self._start_worker() for _ in range(self._pool_size(plan))]
        self._in_flight: dict[Any, tuple[Pack, _Worker]] = {}
        self._asked: Any = None

    @property
    def slots(self) -> int:
        """Twice the number of trainers."""
        return PACKS_PER_TRAINER * len(self._workers)

    def submit(self, pack: Pack) -> None:
        """Gives the pack to the trainer with the fewest packs."""
        worker = min(self._workers, key=lambda w: w.packs)
        worker.packs += 1
        reference = worker.actor.run_pack.remote(pack)
        self._in_flight[reference] = (pack, worker)

    def wait(self, timeout: float) -> list[Outcome]:
        """See `Executor.wait`."""
        waiting = list(self._in_flight)
        ready, _ = self._ray.wait(waiting, num_returns=1, timeout=timeout)
        if ready:
            ready, _ = self._ray.wait(waiting, num_returns=len(waiting), timeout=0)
        return [self._collect(reference) for reference in ready]

    def progress(self) -> Progress:
        """The last answer of the aggregator; asks for the next one without waiting for it."""
        if self._asked is not None and self._ray.wait([self._asked], timeout=0)[0]:
            self._seen, self._asked = self._ray.get(self._asked), None
        if self._asked is None:
            self._asked = self._aggregator.progress.remote()
        return self._seen

    def flush(self) -> None:
        """Writes the estimates and fetches the snapshot that belongs to them."""
        self._aggregator_call("flush")
        self._seen = self._aggregator_call("progress")

    def close(self) -> None:
        """Ends all actors of this sweep."""
        if self._asked is not None:  # Ray reports a call that is cut off by `kill` as a failure
            self._ray.wait([self._asked], timeout=10)
        for worker in self._workers:
            self._ray.kill(worker.actor)
        self._ray.kill(self._aggregator)

    def _aggregator_call(self, method: str) -> Any:
        exceptions = self._ray.exceptions
        try:
            return self._ray.get(getattr(self._aggregator, method).remote())
        except exceptions.RayTaskError as error:
            raise _ours(error) or error from error
        except exceptions.RayActorError as error:
            raise ClusterError(
                f"the aggregator cannot be restarted ({_last_line(error)}); finished packs are "
                "safe: run the same command again to resume"
            ) from error

    def _collect(self, reference: Any) -> Outcome:
        pack, worker = self._in_flight.pop(reference)
        worker.packs -= 1
        exceptions = self._ray.exceptions
        try:
            outcome: Outcome = self._ray.get(reference)
        except exceptions.RayTaskError as error:
            if (ours := _ours(error)) is not None:
                raise ours from error
            return Lost(pack, _last_line(error))  # the trainer lives, what it called did not
        except exceptions.RayError as error:
            self._replace(worker)
            return Lost(pack, _last_line(error))
        return outcome

    def _replace(self, worker: _Worker) -> None:
        if worker in self._workers:
            self._workers[self._workers.index(worker)] = self._start_worker()

    def _start_worker(self) -> _Worker:
        resources = self._sweep.resources
        name = f"{self._sweep.name}-trainer-{self._started}"
        self._started += 1
        actor = self._trainer_class.options(  # type: ignore[attr-defined]
            name=name,
            num_cpus=resources.num_cpus,
            num_gpus=resources.num_gpus,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
        ).remote(*self._shared, self._aggregator)
        return _Worker(name, actor)

    def _pool_size(self, plan: Plan) -> int:
        resources = self._sweep.resources
        total = self._ray.cluster_resources()
        fits = int(total.get("CPU", 0) / resources.num_cpus)
        if resources.num_gpus:
            fits = min(fits, int(total.get("GPU", 0) / resources.num_gpus))
        if fits < 1:
            raise ClusterError(
                f"no node of this cluster fits a trainer of {resources.num_cpus:g} CPU and "
                f"{resources.num_gpus:g} GPU (it has {total.get('CPU', 0):g} and "
                f"{total.get('GPU', 0):g}); lower resources.num_cpus or num_gpus"
            )
        limit = resources.max_concurrent_trainers
        packs = sum(len(audit.packs) for audit in plan.audits)
        return min(fits, packs, fits if limit == "auto" else limit)


def _ours(error: BaseException) -> DpauditError | None:
    """The error of our own that Ray wrapped, once per process it passed through."""
    while not isinstance(cause := getattr(error, "cause", None), DpauditError) or hasattr(
        cause, "cause"
    ):
        if cause is None:
            return None
        error = cause
    return cause


def _last_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
