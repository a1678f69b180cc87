"""The verbs that judge: `dpaudit verify`, `check` and `compare`."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import Exit, SpecError
from . import script_verb, tables, terminal
from .arguments import AsJson, Details, RunPath, TrustedToRead, complete_run
from .read_verbs import open_run
from .terminal import duration, plural

if TYPE_CHECKING:
    from ..report.check import Checked
    from ..report.comparison import Comparison

app = typer.Typer()
_MAX_DIFFERENCES = 20  # that `check` shows
_MAX_CHANGES = 12  # keys that `compare` shows
_WHAT = typer.Argument(
    metavar="RUN|SCRIPT.py:FUNCTION",
    help="A run directory or its address; or a script and the function that trains: train.py:main.",
    autocompletion=complete_run,
)


@app.command()
def verify(  # noqa: PLR0913 (options of a command line)
    context: typer.Context,
    what: Annotated[str, _WHAT],
    as_json: AsJson = False,
    trust: TrustedToRead = None,
    details: Details = False,
    budget: Annotated[str, typer.Option(help="Script: time it may take: 90s, 10min.")] = "10min",
    delta: Annotated[
        float | None, typer.Option(help="Script: δ, where no @audited(delta=...) tells.")
    ] = None,
    layers: Annotated[str, typer.Option(help="Script: 0 one run, 1 steps, 2 runs.")] = "0,1,2",
    address: Annotated[str | None, typer.Option(help="Script: a Ray cluster to join.")] = None,
    memory: Annotated[float | None, typer.Option(help="Script: GiB that a run may take.")] = None,
    seed: Annotated[int, typer.Option(help="Script: of all coins.")] = 0,
    secret_size: Annotated[
        bool, typer.Option("--secret-size", help="Script: the number of records is secret, too.")
    ] = False,
    junit: Annotated[Path | None, typer.Option(help="Script: writes a JUnit file.")] = None,
    html: Annotated[
        Path | None, typer.Option(help="Script: the page. Default SCRIPT-audit.html.")
    ] = None,
) -> None:
    """Says whether trials contradict the claim: exit 1 violation, 0 none, 5 inconclusive."""
    from ..report import verdict
    from ..report.verdict import Verdict
    from ..scripts.script_runs import Target

    target = Target.from_text(what, delta)
    if target is None:
        _refuse_script_options(context, what)
        opened = open_run(what)
        of_run = verdict.judge(opened)
        if as_json:
            terminal.show_json(dataclasses.asdict(of_run))
        else:
            tables.show_verdict(of_run, verdict.worded(opened, of_run), details)
        outcome = of_run.verdict
    else:
        options = script_verb.script_options(budget, delta, layers, memory, seed, secret_size)
        outcome = script_verb.audit_and_show(target, options, address, junit, html, as_json)
    codes = {Verdict.VIOLATION: Exit.VIOLATION, Verdict.CONSISTENT: Exit.COMPLETE}
    raise typer.Exit(codes.get(outcome, Exit.INCONCLUSIVE))


def _refuse_script_options(context: typer.Context, run: str) -> None:
    for name in context.params:
        source = context.get_parameter_source(name)
        given = source is not None and source.name == "COMMANDLINE"
        if given and name not in ("what", "as_json", "trust", "details"):
            option = f"--{name.replace('_', '-')}"
            raise SpecError(option, f"is for scripts, and {run} is a run directory")


@app.command()
def check(run: RunPath, as_json: AsJson = False, trust: TrustedToRead = None) -> None:
    """Derives claims, bits, estimates and verdict again from sweep and scores: exit 2 if others.

    Writes nothing and runs no code of the sweep's author, so that a run can be handed over.
    """
    from ..report import check

    checked = check.check_run(run)
    if as_json:
        terminal.show_json({"in_order": checked.in_order} | dataclasses.asdict(checked))
    else:
        _show_check(checked)
    raise typer.Exit(Exit.COMPLETE if checked.in_order else Exit.USAGE)


def _show_check(checked: Checked) -> None:
    if not checked.in_order:
        places = "a place" if checked.different == 1 else f"{checked.different:,} places"
        terminal.say(f"not what it says, in {places}: {checked.location}")
    for difference in checked.differences[:_MAX_DIFFERENCES]:
        terminal.say(f"  {difference}")
    if (more := checked.different - _MAX_DIFFERENCES) > 0:
        terminal.say(f"  and {more:,} more places")
    for line in checked.notes:
        terminal.explain(f"told: {line}")
    if checked.rounded:
        terminal.explain(
            f"told: values that differ in their last digits: {checked.rounded:,}, by at most "
            f"{checked.furthest:.0e} of their size"
        )
    for line, audits in checked.unchecked.items():
        others = f" and {len(audits) - 1} more" * (len(audits) > 1)
        of_audits = f"{audits[0]}{others}: " if audits else ""
        terminal.explain(f"not checked: {of_audits}{line}")
    counts = [plural(count, name.removesuffix("s")) for name, count in checked.derived.items()]
    derived = f"{', '.join(counts) or 'nothing'}{', the verdict' * bool(checked.verdict)}"
    took = duration(checked.seconds)
    if not checked.in_order:
        terminal.explain(f"derived again: {derived}; in {took}")
        return
    partial = f" as far as it goes (partial, {checked.partial})" if checked.partial else ""
    verdict = f" ({checked.verdict})" if checked.verdict else ""
    terminal.explain(
        f"in order{partial}: {derived}{verdict} derived again in {took}, from scores as they were "
        "written"
    )


@app.command()
def compare(
    run: RunPath,
    other: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="The one to hold against it.", autocompletion=complete_run
        ),
    ],
    as_json: AsJson = False,
    figure: Annotated[
        Path | None, typer.Option(help="Draws both side by side into a PNG file.")
    ] = None,
    trust: TrustedToRead = None,
) -> None:
    """Two runs side by side: what was asked otherwise, bounds with their intervals, verdicts."""
    from ..report.comparison import compare as compare_runs
    from ..report.comparison import comparison_figure

    comparison = compare_runs(open_run(run), open_run(other))
    first, second = (place.rstrip("/").rpartition("/")[2] for place in comparison.locations)
    names = (first, second) if first != second else comparison.locations
    if as_json:
        raw = dataclasses.asdict(comparison)
        for entry, pair in zip(raw["pairs"], comparison.pairs, strict=True):
            entry["differs"] = pair.differs
        terminal.show_json(raw)
    else:
        _show_comparison(comparison, names)
    if figure is None:
        return
    if not comparison.pairs:
        raise SpecError("--figure", "has nothing to draw: the runs have no audit of the same kind")
    content = comparison_figure(comparison, names)
    try:
        figure.write_bytes(content)
    except OSError as error:
        raise SpecError(
            "--figure", f"{figure} cannot be written ({error.strerror}); give another file"
        ) from error


def _show_comparison(comparison: Comparison, names: tuple[str, str]) -> None:
    verdicts = comparison.verdicts
    terminal.say(f"1: {names[0]}, {verdicts[0]}; 2: {names[1]}, {verdicts[1]}")
    for change in comparison.changes[:_MAX_CHANGES]:
        old, new = ("not set" if v is None else f"{v}" for v in (change.old, change.new))
        terminal.say(f"  {change.key}: {old} -> {new}")
    if (more := len(comparison.changes) - _MAX_CHANGES) > 0:
        terminal.say(f"  and {more} more")
    for line in comparison.code:
        terminal.say(f"  {line}")
    if not comparison.changes:
        terminal.say("  the same sweep")
    if comparison.pairs:
        _show_pairs(comparison)
    for name, labels in zip(names, comparison.only, strict=True):
        if labels:
            terminal.explain(f"only in {name}: {', '.join(labels)}")


def _show_pairs(comparison: Comparison) -> None:
    from ..storage.scores import UTILITY

    entries = [side.entry for pair in comparison.pairs for side in pair.sides]
    measured = [name for name in UTILITY if not all(math.isnan(entry[name]) for entry in entries)]
    columns = ["audit", "run", "trials", "bound", "mu", "eps", "status", "eps any", "claim"]
    columns += ["right", "from", "to", *measured, "verdict", "note"]
    rows = []
    for pair in comparison.pairs:
        same, differs = pair.left.label == pair.right.label, "differs" if pair.differs else ""
        labels, notes = (pair.left.label, "" if same else pair.right.label), ("", differs)
        for number, side, label, note in zip((1, 2), pair.sides, labels, notes, strict=True):
            entry = side.entry
            rows.append((
                label, number, tables.progress_figure(entry), entry["estimator"],
                entry["mu_lower"], entry["epsilon_lower"], entry["status"] or "none yet",
                entry["epsilon_lower_free"], entry["epsilon_upper"], side.rate, side.low,
                side.high, *(entry[name] for name in measured), side.verdict, note,
            ))  # fmt: skip
    terminal.show_table("", columns, rows)
    terminal.explain(
        "right: rate of right guesses, with the ends of its two-sided interval at the audit's "
        "confidence; differs: these do not meet, or an exact eps is another one; where they meet "
        "nothing is shown. A lower bound has one end only: one that is larger is no difference"
    )
