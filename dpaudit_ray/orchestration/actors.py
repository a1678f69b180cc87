"""Defines the Ray actors: long-lived trainers, which send scores straight to one aggregator."""

import logging
import signal
import threading
import time
from typing import Any

import ray
from ray.util.metrics import Gauge

from ..data.base import provide
from ..plan import provenance
from ..plan.model import Pack
from ..storage import place
from ..storage.run_directory import RunDirectory
from . import metrics
from .aggregation import KEEP_UP_SECONDS, Aggregation
from .progress import Activity, Progress
from .trainer import Brief, PackTrainer

_log = logging.getLogger("dpaudit")
WRITERS = 32  # threads that store packs at once; they mostly wait for storage


@ray.remote(max_concurrency=WRITERS, concurrency_groups={"pulse": 1})
class Aggregator:
    """Stores and folds the scores of a sweep; restarted by Ray."""

    def __init__(self, location: str, owner: str | None) -> None:
        """Reads nothing yet.

        Args:
            location: the run directory.
            owner: the driver's lease; once another driver has the run, this one writes no more.
        """
        _prepare_process()
        self._location = location
        self._owner = owner
        self._opening = threading.Lock()  # held while the run directory is read
        self._aggregation: Aggregation | None = None  # read by the first call
        self._trouble: Exception | None = None  # an error in `_keep_up`; the next call raises it
        self._name = location.rpartition("/")[2]  # results lie in storage_path/name
        self._publisher = metrics.Publisher(Gauge, self._name)

    def __repr__(self) -> str:
        return f"{self._name}: stores scores, and bounds what they show"  # the dashboard shows it

    def _open(self) -> Aggregation:
        """Returns the aggregation, read by the first call; raises what its thread has raised."""
        # Not in the constructor: if that raised, as for a damaged run directory, the driver would
        # learn no more than that the actor died.
        with self._opening:
            if not self._aggregation:
                run = RunDirectory(self._location, place.RUNNING, self._owner)
                self._aggregation = Aggregation.rebuild(run)
                threading.Thread(
                    target=self._keep_up, args=(self._aggregation,), daemon=True
                ).start()
        if self._trouble:
            raise self._trouble
        return self._aggregation

    def _keep_up(self, aggregation: Aggregation) -> None:
        """Keeps estimates up to date, in a thread, until that fails."""
        while not self._trouble:
            time.sleep(KEEP_UP_SECONDS)
            try:
                aggregation.keep_up()
            except Exception as error:  # noqa: BLE001 (thread boundary: raised by the next call)
                self._trouble = error

    # A separate thread answers. Ray may not repeat the call: a restarted process would answer it.
    @ray.method(concurrency_group="pulse", max_task_retries=0, enable_task_events=False)  # type: ignore[untyped-decorator]
    def pulse(self) -> bool:
        """Returns True, as this process runs, even while others of its methods wait."""
        return True

    def call(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the aggregation; Ray repeats a call that was not answered."""
        return getattr(self._open(), method)(*arguments)

    # There are thousands of these calls, which the dashboard does not list.
    @ray.method(enable_task_events=False)  # type: ignore[untyped-decorator]
    def progress(self, activity: Activity) -> Progress:
        """Returns a snapshot for the terminal, and publishes it to the metrics."""
        progress = self._open().progress(activity)
        self._publisher.publish(progress)
        return progress


@ray.remote
class Trainer(PackTrainer):
    """A trainer in its own process, which gets its work by the first call, `set_up`.

    Ray warns of each constructor with references, since it may find them gone at a restart.
    """

    def __init__(self, name: str) -> None:
        """Takes the sweep's `name`, which the dashboard reads once, after the constructor."""
        self._name = name
        _prepare_process()
        if ray.get_runtime_context().was_current_actor_reconstructed:
            ray.actor.exit_actor()  # the driver starts another one

    def set_up(
        self,
        modules: tuple[str, ...],
        raw_sweep: dict[str, Any],
        brief: Brief,
        aggregator: Any,
        datasets: dict[str, Any],
    ) -> tuple[str, str, provenance.Code]:
        """Gives the trainer its work, which is too large for the constructor's call.

        Args:
            modules: the user's modules whose versions the driver compares.
            raw_sweep: content of the sweep file.
            brief: the plan without packs.
            aggregator: the actor that stores scores.
            datasets: references to data sets by key.

        Returns:
            The node's id, its address, and the code and device of this process.
        """
        provide(dict(zip(datasets, ray.get(list(datasets.values())), strict=True)))

        def call(method: str, *arguments: Any) -> Any:
            """Calls a method of the aggregator, and waits for its result."""
            name = task_name("Aggregator", method, brief, arguments)
            return ray.get(aggregator.call.options(name=name).remote(method, *arguments))

        super().__init__(raw_sweep, brief, call)
        machine = provenance.machine(modules, gpu=bool(ray.get_gpu_ids()))
        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), machine

    def __repr__(self) -> str:
        return f"{self._name}: trains"


def task_name(
    role: str,
    method: str,
    brief: Brief,
    arguments: tuple[Any, ...],
) -> str:
    """Returns the name of a call in the dashboard.

    It has the audit of the call's pack, but no trials, as Ray keeps 15 kB for each name.

    Args:
        role: role of the worker.
        method: the method's name.
        brief: names the audits.
        arguments: arguments of the call.
    """
    if arguments and isinstance(arguments[0], Pack):
        return f"{role}.{method} {brief.audits[arguments[0].audit].label}"
    return f"{role}.{method}()"  # without brackets, Ray shows the actor's repr


def _prepare_process() -> None:
    """Leaves signals to the driver, and sends log lines to the file of this worker."""
    # Ctrl-C and a closed terminal reach the process group, but only the driver reacts to them.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Log lines go into the worker's file, which the dashboard shows with its actor.
    _log.setLevel(logging.INFO)
    if not _log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        _log.addHandler(handler)
        _log.propagate = False
