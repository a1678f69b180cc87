"""The aggregator, as the driver sees it: calls, the latest snapshot, and how long it is silent."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..errors import ClusterError, DpauditError
from .deadlines import Silence
from .nodes import last_line
from .progress import Activity, Progress
from .watch import LOOK_SECONDS, Watch

START_SECONDS = 120.0  # for a new process of the aggregator: it imports, perhaps beside many others


class Link:
    """Asks the aggregator for a snapshot at once, so that a damaged run directory is told.

    Args:
        ray: the module, connected.
        actor: the aggregator.
        watch: knows whether the cluster's head is there.
        tell: takes a line for the user when the aggregator is silent for long.
    """

    def __init__(self, ray: Any, actor: Any, watch: Watch, tell: Callable[[str], None]) -> None:
        self._ray, self._actor, self._watch, self._tell = ray, actor, watch, tell
        self.silence = Silence(tell)
        self._asked: Any = None
        self._pulse: Any = None  # the answer that shows that its process runs
        self._mute, self._looked, self._beats = 0.0, 0.0, False
        self._seen: Progress = self.call("progress", Activity())

    @property
    def silent(self) -> bool:
        """Whether it owes an answer for longer than it takes while it works."""
        return self.silence.lasts(self._asked is not None)

    def call(self, method: str, *arguments: Any) -> Any:
        """What the aggregator's method returns.

        Raises:
            DpauditError: an error of our own that it raised.
            ClusterError: it cannot be brought back, or the head is gone.
        """
        # Ray calls a task that has no name, or that of its method, by what its actor says it does.
        task = getattr(self._actor, method).options(name=f"Aggregator.{method}()")
        return self._answer(task.remote(*arguments))

    def progress(self, activity: Activity) -> Progress:
        """Its last answer; asks for the next one without waiting for it."""
        if self._asked is not None and self._ray.wait([self._asked], timeout=0)[0]:
            self._seen, self._asked = self._answer(self._asked), None
        self._feel()
        if self._asked is None:
            self.silence.asked()
            self._asked = self._actor.progress.remote(activity)
        return self._seen

    def look_again(self) -> None:
        """Waits for a snapshot of now: the answer that it owes may be of before."""
        self._asked = None
        self._seen = self.call("progress", self._seen.activity)

    def close(self) -> None:
        """Lets it answer: Ray reports a call that is cut off by `kill` as a failure."""
        if self._asked is not None:
            self._ray.wait([self._asked], timeout=10)

    def _feel(self) -> None:
        """Ends its process when that stands still, so that Ray starts it again.

        One that reads finished packs, or waits for storage, still says that it is there.
        """
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        if self._pulse is not None and self._ray.wait([self._pulse], timeout=0)[0]:
            try:
                self._beats = self._ray.get(self._pulse)
            except self._ray.exceptions.RayError:
                self._beats = False  # it died, and is started again
            self._pulse = None
        if self._pulse is None:
            self._pulse, self._mute = self._actor.pulse.remote(), 0.0
            return
        self._mute += LOOK_SECONDS  # not what this process was paused for
        if self._mute >= (self._watch.limit if self._beats else START_SECONDS):
            self._tell(
                f"the aggregator has not answered for {self._mute:.0f} s: it is killed and started "
                "again, and goes on from the run directory"
            )
            self._ray.kill(self._actor, no_restart=False)
            self._pulse, self._beats = None, False

    def _answer(self, reference: Any) -> Any:
        exceptions = self._ray.exceptions
        while not self._ray.wait([reference], timeout=LOOK_SECONDS)[0]:
            self._watch.require()  # a call waits for ever where there is nobody to restart an actor
            self._feel()
        try:
            return self._ray.get(reference)
        except exceptions.RayTaskError as error:
            raise ours(error) or error from error
        except exceptions.RayError as error:
            raise ClusterError(
                f"the aggregator cannot be restarted ({last_line(error)}); finished packs are "
                "safe: run the same command again to resume"
            ) from error


def ours(error: BaseException) -> DpauditError | None:
    """The error of our own that Ray wrapped, once per process it passed through."""
    while not isinstance(cause := getattr(error, "cause", None), DpauditError) or hasattr(
        cause, "cause"
    ):
        if cause is None:
            return None
        error = cause
    return cause
