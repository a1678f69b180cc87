"""The driver: keeps a bounded window of packs in flight and reacts to how they end.

It holds packs and small outcomes, never scores, so its memory does not depend on the number of
trials. It knows executors by their interface only.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from ..errors import ClusterError
from ..plan import Pack
from .aggregation import Progress
from .trainer import Failure

FLUSH_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class Done:
    """The pack is stored and folded."""

    pack: Pack


@dataclasses.dataclass(frozen=True)
class Lost:
    """Infrastructure failed under the pack: it is run again with the same bits and seed."""

    pack: Pack
    reason: str


Outcome = Done | Failure | Lost


class Executor(Protocol):
    """Where packs run. Scores go from trainers to the aggregator without passing the driver."""

    @property
    def slots(self) -> int:
        """How many packs may be in flight now."""

    def submit(self, pack: Pack) -> None:
        """Hands over one pack; never blocks for its result."""

    def wait(self, timeout: float) -> list[Outcome]:
        """Outcomes since the last call; waits up to `timeout` seconds for the first.

        Raises:
            StorageError: results can no longer be stored.
        """

    def progress(self) -> Progress:
        """The latest snapshot; does not wait for a newer one."""

    def flush(self) -> None:
        """Has the aggregator write its estimates; returns when they are in place."""

    def close(self) -> None:
        """Gives all resources back."""


@dataclasses.dataclass
class Summary:
    """How a run ended."""

    progress: Progress
    failures: list[Failure]
    lost: int


class Driver:
    """Runs packs to the end of the sweep, or until a budget is spent."""

    def __init__(
        self,
        executor: Executor,
        packs: Iterable[Pack],
        max_worker_losses: int,
        show: Callable[[Progress], None],
    ) -> None:
        self._executor = executor
        self._packs = iter(packs)
        self._again: collections.deque[Pack] = collections.deque()
        self._max_losses = max_worker_losses
        self._show = show
        self._in_flight = 0
        self._lost = 0
        self._failures: dict[int, Failure] = {}

    def run(self) -> Summary:
        """Returns when no pack is left that can still be run.

        Raises:
            ClusterError: more workers were lost than the sweep allows.
            StorageError: results can no longer be stored.
        """
        try:
            self._loop()
        finally:  # also when somebody stops the sweep: what is shown next is what is there
            self._executor.flush()
        final = self._executor.progress()
        self._show(final)
        return Summary(final, list(self._failures.values()), self._lost)

    def _loop(self) -> None:
        flushed = time.monotonic()
        while self._top_up():
            for outcome in self._executor.wait(timeout=0.5):
                self._settle(outcome)
            self._show(self._executor.progress())
            if time.monotonic() - flushed > FLUSH_SECONDS:
                self._executor.flush()
                flushed = time.monotonic()

    def _top_up(self) -> bool:
        """Fills the window; False when nothing is in flight and nothing is left."""
        while self._in_flight < self._executor.slots:
            pack = self._next()
            if pack is None:
                break
            self._executor.submit(pack)
            self._in_flight += 1
        return self._in_flight > 0

    def _next(self) -> Pack | None:
        while (
            pack := self._again.popleft() if self._again else next(self._packs, None)
        ) is not None:
            # One failed pack stops its audit: the estimate is a function of a prefix of trials,
            # and a training that raises will nearly always raise again.
            if pack.audit not in self._failures:
                return pack
        return None

    def _settle(self, outcome: Outcome) -> None:
        self._in_flight -= 1
        if isinstance(outcome, Failure):
            self._failures.setdefault(outcome.pack.audit, outcome)
        elif isinstance(outcome, Lost):
            self._lost += 1
            if self._lost > self._max_losses:
                raise ClusterError(
                    f"lost {self._lost} packs to dying workers, more than "
                    f"resources.max_worker_losses = {self._max_losses} (last: {outcome.reason}); "
                    "finished packs are safe: run the same command again to resume"
                )
            self._again.append(outcome.pack)
