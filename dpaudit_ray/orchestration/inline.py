"""Everything in this process, one pack at a time: for debuggers, tests and tiny sweeps."""

from __future__ import annotations

import collections
import time

from ..failures import Failure
from ..plan import Pack, Plan
from ..spec import Sweep
from ..storage import RunDirectory
from .aggregation import Activity, Aggregation, Progress
from .executors import Done, Outcome
from .trainer import Trainer


class InlineExecutor:
    """Implements `Executor` without Ray."""

    def __init__(self, sweep: Sweep, plan: Plan, run: RunDirectory) -> None:
        self._aggregation = Aggregation(sweep, plan, run)
        self._trainer = Trainer(sweep.raw, plan)
        self._queue: collections.deque[Pack] = collections.deque()

    @property
    def slots(self) -> int:
        """One pack at a time."""
        return 1

    @property
    def trainers(self) -> int:
        """This process."""
        return 1

    def submit(self, pack: Pack) -> None:
        """Queues the pack for the next `wait`."""
        self._queue.append(pack)

    def wait(self, timeout: float) -> list[Outcome]:
        """Trains the queued pack here and now."""
        pack, started = self._queue.popleft(), time.perf_counter()
        result = self._trainer.attempt(pack)
        if isinstance(result, Failure):
            return [result]
        self._aggregation.fold(pack, result)
        return [Done(pack, time.perf_counter() - started)]

    def progress(self, activity: Activity) -> Progress:
        """The current snapshot."""
        return self._aggregation.progress(activity)

    def flush(self) -> None:
        """Writes the estimates."""
        self._aggregation.flush()

    def close(self) -> None:
        """Nothing is held."""
