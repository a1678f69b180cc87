"""The live view of a sweep: a picture that is redrawn on a terminal, else a line from time to time.

Only one thread writes. All others put jobs into its queue and continue. So a message may come from
any thread and from a signal handler, which must not wait for a lock that the interrupted code may
hold; and a terminal that is paused (Ctrl-S) does not stop a sweep.
"""

import math
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
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
_WRITE_SECONDS = 1.0  # time that a thread waits for its line before it ends the process
_STATES = ("running", "abandoned", "waiting", "done")  # the order of audits in the picture


@dataclass(frozen=True)
class View:
    """A moment of a sweep.

    Attributes:
        progress: the last snapshot; None before the first.
        phase: the current activity, if it is not training; empty while packs are trained.
        phase_seconds: time since the phase began.
        rate: trials per second; NaN while it is unknown.
        seconds_left: remaining time; NaN while it is unknown.
    """

    progress: Progress | None
    phase: str
    phase_seconds: float
    rate: float
    seconds_left: float

    @property
    def pace(self) -> str:
        """Phase and its time, or speed and remaining time."""
        if self.phase:
            return f"{self.phase}, {duration(self.phase_seconds)}"
        return f"{speed(self.rate)} trials/s, ETA {duration(self.seconds_left)}"

    def picture(self, width: int, height: int) -> RenderableType:
        """Draws at most two thirds of `height` lines, so that other output stays visible."""
        progress = self.progress
        if progress is None:
            return _one_line(f"{self.pace} ...")
        parts: list[RenderableType] = [_one_line(_totals(progress, f"  {self.pace}"))]
        # Lines for audits. Four more are for totals, legend, head and end.
        audit_lines = max(height * 2 // 3 - 4, 0)
        if audit_lines == 0:
            return Group(*parts)
        legend, labels = shorten_labels([printable(audit.label) for audit in progress.audits])
        indices = list(range(len(labels)))
        if len(indices) > audit_lines:
            indices.sort(key=lambda index: _urgency(progress, index))
        if legend:
            parts.append(_one_line(legend, "dim"))
        parts.append(_table(progress, labels, indices[:audit_lines]))
        hidden = Counter(_state(progress, index) for index in indices[audit_lines:])
        if hidden:
            counts = ", ".join(f"{count} {state}" for state, count in sorted(hidden.items()))
            parts.append(_one_line(f"+{hidden.total()} more: {counts}", "dim"))
        return Group(*parts)

    @property
    def log_line(self) -> str:
        """A line for a log, with the first audit that is not done; tables follow at the end."""
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
    """Returns the sentence that replaces the picture at the end, since tables follow."""
    states = [_state(progress, index) for index in range(len(progress.audits))]
    text = f"; {states.count('done')} of {plural(len(states), 'audit')} done"
    if progress.activity.pack_seconds is not None:
        text = f" in {duration(seconds)}{text}"
    above = sum(audit.above for audit in progress.audits)
    if above:
        text += f", {above} above its claim (!)"
    return _totals(progress, text)


def _state(progress: Progress, index: int) -> str:
    """Returns the state of an audit, one of `_STATES`."""
    audit = progress.audits[index]
    activity = progress.activity
    finished = audit.done + activity.failed.get(index, 0)
    if audit.decided is not None or finished >= audit.trials:
        return "done"
    if index in activity.running:
        return "running"
    return "abandoned" if index in activity.over else "waiting"


def _order(progress: Progress, index: int) -> tuple[int, int]:
    """Returns a key that sorts audits by their state, and then by their number."""
    return _STATES.index(_state(progress, index)), index


def _urgency(
    progress: Progress,
    index: int,
) -> tuple[bool, bool, tuple[int, int]]:
    """Returns a key that sorts running audits first, and then bounds above their claims."""
    is_running = _state(progress, index) == "running"
    return not is_running, not progress.audits[index].above, _order(progress, index)


def _totals(progress: Progress, more: str) -> Text:
    """Returns the numbers of finished and of failed trials, and then `more`."""
    text = Text(f"{progress.done:,} / {progress.trials:,} trials", style="bold")
    if failed := sum(progress.activity.failed.values()):
        text.append(f", {failed:,} failed", style=ALARM)
    return text.append(more, style=Style(bold=False))


def _bound(audit: AuditProgress) -> str:
    """Returns the bound so far as text: with "!" if above the claim, a dash without a bound."""
    if audit.done == 0 or math.isnan(audit.epsilon_lower):
        return "–"
    return marked(epsilon_text(audit.epsilon_lower, digits=2), audit.above)


def _table(
    progress: Progress,
    labels: list[str],
    indices: list[int],
) -> Table:
    """Draws a line for each audit: trials, bound so far, δ, assumption and claim.

    Args:
        progress: snapshot of the sweep.
        labels: names of all audits, shortened.
        indices: indices of the audits that are drawn.
    """
    table = Table(box=None, pad_edge=False, header_style="underline")
    table.add_column("audit", min_width=12)
    for head in ("trials", "ε ≥ so far", "δ", "assumes", "claim"):
        table.add_column(head, justify="left" if head == "assumes" else "right", no_wrap=True)
    for index in indices:
        audit = progress.audits[index]
        state = _state(progress, index)
        bound = _bound(audit)
        done = f"{audit.done:,} / {audit.trials:,}"
        if audit.waits:
            done = f"prepared {audit.parts_done:,} / {audit.parts:,}"
        elif audit.decided is not None:
            done = f"{audit.done:,} enough"
        assumes = state if bound == "–" else audit.assumes
        style = "dim" if state in ("waiting", "done") else ""
        if audit.above:
            style = ALARM
        cells = (done, bound, plain(audit.delta), assumes, claimed(audit.claim, 2))
        table.add_row(_one_line(labels[index]), *map(Text, cells), style=style)
    return table


def _one_line(text: str | Text, style: str = "") -> Text:
    """Returns text that is cut at the edge of the terminal, not folded."""
    line = Text(text, style) if isinstance(text, str) else text
    line.no_wrap = True
    line.overflow = "ellipsis"
    return line


class Display:
    """Shows snapshots, phases and messages of any thread while it is open.

    Args:
        quiet: writes to standard error alone, line by line, since other output is a result.
    """

    def __init__(self, quiet: bool = False) -> None:
        """Prepares the writer thread; nothing is shown before the display is entered."""
        self._console = Console(**terminal.VERBATIM)
        self._plain = quiet or not terminal.interactive() or self._console.is_dumb_terminal
        self._put = terminal.add if quiet else terminal.say
        self._interval = PLAIN_SECONDS if self._plain else _REFRESH_SECONDS
        self._live: Live | None = None
        # Jobs of the writer: time of the request, function to call with this time, whether it is
        # the last job.
        self._jobs = queue.SimpleQueue[tuple[float, Callable[[float], None], bool]]()
        self._writer = threading.Thread(target=self._write, name="display", daemon=True)
        self._open = False
        self._speed = Speed()
        self._progress: Progress | None = None
        self._phase = ""
        self._began = self._phase_began = self._last_shown = time.monotonic()

    def __enter__(self) -> "Display":
        """Starts the picture, unless output is a log, and the writer thread."""
        self._began = self._last_shown = time.monotonic()
        if not self._plain:
            # Lines of other code, such as warnings, go above the picture if a terminal shows them.
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
        """Writes all that is queued, and the final sentence."""
        self._open = False
        self._request(self._finish, last=True)
        self._writer.join()

    def __call__(self, progress: Progress) -> None:
        self._request(lambda now: self._update(progress, now))

    def phase(self, text: str) -> None:
        """Shows an activity until the next snapshot."""
        self._request(lambda now: self._enter_phase(text, now))

    def judging(self, done: int, audits: int) -> None:
        """Shows how many of the audits are judged."""
        self.phase(f"judging the claims, {done:,} of {audits:,} audits")

    def tell(self, text: str) -> None:
        """Writes a line to standard error; above the picture if both are on the same terminal.

        A line of another thread than the main one is the last: that thread ends the process.
        """
        if not (self._open and self._writer.is_alive()):
            terminal.complain(text)
            return
        ends = threading.current_thread() is not threading.main_thread()
        self._request(lambda _: self._print(text), last=ends)
        if ends:
            self._writer.join(_WRITE_SECONDS)

    def _request(
        self,
        job: Callable[[float], None],
        last: bool = False,
    ) -> None:
        """Queues a job for the writer thread, which calls it with the time of this request."""
        self._jobs.put((time.monotonic(), job, last))

    def _write(self) -> None:
        """Runs queued jobs, such as to print a message, up to the job that is marked as the last.

        The writer thread runs this method. Between jobs, it draws the view anew every `_interval`
        seconds.
        """
        last = False
        while not last:
            try:
                now, job, last = self._jobs.get(timeout=_REFRESH_SECONDS)
                self._run(job, now)
            except queue.Empty:
                now = time.monotonic()
            if now - self._last_shown >= self._interval and not last:
                self._run(self._show, now)

    def _run(
        self,
        job: Callable[[float], None],
        now: float,
    ) -> None:
        """Runs a job of the writer thread; stops drawing for good if the terminal is closed."""
        try:
            job(now)
        except OSError:  # the terminal is closed
            terminal.silence()
            if self._live is not None:
                self._live.stop()
                self._live = None

    def _update(self, progress: Progress, now: float) -> None:
        """Takes a snapshot, which ends the phase that was shown before it."""
        previous = self._progress
        self._progress = progress
        self._speed.add(progress, now)
        # The phase lasts until a snapshot has trials of a pack, so that there is a speed.
        has_speed = not (progress.trials_remaining and math.isnan(self._speed.rate(now)))
        if progress.phase or has_speed:
            self._enter_phase(progress.phase, now)
        if previous is None or previous.done != progress.done == progress.trials:
            self._last_shown = -math.inf  # the first snapshot and the last are shown at once

    def _enter_phase(self, text: str, now: float) -> None:
        if text.partition(",")[0] != self._phase.partition(",")[0]:  # not only its numbers change
            self._phase_began = now
        self._phase = text

    def _print(self, text: str) -> None:
        """Writes a line above the picture, or to standard error without a picture."""
        if self._live is None or not sys.stderr.isatty():
            terminal.complain(text)
        else:
            self._live.console.print(Text(f"dpaudit: {printable(text)}"), soft_wrap=True)

    def _show(self, now: float) -> None:
        """Prints a line of the log, or draws the picture again, at `now` of the monotonic clock."""
        self._last_shown = now
        progress = self._progress
        if progress is None and not self._phase:
            return
        rate = seconds_left = math.nan
        if progress is not None:
            rate = self._speed.rate(now)
            seconds_left = self._speed.seconds_left(progress, now)
        view = View(progress, self._phase, now - self._phase_began, rate, seconds_left)
        if self._plain:
            self._put(view.log_line)
        elif self._live is not None:
            size = self._console.size
            self._live.update(view.picture(size.width, size.height), refresh=True)

    def _finish(self, now: float) -> None:
        """Replaces the picture by the final sentence, or by nothing if there was no snapshot."""
        if self._live is not None:
            self._live.transient = self._progress is None
            if self._progress is not None:
                self._live.update(final_line(self._progress, now - self._began))
            self._live.stop()
