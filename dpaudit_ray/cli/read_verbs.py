"""The verbs that read a run directory: `dpaudit status` and `report`."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..errors import Exit, RunDirectoryError
from . import tables, terminal
from .arguments import ANY_ERROR, RESULTS, AsJson, Details, RunPath, RunPaths, TrustedToRead, verb
from .terminal import Columns, Figure

if TYPE_CHECKING:
    from ..report.tables import Run
    from ..report.verdict import Answer

app = typer.Typer()

SortKey = Literal["run", "state", "done", "verdict", "epsilon", "claim"]


@dataclass(frozen=True)
class RunLine:
    """A run in the table of several.

    Attributes:
        run: directory or address of the run.
        state: complete, running, or stopped.
        done: stored trials.
        trials: planned trials.
        verdict: the verdict; empty before the first one.
        epsilon: the ε to quote; None without a quote.
        claim: the claim on the same audit.
    """

    run: str
    state: str
    done: int
    trials: int
    verdict: str
    epsilon: float | None
    claim: float


@verb(app, RESULTS, "status runs/* --sort epsilon", f"0 shown, {ANY_ERROR}")
def status(
    runs: RunPaths,
    as_json: AsJson = False,
    trust: TrustedToRead = None,
    details: Details = False,
    sort: Annotated[
        SortKey | None, typer.Option("--sort", help="Order several runs by this column.")
    ] = None,
) -> None:
    """Show progress, bounds, verdict and failures of a run, or a line for each of several."""
    from ..report import verdict

    if len(runs) > 1:
        _show_runs(runs, as_json, sort)
        return
    opened = open_run(runs[0])
    summary = verdict.current_or_stored(opened, terminal.JudgingLines())
    if as_json:
        terminal.show_json(status_entries(opened, summary))
    else:
        _show_status(opened, summary, details)


def _show_runs(
    locations: list[str],
    as_json: bool,
    sort: SortKey | None,
) -> None:
    """Prints a line for each run, and names those that cannot be read.

    Args:
        locations: run directories.
        as_json: prints JSON in place of a table.
        sort: column to sort by; None to keep the order.
    """
    lines = []
    for location in locations:
        try:
            lines.append(_run_line(location))
        except RunDirectoryError as error:
            terminal.complain(f"{location} cannot be read: {error}")
    if sort in ("run", "state"):
        lines.sort(key=lambda line: str(getattr(line, sort)))
    elif sort == "verdict":  # violations first
        lines.sort(key=lambda line: line.verdict, reverse=True)
    elif sort is not None:
        lines.sort(key=lambda line: getattr(line, sort) or -math.inf, reverse=True)
    if as_json:
        terminal.show_json(list(map(asdict, lines)))
    else:
        columns: Columns = {
            "run": [line.run for line in lines],
            "state": [line.state for line in lines],
            "trials": [Figure(f"{line.done:,} / {line.trials:,}") for line in lines],
            "verdict": [line.verdict or "–" for line in lines],
            "eps >=": [line.epsilon for line in lines],
            "claim": [line.claim for line in lines],
        }
        terminal.show_table("", columns)
    if len(lines) < len(locations):
        raise typer.Exit(Exit.USAGE)


def _run_line(location: str) -> RunLine:
    """Returns the line of a run. Raises RunDirectoryError if it cannot be read."""
    from ..report import verdict
    from ..storage import lease

    opened = open_run(location)
    answer = verdict.current_or_stored(opened, terminal.JudgingLines())
    driver = lease.holder(opened.directory)
    state = "stopped" if driver is None or driver.silent else "running"
    return RunLine(
        run=location,
        state="complete" if opened.complete else state,
        done=sum(map(opened.done, opened.plan.audits)),
        trials=opened.plan.trials,
        verdict=answer.verdict.value if answer else "",
        epsilon=answer.quote.epsilon if answer else None,
        claim=answer.quote.claim if answer else math.nan,
    )


@verb(
    app,
    RESULTS,
    "report runs/quickstart --format csv",
    f"0 written, {ANY_ERROR}",
    page="read-the-answer",
)
def report(
    run: RunPath,
    format: Annotated[
        Literal["html", "table", "csv", "json"],
        typer.Option("--format", "-f", help="Write a page with figures, or print the estimates."),
    ] = "html",
    trust: TrustedToRead = None,
    details: Details = False,
) -> None:
    """Write figures and tables of a run. A run that is not complete is marked interim."""
    from ..report import page, verdict

    opened = open_run(run)
    if format == "html":
        terminal.say(page.write(opened, terminal.JudgingLines()))
    elif format == "table":
        summary = verdict.current_or_stored(opened, terminal.JudgingLines())
        tables.show_overview(opened, summary, details)
    elif format == "csv":
        terminal.say(opened.table.to_csv(index=False).rstrip("\n"))
    else:
        terminal.show_json(opened.table.to_dict("records"))


def open_run(location: str) -> Run:
    """Opens a run, and warns of values that are read from its record instead of recomputed."""
    from ..mechanisms.base import Recorded
    from ..plan import record
    from ..report.tables import Run

    run = Run.open(location)
    if newer := record.newer_version(run.directory):
        terminal.complain(f"warning: {run.directory.location}: {newer}")
    if unread := sorted(set(run.sweep.unread_modules)):
        modules = ",".join(unread)
        terminal.complain(
            f"claims and other values that need code in {modules} are read from plan.json; "
            f"--trust {modules} runs that code"
        )
    elif any(isinstance(cell.mechanism, Recorded) for cell in run.sweep.cells):
        terminal.complain(
            "data of the sweep cannot be read here, so claims that depend on the number of records "
            "are read from plan.json"
        )
    return run


def failure_lines(run: Run) -> list[str]:
    """Returns a line for each audit and kind of failure."""
    from ..errors import printable
    from ..plan import outcomes

    lines = []
    for kind in outcomes.by_kind(outcomes.failed(run.directory, run.plan), run.plan):
        packs = "" if kind.packs == 1 else f"{kind.packs} packs of "
        lines.append(
            f"{kind.label}: {packs}trials {kind.first}-{kind.last} failed: "
            f"{printable(kind.message)}; traceback in {run.directory.location}/{outcomes.FILE}"
        )
    return lines


def status_entries(
    run: Run,
    answer: Answer | None,
) -> dict[str, Any]:
    """Returns the content of `status --json`; without `answer`, slow parts are left out."""
    from ..plan import outcomes, preparing
    from ..report import membership_rates
    from ..report.tables import best, overview
    from ..storage import lease

    source = run.directory, run.plan
    driver = lease.holder(run.directory)
    return {
        "name": run.sweep.name,
        "verdict": asdict(answer) if answer else None,
        "complete": run.complete,
        "driver": asdict(driver) if driver else None,
        "missed": [
            asdict(kind) | {"outputs": run.directory.output_folder(kind.audit)}
            for kind in outcomes.read(*source).missed
        ],
        "preparations": list(map(asdict, preparing.states(*source))),
        "audits": overview(run),
        "membership": membership_rates.entries(run) if answer else {},
        "best_certified": best(run),
        "decided": {run.plan.audits[index].id: trials for index, trials in run.decided.items()},
        "failures": [asdict(failure) for failure in outcomes.failed(*source)],
    }


def _show_status(run: Run, summary: Answer | None, details: bool) -> None:
    """Prints tables of bounds, failures, the verdict, and whether a driver works on the run.

    Args:
        run: the run.
        summary: verdict on the run; None before there is one.
        details: whether to print all columns.
    """
    from ..orchestration.workers import recorded_machines
    from ..plan import outcomes
    from ..storage import lease

    tables.show_overview(run, summary, details)
    for index, trials in run.decided.items():
        terminal.say(f"{run.plan.audits[index].label}: ended by stop_when after {trials} trials")
    where = run.directory, run.plan
    for line in (
        *outcomes.preparation_lines(*where),
        *failure_lines(run),
        *outcomes.missed_lines(*where),
    ):
        terminal.say(line)
    if len(kinds := recorded_machines(run.directory)) > 1:
        terminal.say(f"trained on several kinds of machine: {'; '.join(kinds)}")
    tables.show_answer(run, summary)
    driver = lease.holder(run.directory)
    if run.complete:
        terminal.say("complete")
    elif driver is not None and not driver.silent:
        terminal.say(f"not complete; {driver}")
    else:
        remedy = "`dpaudit run` resumes it"
        if outcomes.only_failed(*where, run.decided):
            remedy = "all remaining work has failed; fix it, then `dpaudit run --retry-failed`"
        silent_driver = f"; {driver}" if driver else ""
        terminal.say(f"not complete{silent_driver}: {remedy}")
