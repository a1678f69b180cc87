"""`dpaudit VERB`: arguments in, exit code out. What the verbs do lives in the modules they call."""

from __future__ import annotations

import sys
from enum import IntEnum, StrEnum
from typing import Annotated, Any, Never

import typer

from . import __version__, terminal
from .errors import DpauditError, SpecError
from .yamlfile import parse_value


class Exit(IntEnum):
    """Exit codes of the command line."""

    COMPLETE = 0
    VIOLATION = 1
    USAGE = 2
    FAILED_TRIALS = 3
    STOPPED = 4
    INCONCLUSIVE = 5


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
) -> None:
    """Starts a sweep, or resumes it when its run directory exists."""
    from . import api

    with terminal.Display() as display:
        try:
            result = api.run(
                sweep, storage_path, executor.value, address, _overrides(changes), display
            )
        except KeyboardInterrupt:
            terminal.complain("stopped; finished packs are safe: run the same command to resume")
            raise typer.Exit(Exit.STOPPED) from None
    for failure in result.failures:
        terminal.complain(f"trials {failure.pack.first}-{failure.pack.last}: {failure.message}")
    _print_overview(result.location)
    terminal.say(f"results in {result.location}; next: dpaudit report {result.location}")
    raise typer.Exit(Exit.COMPLETE if result.complete else Exit.FAILED_TRIALS)


@app.command()
def plan(sweep: Sweep, storage_path: StoragePath = "runs", changes: Set = None) -> None:
    """Shows audits, packs, time, and what the design can certify; trains one calibration pack."""
    from . import forecast, spec

    prepared = spec.load(sweep, _overrides(changes))
    outlook = forecast.of(prepared, storage_path)
    terminal.show_table(
        f"{prepared.name}: {outlook.trials:,} trials in {outlook.packs:,} packs, "
        f"{outlook.packs_done:,} packs done",
        ("audit", "trials", "packs", "done", "claim", "certifiable", "90 % of claim", "time"),
        [
            (a.label, a.trials, a.packs, a.packs_done, a.claim, a.largest_certifiable,
             f"{a.power:.0%} power", terminal.duration(a.seconds))
            for a in outlook.audits
        ],
    )  # fmt: skip
    terminal.say(
        f"about {terminal.duration(outlook.wall_seconds)} on this machine with "
        f"{outlook.workers} trainers ({terminal.duration(outlook.seconds)} of one trainer's time)"
    )


@app.command()
def status(
    run: RunPath, as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False
) -> None:
    """Progress and estimates, from the run directory alone."""
    from .report.tables import Run, overview

    opened = Run.open(run)
    failures = opened.directory.read_json("failures.json") or []
    if as_json:
        entries = {"name": opened.sweep.name, "complete": opened.directory.complete}
        terminal.show_json(entries | {"audits": overview(opened), "failures": failures})
        return
    _print_overview(run)
    for failure in failures:
        where = f"{failure['pack']['first']}-{failure['pack']['last']}"
        terminal.say(f"failed: trials {where}, {failure['kind']}: {failure['message']}")
    terminal.say("complete" if opened.directory.complete else "not complete")


@app.command()
def report(
    run: RunPath,
    format: Annotated[ReportFormat, typer.Option(help="What to write.")] = ReportFormat.html,
) -> None:
    """Figures and tables of a run; one that is not complete is marked interim."""
    from .report.tables import Run, all_estimates

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
        columns = ("label", "step", "trials", "estimator", "status", "interim", "epsilon_lower",
                   "mu_lower", "accountant", "epsilon_upper")  # fmt: skip
        heads = ("audit", *columns[1:])
        terminal.show_table("", heads, table[list(columns)].to_numpy().tolist())


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="Print it.")] = False) -> None:
    if version:
        terminal.say(__version__)
        raise typer.Exit


def main() -> Never:
    """Entry point: turns every error of ours into one line and its exit code."""
    debug = "--debug" in sys.argv
    sys.argv = [argument for argument in sys.argv if argument != "--debug"]
    try:
        app()
    except DpauditError as error:
        if debug:
            raise
        terminal.complain(" ".join(str(error).split()))
        sys.exit(error.exit_code)
    sys.exit(Exit.COMPLETE)


def _overrides(changes: list[str] | None) -> dict[str, Any]:
    parsed = {}
    for change in changes or []:
        key, equals, value = change.partition("=")
        if not equals or not key:
            raise SpecError("--set", f"takes key=value, got {change!r}")
        parsed[key] = parse_value(value)
    return parsed


def _print_overview(location: str) -> None:
    from .report.tables import Run, overview

    opened = Run.open(location)
    terminal.show_table(
        opened.sweep.name,
        ("audit", "done", "trials", "bound", "eps lower", "eps claim", "ratio"),
        [
            (r["label"], r["done"], r["trials"],
             f"{r['estimator']} ({r['status'] or 'none yet'}{', interim' * r['interim']})",
             r["epsilon_lower"], r["epsilon_upper"], r["ratio"])
            for r in overview(opened)
        ],
    )  # fmt: skip
