"""`dpaudit compare`: two runs side by side."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import SpecError
from . import reading, terminal
from .arguments import OtherRun, RunPath
from .trust import TrustedToRead

if TYPE_CHECKING:
    from ..report.comparison import Change, Comparison, Pair, Side

_SHOWN = 12  # keys that differ
_FIGURE = typer.Option("--figure", help="Draws both side by side into a PNG file.")


def compare(
    run: RunPath,
    other: OtherRun,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    figure: Annotated[Path | None, _FIGURE] = None,
    trust: TrustedToRead = None,
) -> None:
    """Two runs side by side: what was asked otherwise, bounds with their intervals, verdicts."""
    from ..report import comparison

    found = comparison.compare(reading.opened(run), reading.opened(other))
    if as_json:
        terminal.show_json(_plain(found))
    else:
        _show(found)
    if figure is not None:
        _draw(found, figure)


def _draw(found: Comparison, file: Path) -> None:
    from ..report.comparison import comparison_figure

    if not found.pairs:
        raise SpecError("--figure", "has nothing to draw: the runs have no audit of the same kind")
    content = comparison_figure(found, _names(found))
    try:
        file.write_bytes(content)
    except OSError as error:
        raise SpecError(
            "--figure", f"{file} cannot be written ({error.strerror}); give another file"
        ) from error


def _names(found: Comparison) -> tuple[str, str]:
    """The last parts of two places, or all of them where those are alike."""
    first, second = (place.rstrip("/").rpartition("/")[2] for place in found.locations)
    return (first, second) if first != second else found.locations


def _plain(found: Comparison) -> dict[str, Any]:
    raw = dataclasses.asdict(found)
    for entry, pair in zip(raw["pairs"], found.pairs, strict=True):
        entry["differs"] = pair.differs
    return raw


def _show(found: Comparison) -> None:
    one, other = _names(found)
    terminal.say(f"1: {one}, {found.verdicts[0]}; 2: {other}, {found.verdicts[1]}")
    for change in found.changes[:_SHOWN]:
        terminal.say(f"  {_changed(change)}")
    if (more := len(found.changes) - _SHOWN) > 0:
        terminal.say(f"  and {more} more")
    for line in found.code:
        terminal.say(f"  {line}")
    if not found.changes:
        terminal.say("  the same sweep")
    if found.pairs:
        _show_pairs(found)
    for name, labels in zip((one, other), found.only, strict=True):
        if labels:
            terminal.explain(f"only in {name}: {', '.join(labels)}")


def _show_pairs(found: Comparison) -> None:
    from ..storage.scores import UTILITY

    measured = [
        name
        for name in UTILITY
        if any(not math.isnan(side.entry[name]) for pair in found.pairs for side in _sides(pair))
    ]
    columns = ["audit", "run", "trials", "bound", "mu", "eps", "status", "eps any", "claim"]
    columns += ["right", "from", "to", *measured, "verdict", "note"]
    rows = [row for pair in found.pairs for row in _rows(pair, measured)]
    terminal.show_table("", columns, rows)
    terminal.explain(
        "right: rate of right guesses, with the ends of its two-sided interval at the audit's "
        "confidence; differs: these do not meet, or an exact eps is another one; where they meet "
        "nothing is shown. A lower bound has one end only: one that is larger is no difference"
    )


def _rows(pair: Pair, measured: list[str]) -> list[list[Any]]:
    labels = [pair.one.label, pair.other.label if pair.other.label != pair.one.label else ""]
    return [
        [
            label, number, _trials(side), side.entry["estimator"], side.entry["mu_lower"],
            side.entry["epsilon_lower"], side.entry["status"] or "none yet",
            side.entry["epsilon_lower_free"], side.entry["epsilon_upper"], side.rate, side.low,
            side.high, *(side.entry[name] for name in measured), side.verdict,
            "differs" if pair.differs and number == 2 else "",
        ]
        for number, (label, side) in enumerate(zip(labels, _sides(pair), strict=True), start=1)
    ]  # fmt: skip


def _sides(pair: Pair) -> tuple[Side, Side]:
    return pair.one, pair.other


def _trials(side: Side) -> str:
    done, planned = side.entry["done"], side.entry["trials"]
    return f"{done:,}" if done == planned else f"{done:,}/{planned:,}"


def _changed(change: Change) -> str:
    old, new = ("not set" if value is None else f"{value}" for value in (change.old, change.new))
    return f"{change.key}: {old} -> {new}"
