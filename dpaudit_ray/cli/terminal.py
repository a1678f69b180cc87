"""What the command line prints: the only module that writes to the terminal.

Labels, names and messages are text of others. Nothing in them reaches the terminal as a command.
"""

from __future__ import annotations

import json
import math
import os
import sys
import textwrap
import time
from collections.abc import Sequence
from typing import Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from ..orchestration.progress import Progress
from ..printable import lines, printable

PLAIN_SECONDS = 5.0
_WIDE = 10_000
_VERBATIM: Any = {"markup": False, "emoji": False, "highlight": False}  # labels are user text


def say(text: str) -> None:
    """A line to standard output; goes on in silence when nobody reads it any more."""
    try:
        typer.echo(lines(text))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def explain(text: str) -> None:
    """A sentence below a table, in lines of at most 100 columns."""
    say(textwrap.fill(text, 100, subsequent_indent="  ", break_on_hyphens=False))


def complain(text: str) -> None:
    """One line to standard error."""
    typer.echo(f"dpaudit: {printable(text)}", err=True)


def add(text: str) -> None:
    """Lines that belong to the one after or before, to standard error."""
    typer.echo(lines(text), err=True)


def pass_on(text: str) -> None:
    """The output of another process, as it comes, to standard output."""
    sys.stdout.write(lines(text))
    sys.stdout.flush()


def show_json(value: Any) -> None:
    """JSON to standard output; NaN becomes null."""
    say(json.dumps(_plain(value), indent=1))


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """An aligned table; lines are whole however narrow the terminal is."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if column in _TEXT else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(number, row))
    console = Console(width=_WIDE, **_VERBATIM)
    with console.capture() as captured:
        console.print(table)
    lines = [title] * bool(title) + [line.rstrip() for line in captured.get().splitlines()]
    say("\n".join(lines))


def number(value: Any) -> str:
    """A figure as people read it; NaN and None are no figure."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{value:,.3f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return printable(str(value))


def duration(seconds: float) -> str:
    """Seconds as 8s, 3m 20s or 5h 07m."""
    if not math.isfinite(seconds):
        return "?"
    if 0 < seconds < 1:
        return "<1s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"


class Display:
    """Live progress: a table that redraws on a terminal, one line every few seconds elsewhere."""

    def __init__(self, plain: bool | None = None) -> None:
        self._console = Console(**_VERBATIM)
        self._plain = not self._console.is_terminal if plain is None else plain
        self._live: Live | None = None
        self._start: tuple[float, int] | None = None
        self._spoke = -math.inf
        self._said = -1

    def __enter__(self) -> Display:
        if not self._plain:
            self._live = Live(console=self._console, refresh_per_second=4)
            self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._live is not None:
            self._live.__exit__(*error)

    def __call__(self, progress: Progress) -> None:
        """Shows a snapshot."""
        now = time.monotonic()
        if self._start is None:
            self._start = (now, progress.done)
        rate = self._rate(now, progress)
        if self._live is not None:
            self._live.update(_table(progress, rate))
        elif self._is_news(now, progress):
            say(_line(progress, rate))
            self._spoke, self._said = now, progress.done

    def _is_news(self, now: float, progress: Progress) -> bool:
        finished = progress.done == progress.trials and progress.done != self._said
        return finished or now - self._spoke >= PLAIN_SECONDS

    def _rate(self, now: float, progress: Progress) -> float:
        """Trials per second since this process began to watch."""
        began, before = self._start or (now, progress.done)
        return (progress.done - before) / (now - began) if now > began else 0.0


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
}


def _speed(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.2g}"


def _eta(progress: Progress, rate: float) -> str:
    left = progress.trials - progress.done
    return duration(left / rate) if rate > 0 else "?"


def _line(progress: Progress, rate: float) -> str:
    current = next((a for a in progress.audits if a.done < a.trials), progress.audits[-1])
    if current.waits:
        return (
            f"{progress.done}/{progress.trials} trials; {current.label}: waits for its "
            f"preparation, {current.parts_done} of {current.parts} parts done"
        )
    return (
        f"{progress.done}/{progress.trials} trials, {_speed(rate)}/s, ETA {_eta(progress, rate)}; "
        f"{current.label}: {current.done}/{current.trials}, "
        f"eps >= {current.epsilon_lower:.2f} ({current.status}, any time), "
        f"claim {current.claim:.2f}"
    )


def _table(progress: Progress, rate: float) -> Table:
    caption = f"{_speed(rate)} trials/s, ETA {_eta(progress, rate)}"
    table = Table(title=f"{progress.done:,} / {progress.trials:,} trials", caption=caption)
    for column in ("audit", "trials", "ε ≥ (any time)", "status", "claim"):
        table.add_column(column, justify="left" if column in _TEXT else "right")
    for audit in progress.audits:
        done = f"{audit.done:,} / {audit.trials:,}"
        if audit.waits:
            done = f"prepared {audit.parts_done:,} / {audit.parts:,}"
        bound, claim = f"{audit.epsilon_lower:.2f}", f"{audit.claim:.2f}"
        table.add_row(printable(audit.label), done, bound, audit.status, claim)
    return table


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value.item() if hasattr(value, "item") else value
