"""The verbs that start work: `dpaudit plan`, `run` and `submit`."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

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
) -> None:
    """Run a sweep, or resume it if its run directory exists.

    A sweep file is code: it may name modules that are imported and run.
    """
    from .. import api
    from ..plan import outcomes
    from ..report import verdict
    from ..sweep.yamlfile import parse_changes
    from .live_view import Display
    from .read_verbs import failure_lines

    with Display() as display:
        try:
            result = api.run(
                sweep, storage_path, executor, address, parse_changes(changes), display,
                retry_failed=retry_failed, tell=display.tell, phase=display.phase,
            )  # fmt: skip
            display.phase("judging the claims")
            opened = result.run
            answer = verdict.current_or_stored if result.stopped else verdict.current
            summary = answer(opened, display.judging)
        except KeyboardInterrupt:
            display.tell(_STOPPED)
            raise typer.Exit(Exit.STOPPED) from None
    if details:
        tables.show_overview(opened, summary, details)
    else:
        tables.show_summary(opened, summary)
    missed = list(outcomes.missed_lines(opened.directory, opened.plan))
    for line in [*failure_lines(opened), *missed]:
        terminal.complain(line)
    if result.stopped:
        terminal.complain(_STOPPED)
    elif any(failure.pack.size for failure in result.failures):
        terminal.complain("the trials of failed packs count as misses, until run --retry-failed")
    tables.show_answer(opened, summary)
    terminal.say(f"results in {result.location}; next: dpaudit report {result.location}")
    has_failed_trials = bool(missed or (summary and summary.failed_trials))
    if result.complete and not has_failed_trials:
        raise typer.Exit(Exit.COMPLETE)
    raise typer.Exit(Exit.STOPPED if result.stopped else Exit.FAILED_TRIALS)


@verb(app, SWEEPS, "plan sweep.yaml", f"0 planned, {ANY_ERROR}")
def plan(
    sweep: Sweep,
    storage_path: StoragePath = "runs",
    changes: Set = None,
    trust: Trusted = None,
    as_json: AsJson = False,
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
    if as_json:
        core_hours = outlook.seconds * prepared.resources.num_cpus / 3600
        forecasts = {"core_hours": core_hours, "seconds": outlook.seconds, **asdict(outlook)}
        terminal.show_json({"name": prepared.name, "modules": code.modules, **forecasts})
        return
    tables.show_plan(prepared.name, outlook)
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
        str, typer.Option(metavar="PYTHON", help="Use this Python of the head.")
    ] = "python",
    install: Annotated[
        bool,
        typer.Option("--install", help="Install this package with uv on nodes that have only Ray."),
    ] = False,
    trust: Trusted = None,
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
    options: list[str] = []
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
    if not wait:
        return
    try:
        code = cluster.follow(submission, terminal.pass_on)
    except KeyboardInterrupt:
        terminal.complain("the job continues; the same command follows it again")
        code = Exit.STOPPED
    raise typer.Exit(code)
