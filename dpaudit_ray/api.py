"""`dpaudit_ray.run`: a sweep from specification to result, in one call."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from . import plan as planning
from . import spec
from .orchestration.aggregation import Progress
from .orchestration.driver import Driver, Executor
from .orchestration.trainer import Failure
from .plan import Pack, Plan
from .spec import Sweep
from .storage import RunDirectory

ExecutorName = Literal["ray", "inline"]


@dataclasses.dataclass(frozen=True)
class Result:
    """What a run left behind. `complete` is False while trials are missing."""

    location: str
    complete: bool
    failures: tuple[Failure, ...] = ()
    lost: int = 0

    @property
    def estimates(self) -> pd.DataFrame:
        """The rows of estimates.parquet."""
        return RunDirectory(self.location).estimates()

    @property
    def scores(self) -> pd.DataFrame:
        """All scores: columns audit, trial, member, step, score."""
        run = RunDirectory(self.location)
        return pd.concat([run.scores(audit.id) for audit in planning.require(run).audits])


def run(
    sweep: str | Path | Mapping[str, Any] | Sweep,
    storage_path: str = "runs",
    executor: ExecutorName = "ray",
    address: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    show: Callable[[Progress], None] = lambda progress: None,
) -> Result:
    """Runs a sweep, or resumes it when its run directory exists.

    Args:
        sweep: a sweep file's path, its content as a mapping, or a `Sweep`.
        storage_path: folder or `s3://`, `gs://` address; results go to storage_path/name.
        executor: "ray", or "inline" for everything in this process.
        address: a Ray cluster to join; by default one is started for this call.
        overrides: values by dotted key, applied to a sweep file before validation.
        show: called about twice a second with a snapshot.

    Raises:
        DpauditError: one line for the user; see `dpaudit_ray.errors`.
    """
    prepared = _load(sweep, overrides or {})
    check_inputs(prepared)
    directory = RunDirectory.under(storage_path, prepared.name)
    plan = planning.open_run(prepared, directory)
    remaining = list(plan.remaining(directory))
    name: ExecutorName = executor if remaining else "inline"
    with _executor(name, prepared, plan, directory, address) as chosen:
        return _drive(chosen, prepared, directory, remaining, show)


def check_inputs(sweep: Sweep) -> None:
    """Loads every data set once, so that a missing file is told before anything starts."""
    for mechanism in {
        cell.mechanism.model_dump_json(): cell.mechanism for cell in sweep.cells
    }.values():
        mechanism.check_inputs()


def _load(sweep: str | Path | Mapping[str, Any] | Sweep, overrides: Mapping[str, Any]) -> Sweep:
    if isinstance(sweep, Sweep):
        return sweep
    if isinstance(sweep, Mapping):
        return spec.from_raw(sweep, overrides=overrides)
    return spec.load(sweep, overrides)


def _drive(
    executor: Executor,
    sweep: Sweep,
    directory: RunDirectory,
    remaining: list[Pack],
    show: Callable[[Progress], None],
) -> Result:
    driver = Driver(executor, remaining, sweep.resources.max_worker_losses, show)
    summary = driver.run()
    if summary.failures or directory.read_json("failures.json"):
        directory.write_json("failures.json", [dataclasses.asdict(f) for f in summary.failures])
    return Result(directory.location, directory.complete, tuple(summary.failures), summary.lost)


@contextlib.contextmanager
def _executor(
    name: ExecutorName, sweep: Sweep, plan: Plan, run: RunDirectory, address: str | None
) -> Iterator[Executor]:
    if name == "inline":
        from .orchestration.inline import InlineExecutor

        yield InlineExecutor(sweep, plan, run)
        return
    from .orchestration import cluster

    with cluster.connected(address):
        executor = cluster.RayExecutor(sweep, plan, run)
        try:
            yield executor
        finally:
            executor.close()
