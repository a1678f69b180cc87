"""The aggregator, as the driver sees it: calls, the latest snapshot, and how long it is silent."""

from __future__ import annotations

import concurrent.futures
import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ..errors import ClusterError
from .executors import Executor, Handle, WorkerDiedError
from .interruption import LOOK_SECONDS, HeadLiveness
from .progress import Activity, Progress

START_SECONDS = 120.0  # for a new process of the aggregator: it imports, perhaps beside many others
CLOSE_SECONDS = 10.0
QUIET = 10.0  # seconds without an answer: longer than it takes to fold a pack


class AggregatorClient:
    """Asks the aggregator for a snapshot at once, so that a damaged run directory is told.

    `tell` takes a line for the user when the aggregator is started again.
    """

    def __init__(
        self,
        executor: Executor,
        aggregator: Handle,
        liveness: HeadLiveness,
        tell: Callable[[str], None],
    ) -> None:
        self._executor, self._aggregator = executor, aggregator
        self._liveness, self._tell = liveness, tell
        self._snapshot: Future[Progress] | None = None  # asked for `_since` then
        self._since = 0.0
        self.silent_until = -math.inf  # when it was silent last, by `time.monotonic`
        self._pulse: Future[bool] | None = None  # the answer that shows that its process runs
        self._mute, self._looked, self._beats = 0.0, 0.0, False
        self._seen: Progress = self.call("progress", Activity())

    def call(self, method: str, *arguments: Any) -> Any:
        """What the aggregator's method returns; an error of our own that it raised is raised here.

        So is ClusterError, where it cannot be brought back, or the head is gone.
        """
        return self._result(self._executor.call(self._aggregator, method, *arguments))

    def progress(self, activity: Activity) -> Progress:
        """Its last answer; asks for the next one without waiting for it."""
        self._take_snapshot()
        self._check_pulse()
        if self._snapshot is None:
            self._since = time.monotonic()
            self._snapshot = self._executor.call(self._aggregator, "progress", activity)
            self._take_snapshot()
        return self._seen

    def refresh(self) -> None:
        """Waits for a snapshot of now: the answer that it owes may be of before."""
        self._snapshot = None
        self._seen = self.call("progress", self._seen.activity)

    @property
    def silent(self) -> bool:
        """Whether it owes an answer for longer than it takes while it works.

        Trainers wait for it then, and are not to blame. Restarted, it reads the finished packs
        first; so it is silent, too, when storage is.
        """
        now = time.monotonic()
        if self._snapshot is None or now - self._since < QUIET:
            return False
        self.silent_until = now
        return True

    def close(self) -> None:
        """Lets it answer: Ray reports a call that is cut off by `kill` as a failure."""
        if self._snapshot is not None:
            concurrent.futures.wait([self._snapshot], CLOSE_SECONDS)

    def _take_snapshot(self) -> None:
        if self._snapshot is not None and self._snapshot.done():
            snapshot, self._snapshot = self._snapshot, None
            self._seen = self._result(snapshot)

    def _check_pulse(self) -> None:
        """Ends its process when that stands still, so that it is started again.

        One that reads finished packs, or waits for storage, still says that it is there.
        """
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        if self._pulse is not None and self._pulse.done():
            self._beats = self._pulse.exception() is None  # else it died, and is started again
            self._pulse = None
        if self._pulse is None:
            self._pulse, self._mute = self._executor.call(self._aggregator, "pulse"), 0.0
            return
        self._mute += LOOK_SECONDS  # not what this process was paused for
        if self._mute >= (self._liveness.limit if self._beats else START_SECONDS):
            self._tell(
                f"the aggregator has not answered for {self._mute:.0f} s: it is killed and started "
                "again, and goes on from the run directory"
            )
            self._executor.kill(self._aggregator, restart=True)
            self._pulse, self._beats = None, False

    def _result(self, answer: Future[Any]) -> Any:
        while not concurrent.futures.wait([answer], LOOK_SECONDS).done:
            self._liveness.require()  # a call waits for ever where nobody can restart an actor
            self._check_pulse()
        try:
            return answer.result()
        except WorkerDiedError as error:
            raise ClusterError(
                f"the aggregator cannot be restarted ({error}); finished packs are safe: run the "
                "same command again to resume"
            ) from error
