"""The live view of a sweep: drawn again and again on a terminal, a line now and then elsewhere.

The picture fits the terminal, however many audits there are. One thread writes, and nobody else:
whoever has something to show hands it over and goes on. So a message may come from any thread and
from a signal's handler, which must not wait for a lock that the code it interrupts may hold; a
terminal that is paused (Ctrl-S) holds up no sweep; and messages stand above the picture.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.style import Style
from rich.table import Table
from rich.text import Text

from ..errors import printable
from ..orchestration.progress import Progress, Speed
from ..sweep.grid import shorten_labels
from . import terminal
from .terminal import ALARM, duration, marked, plural, speed

PLAIN_SECONDS = 5.0  # between two lines of a log
_REFRESH_SECONDS = 0.25
_WRITE_SECONDS = 1.0  # that a thread waits for its message: it may be about to end the process
_NARROW = 100  # columns, below which labels need them more than the head of the bounds does
_NUMBER_COLUMNS = 54  # columns of all that stands beside a label, at most


class State(enum.IntEnum):
    """Progress of an audit, in the order in which audits are shown."""

    RUNNING = enum.auto()
    STOPPED = enum.auto()  # given up
    WAITING = enum.auto()
    DONE = enum.auto()


_COUNTED = {  # in the order in which they are counted
    State.DONE: "done",
    State.RUNNING: "running",
    State.WAITING: "waiting",
    State.STOPPED: "given up",
}
_COUNTED_AT_THE_END = _COUNTED | dict.fromkeys((State.RUNNING, State.WAITING), "not finished")
_WITHOUT_BOUND = dict(zip(State, ("runs", "given up", "waits", "–"), strict=True))


@dataclasses.dataclass(frozen=True)
class View:
    """A moment of a sweep: a snapshot, once there is one, and what is known beside it.

    `phase` is what goes on instead of training, for `phase_seconds`; empty while packs end. `rate`
    is in trials per second, `seconds_left` until the end; NaN while unknown.
    """

    progress: Progress | None
    phase: str
    phase_seconds: float
    rate: float
    seconds_left: float

    @property
    def pace(self) -> str:
        """Speed and remaining time, or what goes on instead."""
        if self.phase:
            return f"{self.phase}, {duration(self.phase_seconds)}"
        return f"{speed(self.rate)} trials/s, ETA {duration(self.seconds_left)}"

    def picture(self, width: int, height: int) -> RenderableType:
        """The picture, of less than `height` lines."""
        if self.progress is None:
            return _one_line(Text(f"{self.pace} ..."))
        progress = self.progress
        lines: list[RenderableType] = [_one_line(_totals(progress, f"  {self.pace}"))]
        # Two thirds of the screen at most: earlier output stays in sight.
        rows = min(max(height * 2 // 3, 8) - 4, height - 5)
        if rows > 0:
            legend, labels = "", [printable(audit.label) for audit in progress.audits]
            if max(map(cell_len, labels), default=0) + _NUMBER_COLUMNS > width:
                legend, labels = shorten_labels(labels)
            if legend:
                lines.append(_one_line(Text(legend, style="dim")))
            shown, hidden = list(range(len(labels))), []
            if len(labels) > rows:
                shown.sort(key=lambda index: _urgency(progress, index))
                shown, hidden = shown[:rows], shown[rows:]
            lines.append(_table(progress, labels, shown, width))
            if hidden:
                counted = _counted(progress, hidden, _COUNTED)
                lines.append(_one_line(Text(f"+{len(hidden)} more: {counted}", style="dim")))
        return Group(*lines)

    @property
    def log_line(self) -> str:
        """A line for a log, with the first audit that is under way."""
        progress = self.progress
        if progress is None or not progress.audits:
            return self.pace
        pace = self.phase or f"{speed(self.rate)}/s, ETA {duration(self.seconds_left)}"
        totals = f"{progress.done}/{progress.trials} trials, {pace}"
        indices = range(len(progress.audits))
        audit = progress.audits[min(indices, key=lambda i: (audit_state(progress, i), i))]
        if audit.waits:
            return (
                f"{totals}; {audit.label}: waits for its preparation, "
                f"{audit.parts_done} of {audit.parts} parts done"
            )
        bound = marked(f"{audit.epsilon_lower:.2f}", audit.above)
        return (
            f"{totals}; {audit.label}: {audit.done}/{audit.trials}, eps >= {bound} "
            f"({audit.assumes}, any time), claim {audit.claim:.2f}"
        )


def final_line(progress: Progress, seconds: float) -> Text:
    """The sentence that stays on the screen in place of the picture, since tables follow."""
    count = len(progress.audits)
    took = "" if progress.activity.pack_seconds is None else f" in {duration(seconds)}"
    counted = _counted(progress, range(count), _COUNTED_AT_THE_END)
    return _totals(progress, f"{took}; {plural(count, 'audit')}: {counted}")


def audit_state(progress: Progress, index: int) -> State:
    """The state of the audit with this number."""
    audit, activity = progress.audits[index], progress.activity
    failed = activity.failed.get(index, 0)
    if audit.decided is not None or audit.done + failed >= audit.trials:
        return State.DONE
    if index in activity.running:
        return State.RUNNING
    return State.STOPPED if index in activity.over else State.WAITING


def _urgency(progress: Progress, index: int) -> tuple[int, bool, int]:
    """Sorts running audits first, and bounds above their claim before audits at rest."""
    state, above = audit_state(progress, index), progress.audits[index].above
    return (min(state, State.STOPPED) if above else state, not above, index)


def _counted(progress: Progress, indices: Sequence[int], words: Mapping[State, str]) -> str:
    """Numbers of audits by the word for their state."""
    counts = Counter(words[audit_state(progress, index)] for index in indices)
    parts = [f"{counts[word]} {word}" for word in dict.fromkeys(words.values()) if counts[word]]
    above = sum(progress.audits[index].above for index in indices)
    return ", ".join([*parts, *([f"{above} above its claim (!)"] if above else [])])


def _totals(progress: Progress, more: str) -> Text:
    text = Text(f"{progress.done:,} / {progress.trials:,} trials", style="bold")
    if failed := sum(progress.activity.failed.values()):
        text.append(f", {failed:,} failed", style=ALARM)
    return text.append(more, style=Style(bold=False))


def _table(progress: Progress, labels: list[str], shown: list[int], width: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="underline")
    table.add_column("audit", min_width=12)
    for head in ("trials", "ε ≥" if width < _NARROW else "ε ≥ (any time)", "assumes", "claim"):
        table.add_column(head, justify="left" if head == "assumes" else "right", no_wrap=True)
    for index in shown:
        audit, state = progress.audits[index], audit_state(progress, index)
        style = ALARM if audit.above else "dim" * (state in (State.WAITING, State.DONE))
        bound, assumes = "–", _WITHOUT_BOUND[state]
        if audit.done and not math.isnan(audit.epsilon_lower):
            bound = marked(f"{audit.epsilon_lower:.2f}", audit.above)
            assumes = audit.assumes
        done = f"{audit.done:,} / {audit.trials:,}"
        if audit.waits:
            done = f"prepared {audit.parts_done:,} / {audit.parts:,}"
        elif audit.decided is not None:
            done = f"{audit.done:,} enough"
        cells = (done, bound, assumes, f"{audit.claim:.2f}")
        table.add_row(_one_line(Text(labels[index])), *map(Text, cells), style=style)
    return table


def _one_line(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


class Display:
    """Shows snapshots, phases and messages while it is open; takes them from any thread.

    `plain`: lines of text, in place of a picture; None: what suits standard output.
    """

    def __init__(self, plain: bool | None = None) -> None:
        self._console = Console(**terminal.VERBATIM)
        drawable = terminal.interactive() and not self._console.is_dumb_terminal
        self._plain = not drawable if plain is None else plain
        self._live: Live | None = None
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="display", daemon=True)
        self._open = False
        self._speed = Speed()
        self._progress: Progress | None = None
        self._began = self._phase_began = time.monotonic()
        self._phase = ""
        self._last_line = -math.inf  # when a line of the log was written
        self._last_done = -1  # trials that it told of
        self._last_drawn = -math.inf

    def __enter__(self) -> Display:
        self._began = time.monotonic()
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
        self._jobs.put(None)
        self._writer.join()

    def __call__(self, progress: Progress) -> None:
        """Shows a snapshot."""
        now = time.monotonic()
        self._jobs.put(lambda: self._take(progress, now))

    def phase(self, text: str) -> None:
        """Shows what goes on from now on, until there is a snapshot."""
        now = time.monotonic()
        self._jobs.put(lambda: self._enter_phase(text, now))

    def tell(self, text: str) -> None:
        """Writes a line to standard error; above the picture where that is the same terminal."""
        if not (self._open and self._writer.is_alive()):
            terminal.complain(text)
            return
        shown = threading.Event()
        self._jobs.put(lambda: self._say(text, shown))
        if threading.current_thread() is not threading.main_thread():
            shown.wait(_WRITE_SECONDS)

    def _write(self) -> None:
        """The writer thread: does what is handed over, and draws in between."""
        while True:
            try:
                job = self._jobs.get(timeout=_REFRESH_SECONDS)
            except queue.Empty:
                job = self._draw
            if job is None:
                break
            self._surviving(job)
            if time.monotonic() - self._last_drawn >= _REFRESH_SECONDS:
                self._surviving(self._draw)
        self._surviving(self._finish)

    def _surviving(self, job: Callable[[], None]) -> None:
        try:
            job()
        except OSError:  # nobody sees this terminal any more
            terminal.silence()
            if self._live is not None:
                self._live.stop()
                self._live = None

    def _take(self, progress: Progress, now: float) -> None:
        self._speed.see(progress, now)
        self._progress = progress
        # A pack that is done counts once a snapshot has its trials.
        unseen = progress.left and math.isnan(self._speed.rate(now))
        self._enter_phase(progress.phase or (self._phase if unseen else ""), now)
        first = self._last_done < 0
        finished = progress.done == progress.trials and progress.done != self._last_done
        if self._plain and (first or finished or now - self._last_line >= PLAIN_SECONDS):
            terminal.say(self._view(now).log_line)
            self._last_line, self._last_done = now, progress.done

    def _enter_phase(self, text: str, now: float) -> None:
        if text.partition(",")[0] != self._phase.partition(",")[0]:  # else only its numbers change
            self._phase_began = now
        self._phase = text

    def _say(self, text: str, shown: threading.Event) -> None:
        if self._live is None or not sys.stderr.isatty():
            terminal.complain(text)
        else:
            message = Text(f"dpaudit: {printable(text)}")
            self._live.console.print(message, soft_wrap=True)
        shown.set()

    def _view(self, now: float) -> View:
        progress, rate, left = self._progress, math.nan, math.nan
        if progress is not None:
            rate, left = self._speed.rate(now), self._speed.seconds_left(progress, now)
        return View(progress, self._phase, now - self._phase_began, rate, left)

    def _draw(self) -> None:
        now = time.monotonic()
        self._last_drawn = now
        progress, phase = self._progress, self._phase
        if self._plain and phase and not (progress and progress.left and progress.phase == phase):
            if now - max(self._began, self._last_line) >= PLAIN_SECONDS:
                terminal.say(self._view(now).pace)
                self._last_line = now
        elif self._live is not None and (self._phase or self._progress):
            size = self._console.size
            self._live.update(self._view(now).picture(size.width, size.height), refresh=True)

    def _finish(self) -> None:
        """Leaves the sentence about the end on the screen, or nothing of what never began."""
        if self._live is None:
            return
        if self._progress is None:
            self._live.transient = True
        else:
            seconds = time.monotonic() - self._began
            self._live.update(final_line(self._progress, seconds))
        self._live.stop()
