"""`dpaudit VERB`: arguments in, exit code out. What the verbs do lives in the modules they call."""

from __future__ import annotations

import contextvars
import io
import os
import sys
import traceback
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Never, cast

import typer

from ..errors import DpauditError, Exit, SpecError
from ..orchestration import head_liveness
from ..sweep.yamlfile import parse_changes
from ..version import __version__
from . import completion, leftovers, reading, terminal
from . import tables as cli_tables
from .arguments import RunPath, Set, StoragePath, Sweep
from .bench import bench
from .check import check
from .compare import compare
from .designs import show_designs
from .init import init
from .listing import listing
from .stamps import stamp_a_job
from .status import status
from .submit import submit
from .trust import Trusted, TrustedToRead
from .verify import verify

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


_LONGEST_WORD = 400
_MOST_LINES = 20  # about one sweep file
_STOPPED = "stopped; finished packs are safe: run the same command to resume"

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Audits differentially private training: valid lower bounds beside the claim.",
    epilog="--debug anywhere on the line shows the traceback behind an error.",
)


@app.command()
def run(  # noqa: PLR0913 (options of a command line)
    sweep: Sweep,
    storage_path: StoragePath = "runs",
    address: Annotated[str | None, typer.Option(help="A Ray cluster to join.")] = None,
    changes: Set = None,
    executor: Annotated[ExecutorChoice, typer.Option(help="Where packs run.")] = ExecutorChoice.ray,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run packs again that failed before.")
    ] = False,
    accept_changed_code: Annotated[
        bool, typer.Option("--accept-changed-code", help="Go on with other code; marks estimates.")
    ] = False,
    trust: Trusted = None,
    page: Annotated[
        bool, typer.Option("--report", help="Keep the report's page fresh meanwhile.")
    ] = False,
    wide: terminal.Wide = False,
) -> None:
    """Starts a sweep, or resumes it when its run directory exists. A sweep file is code."""
    from .. import api
    from ..plan import missed as missed_trials
    from ..report import answer
    from .live import Display

    with Display() as display:
        try:
            result = api.run(
                sweep, storage_path, executor.value, address, parse_changes(changes), display,
                retry_failed=retry_failed, accept_changed_code=accept_changed_code,
                tell=display.tell, phase=display.phase, report=page,
            )  # fmt: skip
        except KeyboardInterrupt:
            display.tell(_STOPPED)
            raise typer.Exit(Exit.STOPPED) from None
    opened = reading.opened(result.location)
    said = answer.quick(opened) if result.stopped else answer.keep(opened)
    cli_tables.show_overview(opened, said)
    missed = list(missed_trials.lines(opened.directory, opened.plan))
    for line in [*leftovers.failed(opened, result.earlier), *missed]:
        terminal.complain(line)
    if result.stopped:
        terminal.complain(_STOPPED)
    elif any(failure.pack.size for failure in result.failures):
        terminal.complain("the trials of failed packs count as misses, until run --retry-failed")
    cli_tables.show_answer(opened, said)
    terminal.say(f"results in {result.location}; next: dpaudit report {result.location}")
    if result.complete and not missed:
        raise typer.Exit(Exit.COMPLETE)
    raise typer.Exit(Exit.STOPPED if result.stopped else Exit.FAILED_TRIALS)


_BUDGET = typer.Option(
    "--budget",
    help="Compare designs that this time pays for: 90s, 10min, 1.5h, 2d of this machine.",
)
_BENCH = typer.Option("--bench", help="Use what `dpaudit bench --json FILE` measured.")


@app.command()
def plan(
    sweep: Sweep,
    storage_path: StoragePath = "runs",
    changes: Set = None,
    bench_file: Annotated[Path | None, _BENCH] = None,
    budget: Annotated[str | None, _BUDGET] = None,
    trust: Trusted = None,
) -> None:
    """Shows audits, packs, time, bounds within reach, and what code the sweep runs.

    Times the first steps of packs, so it runs that code.
    """
    from ..forecast import designs, forecast
    from ..forecast.calibration import Calibration
    from ..plan import provenance
    from ..sweep import spec

    seconds = None if budget is None else designs.parsed(budget)
    prepared = spec.load(sweep, parse_changes(changes))
    measured = Calibration.read(bench_file) if bench_file is not None else None
    outlook = forecast.of(prepared, storage_path, measured, terminal.complain)
    cli_tables.show_plan(prepared.name, outlook)
    if seconds is not None:
        show_designs(prepared, outlook, seconds)
    cli_tables.show_code(provenance.of(prepared))


@app.command()
def report(
    run: RunPath,
    format: Annotated[ReportFormat, typer.Option(help="What to write.")] = ReportFormat.html,
    watch: Annotated[
        bool, typer.Option("--watch", help="Write the page anew until the run is complete.")
    ] = False,
    trust: TrustedToRead = None,
    wide: terminal.Wide = False,
) -> None:
    """Figures and tables of a run; one that is not complete is marked interim."""
    from ..report.tables import all_estimates

    if watch:
        _watch(run, format)
        return
    opened = reading.opened(run)
    if format is ReportFormat.html:
        from ..report import page

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
    from ..report import page

    if format is not ReportFormat.html:
        raise SpecError("--watch", f"writes a page, not {format.value}; leave out --format")
    try:
        page.follow(run, terminal.say)
    except KeyboardInterrupt:
        raise typer.Exit(Exit.STOPPED) from None


app.command()(status)
app.command()(verify)
app.command()(check)
app.command()(compare)
app.command()(submit)
app.command()(bench)
app.command()(init)
app.command("list")(listing)


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="Print it.")] = False) -> None:
    if version:
        terminal.say(__version__)
        raise typer.Exit


def main() -> Never:
    """Entry point: turns every error into one line and its exit code."""
    debug = "--debug" in sys.argv
    sys.argv = [argument for argument in sys.argv if argument != "--debug"]
    stamp_a_job()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ε still shows the rest
    if completion.asked(sys.argv):
        sys.exit(_completed())
    code = contextvars.copy_context().run(_run_app, debug) or Exit.COMPLETE
    if head_liveness.head_lost.is_set():  # Ray would wait at the end for what does not answer
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
    sys.exit(code)


def _completed() -> Exit:
    """What the shell asked for; Typer ends the process itself, with 1 where it knows no shell."""
    try:
        app(prog_name="dpaudit")
    except SystemExit as ended:
        return Exit.USAGE if ended.code else Exit.COMPLETE
    return Exit.COMPLETE


def _run_app(debug: bool) -> int | None:
    code: int | None
    try:
        code = app(prog_name="dpaudit", standalone_mode=False)
    except (DpauditError, _UsageError) as error:
        if debug:
            terminal.add(traceback.format_exc())
        for line in _told(error):
            terminal.complain(line)
        for detail in getattr(error, "details", ()):
            terminal.add(detail)
        code = getattr(error, "exit_code", Exit.USAGE)
    except SystemExit as error:
        terminal.complain(f"code that the sweep file names has called sys.exit({error.code!r})")
        code = Exit.USAGE
    except Exception:  # noqa: BLE001 (Python would exit with 1, which says "violation")
        terminal.add(traceback.format_exc())
        terminal.complain("this is a bug in dpaudit; finished packs are safe")
        code = Exit.BUG
    return code


def _told(error: Exception) -> list[str]:
    """A line for each mistake; none where Typer has printed its help instead."""
    if isinstance(error, DpauditError):
        several = error.problems if isinstance(error, SpecError) else (error,)
        lines = [" ".join(map(_cut, str(one).split())) for one in several]
        more = [f"and {len(lines) - _MOST_LINES} more"] * (len(lines) > _MOST_LINES)
        return lines[:_MOST_LINES] + more
    message = str(getattr(error, "format_message", error.__str__)())
    verb = getattr(getattr(error, "ctx", None), "command_path", "dpaudit")
    plain = message.replace("Value error, ", "").removesuffix(".")
    return [f"{plain}; see {verb} --help"] if plain else []


def _cut(word: str) -> str:
    """A word of a message; what no path and no name is as long as."""
    return word if len(word) <= _LONGEST_WORD else f"{word[:60]}... ({len(word)} characters)"
