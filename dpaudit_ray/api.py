"""Runs a sweep from its specification to its result, in one call: `dpaudit_ray.run`."""

import importlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from . import plan as planning
from .callbacks import Callback, Callbacks
from .errors import DamagedFileError, MissingFileError, SpecError, StorageError, plain
from .orchestration import ExecutorName, metrics
from .orchestration.dispatcher import Dispatcher
from .orchestration.driver import Driver, FailureBudget
from .orchestration.executors import Work
from .orchestration.interruption import Stop
from .orchestration.progress import Activity, Progress, Tell, tell_nobody
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

_LOSSES = 3  # times that a run continues after storage has lost files


def run(  # noqa: PLR0913 (one call does it all; rare arguments go by name)
    sweep: str | Path | Mapping[str, Any] | Sweep,
    storage_path: str | Path = "runs",
    executor: ExecutorName = "ray",
    address: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    show: Callable[[Progress], None] | None = None,
    *,
    retry_failed: bool = False,
    tell: Tell = tell_nobody,
    phase: Tell = tell_nobody,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Runs a sweep, or resumes it if its run directory exists.

    SIGTERM, Ctrl-C and a terminal that is closed (SIGHUP) end it after the running packs. A second
    SIGTERM or Ctrl-C ends it at once, as KeyboardInterrupt.

    Args:
        sweep: a sweep file's path, its content as a mapping, or a `Sweep`.
        storage_path: folder or `s3://`, `gs://` address; results go to storage_path/name.
        executor: where packs run: "ray", or "inline" for this process.
        address: a Ray cluster to join; by default one is started for this call.
        overrides: values by dotted key, applied to a sweep file before validation.
        show: takes a snapshot about twice a second; by default a notebook shows it.
        retry_failed: runs packs again that failed in an earlier attempt, several times each; if
            the code does not give the same scores each time, their trials stay misses.
        tell: takes a line for the user if a run is resumed, gives up on something, or takes long.
        phase: takes the current phase before the first snapshot and after the last; snapshots
            have a `phase` themselves.
        callbacks: get estimates as they change, and the result; see
            `dpaudit_ray.callbacks`.

    Returns:
        The run, complete or not.

    Raises:
        DpauditError: one line for the user; see `dpaudit_ray.errors`.
    """
    names = get_args(ExecutorName)
    if executor not in names:
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
    patience = replace(place.OPENING, tell=tell)
    directory = RunDirectory.under(storage_path, prepared.name, patience)
    prepared = planning.with_stored_trials(prepared, directory, tell)
    phase("checking for another driver")
    stale_lease = lease.left_behind(directory)  # begins to watch one before loading takes long
    warn_of_few_trials(prepared, tell)
    phase("loading the data")
    check_inputs(prepared, tell)
    phase("planning")
    planning.preview(prepared, directory)  # a plan that is refused leaves no trace
    directory.require_writable()
    stop = Stop(prepared.resources.grace_seconds, tell)
    with stop.listening(), lease.held(directory, earlier=stale_lease) as own_lease:
        plan = planning.open_run(prepared, own_lease.run, tell)
        running = own_lease.run.with_patience(replace(place.RUNNING, tell=tell))
        events = Callbacks(callbacks, tell)
        show = events.observing(show or notebook_progress())
        result = _Job(
            prepared, plan, running, own_lease, stop, show, tell, phase, executor, address,
            retry_failed,
        ).run()  # fmt: skip
    events.end(result)
    return result


@dataclass(frozen=True)
class _Job:
    """A planned run whose lease this process holds; the arguments are those of `run`."""

    sweep: Sweep
    plan: Plan
    directory: RunDirectory
    lease: Lease
    stop: Stop
    show: Callable[[Progress], None]
    tell: Tell
    phase: Tell
    executor: ExecutorName
    address: str | None
    retry_failed: bool
    connection: ExitStack = field(default_factory=ExitStack)

    def run(self) -> Result:
        """Runs what is missing; again if storage has lost files, or had damaged ones."""
        enough = self._enough()
        packs = planning.remaining(self.directory, self.plan, enough)
        missing = sum(pack.size for pack in packs)
        trials = 0
        for index, audit in enumerate(self.plan.audits):
            trials += enough.get(index, audit.trials)
        failures = [] if self.retry_failed else outcomes.failed(self.directory, self.plan)
        if missing < trials and self._remaining(failures):
            self.tell(f"resuming at {trials - missing:,} of {trials:,} trials")
        losses = 0
        with self.connection:
            while True:
                try:
                    return self._run_once()
                except MissingFileError as error:
                    losses += 1
                    if losses > _LOSSES:
                        raise StorageError(
                            f"storage loses what it has taken ({error}); check it for other writers"
                        ) from error
                    self.tell(f"{error}: its trials are run again")
                except DamagedFileError:
                    if not quarantine.set_aside(self.directory, self.plan, self.tell):
                        raise

    def _enough(self) -> dict[int, int]:
        """Returns the trials that were enough, by audit that `stop_when` has ended."""
        return outcomes.decided(self.directory, self.sweep, self.plan)

    def _remaining(self, failures: list[Failure]) -> list[Pack]:
        """Returns the packs to run, apart from those that failed."""
        skipped = {failure.pack for failure in failures}
        return outcomes.to_run(self.directory, self.plan, self._enough(), skipped)

    def _run_once(self) -> Result:
        """Runs what is missing, and returns the run; Ray is started only if packs are missing."""
        failures = outcomes.failed(self.directory, self.plan)
        retried = []
        if self.retry_failed:
            retried = failures
            failures = []
            outcomes.Record(self.directory, self.plan).replace(failed_parts=())
        failed_parts = outcomes.failed_parts(self.directory, self.plan)
        for line in outcomes.part_lines(failed_parts, self.plan):
            self.tell(line)
        packs = len(self._remaining(failures))
        # If no pack is left to run, this process writes estimates and marks, without Ray.
        name = self.executor if packs else "inline"
        with self._dispatcher(name, packs) as dispatcher:
            if retried:
                dispatcher.try_again(retried)
            driver = Driver(
                dispatcher, self._remaining(failures), self._budget(failures),
                stop=self.stop, show=self.show, require=self.lease.require,
            )  # fmt: skip
            summary = driver.run()
            self.directory.require_owned()  # raises if another driver has it now
            if retried:  # packs that were not run again count as misses, as before
                dispatcher.give_up(retried)
                dispatcher.flush()
            failures = outcomes.failed(self.directory, self.plan)
            failures += outcomes.failed_parts(self.directory, self.plan)
            complete = outcomes.complete(self.directory, self.plan, self._enough())
            stopped = summary.stopped and not complete
            location = self.directory.location
            result = Result(location, complete, tuple(failures), summary.losses, stopped)
            if name == "ray" and complete:
                self._publish_verdicts(dispatcher, result)
            return result

    def _budget(self, recorded: list[Failure]) -> FailureBudget:
        """Makes the budget of failures, with those of packs that stay recorded as failed."""
        labels = [audit.label for audit in self.plan.audits]
        last_done = {}  # number of the last finished pack's first trial, by audit
        for index in {failure.pack.audit for failure in recorded}:
            finished = stored_packs(self.directory, self.plan.audits[index])
            last_done[index] = max((first for first, _ in finished), default=-1)
        return FailureBudget(self.sweep.resources, labels, self.tell, recorded, last_done)

    def _publish_verdicts(self, dispatcher: Dispatcher, result: Result) -> None:
        """Passes refuted claims to the metrics, which know only live bounds so far."""
        from .report import verdict

        self.phase("judging the claims")
        refuted = frozenset(
            index
            for index, audit in enumerate(verdict.current(result.run).audits)
            if audit.verdict is verdict.Verdict.VIOLATION
        )
        now = Activity(trainers=dispatcher.trainers, last_result=time.time(), refuted=refuted)
        last = dispatcher.progress(now)
        if refuted - {index for index, audit in enumerate(last.audits) if audit.refuted}:
            # The series end with the aggregator, so their last values have to be collected before.
            time.sleep(metrics.COLLECTED_SECONDS)

    @contextmanager
    def _dispatcher(self, name: ExecutorName, packs: int) -> Iterator[Dispatcher]:
        """Yields a dispatcher of this executor for this number of packs.

        Ray joins the cluster at the address, or that of RAY_ADDRESS; without one it starts one.
        """
        work = Work(self.sweep, self.plan, self.directory, packs, self.tell)
        if name != "ray":
            module = importlib.import_module(f"{__package__}.orchestration.{name}_executor")
            dispatcher = module.dispatcher(work)
        else:
            from .orchestration import ray_executor, ray_internals

            cluster = self.address or os.environ.get("RAY_ADDRESS")
            self.phase(
                f"joining the cluster at {cluster}" if cluster else "starting Ray on this machine"
            )
            ray = self.connection.enter_context(ray_executor.connected(self.address))
            self.connection.callback(self.phase, "leaving the cluster" if cluster else "ending Ray")
            self.stop.install()
            if page := ray_internals.dashboard(ray):
                self.tell(f"Ray's dashboard: {page}")
            self.phase("starting the aggregator, which reads what is done")
            dispatcher = ray_executor.dispatcher(ray, work, self.lease.previous_owner)
        try:
            yield dispatcher
        finally:
            dispatcher.close()


def check_inputs(sweep: Sweep, tell: Tell = tell_nobody) -> None:
    """Loads all data before anything starts, and warns of a δ above 1 / N.

    Args:
        sweep: the sweep; mechanisms that several audits share are checked once.
        tell: takes the warnings.

    Raises:
        DataError: data cannot be read.
        SpecError: options do not fit the data.
    """
    mechanisms = {cell.mechanism.model_dump_json(): cell.mechanism for cell in sweep.cells}
    for mechanism in mechanisms.values():
        mechanism.check_inputs()
    cells = {cell.fingerprint: cell for cell in sweep.cells}
    for cell in cells.values():
        cell.mechanism.check_records(cell.adversary)
    deltas = {(cell.audit.delta, cell.mechanism.private_records or 0) for cell in sweep.cells}
    for delta, records in sorted(deltas):
        if delta * records > 1:
            exponent = math.ceil(math.log10(records))
            tell(
                f"warning: audit.delta is {plain(delta)}, above 1 / N = "
                f"{plain(1 / records, '.2g')} for {records:,} records: publishing one of them, at "
                f"random, would keep it; use at most {plain(10.0**-exponent)}"
            )


def warn_of_few_trials(
    sweep: Sweep,
    tell: Callable[[str], None],
) -> None:
    """Warns of audits that show nothing even if every guess is right.

    Without any leak, n random bits are guessed right with a probability of 2^-n. No test rejects at
    its level what is more probable than that level, so no such audit has a bound above 0.
    """
    hopeless = dict[tuple[int, int], int]()
    for cell in sweep.cells:
        least = math.floor(-math.log2(1 - cell.audit.confidence)) + 1
        if cell.sampled and cell.audit.trials < least:
            key = (cell.audit.trials, least)
            hopeless[key] = hopeless.get(key, 0) + 1
    for (trials, least), audits in hopeless.items():
        tell(
            f"warning: {audits:,} of {len(sweep.cells):,} audits can show no ε above 0 and no "
            f"violation: audit.trials is {trials}, but at least {least} are needed, even if all "
            "guesses are right; raise it (`dpaudit plan` forecasts what more trials show)"
        )


def _require_gpu(sweep: Sweep) -> None:
    """Raises SpecError if packs need a GPU that this process does not see."""
    gpus = sweep.resources.num_gpus
    mechanisms = [cell.mechanism for cell in sweep.cells]
    if gpus and any(mechanism.uses_torch and mechanism.uses_gpu for mechanism in mechanisms):
        import torch

        count = torch.cuda.device_count()
        if count < gpus:
            raise SpecError(
                "resources.num_gpus",
                f"is {gpus:g}, but this process sees {count or 'no'} GPU; use "
                "--set resources.num_gpus=0, or --executor ray on a cluster that has them",
            )
