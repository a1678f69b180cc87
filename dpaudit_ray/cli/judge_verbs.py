"""The verbs that judge: `dpaudit verify`, `check` and `compare`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import Exit, SpecError, and_more, plain
from . import tables, terminal
from .arguments import (
    ADVANCED,
    ANY_ERROR,
    RESULTS,
    AsJson,
    Details,
    RunPath,
    TrustedToRead,
    exit_code,
    verb,
)
from .read_verbs import open_run
from .terminal import Figure, number, plural

if TYPE_CHECKING:
    from ..report.check import Checked
    from ..report.comparison import Comparison, Side

app = typer.Typer()
_MOST_DIFFERENCES = 20  # differences that are printed


@verb(
    app,
    RESULTS,
    "verify runs/quickstart --details",
    f"0 no violation found, 1 violation, {ANY_ERROR}, 3 trials ended in NaN, 5 inconclusive",
    page="read-the-answer",
)
def verify(
    run: RunPath,
    as_json: AsJson = False,
    trust: TrustedToRead = None,
    details: Details = False,
) -> None:
    """Judge a run: test whether its trials contradict the claims."""
    from ..report import verdict

    opened = open_run(run)
    of_run = verdict.judge(opened, progress=terminal.JudgingLines())
    answer = verdict.in_words(opened, of_run)
    if as_json:
        terminal.show_json(asdict(of_run))
    else:
        tables.show_verdict(of_run, answer, details)
    # NaN is the reason to act on, so it has an exit code that differs from other undecided runs.
    code = exit_code(of_run.verdict)
    if code is Exit.INCONCLUSIVE and answer.failed_trials:
        code = Exit.FAILED_TRIALS
    raise typer.Exit(code)


@verb(
    app,
    ADVANCED,
    "check runs/quickstart",
    f"0 nothing differs, {ANY_ERROR}, or any difference",
    page="run-directory",
)
def check(
    run: RunPath,
    as_json: AsJson = False,
    trust: TrustedToRead = None,
    rerun: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="Train this share of the packs again, e.g. 1%."),
    ] = None,
    commitment: Annotated[
        str,
        typer.Option(metavar="SHA256", help="Compare the one that `plan --json` printed."),
    ] = "",
) -> None:
    """Recompute claims, bits, bounds and verdict from the stored scores, and report differences.

    This writes nothing and runs no code of the sweep's author unless --trust names it.
    """
    from ..report import check

    checked = check.check_run(run, 0.0 if rerun is None else _share(rerun), commitment)
    if as_json:
        terminal.show_json({"in_order": checked.in_order} | asdict(checked))
    else:
        _show_check(checked)
    raise typer.Exit(Exit.COMPLETE if checked.in_order else Exit.USAGE)


def _share(text: str) -> float:
    """Returns a share such as 1% or 0.01. Raises SpecError for anything else."""
    try:
        share = float(text.rstrip(" %")) / (100 if "%" in text else 1)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise SpecError("--rerun", f"is {text}; give a share above 0 and up to 100%, such as 1%")
    return share


@verb(
    app,
    ADVANCED,
    "certify runs/quickstart --commit 3f2a9c1",
    f"0 written, {ANY_ERROR}, or a run that is not complete or differs",
    page="evidence",
)
def certify(
    audit: Annotated[
        str,
        typer.Argument(
            metavar="RUN|PAGE.html", help="Run directory, or the page that `dpaudit audit` wrote."
        ),
    ],
    commit: Annotated[
        str, typer.Option(metavar="COMMIT", help="State the commit of the audited code.")
    ] = "",
    folder: Annotated[
        Path, typer.Option("--output", metavar="FOLDER", help="Write both files here.")
    ] = Path("."),
    trust: TrustedToRead = None,
) -> None:
    """Check a run, or read a script's audit, and write a page to sign in terms of NIST SP 800-226.

    This writes certificate.html, and certificate.pdf if Chromium is installed.
    """
    from ..report import certificate
    from ..scripts import script_certificate

    if audit.endswith(".html"):
        content = script_certificate.of_page(Path(audit), commit)
    else:
        content = certificate.of_run(open_run(audit), commit)
    html, pdf = certificate.write(content, folder)
    terminal.say(str(pdf or html))
    if pdf is None:
        terminal.complain("no PDF: Chromium is not installed or failed; print the HTML page")


def _show_check(checked: Checked) -> None:
    """Prints what differs, what was not checked, and then how much was recomputed."""
    if not checked.in_order:
        terminal.say(f"differs in {plural(checked.different, 'place')}: {checked.location}")
    for difference in checked.differences[:_MOST_DIFFERENCES]:
        terminal.say(f"  {difference}")
    if checked.different > _MOST_DIFFERENCES:
        terminal.say(f"  and {checked.different - _MOST_DIFFERENCES:,} more places")
    for note in checked.notes:
        terminal.explain(f"note: {note}")
    for reason, audits in checked.unchecked.items():
        labels = f"{and_more(audits)}: " if audits else ""
        terminal.explain(f"not checked: {labels}{reason}")
    result = "recomputed"
    if checked.in_order:
        result = "in order"
        if checked.partial:
            result += f" as far as it goes (partial, {checked.partial})"
    counts = [plural(count, name.removesuffix("s")) for name, count in checked.derived.items()]
    verdict = f", the verdict ({checked.verdict})" if checked.verdict else ""
    terminal.explain(f"{result}: {', '.join(counts) or 'nothing'}{verdict}")


@verb(app, ADVANCED, "compare runs/a runs/b", f"0 compared, {ANY_ERROR}", page="run-directory")
def compare(
    run: RunPath,
    other: Annotated[str, typer.Argument(metavar="RUN2", help="Run to compare with.")],
    as_json: AsJson = False,
    trust: TrustedToRead = None,
) -> None:
    """Compare two runs: settings that differ, bounds with their intervals, and verdicts."""
    from ..report.comparison import compare as compare_runs

    comparison = compare_runs(open_run(run), open_run(other))
    names = comparison.locations
    first, second = (location.rstrip("/").rpartition("/")[2] for location in names)
    if first != second:
        names = (first, second)
    if as_json:
        raw = asdict(comparison)
        for entry, pair in zip(raw["pairs"], comparison.pairs, strict=True):
            entry["differs"] = pair.differs
        terminal.show_json(raw)
    else:
        _show_comparison(comparison, names)


def _show_comparison(comparison: Comparison, names: tuple[str, str]) -> None:
    """Prints verdicts, settings that differ, pairs of audits, and audits without a partner."""
    verdicts = comparison.verdicts
    terminal.say(f"1: {names[0]}, {verdicts[0]}; 2: {names[1]}, {verdicts[1]}")
    for change in comparison.changes[:_MOST_DIFFERENCES]:
        terminal.explain(f"  {change.key}: {_setting(change.old)} -> {_setting(change.new)}")
    if len(comparison.changes) > _MOST_DIFFERENCES:
        terminal.say(f"  and {len(comparison.changes) - _MOST_DIFFERENCES} more")
    for line in comparison.code:
        terminal.explain(f"  {line}")
    if not comparison.changes:
        terminal.say("  the same sweep")
    if comparison.pairs:
        _show_pairs(comparison)
    for name, labels in zip(names, comparison.only, strict=True):
        if labels:
            terminal.explain(f"only in {name}: {', '.join(labels)}")


def _setting(value: Any) -> str:
    """Returns a value of a sweep file as text."""
    from ..sweep.yamlfile import dump_yaml

    if value is None:
        return "not set"
    if isinstance(value, float):
        return plain(value, "")
    return dump_yaml({"v": value}, in_one_line=True)[4:-2]  # without "{v: " and "}"


def _show_pairs(comparison: Comparison) -> None:
    """Prints both audits of each pair in two lines of a table, and the pairs that differ."""
    from ..report import words

    sides: list[Side] = []
    differing = []
    for pair in comparison.pairs:
        sides += pair.sides
        if pair.differs:
            differing.append(" / ".join(dict.fromkeys(side.label for side in pair.sides)))
    quotes = [side.quote for side in sides]
    rates = [f"{number(s.low)} to {number(s.high)}" if s.rate >= 0 else "–" for s in sides]
    columns = {
        "audit": [side.label for side in sides],
        "run": [1, 2] * len(comparison.pairs),
        "trials": [tables.progress_figure(side.entry) for side in sides],
        **tables.quote_columns(quotes),
        "right guesses": list(map(Figure, rates)),
    }
    terminal.show_table(words.heading(quotes), columns)
    for sentence in words.lines_below(quotes):
        terminal.explain(sentence)
    terminal.explain(f"differ: {'; '.join(differing) or 'none, as far as this shows'}")
    terminal.explain(
        "right guesses: their rate, with a two-sided interval at the audit's confidence; audits "
        "differ if their intervals do not overlap, or if an exact eps differs. A larger lower "
        "bound alone is not a difference"
    )
