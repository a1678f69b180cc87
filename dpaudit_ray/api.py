"""`dpaudit_ray.run`: a sweep from specification to result, in one call."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from . import plan as planning
from .errors import DamagedArraysError, DamagedScoresError
from .orchestration import retrying
from .orchestration.driver import Driver
from .orchestration.executors import Executor
from .orchestration.interrupt import Stop
from .orchestration.ledger import Ledger
from .orchestration.progress import Progress
from .plan import decisions, failures, gathering, prefix, preparing, provenance, salvage
from .plan.failures import Failure
from .plan.model import Pack, Plan
from .storage import lease, patience
from .storage.lease import Lease
from .storage.run_directory import RunDirectory
from .sweep import spec
from .sweep.spec import Sweep

ExecutorName = Literal["ray", "inline"]


@dataclasses.dataclass(frozen=True)
class Result:
    """What a run left behind.

    `complete` is False while trials are missing; `stopped`: it was asked to end early, or a time
    budget was spent. `failures` holds every pack that failed and was not done since.
    """

    location: str
    complete: bool
    failures: tuple[Failure, ...] = ()
    lost: int = 0
    stopped: bool = False

    @property
    def estimates(self) -> pd.DataFrame:
        """The rows of estimates.parquet."""
        return RunDirectory(self.location).estimates()

    @property
    def overview(self) -> pd.DataFrame:
        """One row per audit, at its last step: μ, ε with its status, ε without assumption, claim.

        The columns are the keys of an audit in `dpaudit status --json`.
        """
        from .report import tables

        return pd.DataFrame(tables.overview(tables.Run.open(self.location)))

    @property
    def scores(self) -> pd.DataFrame:
        """All scores: columns audit, trial, member, step, score; accuracy, loss where measured."""
        run = RunDirectory(self.location)
        plan = planning.require(run)
        return pd.concat([prefix.scores(run, plan, index) for index in range(len(plan.audits))])


def run(  # noqa: PLR0913 (one call does it all; what is rare goes by name)
    sweep: str | Path | Mapping[str, Any] | Sweep,
    storage_path: str = "runs",
    executor: ExecutorName = "ray",
    address: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    show: Callable[[Progress], None] = lambda progress: None,
    *,
    retry_failed: bool = False,
    accept_changed_code: bool = False,
    tell: Callable[[str], None] = lambda line: None,
    report: bool = False,
) -> Result:
    """Runs a sweep, or resumes it when its run directory exists.

    SIGTERM and Ctrl-C end it after the running packs; a second one ends it at once, as
    KeyboardInterrupt.

    Args:
        sweep: a sweep file's path, its content as a mapping, or a `Sweep`.
        storage_path: folder or `s3://`, `gs://` address; results go to storage_path/name.
        executor: "ray", or "inline" for everything in this process.
        address: a Ray cluster to join; by default one is started for this call.
        overrides: values by dotted key, applied to a sweep file before validation.
        show: called about twice a second with a snapshot.
        retry_failed: run packs again that failed in an earlier try, where the code gives the same
            scores twice; else their trials stay misses.
        accept_changed_code: go on where the run so far was computed by other code; estimates of
            audits with trials of both are marked.
        tell: called with a line for the user when something is given up, or takes long.
        report: keep report.html fresh meanwhile, from a process beside this one.

    Raises:
        DpauditError: one line for the user; see `dpaudit_ray.errors`.
    """
    prepared = _load(sweep, overrides or {})
    directory = RunDirectory.under(storage_path, prepared.name, patience.OPENING)
    prepared = planning.kept(prepared, directory, tell)
    check_inputs(prepared)
    planning.preview(prepared, directory, accept_changed_code)  # what cannot be leaves no trace
    directory.require_writable()
    stop = Stop(prepared.resources.grace_seconds, tell)
    with stop.listening(), lease.held(directory) as held:
        plan = planning.open_run(prepared, held.run, accept_changed_code, tell)
        running = held.run.patient(patience.RUNNING)
        salvage.set_aside(running, plan, tell)
        job = _Job(prepared, plan, running, held, stop, show, tell)
        with _reported(directory) if report else contextlib.nullcontext():
            return job.run(executor, address, retry_failed)


@dataclasses.dataclass(frozen=True)
class _Job:
    """A planned run whose directory is ours."""

    sweep: Sweep
    plan: Plan
    directory: RunDirectory
    lease: Lease
    stop: Stop
    show: Callable[[Progress], None]
    tell: Callable[[str], None]
    connection: contextlib.ExitStack = dataclasses.field(default_factory=contextlib.ExitStack)

    def run(self, executor: ExecutorName, address: str | None, retry_failed: bool) -> Result:
        with self.connection:
            while True:
                try:
                    return self._run(executor, address, retry_failed)
                except (DamagedScoresError, DamagedArraysError):
                    # Every file is looked at now, so that this happens once.
                    if not salvage.set_aside(self.directory, self.plan, self.tell, thorough=True):
                        raise

    def _run(self, executor: ExecutorName, address: str | None, retry_failed: bool) -> Result:
        recorded = failures.read(self.directory, self.plan)
        if retry_failed:
            preparing.write(self.directory, self.plan, ())
        for line in preparing.lines(preparing.read(self.directory, self.plan), self.plan):
            self.tell(line)
        remaining = self._remaining([] if retry_failed else recorded)
        name: ExecutorName = executor if remaining else "inline"
        with self._executor(name, len(remaining), address) as chosen:
            if not (retry_failed and recorded):
                return self._drive(chosen, remaining, recorded)
            granted = self._granted(chosen, recorded)
            chosen.try_again([failure.pack for failure in granted])
            left = [failure for failure in recorded if failure not in granted]
            result = self._drive(chosen, self._remaining(left), left)
            return self._given_up_again(chosen, granted, result)

    def _remaining(self, recorded: list[Failure]) -> list[Pack]:
        left_out = {failure.pack for failure in recorded}
        enough = decisions.decided(self.directory, self.sweep)
        packs = self.plan.remaining(self.directory, enough)
        waiting = preparing.unprepared(self.directory, self.plan)
        left = [p for p in packs if p not in left_out and p.audit not in waiting]
        return [*preparing.left(self.directory, self.plan, left), *left]

    def _granted(self, executor: Executor, recorded: list[Failure]) -> list[Failure]:
        """Failures of packs that are due and may be run again."""
        due = set(self._remaining([]))
        failed = [failure for failure in recorded if failure.pack in due]
        checks = retrying.checks(self.plan, self.directory, [failure.pack for failure in failed])
        checking = retrying.Checking(executor, checks)
        ledger, require = self._ledger([]), self.lease.require
        Driver(checking, checks, ledger, self.stop, self.show, require=require).run()
        for line in retrying.refusals(self.plan, checking.different):
            self.tell(line)
        refused = {pack.audit for pack in checking.different}
        return [failure for failure in failed if failure.pack.audit not in refused]

    def _given_up_again(self, executor: Executor, granted: list[Failure], result: Result) -> Result:
        """Packs whose turn did not come once more are misses again."""
        executor.give_up(granted)
        executor.flush()
        return dataclasses.replace(result, failures=self._failures())

    def _failures(self) -> tuple[Failure, ...]:
        of_packs = failures.read(self.directory, self.plan)
        return (*of_packs, *preparing.read(self.directory, self.plan))

    def _ledger(self, recorded: list[Failure]) -> Ledger:
        labels = [audit.label for audit in self.plan.audits]
        reached = {}
        for index in {failure.pack.audit for failure in recorded}:
            done = gathering.finished(self.directory, self.plan.audits[index])
            reached[index] = max((first for first, _ in done), default=-1)
        return Ledger(self.sweep.resources, labels, self.tell, recorded, reached)

    def _drive(self, executor: Executor, remaining: list[Pack], recorded: list[Failure]) -> Result:
        hours = {
            index: rule.hours
            for index, cell in enumerate(self.sweep.cells)
            if (rule := cell.audit.stop_when) is not None and rule.hours is not None
        }
        ledger = self._ledger(recorded)
        show, require = self.show, self.lease.require
        summary = Driver(executor, remaining, ledger, self.stop, show, hours, require).run()
        self.directory.require_owned()
        complete = self.directory.complete
        known = self._failures()
        stopped = summary.stopped and not complete
        return Result(self.directory.location, complete, known, summary.lost, stopped)

    @contextlib.contextmanager
    def _executor(self, name: ExecutorName, packs: int, address: str | None) -> Iterator[Executor]:
        if name == "inline":
            from .orchestration.fleet import Fleet
            from .orchestration.inline import InlineExecutor

            if packs:
                here = provenance.machine((), gpu=self.sweep.resources.num_gpus > 0)
                Fleet(self.plan, self.directory, self.tell).admit(socket.gethostname(), here)
            yield InlineExecutor(self.sweep, self.plan, self.directory)
            return
        from .orchestration import cluster

        ray = self.connection.enter_context(cluster.connected(address))
        self.stop.install()
        executor = cluster.executor(ray, self.sweep, self.plan, self.directory, packs, self.tell)
        executor.leave_when(lambda: self.stop.requested)
        try:
            yield executor
        finally:
            executor.close()


def _reported(directory: RunDirectory) -> contextlib.AbstractContextManager[None]:
    from .report import live

    return live.beside(directory)


def check_inputs(sweep: Sweep) -> None:
    """Loads every data set once, so that a missing file is told before anything starts."""
    for mechanism in {
        cell.mechanism.model_dump_json(): cell.mechanism for cell in sweep.cells
    }.values():
        mechanism.check_inputs()
    for cell in {cell.fingerprint: cell for cell in sweep.cells}.values():
        cell.mechanism.check_records(cell.adversary)


def _load(sweep: str | Path | Mapping[str, Any] | Sweep, overrides: Mapping[str, Any]) -> Sweep:
    if isinstance(sweep, Sweep):
        return sweep
    if isinstance(sweep, Mapping):
        return spec.from_raw(sweep, overrides=overrides)
    return spec.load(sweep, overrides)
