"""The pool of trainer actors: grows with the cluster, shrinks with it, replaces who hangs."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

from ..plan import Pack
from .deadlines import Deadlines

PACKS_PER_TRAINER = 2  # one running, one waiting: no trainer idles while the driver reacts
RESIZE_SECONDS = 2.0
PATIENT_SECONDS = 60.0  # without any trainer, before the user is told


@dataclasses.dataclass(eq=False)
class Worker:
    """A trainer actor. It is given packs once it has its place, which `greeting` tells.

    `packs` are those it has not answered, by reference: the first one runs, since `since`.
    """

    name: str
    actor: Any
    greeting: Any
    ready: bool = False
    packs: dict[Any, Pack] = dataclasses.field(default_factory=dict)
    since: float = 0.0

    @property
    def references(self) -> list[Any]:
        """What it has still to answer."""
        return list(self.packs) if self.ready else [self.greeting]

    def answered(self, reference: Any) -> Pack:
        """Takes a pack off; the next one runs from now on."""
        self.since = time.monotonic()
        return self.packs.pop(reference)


class Pool:
    """Keeps as many trainers as `room()` says the cluster holds.

    Args:
        start: makes a trainer actor and the reference to its greeting.
        kill: ends a trainer actor.
        room: how many trainers the cluster holds now.
        tell: takes a line for the user when there has been no trainer for a minute.
    """

    def __init__(
        self,
        start: Callable[[int], Worker],
        kill: Callable[[Any], None],
        room: Callable[[], int],
        tell: Callable[[str], None],
    ) -> None:
        self._start, self._kill, self._room, self._tell = start, kill, room, tell
        self.workers: list[Worker] = []
        self._started = 0
        self._resized = -RESIZE_SECONDS
        self._last_ready = time.monotonic()

    @property
    def ready(self) -> list[Worker]:
        """Trainers that have their place."""
        return [worker for worker in self.workers if worker.ready]

    def resize(self) -> None:
        """Starts trainers where there is room, and gives up those that wait for room that left."""
        now = time.monotonic()
        if now - self._resized < RESIZE_SECONDS:
            return
        self._resized = now
        room = self._room()
        for worker in [w for w in self.workers if not w.ready][: max(0, len(self.workers) - room)]:
            self.remove(worker)
        while len(self.workers) < room:
            self.workers.append(self._start(self._started))
            self._started += 1
        self._tell_when_idle(now, room)

    def remove(self, worker: Worker) -> tuple[Pack, ...]:
        """Ends a trainer; returns the packs it did not answer. Its place is filled at once."""
        self.workers.remove(worker)
        self._kill(worker.actor)  # also when it only seemed dead: none may work unseen
        self._resized = -RESIZE_SECONDS
        return tuple(worker.packs.values())

    def least_busy(self) -> Worker:
        """The trainer that a new pack goes to."""
        return min(self.ready, key=lambda worker: len(worker.packs))

    def overdue(self, deadlines: Deadlines) -> Iterator[tuple[Worker, float]]:
        """Trainers that are silent for longer than their pack may take, and that time."""
        now = time.monotonic()
        for worker in self.ready:
            running = next(iter(worker.packs.values()), None)
            if running is not None and now - worker.since > (limit := deadlines.of(running)):
                yield worker, limit

    def _tell_when_idle(self, now: float, room: int) -> None:
        if self.ready:
            self._last_ready = now
        elif now - self._last_ready > PATIENT_SECONDS:
            self._last_ready = now
            self._tell(
                f"no trainer has started for {PATIENT_SECONDS:g} s: the cluster has room for "
                f"{room} when nothing else runs on it; waiting"
            )
