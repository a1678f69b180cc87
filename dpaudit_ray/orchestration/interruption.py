"""Ends a sweep early: by signals of the user, or if the cluster no longer answers.

A head may hang without being dead: the kernel of a stopped process still accepts connections, and a
call of Ray's waits for it without a limit. So the head gets health checks, with a limit.
"""

import collections
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
from .progress import Tell, tell_nobody

HEALTH_CHECK_SECONDS = 2.0  # time between two checks, and limit for an answer
GONE_SECONDS = 20.0  # without an answer, before the sweep is stopped
LEAVE_SECONDS = 4.0  # the process has to stop by itself, before it is ended
_HEALTH = "/grpc.health.v1.Health/Check"
RESUME = "finished packs are safe: run the same command again to resume"
head_lost = threading.Event()  # a cluster did not answer, and was left without a shutdown
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# A shell starts background jobs with SIGINT ignored, and nohup starts its command without SIGHUP.
_MAY_BE_IGNORED = (signal.SIGINT, signal.SIGHUP)


class Stop:
    """A request to end early: no new packs, and `grace` seconds for the running ones."""

    def __init__(self, grace: float, tell: Tell = tell_nobody) -> None:
        """Requests nothing yet.

        Args:
            grace: seconds for running packs.
            tell: takes a line for the user.
        """
        self._grace = grace
        self._tell = tell
        self._deadline = math.inf  # end of the grace period, by `time.monotonic`
        self._handlers_before: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether the sweep is to end early."""
        return self._deadline < math.inf

    @property
    def expired(self) -> bool:
        """Whether the grace period is over."""
        return time.monotonic() >= self._deadline

    def request(self, reason: str = "") -> None:
        """Begins the grace period, and reports a reason; a second request changes nothing."""
        if not self.requested:
            self._deadline = time.monotonic() + self._grace
            if reason:
                self._tell(reason)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Takes SIGTERM, SIGINT and SIGHUP (a closed terminal) as requests, in a main thread."""
        try:
            self.install()
            yield
        finally:
            for number, handler in self._handlers_before.items():
                signal.signal(number, handler)
            self._handlers_before.clear()

    def install(self) -> None:
        """Installs the handlers, again after `ray.init`, which replaces them."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            current = signal.getsignal(number)
            if number in _MAY_BE_IGNORED and current == signal.SIG_IGN:
                continue
            self._handlers_before.setdefault(number, current)
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Requests the end at a first signal; raises KeyboardInterrupt at a second one."""
        if self.requested:
            if number == signal.SIGHUP:
                return  # no second request: both a shell and its terminal send it at their end
            raise KeyboardInterrupt
        self.request()
        self._tell(
            f"stopping: running packs have {self._grace:g} s to finish; once more stops at once"
        )


class HealthChecks:
    """Checks whether servers (HOST:PORT) answer.

    Attributes:
        silent: seconds without an answer, by address; time for which this process was paused does
            not count.
    """

    def __init__(self, channel: Callable[[str], Any]) -> None:
        """Takes a function that opens a gRPC channel, or returns None if it cannot."""
        self._channel = channel
        self._open: dict[str, Any] = {}
        self.silent = collections.defaultdict[str, float](float)

    def ask(
        self,
        addresses: set[str],
        seconds: float = HEALTH_CHECK_SECONDS,
    ) -> None:
        """Checks all servers simultaneously; an answer of any kind is a sign of life.

        Args:
            addresses: new ones among them are checked from now on.
            seconds: limit for an answer.
        """
        for address in addresses - self._open.keys():
            channel = self._channel(address)
            if channel:
                self._open[address] = channel
        began = time.monotonic()
        answers = {
            address: channel.unary_unary(_HEALTH).future(b"", timeout=seconds)
            for address, channel in self._open.items()
        }
        for address, answer in answers.items():
            if answer.code().name in ("DEADLINE_EXCEEDED", "UNAVAILABLE"):
                # The time since the last check, and the time for which this one has waited.
                self.silent[address] += HEALTH_CHECK_SECONDS + min(
                    time.monotonic() - began, seconds
                )
            else:
                self.silent[address] = 0.0

    def close(self) -> None:
        """Closes all channels."""
        for channel in self._open.values():
            channel.close()


class HeadLiveness:
    """Checks in a thread whether the cluster's head and this node's daemon answer.

    If they do not, the main thread raises at its next call of `require`. If it does not get there,
    as a call of Ray's waits for the head, the thread ends this process.
    """

    def __init__(
        self,
        head: str = "",
        channel: Callable[[str], Any] = lambda address: None,
        tell: Tell = tell_nobody,
    ) -> None:
        """Starts the thread.

        Args:
            head: HOST:PORT; "" if there is no cluster.
            channel: opens a gRPC channel, or returns None if it cannot.
            tell: takes a line for the user before this process is ended.
        """
        self._head = head
        self._daemon = ""
        self._tell = tell
        self._checks = HealthChecks(channel)
        self._closed = threading.Event()
        if head:
            threading.Thread(target=self._watch_servers, name="liveness", daemon=True).start()

    def guard(self, daemon: str, store: str) -> None:
        """Watches this node's daemon too.

        Args:
            daemon: address of the daemon.
            store: socket of its object store; "" if that is unknown.
        """
        self._daemon = daemon
        if store:
            threading.Thread(target=self._end_with_store, args=(store,), daemon=True).start()

    @property
    def answers(self) -> bool:
        """Whether head and daemon answered their last health checks."""
        return not self._silent

    def require(self) -> None:
        """Raises ClusterError if head or daemon have been silent for too long."""
        if self._silent >= GONE_SECONDS:
            head_lost.set()
            raise ClusterError(self._reason)

    def close(self) -> None:
        """Ends the watch."""
        self._closed.set()

    @property
    def _silent(self) -> float:
        """Seconds without an answer of the head, or of the daemon if that is longer."""
        return max(self._checks.silent[self._head], self._checks.silent[self._daemon])

    @property
    def _reason(self) -> str:
        """Error for the user: which of head and daemon is silent."""
        server = "Ray on this node"
        if self._checks.silent[self._head] > 0:
            server = f"the cluster's head at {self._head}"
        return f"{server} has not answered for {GONE_SECONDS:.0f} s; {RESUME}"

    def _watch_servers(self) -> None:
        """Checks head and daemon in turn, and ends this process if they stay silent."""
        while not self._closed.wait(HEALTH_CHECK_SECONDS):
            self._checks.ask({self._head, self._daemon} - {""})
            if self._silent >= GONE_SECONDS and not self._closed.wait(LEAVE_SECONDS):
                self._end(self._reason)
        self._checks.close()

    def _end_with_store(self, store: str) -> None:
        """Ends this process as soon as the object store ends: Ray would wait for it for ever.

        The store sends nothing on this connection, so the connection ends only when the store does.
        If no connection can be opened, the store has ended already, and so this process ends, too.
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
        """Reports the reason to the user, and ends this process at once."""
        self._tell(reason)
        # The main thread waits in a call of Ray's that does not return, so nothing softer ends this
        # process. Ray itself would end it silently, with an exit code that means a violation.
        os._exit(ClusterError.exit_code)
