"""What the command line prints; beside this only the live view writes to the terminal.

Labels, names and messages are text of others. Nothing in them reaches the terminal as a command.
"""

from __future__ import annotations

import contextlib
import contextvars
import json
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..printable import lines, printable
from .figures import ALARM, Marked
from .figures import duration as duration
from .figures import number as number
from .fitting import fitted

VERBATIM: Any = {"markup": False, "emoji": False, "highlight": False}  # labels are user text
_WIDE = 10_000
_LONGEST_LINE = 100  # of a sentence
_all_columns = contextvars.ContextVar("_all_columns", default=False)


def _widen(wide: bool) -> bool:
    _all_columns.set(wide)
    return wide


Wide = Annotated[
    bool,
    typer.Option(
        "--wide", help="All columns, in lines that may be longer than this terminal's.",
        callback=_widen,
    ),
]  # fmt: skip


def interactive() -> bool:
    """Whether somebody watches standard output on a terminal."""
    return sys.stdout.isatty()


def width() -> float:
    """Columns that a table may take; inf where nobody sees them, or all were asked for."""
    if _all_columns.get() or not interactive():
        return math.inf
    return shutil.get_terminal_size().columns


def say(text: str) -> None:
    """A line to standard output; goes on in silence when nobody reads it any more."""
    _put(lines(text), sys.stdout)


def _put(text: str, stream: TextIO) -> None:
    """A pipe may be closed by who reads it, and a terminal with its window."""
    try:
        typer.echo(text, file=stream)
    except OSError:
        silence(stream)


def silence(*streams: TextIO) -> None:
    """What is still to be said to these, or to the terminal that is gone, is said to nobody."""
    for stream in streams or (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            if streams or not _lasts(stream):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _lasts(stream: TextIO) -> bool:
    """Whether it still takes what is written."""
    try:
        stream.flush()
        os.write(stream.fileno(), b"")
    except OSError:
        return False
    return True


def explain(text: str) -> None:
    """A sentence below a table, in lines of at most 100 columns, and of the terminal's."""
    columns = shutil.get_terminal_size().columns if interactive() else _LONGEST_LINE
    columns = max(20, min(columns, _LONGEST_LINE))
    say(textwrap.fill(text, columns, subsequent_indent="  ", break_on_hyphens=False))


def complain(text: str) -> None:
    """One line to standard error."""
    _put(f"dpaudit: {printable(text)}", sys.stderr)


def add(text: str) -> None:
    """Lines that belong to the one after or before, to standard error."""
    _put(lines(text), sys.stderr)


def pass_on(text: str) -> None:
    """The output of another process, as it comes, to standard output."""
    try:
        sys.stdout.write(lines(text))
        sys.stdout.flush()
    except OSError:
        silence(sys.stdout)


def show_json(value: Any) -> None:
    """JSON to standard output; NaN becomes null."""
    say(json.dumps(_plain(value), indent=1))


def show_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], spare: Sequence[str] = ()
) -> tuple[str, ...]:
    """An aligned table; lines are whole however narrow the terminal is.

    Of one that is too narrow, columns of `spare` are left out, its first ones first, and returned.
    Where that is not enough, each row's first cell has a line of its own.
    """
    text = [[cell if isinstance(cell, Marked) else number(cell) for cell in row] for row in rows]
    fit = fitted(columns, text, width(), spare)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in fit.columns:
        table.add_column(column, justify="left" if column in _TEXT else "right", no_wrap=True)
    for row in fit.rows:
        table.add_row(*map(_cell, row))
    for above in (title, fit.legend):
        if above:
            say(above)
    _print(table, fit.leads)
    return fit.left_out


def explain_left_out(columns: Sequence[str]) -> None:
    """What tables left out, if anything."""
    if columns:
        explain(f"not shown in {width():.0f} columns: {', '.join(columns)}; --wide shows all")


def _cell(cell: Any) -> Text:
    return Text(str(cell), style=ALARM if isinstance(cell, Marked) else "")


def _print(table: Table, leads: Sequence[str]) -> None:
    """Colours are for terminals, and not where NO_COLOR is set. `leads` stand above the rows."""
    console = Console(width=_WIDE, force_terminal=interactive(), **VERBATIM)
    with console.capture() as captured:
        console.print(table)
    head, *body = [line.rstrip() for line in captured.get().splitlines()]
    _put(head, sys.stdout)
    for place, line in enumerate(body):
        _put("\n".join([*leads[place : place + 1], line]), sys.stdout)


_TEXT = {
    "audit",
    "verdict",
    "estimator",
    "status",
    "accountant",
    "note",
    "bound",
    "kind",
    "message",
    "name",
    "what it is",
    "option",
    "takes",
    "default",
}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value.item() if hasattr(value, "item") else value
