"""The verbs that start work: `dpaudit plan`, `run` and `submit`."""

from __future__ import annotations

import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import Exit
from ..orchestration import ExecutorName
from . import tables, terminal
from .arguments import (
    ANY_ERROR,
    SWEEPS,
    Address,
    AsJson,
    Details,
    Set,
    StoragePath,
    Sweep,
    Trusted,
    verb,
)

if TYPE_CHECKING:
    from ..report.tables import Run
    from ..report.verdict import Answer
    from ..result import Result

app = typer.Typer()
_CODES = f"0 complete, {ANY_ERROR}, 3 finished with failed trials, 4 stopped and resumable"
_STOPPED = "stopped; finished packs are safe: run the same command to resume"


@verb(app, SWEEPS, "run sweep.yaml --set audit.trials=200", _CODES)
def run(  # noqa: PLR0913 (options of a command line)
    sweep: Sweep,
    storage_path: StoragePath = "runs",
    address: Address = None,
    changes: Set = None,
    executor: Annotated[
        ExecutorName, typer.Option(help="Run packs on Ray, or inline: in this process.")
    ] = "ray",
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run failed packs again.")
    ] = False,
    trust: Trusted = None,
    details: Details = False,
    as_json: AsJson = False,
    on_finish: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND", help="Run this at the end, with --json's answer as its input."
        ),
    ] = None,
) -> None:
    """Run a sweep, or resume it if its run directory exists.

    A sweep file is code: it may name modules that are imported and run.
    """
    from .. import api
    from ..plan import outcomes
    from ..report import verdict
    from ..sweep.yamlfile import parse_changes
    from .live_view import Display
    from .read_verbs import status_entries

    with Display(quiet=as_json) as display:
        try:
            result = api.run(
                sweep, storage_path, executor, address, parse_changes(changes), display,
                retry_failed=retry_failed, tell=display.tell, phase=display.phase,
            )  # fmt: skip
            display.phase("judging the claims")
            opened = result.run
            # A user who stops a run does not wait until many trials are judged.
            answer = verdict.current_or_stored if result.stopped else verdict.current
            summary = answer(opened, display.judging)
        except KeyboardInterrupt:
            display.tell(_STOPPED)
            raise typer.Exit(Exit.STOPPED) from None
    missed = list(outcomes.missed_lines(opened.directory, opened.plan))
    code = Exit.STOPPED if result.stopped else Exit.FAILED_TRIALS
    if result.complete and not missed and not (summary and summary.failed_trials):
        code = Exit.COMPLETE
    entries = {"run": result.location, "exit_code": code, "stopped": result.stopped}
    entries |= status_entries(opened, summary)
    if as_json:
        terminal.show_json(entries)
    else:
        _show_end(opened, summary, result, missed, details)
    if on_finish is not None:
        content = terminal.json_text(entries)
        done = subprocess.run(on_finish, shell=True, text=True, input=content)
        if done.returncode:
            terminal.complain(f"--on-finish ended with exit code {done.returncode}: {on_finish}")
    raise typer.Exit(code)


def _show_end(
    opened: Run,
    summary: Answer | None,
    result: Result,
    missed: list[str],
    details: bool,
) -> None:
    """Prints bounds, failures and the verdict at the end of a run.

    Args:
        opened: the run, as it is now stored.
        summary: verdict on the run; None before there is one.
        result: result of this attempt.
        missed: lines on trials that failed one by one.
        details: whether to print all columns.
    """
    from .read_verbs import failure_lines

    if details:
        tables.show_overview(opened, summary, details)
    else:
        tables.show_summary(opened, summary)
    for line in [*failure_lines(opened), *missed]:
        terminal.complain(line)
    if result.stopped:
        terminal.complain(_STOPPED)
    elif any(failure.pack.size for failure in result.failures):
        terminal.complain(
            "trials of failed packs count as wrong guesses; run --retry-failed repeats them"
        )
    tables.show_answer(opened, summary)
    terminal.say(f"results in {result.location}; next: dpaudit report {result.location}")


@verb(app, SWEEPS, "plan sweep.yaml", f"0 planned, {ANY_ERROR}")
def plan(
    sweep: Sweep,
    storage_path: StoragePath = "runs",
    changes: Set = None,
    trust: Trusted = None,
    as_json: AsJson = False,
    price: Annotated[
        float | None,
        typer.Option(min=0, metavar="PRICE", help="Show the cost, at this price of a core-hour."),
    ] = None,
) -> None:
    """Forecast a sweep: its audits, packs, time, largest bounds, and the modules that it runs.

    The first steps of packs are timed, so this runs the code of the sweep.
    """
    from ..forecast import forecast
    from ..plan import provenance
    from ..sweep import spec
    from ..sweep.yamlfile import parse_changes

    prepared = spec.load(sweep, parse_changes(changes))
    outlook = forecast.forecast(prepared, storage_path, terminal.complain)
    code = provenance.sweep_code(prepared)
    core_hours = outlook.core_hours(prepared.resources.num_cpus)
    if as_json:
        cost = None if price is None else core_hours * price
        forecasts = {"core_hours": core_hours, "cost": cost, "seconds": outlook.seconds}
        forecasts |= asdict(outlook)
        terminal.show_json({"name": prepared.name, "modules": code.modules, **forecasts})
        return
    tables.show_plan(prepared.name, outlook)
    tables.show_cost(core_hours, price, prepared.resources.max_core_hours)
    tables.show_code(code)


@verb(
    app,
    SWEEPS,
    "submit sweep.yaml --address http://HEAD:8265 --storage-path s3://bucket/runs",
    f"{_CODES}; 0 at once with --no-wait",
    page="cluster",
)
def submit(  # noqa: PLR0913 (options of a command line)
    sweep: Annotated[
        str, typer.Argument(metavar="SWEEP", help="Sweep file in the working directory.")
    ],
    address: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Submit to the Ray head with this dashboard, e.g. http://HEAD:8265.",
            envvar="RAY_API_SERVER_ADDRESS",
        ),
    ],
    storage_path: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="Write results to PATH/name: a folder that all nodes mount, or an address.",
        ),
    ],
    changes: Set = None,
    working_dir: Annotated[str, typer.Option(metavar="FOLDER", help="Send this folder.")] = ".",
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Do not send these files. May be repeated."),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Send these files, too. May be repeated."),
    ] = None,
    wait: Annotated[
        bool, typer.Option(help="Follow the log, and exit with the code of the sweep.")
    ] = True,
    python: Annotated[
        str, typer.Option(metavar="PYTHON", help="Run with this Python of the head.")
    ] = "python",
    install: Annotated[
        bool,
        typer.Option("--install", help="Install this package with uv on nodes that have only Ray."),
    ] = False,
    trust: Trusted = None,
    as_json: AsJson = False,
) -> None:
    """Run a sweep as a Ray job. Repeat the command to follow it, or to resume it once stopped."""
    from .. import plan as planning
    from ..orchestration.submission import JobsClient, SweepJob
    from ..orchestration.working_dir_package import WorkingDirPackage
    from ..storage.run_directory import RunDirectory
    from ..sweep import spec
    from ..sweep.yamlfile import parse_changes

    prepared = spec.load(sweep, parse_changes(changes))
    package = WorkingDirPackage(Path(working_dir), tuple(exclude or ()), tuple(include or ()))
    options = []
    for change in changes or ():
        options += ["--set", change]
    if trust is not None:
        options += ["--trust", trust]
    job = SweepJob(prepared, sweep, storage_path, package, options, python, install)
    if Path(job.run).is_dir() and planning.finished(prepared, RunDirectory(job.run)):
        terminal.complain(f"{job.run} is complete; next: dpaudit report {job.run}")
        return
    cluster = JobsClient(address, terminal.complain)
    submission = cluster.submit(job)
    terminal.complain(f"stop it: {cluster.stop_command(submission)}; the same command resumes it")
    code = None
    if wait:
        try:
            code = cluster.follow(submission, terminal.add if as_json else terminal.pass_on)
        except KeyboardInterrupt:
            terminal.complain("the job continues; the same command follows it again")
            code = Exit.STOPPED
    if as_json:
        page = cluster.page(submission)
        terminal.show_json({"job": submission, "page": page, "run": job.run, "exit_code": code})
    raise typer.Exit(code or Exit.COMPLETE)
