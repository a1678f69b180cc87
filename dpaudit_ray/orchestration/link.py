"""The aggregator, as the driver sees it: calls, the latest snapshot, and how long it is silent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import ClusterError, DpauditError
from .deadlines import Silence
from .nodes import last_line
from .progress import Activity, Progress
from .watch import LOOK_SECONDS, Watch


class Link:
    """Asks the aggregator for a snapshot at once, so that a damaged run directory is told.

    Args:
        ray: the module, connected.
        actor: the aggregator.
        watch: knows whether the cluster's head is there.
        tell: takes a line for the user when the aggregator is silent for long.
    """

    def __init__(self, ray: Any, actor: Any, watch: Watch, tell: Callable[[str], None]) -> None:
        self._ray, self._actor, self._watch = ray, actor, watch
        self.silence = Silence(tell)
        self._asked: Any = None
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

    def _answer(self, reference: Any) -> Any:
        exceptions = self._ray.exceptions
        while not self._ray.wait([reference], timeout=LOOK_SECONDS)[0]:
            self._watch.require()  # a call waits for ever where there is nobody to restart an actor
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
