"""Everything in this process, one pack at a time: for debuggers, tests and tiny sweeps."""

from __future__ import annotations

import collections
import time

from ..plan.failures import Failure
from ..plan.model import Pack, Part, Plan
from ..storage.run_directory import RunDirectory
from ..sweep.spec import Sweep
from .aggregation import KEEP_UP_SECONDS, Aggregation
from .executors import Checked, Done, Outcome
from .progress import Activity, Progress
from .trainer import Brief, PackTrainer


class InlineExecutor:
    """Implements `Executor` without Ray."""

    def __init__(self, sweep: Sweep, plan: Plan, run: RunDirectory) -> None:
        self._aggregation = Aggregation(sweep, plan, run)
        self._trainer = PackTrainer(
            sweep.raw, Brief.of(plan, sweep), self._aggregation.prepared, self._aggregation
        )
        self._queue: collections.deque[Pack] = collections.deque()
        self._kept_up = time.monotonic()
        self._checks: dict[Pack, bool] = {}  # of the packs in the queue, and whether finished

    @property
    def slots(self) -> int:
        """One pack at a time."""
        return 1

    @property
    def trainers(self) -> int:
        """This process."""
        return 1

    def backlog(self, packs: float) -> None:
        """Nothing is held that could be given back."""

    def submit(self, pack: Pack) -> None:
        """Queues the pack for the next `wait`."""
        self._queue.append(pack)

    def wait(self, timeout: float) -> list[Outcome]:
        """Trains the queued pack here and now."""
        pack, started = self._queue.popleft(), time.perf_counter()
        if pack in self._checks:
            compare = self._aggregation.difference if self._checks.pop(pack) else None
            return [Checked(pack, self._trainer.difference(pack, compare))]
        if isinstance(pack, Part):
            made = self._trainer.attempt_part(pack)
            if isinstance(made, Failure):
                return [made]
            self._aggregation.keep(pack, made)
            return [Done(pack, time.perf_counter() - started)]
        result = self._trainer.attempt(pack)
        if isinstance(result, Failure):
            return [result]
        self._aggregation.fold(pack, result)
        if time.monotonic() - self._kept_up > KEEP_UP_SECONDS:
            self._aggregation.keep_up()
            self._kept_up = time.monotonic()
        took = time.perf_counter() - started
        return [Done(pack, took, missed=len(result.missed))]

    def check(self, pack: Pack, finished: bool) -> None:
        """Queues the pack for the next `wait`, to be compared."""
        self._checks[pack] = finished
        self.submit(pack)

    def give_up(self, failed: list[Failure]) -> None:
        """Records packs whose trials are misses."""
        self._aggregation.give_up(failed)

    def try_again(self, packs: list[Pack]) -> None:
        """Takes recorded packs back."""
        self._aggregation.try_again(packs)

    def progress(self, activity: Activity) -> Progress:
        """The current snapshot."""
        return self._aggregation.progress(activity)

    def flush(self) -> None:
        """Writes the estimates."""
        self._aggregation.flush()

    def close(self) -> None:
        """Nothing is held."""
