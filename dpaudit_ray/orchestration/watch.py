"""Whether a cluster's head still answers, and this node's raylet lives.

Ray itself would end this process without a word, with an exit code that means a violation.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable

from ..errors import ClusterError

LOOK_SECONDS = 2.0
GONE_SECONDS = 30.0  # without an answer, before the sweep is stopped
LEAVING_SECONDS = 3.0  # the same once the sweep was asked to stop: its head may have been asked too
LEAVE_SECONDS = 30.0  # for stopping, before this process is ended


class Watch:
    """Asks the head for an answer from a thread of its own, until it is closed.

    Args:
        address: HOST:PORT of the head.
        tell: takes the line for the user when this process cannot stop by itself, because a call
            of Ray's waits for the head, or the next one would end it.
        store: the socket of this node's object store.
    """

    def __init__(self, address: str, tell: Callable[[str], None], store: str) -> None:
        self._address, self._tell = address, tell
        self.leaving: Callable[[], bool] = lambda: False  # whether the sweep was asked to stop
        self._silent = 0.0  # seconds in which it was asked in vain: not those of a paused process
        self._closed = threading.Event()
        threading.Thread(target=self._look, name="watch", daemon=True).start()
        threading.Thread(target=self._guard, args=(store,), daemon=True).start()

    @property
    def answers(self) -> bool:
        """Whether it did so when it was asked last."""
        return self._silent < LOOK_SECONDS

    def require(self) -> None:
        """Raises ClusterError when the head has been silent for too long."""
        if self._silent > self._limit:
            raise ClusterError(self._what)

    def close(self) -> None:
        """Ends the watch."""
        self._closed.set()

    @property
    def _limit(self) -> float:
        return LEAVING_SECONDS if self.leaving() else GONE_SECONDS

    @property
    def _what(self) -> str:
        return (
            f"the cluster's head at {self._address} has not answered for {self._limit:.0f} s; "
            "finished packs are safe: run the same command again to resume"
        )

    def _look(self) -> None:
        host, _, port = self._address.rpartition(":")
        while not self._closed.wait(LOOK_SECONDS):
            asked = time.monotonic()
            try:
                socket.create_connection((host, int(port)), timeout=LOOK_SECONDS).close()
                self._silent = 0.0
            except OSError:
                waited = min(time.monotonic() - asked, LOOK_SECONDS)
                self._silent += LOOK_SECONDS + waited
                if self._silent > self._limit + LEAVE_SECONDS:
                    self._tell(self._what)
                    os._exit(ClusterError.exit_code)

    def _guard(self, store: str) -> None:
        """Ends this process with the object store, before Ray looks for its objects in there.

        It does so within a second of hearing that the node has gone, while the raylet may still be
        about to end. So the sign is the end of a connection to the store, on which nothing is said.
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
            self._tell(
                "Ray on this node has ended; finished packs are safe: run the same command again "
                "to resume"
            )
            os._exit(ClusterError.exit_code)
