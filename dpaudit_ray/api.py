"""`dpaudit_ray.run`: a sweep from specification to result, in one call."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from . import plan as planning
from .errors import DamagedFileError, MissingFileError, SpecError, StorageError, plain
from .orchestration import ExecutorName, metrics
from .orchestration.dispatcher import Dispatcher
from .orchestration.driver import Driver, FailureBudget
from .orchestration.executors import Work
from .orchestration.interruption import Stop
from .orchestration.progress import Activity, Progress
from .plan import outcomes, quarantine
from .plan.finished_trials import stored_packs
from .plan.model import Pack, Plan
from .plan.outcomes import Failure
from .result import Result, notebook_progress
from .storage import lease, place
from .storage.lease import Lease
from .storage.run_directory import RunDirectory
from .sweep import spec
from .sweep.spec import Sweep

_LOSSES = 3  # times that a run goes on after files have vanished


def run(  # noqa: PLR0913 (one call does it all; what is rare goes by name)
    sweep: str | Path | Mapping[str, Any] | Sweep,
    storage_path: str = "runs",
    executor: ExecutorName = "ray",
    address: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    show: Callable[[Progress], None] | None = None,
    *,
    retry_failed: bool = False,
    tell: Callable[[str], None] = lambda line: None,
    phase: Callable[[str], None] = lambda phase: None,
) -> Result:
    """Runs a sweep, or resumes it when its run directory exists.

    SIGTERM, Ctrl-C and a terminal that is closed (SIGHUP) end it after the running packs; a second
    one of the first two ends it at once, as KeyboardInterrupt.

    Args:
        sweep: a sweep file's path, its content as a mapping, or a `Sweep`.
        storage_path: folder or `s3://`, `gs://` address; results go to storage_path/name.
        executor: one of `orchestration.ExecutorName`; "inline" is everything in this process.
        address: a Ray cluster to join; by default one is started for this call.
        overrides: values by dotted key, applied to a sweep file before validation.
        show: called about twice a second with a snapshot; by default a notebook shows it.
        retry_failed: run packs again that failed in an earlier try, several times each; where the
            code does not give the same scores each time, their trials stay misses.
        tell: called with a line for the user when a run is resumed, or something is given up, or
            takes long.
        phase: called with what is begun before and after snapshots, whose `phase` says the same.

    Raises DpauditError: one line for the user; see `dpaudit_ray.errors`.
    """
    if executor not in (names := get_args(ExecutorName)):
        raise SpecError("executor", f"must be {' or '.join(names)}, got {executor!r}")
    if address and executor != "ray":
        raise SpecError("address", f"is {address!r}, but {executor} joins no cluster; leave it out")
    phase("reading the sweep")
    if isinstance(sweep, Sweep):
        prepared = sweep
    elif isinstance(sweep, Mapping):
        prepared = spec.from_raw(sweep, overrides=overrides or {})
    elif isinstance(sweep, str | Path):
        prepared = spec.load(sweep, overrides or {})
    else:
        kind = type(sweep).__name__
        raise SpecError("sweep", f"is a {kind}; give a sweep file's path, its content or a Sweep")
    if executor != "ray":
        _require_gpu(prepared)
    directory = RunDirectory.under(
        storage_path, prepared.name, dataclasses.replace(place.OPENING, tell=tell)
    )
    prepared = planning.kept(prepared, directory, tell)
    phase("checking for another driver")
    left_behind = lease.left_behind(directory)  # before what takes long
    warn_of_few_trials(prepared, tell)
    phase("loading the data")
    check_inputs(prepared, tell)
    phase("planning")
    planning.preview(prepared, directory)  # what cannot be leaves no trace
    directory.require_writable()
    stop = Stop(prepared.resources.grace_seconds, tell)
    with stop.listening(), lease.held(directory, known=left_behind) as held:
        plan = planning.open_run(prepared, held.run, tell)
        running = held.run.patient(dataclasses.replace(place.RUNNING, tell=tell))
        job = _Job(prepared, plan, running, held, stop, show or notebook_progress(), tell, phase)
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
    phase: Callable[[str], None]
    connection: contextlib.ExitStack = dataclasses.field(default_factory=contextlib.ExitStack)

    def run(self, executor: ExecutorName, address: str | None, retry_failed: bool) -> Result:
        enough = outcomes.decided(self.directory, self.sweep, self.plan)
        missing = sum(pack.size for pack in planning.remaining(self.directory, self.plan, enough))
        trials = sum(enough.get(i, audit.trials) for i, audit in enumerate(self.plan.audits))
        recorded = [] if retry_failed else outcomes.failed(self.directory, self.plan)
        if missing < trials and self._remaining(recorded):
            self.tell(f"resuming at {trials - missing:,} of {trials:,} trials")
        losses = 0
        with self.connection:
            while True:
                try:
                    return self._run(executor, address, retry_failed)
                except MissingFileError as error:
                    losses += 1
                    if losses > _LOSSES:
                        problem = f"storage loses what it has taken ({error})"
                        raise StorageError(f"{problem}; check it for other writers") from error
                    self.tell(f"{error}: its trials are run again")
                except DamagedFileError:
                    if not quarantine.set_aside(self.directory, self.plan, self.tell):
                        raise

    def _remaining(self, recorded: list[Failure]) -> list[Pack]:
        enough = outcomes.decided(self.directory, self.sweep, self.plan)
        left_out = {failure.pack for failure in recorded}
        return outcomes.to_run(self.directory, self.plan, enough, left_out)

    def _run(self, executor: ExecutorName, address: str | None, retry_failed: bool) -> Result:
        recorded = outcomes.failed(self.directory, self.plan)
        if retry_failed:
            outcomes.Record(self.directory, self.plan).replace(failed_parts=())
        parts = outcomes.failed_parts(self.directory, self.plan)
        for line in outcomes.part_lines(parts, self.plan):
            self.tell(line)
        retried, left_out = (recorded, []) if retry_failed else ([], recorded)
        packs = len(self._remaining(left_out))
        name: ExecutorName = executor if packs else "inline"
        with self._dispatcher(name, packs, address) as dispatcher:
            if retried:
                dispatcher.try_again(retried)
            how = self._budget(left_out), self.stop, self.show, self.lease.require
            summary = Driver(dispatcher, self._remaining(left_out), *how).run()
            self.directory.require_owned()
            if retried:  # packs whose turn did not come once more are misses again
                dispatcher.give_up(retried)
                dispatcher.flush()
            failures = outcomes.failed(self.directory, self.plan)
            failures += outcomes.failed_parts(self.directory, self.plan)
            enough = outcomes.decided(self.directory, self.sweep, self.plan)
            complete = outcomes.complete(self.directory, self.plan, enough)
            stopped = summary.stopped and not complete
            location = self.directory.location
            result = Result(location, complete, tuple(failures), summary.lost, stopped)
            if name == "ray" and complete:
                self._conclude(dispatcher, result)
            return result

    def _budget(self, recorded: list[Failure]) -> FailureBudget:
        labels = [audit.label for audit in self.plan.audits]
        indices = {failure.pack.audit for failure in recorded}
        done = {i: stored_packs(self.directory, self.plan.audits[i]) for i in indices}
        reached = {i: max((first for first, _ in packs), default=-1) for i, packs in done.items()}
        return FailureBudget(self.sweep.resources, labels, self.tell, recorded, reached)

    def _conclude(self, dispatcher: Dispatcher, result: Result) -> None:
        """Tells the metrics of refuted claims: those of all trials, and not of live bounds only."""
        from .report import verdict

        self.phase("judging the claims")
        verdicts = [audit.verdict for audit in verdict.current(result.run).audits]
        refuted = frozenset(i for i, v in enumerate(verdicts) if v is verdict.Verdict.VIOLATION)
        now = Activity(trainers=dispatcher.trainers, last_result=time.time(), refuted=refuted)
        last = dispatcher.progress(now)
        if refuted - {i for i, audit in enumerate(last.audits) if audit.refuted}:
            time.sleep(metrics.COLLECTED_SECONDS)  # the series end with the aggregator

    @contextlib.contextmanager
    def _dispatcher(
        self, name: ExecutorName, packs: int, address: str | None
    ) -> Iterator[Dispatcher]:
        work = Work(self.sweep, self.plan, self.directory, packs, self.tell)
        if name != "ray":  # which has to be joined or started first
            module = importlib.import_module(f"{__package__}.orchestration.{name}_executor")
            dispatcher = module.dispatcher(work)
        else:
            from .orchestration import ray_executor, ray_internals

            where = address or os.environ.get("RAY_ADDRESS")
            joining = f"joining the cluster at {where}" if where else "starting Ray on this machine"
            self.phase(joining)
            ray = self.connection.enter_context(ray_executor.connected(address))
            self.connection.callback(self.phase, "leaving the cluster" if where else "ending Ray")
            self.stop.install()
            if page := ray_internals.dashboard(ray):
                self.tell(f"Ray's dashboard: {page}")
            self.phase("starting the aggregator, which reads what is done")
            dispatcher = ray_executor.dispatcher(ray, work, self.lease.before)
        try:
            yield dispatcher
        finally:
            dispatcher.close()


def check_inputs(sweep: Sweep, tell: Callable[[str], None] = lambda line: None) -> None:
    """Loads every data set once, and tells of a δ above 1 / N, before anything starts."""
    for mechanism in {m.model_dump_json(): m for m in (c.mechanism for c in sweep.cells)}.values():
        mechanism.check_inputs()
    for cell in {cell.fingerprint: cell for cell in sweep.cells}.values():
        cell.mechanism.check_records(cell.adversary)
    pairs = {(cell.audit.delta, cell.mechanism.private_records or 0) for cell in sweep.cells}
    for delta, records in sorted(pairs):
        if delta * records > 1:
            tell(
                f"warning: audit.delta is {plain(delta)}, above 1 / N = "
                f"{plain(1 / records, '.2g')} for {records:,} records: publishing one of them, at "
                "random, would keep it; use at most "
                f"{plain(10.0 ** -math.ceil(math.log10(records)))}"
            )


def warn_of_few_trials(sweep: Sweep, tell: Callable[[str], None]) -> None:
    """Warns of audits that show nothing even if every guess is right.

    Without any leak, n random bits are guessed right with a probability of 2^-n. No test rejects at
    its level what is more probable than that level, so no such audit has a bound above 0.
    """
    hopeless = dict[tuple[int, int], int]()
    for cell in sweep.cells:
        least = math.floor(-math.log2(1 - cell.audit.confidence)) + 1
        if cell.mechanism.sampled and cell.audit.trials < least:
            key = (cell.audit.trials, least)
            hopeless[key] = hopeless.get(key, 0) + 1
    for (trials, least), audits in hopeless.items():
        tell(
            f"warning: {audits:,} of {len(sweep.cells):,} audits can show no ε above 0 and no "
            f"violation: audit.trials is {trials}, but at least {least} are needed, even if all "
            "guesses are right; raise it (`dpaudit plan` forecasts what more trials show)"
        )


def _require_gpu(sweep: Sweep) -> None:
    """Raises SpecError where packs would be given a GPU that this process does not see."""
    gpus = sweep.resources.num_gpus
    if gpus and any(c.mechanism.uses_torch and c.mechanism.uses_gpu for c in sweep.cells):
        import torch

        if (there := torch.cuda.device_count()) < gpus:
            problem = f"is {gpus:g}, but this process sees {there or 'no'} GPU"
            remedy = "use --set resources.num_gpus=0, or --executor ray on a cluster that has them"
            raise SpecError("resources.num_gpus", f"{problem}; {remedy}")
