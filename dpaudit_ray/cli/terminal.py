"""Output of the command line; beside this only the live view writes to the terminal.

Labels, names and messages are text of others: nothing in them reaches the terminal as a command.
Whoever reads the output may go away, with the pipe or the terminal: that is no error.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import json
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, TextIO

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..printable import lines, printable
from .number_format import ALARM, Bound, Figure, number

VERBATIM: Any = {"markup": False, "emoji": False, "highlight": False}  # labels are user text
_UNLIMITED = 10_000  # columns: rich must neither cut nor wrap what has been fitted
_SENTENCE_WIDTH = 100
_FOLDED_WIDTH = 12  # columns for which the first column has spare ones left out
_GAP = 2  # columns between columns
_all_columns = contextvars.ContextVar("_all_columns", default=False)


def show_all_columns(wide: bool) -> bool:
    """Takes the value of `--wide`: tables are then as wide as they are."""
    _all_columns.set(wide)
    return wide


def interactive() -> bool:
    """Whether somebody watches standard output on a terminal."""
    return sys.stdout.isatty()


def width() -> float:
    """Columns that a table may take; inf where nobody sees them, or all were asked for."""
    if _all_columns.get() or not interactive():
        return math.inf
    return shutil.get_terminal_size().columns


def say(text: str) -> None:
    """Prints lines to standard output."""
    _put(lines(text), sys.stdout)


def explain(text: str) -> None:
    """Prints a sentence in lines of at most 100 columns, and of the terminal's."""
    columns = shutil.get_terminal_size().columns if interactive() else _SENTENCE_WIDTH
    columns = max(20, min(columns, _SENTENCE_WIDTH))
    say(textwrap.fill(text, columns, subsequent_indent="  ", break_on_hyphens=False))


def complain(text: str) -> None:
    """Prints one line to standard error, with the program's name."""
    _put(f"dpaudit: {printable(text)}", sys.stderr)


def add(text: str) -> None:
    """Prints lines that belong to the one before or after to standard error."""
    _put(lines(text), sys.stderr)


def pass_on(text: str) -> None:
    """Prints the output of another process, as it comes, to standard output."""
    try:
        sys.stdout.write(lines(text))
        sys.stdout.flush()
    except OSError:
        silence(sys.stdout)


def show_json(value: Any) -> None:
    """Prints JSON to standard output; NaN becomes null, inf a text."""
    say(json.dumps(_plain(value), indent=1))


def silence(*streams: TextIO) -> None:
    """Redirects these streams, or those of the two that have no reader left, to nowhere."""
    for stream in streams or (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            if streams or not _has_reader(stream):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def show_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], spare: Sequence[str] = ()
) -> tuple[str, ...]:
    """Prints an aligned table and returns the columns for which there was no room.

    Text is aligned to the left, numbers to the right, and no number is cut. In a terminal that is
    too narrow, labels of audits first lose what all of them have, which is said above the table;
    then columns of `spare` are left out, its first ones first; then the first column is folded.
    """
    parts = [_Column(name, [row[i] for row in rows]) for i, name in enumerate(columns)]
    first, legend = parts[0], ""
    if first.name == "audit" and _total(parts) > width():
        from ..sweep.grid import shorten_labels  # loads pydantic, for which --help has no time

        legend, labels = shorten_labels([number(label) for label in first.values])
        parts[0] = first = _Column(first.name, labels)
    kept = _fitting(parts, spare)
    if kept is None:
        first.folded = _FOLDED_WIDTH
        kept = _fitting(parts, spare) or [part for part in parts if part.name not in spare]
        first.folded = max(len(first.name), first.folded + int(width()) - _total(kept))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for part in kept:
        table.add_column(
            part.name, justify="left" if part.is_text else "right", width=part.width,
            no_wrap=not part.folded, overflow="fold" if part.folded else "crop",
        )  # fmt: skip
    for row in zip(*(part.values for part in kept), strict=True):
        table.add_row(*map(_cell, row))
    for above in (title, legend):
        if above:
            say(above)
    # Colours are for terminals, and not where NO_COLOR is set.
    console = Console(width=_UNLIMITED, force_terminal=interactive(), **VERBATIM)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        _put(line.rstrip(), sys.stdout)
    return tuple(part.name for part in parts if part not in kept)


def explain_left_out(columns: Sequence[str]) -> None:
    """Says which columns tables left out, if any."""
    if columns:
        explain(f"not shown in {width():.0f} columns: {', '.join(columns)}; --wide shows all")


@dataclasses.dataclass(eq=False)
class _Column:
    """A column of a table; `folded`: cells have lines of that many columns, where that is not 0."""

    name: str
    values: list[Any]
    folded: int = 0

    @functools.cached_property
    def natural_width(self) -> int:
        return max(map(cell_len, (self.name, *map(_text, self.values))))

    @property
    def width(self) -> int:
        return self.folded or self.natural_width

    @property
    def is_text(self) -> bool:
        return any(isinstance(v, str) and not isinstance(v, Figure) for v in self.values)


def _total(columns: Sequence[_Column]) -> int:
    """Columns of the terminal that a table takes."""
    return sum(column.width for column in columns) + _GAP * (len(columns) - 1)


def _fitting(columns: Sequence[_Column], spare: Sequence[str]) -> list[_Column] | None:
    """The columns without as few spare ones as possible; None where the table does not fit."""
    kept = list(columns)
    for name in (None, *spare):
        kept = [column for column in kept if column.name != name]
        if _total(kept) <= width():
            return kept
    return None


def _text(value: Any) -> str:
    return str(value) if isinstance(value, Bound) else number(value)


def _cell(value: Any) -> Text:
    return Text(_text(value), ALARM if isinstance(value, Bound) and value.above_claim else "")


def _put(text: str, stream: TextIO) -> None:
    try:
        typer.echo(text, file=stream)
    except OSError:
        silence(stream)


def _has_reader(stream: TextIO) -> bool:
    try:
        stream.flush()
        os.write(stream.fileno(), b"")
    except OSError:
        return False
    return True


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value.item() if hasattr(value, "item") else value
