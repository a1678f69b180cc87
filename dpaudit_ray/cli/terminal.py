"""Output of the command line; only the live view writes to the terminal by other means.

Labels, names and messages come from users: no control sequence in them reaches the terminal. It is
not an error if the pipe or the terminal is closed before all is printed.
"""

import contextlib
import json
import math
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Sequence
from typing import Any, Literal, TextIO

import typer
from rich.align import Align
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import lines, printable
from ..orchestration import ray_internals
from ..orchestration.progress import OccasionalLines

ALARM = "bold red"  # style of a bound above its claim
VERBATIM: Any = {"markup": False, "emoji": False, "highlight": False}  # labels are user text
_UNLIMITED = 10_000  # columns: rich must neither truncate nor wrap lines that fit already
_SENTENCE_WIDTH = 100
_GAP = 2  # columns between columns
_UNBROKEN = 24  # characters of a label that stay in one line
Columns = dict[str, Sequence[Any] | None]  # values by head; None for a column that is not shown


# Numbers, times and marks as people read them -----------------------------------------------------


class Figure(str):
    """A number that is text already, such as 40/90 or 3m 20s: tables align it as a number."""


def marked(bound: str, above_claim: bool) -> Figure:
    """Returns the text of a bound; above its claim it has a mark, and tables show it in red."""
    return Figure(f"! {bound}" if above_claim else bound)


def number(value: Any) -> str:
    """Returns a value as text: 1,234, 0.500 or 1.2e-4; – for NaN and None."""
    if value is None:
        return "–"
    if isinstance(value, float):
        from ..report.quote import epsilon_text  # loads numpy, for which --help has no time

        return "–" if math.isnan(value) else epsilon_text(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return printable(str(value))


def duration(seconds: float) -> Figure:
    """Returns seconds as 8s, 3m 20s or 5h 07m; ? if they are unknown."""
    if not math.isfinite(seconds):
        return Figure("?")
    if 0 < seconds < 1:
        return Figure("<1s")
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return Figure(f"{hours}h {minutes:02d}m")
    return Figure(f"{minutes}m {seconds:02d}s" if minutes else f"{seconds}s")


def speed(per_second: float) -> str:
    """Returns a rate with two digits, or all before the decimal point; ? if it is unknown."""
    if math.isnan(per_second):
        return "?"
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.2g}"


def plural(count: int, noun: str) -> str:
    """Returns `1 audit`, `2,000 audits`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


# What is printed ---------------------------------------------------------------------------------


def interactive() -> bool:
    """Returns whether standard output is a terminal."""
    return sys.stdout.isatty()


def say(text: str) -> None:
    """Prints lines to standard output."""
    _put(lines(text), sys.stdout)


def explain(text: str, indent: int = 2) -> None:
    """Prints a sentence in lines of at most 100 columns, or of the terminal's if it has fewer."""
    columns = shutil.get_terminal_size().columns if interactive() else _SENTENCE_WIDTH
    columns = max(20, min(columns, _SENTENCE_WIDTH))
    say(textwrap.fill(text, columns, subsequent_indent=" " * indent, break_on_hyphens=False))


def complain(text: str) -> None:
    """Prints one line to standard error, with the program's name."""
    _put(f"dpaudit: {printable(text)}", sys.stderr)


class JudgingLines:
    """Prints "judging: 120 of 500 audits" to standard error every two seconds."""

    def __init__(self) -> None:
        self._lines = OccasionalLines(complain)

    def __call__(self, done: int, audits: int) -> None:
        if done < audits:
            self._lines.show(f"judging: {done:,} of {audits:,} audits")


def add(text: str) -> None:
    """Prints lines to standard error, without the program's name."""
    _put(lines(text), sys.stderr)


def pass_on(text: str) -> None:
    """Prints the output of another process to standard output, as it comes."""
    _put(lines(text), sys.stdout, newline=False)


def json_text(value: Any) -> str:
    """Returns a value as JSON; NaN becomes null, inf a text."""
    return json.dumps(_plain(value), indent=1)


def show_json(value: Any) -> None:
    """Prints `json_text` to standard output."""
    say(json_text(value))


def silence(*streams: TextIO) -> None:
    """Redirects streams to nowhere; by default standard streams whose reader is gone."""
    for stream in streams or (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            if streams or not _has_reader(stream):  # streams that are named need no check
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def show_table(title: str, columns: Columns, unlimited: bool = False) -> None:
    """Prints an aligned table.

    Text is aligned to the left, numbers to the right. In a terminal, the common part of labels
    of audits is printed above the table, and text folds at its words, the last column first. If
    that is not enough, each cell has a separate line.

    Args:
        title: a sentence above the table; may be empty.
        columns: values by head, which may have two lines.
        unlimited: lines may be longer than the terminal's.
    """
    must_fit = interactive() and not unlimited
    table = []
    legend = ""
    for head, values in columns.items():
        if values is None:
            continue
        cells = [number(value) for value in values]
        if head == "audit" and must_fit:
            from ..sweep.grid import shorten_labels  # loads pydantic, for which --help has no time

            legend, cells = shorten_labels(cells)
        is_text = any(isinstance(value, str) and not isinstance(value, Figure) for value in values)
        table.append(_Column(head, cells, is_text))
    for line in filter(None, (title, legend)):
        explain(line)
    width = shutil.get_terminal_size().columns
    fits = not must_fit or _narrow(table, width)
    # Rich uses colours in terminals only, and not if NO_COLOR is set.
    console = Console(width=_UNLIMITED if fits else width, force_terminal=interactive(), **VERBATIM)
    with console.capture() as captured:
        if fits:
            console.print(_grid(table))
        else:
            for index in range(len(table[0].cells)):
                for column in table:
                    name = Text(column.head.replace("\n", " "), "bold")
                    console.print(name, _styled(column.cells[index]))
    for line in captured.get().splitlines():
        _put(line.rstrip(), sys.stdout)


class _Column:
    """A column of a table; `width` is the width of its longest line, until it is narrowed."""

    def __init__(
        self,
        head: str,
        cells: list[str],
        is_text: bool,
    ) -> None:
        """Takes a head, perhaps of several lines, and its cells; text is aligned to the left."""
        self.head = head
        self.cells = cells
        self.is_text = is_text
        self.side: Literal["left", "right"] = "left" if is_text else "right"
        self.width = max(map(cell_len, (*head.split("\n"), *cells)))

    def least(self, is_first: bool) -> int:
        """Returns the smallest width, in which words of text and of the head, and numbers, fit.

        Labels, in the first column, and long words fold anywhere, but not below `_UNBROKEN`.
        """
        unbroken = self.cells
        if self.is_text and not is_first:
            unbroken = " ".join(self.cells).split()
        width = max(map(cell_len, unbroken), default=0)
        if self.is_text:
            width = min(width, _UNBROKEN)
        return max(width, *map(cell_len, self.head.split()))


def _narrow(columns: list[_Column], width: int) -> bool:
    """Narrows columns to a width: texts from the last, then numbers' heads, then the first column.

    Returns:
        Whether the columns fit.
    """
    excess = sum(column.width + _GAP for column in columns) - _GAP - width
    first = columns[0]
    texts = [column for column in columns[1:] if column.is_text]
    numbers = [column for column in columns[1:] if not column.is_text]
    for column in (*reversed(texts), *numbers, first):
        narrowing = min(column.width - column.least(column is first), excess)
        if narrowing > 0:
            column.width -= narrowing
            excess -= narrowing
    return excess <= 0


def _grid(columns: list[_Column]) -> Table:
    """Returns a table of rich's, of columns with their widths."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            Align(column.head, column.side, vertical="bottom"),
            justify=column.side,
            width=column.width,
            overflow="fold",
        )
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*map(_styled, row))
    return table


def _styled(cell: str) -> Text:
    return Text(cell, ALARM if cell.startswith("! ") else "")


def _put(text: str, stream: TextIO, newline: bool = True) -> None:
    """Writes text to a stream, with the time in front of each line in a job of Ray's."""
    if ray_internals.JOB in os.environ:  # the output of a job is read later
        text = re.sub("^", time.strftime("%Y-%m-%d %H:%M:%S "), text, flags=re.MULTILINE)
    try:
        typer.echo(text, stream, newline)
    except OSError:
        silence(stream)


def _has_reader(stream: TextIO) -> bool:
    """Returns whether the other end of a stream is still open."""
    try:
        stream.flush()
        os.write(stream.fileno(), b"")
    except OSError:
        return False
    return True


def _plain(value: Any) -> Any:
    """Returns a value as JSON has it: NaN becomes null, inf a text, arrays lists."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value.item() if hasattr(value, "item") else value
