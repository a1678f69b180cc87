"""Signals: the first asks the sweep to stop, the second stops it now."""

from __future__ import annotations

import contextlib
import math
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# As a shell starts a job in the background, and nohup one that outlives its terminal.
_MAY_BE_IGNORED = (signal.SIGINT, signal.SIGHUP)


class Stop:
    """A request to end early: no new packs, and `grace` seconds for the running ones."""

    def __init__(self, grace: float, tell: Callable[[str], None] = lambda line: None) -> None:
        self._grace = grace
        self._tell = tell
        self._deadline = math.inf
        self._before: dict[signal.Signals, Any] = {}
        self._noticed = False

    @property
    def requested(self) -> bool:
        """Whether anybody has asked."""
        return self._deadline < math.inf

    @property
    def heard(self) -> bool:
        """The same, and known at once while the main thread is in a call that does not return."""
        return self.requested or self._noticed

    @property
    def expired(self) -> bool:
        """Whether the grace period is over."""
        return time.monotonic() >= self._deadline

    def request(self) -> None:
        """Asks; asking again does not prolong the grace period."""
        if not self.requested:
            self._deadline = time.monotonic() + self._grace

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Signals ask while this is open; handlers of before come back after it.

        SIGTERM, SIGINT, and SIGHUP of a terminal that is closed.

        Does nothing outside the main thread, where Python allows no handlers.
        """
        with contextlib.ExitStack() as stack:
            if threading.current_thread() is threading.main_thread():
                stack.enter_context(self._hearing())
            try:
                self.install()
                yield
            finally:
                for number, handler in self._before.items():
                    signal.signal(number, handler)
                self._before.clear()

    @contextlib.contextmanager
    def _hearing(self) -> Iterator[None]:
        """Python's handlers wait for the main thread's next step; a thread of its own does not."""
        ear, mouth = socket.socketpair()
        mouth.setblocking(False)
        before = signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._hear, args=(ear,), name="signals", daemon=True).start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            mouth.close()  # which ends the thread

    def _hear(self, ear: socket.socket) -> None:
        with ear:
            while numbers := ear.recv(64):
                self._noticed |= any(signal.getsignal(n) == self._handle for n in numbers)

    def install(self) -> None:
        """(Re-)installs the handlers: `ray.init` puts its own in their place."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            current = signal.getsignal(number)
            if number in _MAY_BE_IGNORED and current == signal.SIG_IGN:
                continue
            self._before.setdefault(number, current)
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            if number == signal.SIGHUP:
                return  # nobody asks twice: a shell and its terminal both tell of the same end
            raise KeyboardInterrupt
        self.request()
        self._tell(
            f"stopping: running packs have {self._grace:g} s to finish; once more stops at once"
        )
