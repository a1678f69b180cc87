"""Output of the command line; beside this only the live view writes to the terminal.

Labels, names and messages are text of others: nothing in them reaches the terminal as a command.
Whoever reads the output may go away, with the pipe or the terminal: that is no error.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import json
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, Literal, TextIO

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import lines, printable

ALARM = "bold red"  # style of a bound above its claim
VERBATIM: Any = {"markup": False, "emoji": False, "highlight": False}  # labels are user text
_UNLIMITED = 10_000  # columns: rich must neither cut nor wrap what has been fitted
_SENTENCE_WIDTH = 100
_GAP = 2  # columns between columns
_whole_width = contextvars.ContextVar("_whole_width", default=False)


# Numbers, times and marks as people read them -----------------------------------------------------


class Figure(str):
    """A number that is text already, such as 40/90 or 3m 20s: tables align it as a number."""


@dataclasses.dataclass(frozen=True)
class Bound:
    """A lower bound; one above its claim is red, and marked where there are no colours."""

    value: float
    above_claim: bool

    def __str__(self) -> str:
        return marked(number(self.value), self.above_claim)


def marked(bound: str, above_claim: bool) -> str:
    """The text of a bound, with a mark where it is above its claim."""
    return f"! {bound}" if above_claim else bound


def number(value: Any) -> str:
    """A value as people read it: 1,234 or 0.500; – for NaN and None; text as it is."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{value:,.3f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return printable(str(value))


def duration(seconds: float) -> Figure:
    """Seconds as 8s, 3m 20s or 5h 07m; ? where they are not known."""
    if not math.isfinite(seconds):
        return Figure("?")
    if 0 < seconds < 1:
        return Figure("<1s")
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return Figure(f"{rest}s")
    return Figure(
        f"{minutes}m {rest:02d}s" if minutes < 60 else f"{minutes // 60}h {minutes % 60:02d}m"
    )


def speed(per_second: float) -> str:
    """A rate with two digits, or with all that are before the point; ? where it is not known."""
    if math.isnan(per_second):
        return "?"
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.2g}"


def plural(count: int, noun: str) -> str:
    """`1 audit`, `2,000 audits`."""
    return f"{count:,} {noun}" + "s" * (count != 1)


# What is printed ---------------------------------------------------------------------------------


def show_details(details: bool) -> bool:
    """Takes the value of `--details`: tables are then as wide as they are."""
    _whole_width.set(details)
    return details


def interactive() -> bool:
    """Whether somebody watches standard output on a terminal."""
    return sys.stdout.isatty()


def width() -> float:
    """Columns that a table may take; inf where nobody sees them, or all were asked for."""
    if _whole_width.get() or not interactive():
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
    _put(lines(text), sys.stdout, newline=False)


def show_json(value: Any) -> None:
    """Prints JSON to standard output; NaN becomes null, inf a text."""
    say(json.dumps(_plain(value), indent=1))


def silence(*streams: TextIO) -> None:
    """Redirects these streams, or those of the two that have no reader left, to nowhere."""
    for stream in streams or (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            if streams or not _has_reader(stream):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Prints an aligned table; a head may have two lines.

    Text is aligned to the left, numbers to the right, and no number is cut. In a terminal that is
    too narrow, labels of audits first lose what all of them have, which is said above the table;
    then the first column is folded.
    """
    cells = [[_cell(row[i]) for row in rows] for i in range(len(columns))]
    legend = ""
    if columns[0] == "audit" and _width_of(columns, cells) > width():
        from ..sweep.grid import shorten_labels  # loads pydantic, for which --help has no time

        legend, labels = shorten_labels([cell.plain for cell in cells[0]])
        cells[0] = [Text(label) for label in labels]
    narrowest = _width_of(columns, [[Text("")], *cells[1:]])
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(columns):
        is_text = any(isinstance(r[i], str) and not isinstance(r[i], Figure) for r in rows)
        justify: Literal["left", "right"] = "left" if is_text else "right"
        table.add_column(name, justify=justify, vertical="bottom", no_wrap=i > 0, overflow="fold")
    for row in zip(*cells, strict=True):
        table.add_row(*row)
    for above in (title, legend):
        if above:
            say(above)
    # Colours are for terminals, and not where NO_COLOR is set.
    room = int(min(max(width(), narrowest), _UNLIMITED))
    console = Console(width=room, force_terminal=interactive(), **VERBATIM)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        _put(line.rstrip(), sys.stdout)


def _cell(value: Any) -> Text:
    if isinstance(value, Bound):
        return Text(str(value), ALARM if value.above_claim else "")
    return Text(number(value))


def _width_of(columns: Sequence[str], cells: Sequence[Sequence[Text]]) -> int:
    """Columns of the terminal that a table takes, gaps among them."""
    return sum(
        max(*(Text(line).cell_len for line in name.split("\n")), *(c.cell_len for c in column), 0)
        for name, column in zip(columns, cells, strict=True)
    ) + _GAP * (len(columns) - 1)


def _put(text: str, stream: TextIO, newline: bool = True) -> None:
    try:
        typer.echo(text, stream, newline)
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
