"""`dpaudit VERB`: arguments in, exit code out. What the verbs do lives in the modules they call."""

from __future__ import annotations

import contextvars
import dataclasses
import io
import sys
import traceback
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Never, cast

import typer

from ..errors import DpauditError, Exit, SpecError
from ..sweep.yamlfile import parse_changes
from ..version import __version__
from . import tables as cli_tables
from . import terminal
from .bench import bench
from .submit import submit
from .trust import Trusted, TrustedToRead

if TYPE_CHECKING:
    from ..report.tables import Run

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
) -> None:
    """Starts a sweep, or resumes it when its run directory exists. A sweep file is code."""
    from .. import api

    with terminal.Display() as display:
        try:
            result = api.run(
                sweep, storage_path, executor.value, address, parse_changes(changes), display,
                retry_failed=retry_failed, accept_changed_code=accept_changed_code,
                tell=terminal.complain, report=page,
            )  # fmt: skip
        except KeyboardInterrupt:
            terminal.complain(_STOPPED)
            raise typer.Exit(Exit.STOPPED) from None
    opened = _opened(result.location)
    cli_tables.show_overview(opened)
    for line in _failures(opened):
        terminal.complain(line)
    if result.stopped:
        terminal.complain(_STOPPED)
    elif any(failure.pack.size for failure in result.failures):
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
    trust: Trusted = None,
) -> None:
    """Shows audits, packs, time, bounds within reach, and what code the sweep runs.

    Trains one calibration pack, so it runs that code.
    """
    from ..forecast import forecast
    from ..forecast.calibration import Calibration
    from ..plan import provenance
    from ..sweep import spec

    prepared = spec.load(sweep, parse_changes(changes))
    measured = Calibration.read(bench_file) if bench_file is not None else None
    outlook = forecast.of(prepared, storage_path, measured, terminal.complain)
    cli_tables.show_plan(prepared.name, outlook)
    cli_tables.show_code(provenance.of(prepared))


@app.command()
def status(
    run: RunPath,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    trust: TrustedToRead = None,
) -> None:
    """Progress, estimates, failures by kind and who drives, from the run directory alone."""
    from ..orchestration import fleet
    from ..plan import decisions, failures, preparing
    from ..report.tables import best, overview
    from ..storage import lease

    opened = _opened(run)
    known = failures.read(opened.directory, opened.plan)
    enough = decisions.decided(opened.directory, opened.sweep)
    driver = lease.holder(opened.directory)
    if as_json:
        entries: dict[str, Any] = {"name": opened.sweep.name}
        entries["complete"] = opened.directory.complete
        entries["driver"] = dataclasses.asdict(driver) if driver else None
        raw = [dataclasses.asdict(failure) for failure in known]
        entries["preparations"] = preparing.entries(opened.directory, opened.plan)
        decided = {opened.plan.audits[index].id: trials for index, trials in enough.items()}
        rest = {"audits": overview(opened), "best_certified": best(opened)}
        rest |= {"decided": decided, "failures": raw}
        terminal.show_json(entries | rest)
        return
    cli_tables.show_overview(opened)
    for index, trials in enough.items():
        terminal.say(f"{opened.plan.audits[index].label}: ended by stop_when after {trials} trials")
    for line in [*preparing.shown(opened.directory, opened.plan), *_failures(opened)]:
        terminal.say(line)
    if len(kinds := fleet.recorded(opened.directory)) > 1:
        terminal.say(f"trained on several kinds of machine: {'; '.join(kinds)}")
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
    trust: TrustedToRead = None,
) -> None:
    """Figures and tables of a run; one that is not complete is marked interim."""
    from ..report.tables import all_estimates

    if watch:
        _watch(run, format)
        return
    opened = _opened(run)
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
    from ..report import live

    if format is not ReportFormat.html:
        raise SpecError("--watch", f"writes a page, not {format.value}; leave out --format")
    try:
        live.follow(run, terminal.say)
    except KeyboardInterrupt:
        raise typer.Exit(Exit.STOPPED) from None


@app.command()
def verify(
    run: RunPath,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    trust: TrustedToRead = None,
) -> None:
    """Says whether the trials contradict the claim: exit 1 violation, 0 none, 5 inconclusive."""
    from ..report import verdict

    found = verdict.of(_opened(run))
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
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ε still shows the rest
    sys.exit(contextvars.copy_context().run(_run_app, debug) or Exit.COMPLETE)


def _run_app(debug: bool) -> int | None:
    code: int | None
    try:
        code = app(prog_name="dpaudit", standalone_mode=False)
    except (DpauditError, _UsageError) as error:
        if debug:
            terminal.add(traceback.format_exc())
        if line := _one_line(error):
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


def _one_line(error: Exception) -> str:
    """Empty where Typer has printed its help instead."""
    if isinstance(error, DpauditError):
        return " ".join(map(_cut, str(error).split()))
    message = str(getattr(error, "format_message", error.__str__)())
    verb = getattr(getattr(error, "ctx", None), "command_path", "dpaudit")
    plain = message.replace("Value error, ", "").removesuffix(".")
    return f"{plain}; see {verb} --help" if plain else ""


def _cut(word: str) -> str:
    """A word of a message; what no path and no name is as long as."""
    return word if len(word) <= _LONGEST_WORD else f"{word[:60]}... ({len(word)} characters)"


def _failures(opened: Run) -> list[str]:
    """One line per audit and kind of failure."""
    from ..plan import failures
    from ..printable import printable

    known = failures.read(opened.directory, opened.plan)
    place = f"{opened.directory.location}/{failures.FILE}"
    return [
        f"{kind.label}: {'' if kind.packs == 1 else f'{kind.packs} packs of '}trials "
        f"{kind.first}-{kind.last} failed: {printable(kind.message)}; traceback in {place}"
        for kind in failures.by_kind(known, opened.plan)
    ]


def _opened(location: str) -> Run:
    """A run to read; says what of it is known from its record only."""
    from ..mechanisms.recorded import Recorded
    from ..report.tables import Run

    opened = Run.open(location)
    if untold := sorted(set(opened.sweep.unread_modules)):
        modules = ",".join(untold)
        terminal.complain(
            f"what takes code of {modules} to tell, claims among it, is as plan.json has it; "
            f"--trust {modules} runs that code"
        )
    elif any(isinstance(cell.mechanism, Recorded) for cell in opened.sweep.cells):
        terminal.complain(
            "data of the sweep cannot be read here, so claims that depend on how many there are "
            "are as plan.json has them"
        )
    return opened
