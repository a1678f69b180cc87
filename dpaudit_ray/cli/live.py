"""The live view of a sweep: drawn again and again on a terminal, a line now and then elsewhere.

One thread writes, and nobody else: whoever has something to show hands it over and goes on. So a
message may come from any thread and from a signal's handler, which must not wait for a lock that
the code it interrupts may hold; a terminal that is paused (Ctrl-S) holds up no sweep; and what is
said stands above the picture, never in it.
"""

from __future__ import annotations

import math
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ..orchestration.eta import Speed
from ..orchestration.progress import Progress
from ..printable import printable
from . import frames, terminal

PLAIN_SECONDS = 5.0
_REFRESH_SECONDS = 0.25
_WRITE_SECONDS = 1.0  # that a thread waits for its message: it may be about to end the process


class Display:
    """Shows snapshots, phases and messages while it is open; takes them from any thread.

    Args:
        plain: lines of text, in place of a picture; decided by what standard output is for None.
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
        self._spoke = -math.inf
        self._said = -1
        self._drawn = -math.inf

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
            self._console.show_cursor(True)  # who is killed has no time to bring it back
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
        """A line to standard error; above the picture where that is the same terminal."""
        if not (self._open and self._writer.is_alive()):
            terminal.complain(text)
            return
        shown = threading.Event()
        self._jobs.put(lambda: self._say(text, shown))
        if threading.current_thread() is not threading.main_thread():
            shown.wait(_WRITE_SECONDS)

    def _write(self) -> None:
        while (job := self._next()) is not None:
            self._surviving(job)
            if time.monotonic() - self._drawn >= _REFRESH_SECONDS:
                self._surviving(self._draw)
        self._surviving(self._finish)

    def _next(self) -> Callable[[], None] | None:
        """What is to be done now; None at the end."""
        try:
            return self._jobs.get(timeout=_REFRESH_SECONDS)
        except queue.Empty:
            return self._draw

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
        self._enter_phase(self._phase_of(progress, now), now)
        if self._plain and self._is_news(now, progress):
            terminal.say(frames.line(self._view(now)))
            self._spoke, self._said = now, progress.done

    def _is_news(self, now: float, progress: Progress) -> bool:
        """Where a run begins and ends is told at any rate."""
        first = self._said < 0
        finished = progress.done == progress.trials and progress.done != self._said
        return first or finished or now - self._spoke >= PLAIN_SECONDS

    def _phase_of(self, progress: Progress, now: float) -> str:
        """A pack that is done counts once a snapshot has its trials."""
        unseen = progress.left and math.isnan(self._speed.rate(now))
        return progress.phase or (self._phase if unseen else "")

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

    def _view(self, now: float) -> frames.View:
        progress, rate, left = self._progress, math.nan, math.nan
        if progress is not None:
            rate, left = self._speed.rate(now), self._speed.seconds_left(progress, now)
        return frames.View(progress, self._phase, now - self._phase_began, rate, left)

    def _draw(self) -> None:
        now = time.monotonic()
        self._drawn = now
        if self._plain and self._phase and self._progress is None:
            if now - max(self._began, self._spoke) >= PLAIN_SECONDS:
                terminal.say(frames.line(self._view(now)))
                self._spoke = now
        elif self._live is not None and (self._phase or self._progress):
            size = self._console.size
            picture = frames.frame(self._view(now), size.width, size.height)
            self._live.update(picture, refresh=True)

    def _finish(self) -> None:
        """What was shown last is true of the end."""
        if self._live is None:
            return
        if self._progress is None:
            self._live.transient = True
        else:
            seconds = time.monotonic() - self._began
            self._live.update(frames.last(self._progress, seconds))
        self._live.stop()
