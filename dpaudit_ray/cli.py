"""`dpaudit VERB`: arguments in, exit code out. What the verbs do lives in the modules they call."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import sys
import traceback
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Never, cast

import typer

from . import __version__, cli_tables, terminal
from .cli_bench import bench
from .cli_submit import submit
from .errors import DpauditError, Exit, SpecError
from .yamlfile import parse_changes

if TYPE_CHECKING:
    from .report.tables import Run

# Click's, wherever Typer keeps its copy.
_UsageError = cast(type[Exception], typer.BadParameter.__base__)


class ExecutorChoice(StrEnum):
    """Where packs run."""

    ray = "ray"
    inline = "inline"


class ReportFormat(StrEnum):
    """What `report` writes."""

    html = "html"
    table = "table"
    csv = "csv"
    json = "json"


_STOPPED = "stopped; finished packs are safe: run the same command to resume"

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Audits differentially private training: valid lower bounds beside the claim.",
    epilog="--debug anywhere on the line shows the traceback behind an error.",
)
Sweep = Annotated[str, typer.Argument(help="A sweep file.")]
RunPath = Annotated[str, typer.Argument(help="A run directory, or its s3:// or gs:// address.")]
StoragePath = Annotated[str, typer.Option(help="Results go to PATH/name; a folder or an address.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="Changes a value: --set audit.trials=200.")
]


@app.command()
def run(
    sweep: Sweep,
    storage_path: StoragePath = "runs",
    address: Annotated[str | None, typer.Option(help="A Ray cluster to join.")] = None,
    changes: Set = None,
    executor: Annotated[ExecutorChoice, typer.Option(help="Where packs run.")] = ExecutorChoice.ray,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run packs again that failed before.")
    ] = False,
    page: Annotated[
        bool, typer.Option("--report", help="Keep the report's page fresh meanwhile.")
    ] = False,
) -> None:
    """Starts a sweep, or resumes it when its run directory exists."""
    from . import api

    with terminal.Display() as display:
        try:
            result = api.run(
                sweep, storage_path, executor.value, address, parse_changes(changes), display,
                retry_failed=retry_failed, tell=terminal.complain, report=page,
            )  # fmt: skip
        except KeyboardInterrupt:
            terminal.complain(_STOPPED)
            raise typer.Exit(Exit.STOPPED) from None
    opened = _print_overview(result.location)
    for line in _failures(opened):
        terminal.complain(line)
    if result.stopped:
        terminal.complain(_STOPPED)
    elif result.failures:
        terminal.complain("the trials of failed packs count as misses, until run --retry-failed")
    terminal.say(f"results in {result.location}; next: dpaudit report {result.location}")
    if result.complete:
        raise typer.Exit(Exit.COMPLETE)
    raise typer.Exit(Exit.STOPPED if result.stopped else Exit.FAILED_TRIALS)


_BENCH = typer.Option("--bench", help="Use what `dpaudit bench --json FILE` measured.")


@app.command()
def plan(
    sweep: Sweep,
    storage_path: StoragePath = "runs",
    changes: Set = None,
    bench_file: Annotated[Path | None, _BENCH] = None,
) -> None:
    """Shows audits, packs, time, and bounds within reach; trains one calibration pack."""
    from . import forecast, spec
    from .calibration import Calibration

    prepared = spec.load(sweep, parse_changes(changes))
    measured = Calibration.read(bench_file) if bench_file is not None else None
    outlook = forecast.of(prepared, storage_path, measured, terminal.complain)
    cli_tables.show_plan(prepared.name, outlook)


@app.command()
def status(
    run: RunPath, as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False
) -> None:
    """Progress, estimates, failures by kind and who drives, from the run directory alone."""
    from . import failures, lease, stop_when
    from .report.tables import Run, best, overview

    opened = Run.open(run)
    known = failures.read(opened.directory, opened.plan)
    enough = stop_when.decided(opened.directory, opened.sweep)
    driver = lease.holder(opened.directory)
    if as_json:
        entries: dict[str, Any] = {"name": opened.sweep.name}
        entries["complete"] = opened.directory.complete
        entries["driver"] = dataclasses.asdict(driver) if driver else None
        raw = [dataclasses.asdict(failure) for failure in known]
        decided = {opened.plan.audits[index].id: trials for index, trials in enough.items()}
        rest = {"audits": overview(opened), "best_certified": best(opened)}
        rest |= {"decided": decided, "failures": raw}
        terminal.show_json(entries | rest)
        return
    _print_overview(run)
    for index, trials in enough.items():
        terminal.say(f"{opened.plan.audits[index].label}: ended by stop_when after {trials} trials")
    for line in _failures(opened):
        terminal.say(line)
    if opened.directory.complete:
        terminal.say("complete")
    elif driver is not None and not driver.silent:
        terminal.say(f"not complete; {driver}")
    else:
        said = f"; {driver}" if driver else ""
        terminal.say(f"not complete{said}: `dpaudit run` resumes it")


@app.command()
def report(
    run: RunPath,
    format: Annotated[ReportFormat, typer.Option(help="What to write.")] = ReportFormat.html,
    watch: Annotated[
        bool, typer.Option("--watch", help="Write the page anew until the run is complete.")
    ] = False,
) -> None:
    """Figures and tables of a run; one that is not complete is marked interim."""
    from .report.tables import Run, all_estimates

    if watch:
        _watch(run, format)
        return
    opened = Run.open(run)
    if format is ReportFormat.html:
        from .report import page

        terminal.say(page.write(opened))
        return
    table = all_estimates(opened)
    if format is ReportFormat.csv:
        terminal.say(table.to_csv(index=False).rstrip("\n"))
    elif format is ReportFormat.json:
        terminal.show_json(table.to_dict("records"))
    else:
        cli_tables.show_estimates(opened, table)


def _watch(run: str, format: ReportFormat) -> None:
    from .report import live

    if format is not ReportFormat.html:
        raise SpecError("--watch", f"writes a page, not {format.value}; leave out --format")
    try:
        live.follow(run, terminal.say)
    except KeyboardInterrupt:
        raise typer.Exit(Exit.STOPPED) from None


@app.command()
def verify(
    run: RunPath, as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False
) -> None:
    """Says whether the trials contradict the claim: exit 1 violation, 0 none, 5 inconclusive."""
    from . import verdict
    from .report.tables import Run

    found = verdict.of(Run.open(run))
    if as_json:
        terminal.show_json(dataclasses.asdict(found))
    else:
        cli_tables.show_verdict(found)
    codes = {
        verdict.Verdict.VIOLATION: Exit.VIOLATION,
        verdict.Verdict.CONSISTENT: Exit.COMPLETE,
        verdict.Verdict.INCONCLUSIVE: Exit.INCONCLUSIVE,
    }
    raise typer.Exit(codes[found.verdict])


app.command()(submit)
app.command()(bench)


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="Print it.")] = False) -> None:
    if version:
        terminal.say(__version__)
        raise typer.Exit


def main() -> Never:
    """Entry point: turns every error into one line and its exit code."""
    debug = "--debug" in sys.argv
    sys.argv = [argument for argument in sys.argv if argument != "--debug"]
    with contextlib.suppress(FileNotFoundError):  # a run can be read where no folder is left
        sys.path.insert(0, str(Path.cwd()))  # plug-ins of one's own lie where one works
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ε still shows the rest
    try:
        code = app(prog_name="dpaudit", standalone_mode=False)
    except (DpauditError, _UsageError) as error:
        if debug:
            terminal.complain(traceback.format_exc())
        if line := _one_line(error):
            terminal.complain(line)
        code = getattr(error, "exit_code", Exit.USAGE)
    except Exception:  # noqa: BLE001 (Python would exit with 1, which says "violation")
        terminal.complain(traceback.format_exc())
        terminal.complain("this is a bug in dpaudit; finished packs are safe")
        code = Exit.BUG
    sys.exit(code or Exit.COMPLETE)


def _one_line(error: Exception) -> str:
    """Empty where Typer has printed its help instead."""
    if isinstance(error, DpauditError):
        return " ".join(str(error).split())
    message = str(getattr(error, "format_message", error.__str__)())
    verb = getattr(getattr(error, "ctx", None), "command_path", "dpaudit")
    plain = message.replace("Value error, ", "").removesuffix(".")
    return f"{plain}; see {verb} --help" if plain else ""


def _failures(opened: Run) -> list[str]:
    """One line per audit and kind of failure."""
    from . import failures

    known = failures.read(opened.directory, opened.plan)
    place = f"{opened.directory.location}/{failures.FILE}"
    return [
        f"{kind.label}: {'' if kind.packs == 1 else f'{kind.packs} packs of '}trials "
        f"{kind.first}-{kind.last} failed: {kind.message}; traceback in {place}"
        for kind in failures.by_kind(known, opened.plan)
    ]


def _print_overview(location: str) -> Run:
    from .report.tables import Run

    opened = Run.open(location)
    cli_tables.show_overview(opened)
    return opened
