"""The live view of a sweep: drawn again and again on a terminal, a line now and then elsewhere.

One thread writes, and nobody else: whoever has something to show hands it over and goes on. So a
message may come from any thread and from a signal's handler, which must not wait for a lock that
the code it interrupts may hold; and a terminal that is paused (Ctrl-S) holds up no sweep.
"""

from __future__ import annotations

import dataclasses
import math
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.style import Style
from rich.table import Table
from rich.text import Text

from ..errors import plain, printable
from ..orchestration.progress import AuditProgress, Progress, Speed
from ..report.quote import claimed, epsilon_text
from ..sweep.grid import shorten_labels
from . import terminal
from .terminal import ALARM, duration, marked, plural, speed

PLAIN_SECONDS = 5.0  # between two lines of a log
_REFRESH_SECONDS = 0.25
_WRITE_SECONDS = 1.0  # that a thread waits for its line before it ends the process
_STATES = ("running", "given up", "waiting", "done")  # of audits, in the order of the picture


@dataclasses.dataclass(frozen=True)
class View:
    """A moment of a sweep: a snapshot, once there is one, and what is known beside it."""

    progress: Progress | None
    phase: str  # what goes on instead of training; empty while packs end
    phase_seconds: float
    rate: float  # in trials per second; NaN while unknown, like the next
    seconds_left: float

    @property
    def pace(self) -> str:
        """Speed and remaining time, or what goes on instead."""
        if self.phase:
            return f"{self.phase}, {duration(self.phase_seconds)}"
        return f"{speed(self.rate)} trials/s, ETA {duration(self.seconds_left)}"

    def picture(self, width: int, height: int) -> RenderableType:
        """The picture, of less than `height` lines: at most two thirds, so that others stay."""
        progress = self.progress
        if progress is None:
            return _one_line(f"{self.pace} ...")
        parts: list[RenderableType] = [_one_line(_totals(progress, f"  {self.pace}"))]
        legend, labels = shorten_labels([printable(audit.label) for audit in progress.audits])
        shown, rows = list(range(len(labels))), max(height * 2 // 3 - 4, 0)
        if len(shown) > rows:
            shown.sort(key=lambda index: _urgency(progress, index))
        hidden = [_state(progress, index) for index in shown[rows:]]
        if rows:
            parts += [_one_line(legend, "dim")] * bool(legend)
            parts.append(_table(progress, labels, shown[:rows]))
        if rows and hidden:
            counts = ", ".join(f"{n} {state}" for state, n in sorted(Counter(hidden).items()))
            parts.append(_one_line(f"+{len(hidden)} more: {counts}", "dim"))
        return Group(*parts)

    @property
    def log_line(self) -> str:
        """A line for a log, with the first audit that is under way; at the end, a table follows."""
        progress = self.progress
        if progress is None or not progress.audits:
            return self.pace
        totals = f"{progress.done}/{progress.trials} trials, {self.pace}"
        first = min(range(len(progress.audits)), key=lambda index: _order(progress, index))
        if _state(progress, first) == "done":
            return totals
        audit = progress.audits[first]
        return (
            f"{totals}; {audit.label}: {audit.done}/{audit.trials}, eps >= {_bound(audit)} so far "
            f"(δ = {plain(audit.delta)}, {audit.assumes}), claim {claimed(audit.claim, 2)}"
        )


def final_line(progress: Progress, seconds: float) -> Text:
    """The sentence that stays on the screen in place of the picture, since tables follow."""
    took = "" if progress.activity.pack_seconds is None else f" in {duration(seconds)}"
    states = [_state(progress, index) for index in range(len(progress.audits))]
    done = f"{states.count('done')} of {plural(len(states), 'audit')} done"
    above = sum(audit.above for audit in progress.audits)
    alarm = f", {above} above its claim (!)" * bool(above)
    return _totals(progress, f"{took}; {done}{alarm}")


def _state(progress: Progress, index: int) -> str:
    audit, activity = progress.audits[index], progress.activity
    if audit.decided is not None or audit.done + activity.failed.get(index, 0) >= audit.trials:
        return "done"
    if index in activity.running:
        return "running"
    return "given up" if index in activity.over else "waiting"


def _order(progress: Progress, index: int) -> tuple[int, int]:
    return _STATES.index(_state(progress, index)), index


def _urgency(progress: Progress, index: int) -> tuple[bool, bool, tuple[int, int]]:
    """Sorts running audits first, and bounds above their claim before audits at rest."""
    running = _state(progress, index) == "running"
    return not running, not progress.audits[index].above, _order(progress, index)


def _totals(progress: Progress, more: str) -> Text:
    text = Text(f"{progress.done:,} / {progress.trials:,} trials", style="bold")
    if failed := sum(progress.activity.failed.values()):
        text.append(f", {failed:,} failed", style=ALARM)
    return text.append(more, style=Style(bold=False))


def _bound(audit: AuditProgress) -> str:
    has_bound = audit.done and not math.isnan(audit.epsilon_lower)
    return marked(epsilon_text(audit.epsilon_lower, digits=2), audit.above) if has_bound else "–"


def _table(progress: Progress, labels: list[str], shown: list[int]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="underline")
    table.add_column("audit", min_width=12)
    for head in ("trials", "ε ≥ so far", "δ", "assumes", "claim"):
        table.add_column(head, justify="left" if head == "assumes" else "right", no_wrap=True)
    for index in shown:
        audit, state = progress.audits[index], _state(progress, index)
        done = f"{audit.done:,} / {audit.trials:,}"
        if audit.waits:
            done = f"prepared {audit.parts_done:,} / {audit.parts:,}"
        elif audit.decided is not None:
            done = f"{audit.done:,} enough"
        bound, claim = _bound(audit), claimed(audit.claim, 2)
        cells = done, bound, plain(audit.delta), state if bound == "–" else audit.assumes, claim
        style = ALARM if audit.above else "dim" * (state in ("waiting", "done"))
        table.add_row(_one_line(labels[index]), *map(Text, cells), style=style)
    return table


def _one_line(text: str | Text, style: str = "") -> Text:
    line = Text(text, style) if isinstance(text, str) else text
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


class Display:
    """Shows snapshots, phases and messages while it is open; takes them from any thread."""

    def __init__(self) -> None:
        self._console = Console(**terminal.VERBATIM)
        self._plain = not terminal.interactive() or self._console.is_dumb_terminal
        self._interval = PLAIN_SECONDS if self._plain else _REFRESH_SECONDS
        self._live: Live | None = None
        # When it was handed over, what is to be done, and whether nothing is written after it.
        self._jobs = queue.SimpleQueue[tuple[float, Callable[[float], None], bool]]()
        self._writer = threading.Thread(target=self._write, name="display", daemon=True)
        self._open = False
        self._speed = Speed()
        self._progress: Progress | None = None
        self._phase = ""
        self._began = self._phase_began = self._last_shown = time.monotonic()

    def __enter__(self) -> Display:
        self._began = self._last_shown = time.monotonic()
        if not self._plain:
            # Lines of others, such as warnings, go above the picture, where they would be shown.
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                redirect_stderr=sys.stderr.isatty(),
                vertical_overflow="crop",
            )
            self._live.start()
            self._console.show_cursor(True)  # a process that is killed has no time to restore it
        self._open = True
        self._writer.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._open = False
        self._hand_over(self._finish, last=True)
        self._writer.join()

    def __call__(self, progress: Progress) -> None:
        self._hand_over(lambda now: self._take(progress, now))

    def phase(self, text: str) -> None:
        """Shows what goes on from now on, until there is a snapshot."""
        self._hand_over(lambda now: self._enter_phase(text, now))

    def judging(self, judged: int, audits: int) -> None:
        """Shows how many of the audits are judged."""
        self.phase(f"judging the claims, {judged:,} of {audits:,} audits")

    def tell(self, text: str) -> None:
        """Writes a line to standard error; above the picture where that is the same terminal.

        It is the last line when it comes from a thread: that is about to end this process.
        """
        if not (self._open and self._writer.is_alive()):
            terminal.complain(text)
            return
        ends = threading.current_thread() is not threading.main_thread()
        self._hand_over(lambda _: self._say(text), last=ends)
        if ends:
            self._writer.join(_WRITE_SECONDS)

    def _hand_over(self, job: Callable[[float], None], last: bool = False) -> None:
        self._jobs.put((time.monotonic(), job, last))

    def _write(self) -> None:
        """The writer thread: does what is handed over, and shows what goes on in between."""
        last = False
        while not last:
            try:
                now, job, last = self._jobs.get(timeout=_REFRESH_SECONDS)
            except queue.Empty:
                now, job = time.monotonic(), lambda now: None
            self._surviving(job, now)
            if now - self._last_shown >= self._interval and not last:
                self._surviving(self._show, now)

    def _surviving(self, job: Callable[[float], None], now: float) -> None:
        try:
            job(now)
        except OSError:  # nobody sees this terminal any more
            terminal.silence()
            if self._live is not None:
                self._live.stop()
                self._live = None

    def _take(self, progress: Progress, now: float) -> None:
        before, self._progress = self._progress, progress
        self._speed.see(progress, now)
        # A pack that is done counts once a snapshot has its trials.
        unseen = progress.left and math.isnan(self._speed.rate(now))
        self._enter_phase(progress.phase or (self._phase if unseen else ""), now)
        if before is None or before.done != progress.done == progress.trials:
            self._last_shown = -math.inf  # the first snapshot and the last are shown at once

    def _enter_phase(self, text: str, now: float) -> None:
        if text.partition(",")[0] != self._phase.partition(",")[0]:  # else only its numbers change
            self._phase_began = now
        self._phase = text

    def _say(self, text: str) -> None:
        if self._live is None or not sys.stderr.isatty():
            terminal.complain(text)
        else:
            self._live.console.print(Text(f"dpaudit: {printable(text)}"), soft_wrap=True)

    def _show(self, now: float) -> None:
        self._last_shown = now
        progress, rate, left = self._progress, math.nan, math.nan
        if progress is not None:
            rate, left = self._speed.rate(now), self._speed.seconds_left(progress, now)
        elif not self._phase:
            return
        view = View(progress, self._phase, now - self._phase_began, rate, left)
        if self._plain:
            terminal.say(view.log_line)
        elif self._live is not None:
            size = self._console.size
            self._live.update(view.picture(size.width, size.height), refresh=True)

    def _finish(self, now: float) -> None:
        """Leaves the sentence about the end on the screen, or nothing of what never began."""
        if self._live is not None:
            self._live.transient = self._progress is None
            if self._progress is not None:
                self._live.update(final_line(self._progress, now - self._began))
            self._live.stop()
