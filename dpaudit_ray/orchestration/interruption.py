"""What ends a sweep early: signals that ask it to stop, and a cluster that no longer answers.

What hangs is not what dies: the kernel of a stopped process goes on accepting connections, and a
call of Ray's waits for it without a limit. So the head is asked a question, with a limit.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from ..errors import ClusterError

LOOK_SECONDS = 2.0  # between two questions, and for an answer
GONE_SECONDS = 20.0  # without an answer, before the sweep is stopped
LEAVE_SECONDS = 4.0  # for stopping, before this process is ended
_HEALTH = "/grpc.health.v1.Health/Check"
RESUME = "finished packs are safe: run the same command again to resume"
head_lost = threading.Event()  # a cluster did not answer, and was left without a word
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# As a shell starts a job in the background, and nohup one that outlives its terminal.
_MAY_BE_IGNORED = (signal.SIGINT, signal.SIGHUP)


class Stop:
    """A request to end early: no new packs, and `grace` seconds for the running ones."""

    def __init__(self, grace: float, tell: Callable[[str], None] = lambda line: None) -> None:
        self._grace, self._tell = grace, tell
        self._deadline = math.inf
        self._before: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether anybody has asked."""
        return self._deadline < math.inf

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
        """SIGTERM, SIGINT and SIGHUP (a closed terminal) ask while it is open, in a main thread."""
        try:
            self.install()
            yield
        finally:
            for number, handler in self._before.items():
                signal.signal(number, handler)
            self._before.clear()

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


class HealthChecks:
    """Asks servers (HOST:PORT) whether they answer, but none to which `channel` opens None."""

    def __init__(self, channel: Callable[[str], Any]) -> None:
        self._channel = channel
        self._open: dict[str, Any] = {}
        self.silent: dict[str, float] = {}  # seconds asked in vain, not those of a paused process

    def ask(self, addresses: set[str], seconds: float = LOOK_SECONDS) -> None:
        """Asks all at once; an answer of any kind is a sign of life, none is silence."""
        for address in addresses - self._open.keys():
            if (channel := self._channel(address)) is not None:
                self._open[address] = channel
        began = time.monotonic()
        answers = {
            address: channel.unary_unary(_HEALTH).future(b"", timeout=seconds)
            for address, channel in self._open.items()
        }
        for address, answer in answers.items():
            # The codes of a server that is not there, or does not answer.
            mute = answer.code().name in ("DEADLINE_EXCEEDED", "UNAVAILABLE")
            waited = LOOK_SECONDS + min(time.monotonic() - began, seconds)
            self.silent[address] = self.silent.get(address, 0.0) + waited if mute else 0.0

    def close(self) -> None:
        """Closes all channels."""
        for channel in self._open.values():
            channel.close()


class HeadLiveness:
    """Watches in a thread whether the cluster's head (HOST:PORT) and this node's daemon answer.

    `channel` opens a gRPC channel. `tell` takes the line for the user when this process cannot stop
    by itself: a call waits for the head, or the next one would end it.
    """

    def __init__(
        self,
        head: str = "",
        channel: Callable[[str], Any] = lambda address: None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._head, self._daemon, self._tell = head, "", tell
        self._checks = HealthChecks(channel)
        self._closed = threading.Event()
        if head:
            threading.Thread(target=self._look, name="liveness", daemon=True).start()

    def guard(self, daemon: str, store: str) -> None:
        """Watches this node's daemon too: its address, and its object store's socket, if known."""
        self._daemon = daemon
        if store:
            threading.Thread(target=self._guard, args=(store,), daemon=True).start()

    @property
    def answers(self) -> bool:
        """Whether head and daemon did so when they were asked last."""
        return not self._silent

    def require(self) -> None:
        """Raises ClusterError when head or daemon have been silent for too long."""
        if self._silent >= GONE_SECONDS:
            head_lost.set()
            raise ClusterError(self._reason)

    def close(self) -> None:
        """Ends the watch."""
        self._closed.set()

    @property
    def _silent(self) -> float:
        return max(self._checks.silent.get(server, 0.0) for server in (self._head, self._daemon))

    @property
    def _reason(self) -> str:
        lost = self._checks.silent.get(self._head, 0.0) > 0
        who = f"the cluster's head at {self._head}" if lost else "Ray on this node"
        return f"{who} has not answered for {GONE_SECONDS:.0f} s; {RESUME}"

    def _look(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            self._checks.ask({self._head, self._daemon} - {""})
            if self._silent >= GONE_SECONDS and not self._closed.wait(LEAVE_SECONDS):
                self._end(self._reason)
        self._checks.close()

    def _guard(self, store: str) -> None:
        """Ends this process with the object store, before Ray looks for its objects in there.

        The daemon may still be about to end then, so the sign is the end of a silent connection.
        """
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(store)
                connection.settimeout(0.5)
                while not self._closed.is_set():
                    with contextlib.suppress(TimeoutError):
                        if not connection.recv(1):
                            break
        except OSError as error:
            logging.getLogger("dpaudit").debug("%s: %s", store, error)
        if not self._closed.is_set():
            self._end(f"Ray on this node has ended; {RESUME}")

    def _end(self, reason: str) -> None:
        self._tell(reason)
        # The main thread waits in a call of Ray's that does not return, so nothing softer ends this
        # process. Ray would do so itself, without a word, and with an exit code for a violation.
        os._exit(ClusterError.exit_code)
