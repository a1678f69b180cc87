"""The pool of trainer actors: follows the cluster and the work, replaces who hangs."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, Protocol

from ..plan.model import Pack
from .nodes import Place, Room

PACKS_PER_TRAINER = 2  # one running, one waiting: no trainer idles while the driver reacts
RESIZE_SECONDS = 2.0
PATIENT_SECONDS = 30.0  # without any trainer, before the user is told again


class Reference(Protocol):
    """What Ray gives for an answer that is still to come; a key for it, too."""

    def future(self) -> Future[Any]:
        """Done when the answer is there."""


@dataclasses.dataclass(eq=False)
class Worker:
    """A trainer actor. It is given packs once it has its place, which `greeting` tells.

    `packs` are those it has not answered, by reference: the first one runs, since `since`. It is
    given no more while packs that failed with it are tried elsewhere (`suspected`), and never again
    when it is `leaving`.
    """

    name: str
    actor: Any  # Ray's handle, whose methods are those of `actors.Trainer`
    greeting: Reference
    place: Place | None = None
    packs: dict[Reference, Pack] = dataclasses.field(default_factory=dict)
    suspected: set[Pack] = dataclasses.field(default_factory=set)
    leaving: bool = False
    proven: bool = False  # it has done a pack
    since: float = 0.0

    @property
    def ready(self) -> bool:
        """Whether it has its place."""
        return self.place is not None

    @property
    def trusted(self) -> bool:
        """Whether it may be given new packs."""
        return self.ready and not self.leaving and not self.suspected

    def given(self, reference: Reference, pack: Pack) -> None:
        """Takes a pack on; it runs from now on if it is the only one."""
        if not self.packs:
            self.since = time.monotonic()
        self.packs[reference] = pack

    def answered(self, reference: Reference) -> Pack:
        """Takes a pack off; the next one runs from now on."""
        self.since = time.monotonic()
        return self.packs.pop(reference)


class Pool:
    """Keeps as many trainers as there is room for, and no more than there is work for.

    With thousands of trainers nothing here looks at all of them for each pack: whoever changes a
    trainer says so (`changed`), and trainers wait by how many packs they have.

    Args:
        start: makes a trainer actor and the reference to its greeting.
        kill: ends a trainer actor.
        room: for how many trainers there is room, of which so many have their place.
        leaving: ids of nodes that are given no more work.
        tell: takes a line for the user while no trainer has its place.
    """

    def __init__(
        self,
        start: Callable[[int], Worker],
        kill: Callable[[Any], None],
        room: Callable[[int], Room],
        leaving: Callable[[], set[str]],
        tell: Callable[[int, Room], None],
    ) -> None:
        self._start, self._kill, self._room = start, kill, room
        self._leaving, self._tell = leaving, tell
        self.workers: dict[Worker, None] = {}  # in the order in which they were started
        self.backlog: float = math.inf  # packs that are still to be handed out
        self.places = 0  # packs that may be given to trainers now
        # Trusted trainers that have so many packs, who came first first.
        self._having: list[dict[Worker, None]] = [{} for _ in range(PACKS_PER_TRAINER + 1)]
        self._loads: dict[Worker, int] = {}  # where they are listed
        self._saved: dict[Pack, int] = {}  # the step that each pack has reached, as far as told
        self._started = 0
        self._resized = -math.inf
        self._quiet_since = time.monotonic()  # some trainer had its place, or the user was told
        self._told = False  # that nodes have to come first

    @property
    def ready(self) -> list[Worker]:
        """Trainers that have their place."""
        return [worker for worker in self.workers if worker.ready]

    def changed(self, worker: Worker) -> None:
        """To be told whenever a trainer is placed, given a pack, answers, or is not trusted."""
        before = self._loads.pop(worker, None)
        if before is not None:
            del self._having[before][worker]
            self.places -= PACKS_PER_TRAINER - before
        if worker in self.workers and worker.trusted:
            load = self._loads[worker] = min(len(worker.packs), PACKS_PER_TRAINER)
            self._having[load][worker] = None
            self.places += PACKS_PER_TRAINER - load

    def next(self) -> Worker:
        """The trainer that a new pack goes to: one with the fewest packs, where `places` are."""
        return next(next(iter(having)) for having in self._having[:-1] if having)

    def idle_and_full(self) -> Iterator[tuple[Worker, Worker]]:
        """Each trainer with a pack to spare, beside one that has none, while there is one."""
        idle, full = self._having[0], self._having[PACKS_PER_TRAINER]
        for worker in list(full) if idle else ():
            if not idle:
                return
            yield next(iter(idle)), worker

    def resize(self) -> None:
        """Starts trainers where there is room and work; gives back those that are too many."""
        now = time.monotonic()
        if now - self._resized < RESIZE_SECONDS:
            return
        self._resized = now
        ready = [worker for worker in self.ready if not worker.leaving]
        room = self._room(len(ready))
        busy = sum(bool(worker.packs) for worker in ready)
        work = busy + self.backlog
        self._give_back(ready, min(room.keep, work))
        pending = [worker for worker in self.workers if not worker.ready]
        placed = sum(worker.ready and not worker.leaving for worker in self.workers)
        start = int(min(room.start, work))
        for worker in pending[max(0, start - placed) :]:  # the newest: the others wait longer
            self.remove(worker)
        for _ in range(start - placed - len(pending)):
            self.workers[self._start(self._started)] = None
            self._started += 1
        self._tell_when_idle(now, bool(ready), start, room)

    def remove(self, worker: Worker) -> tuple[Pack, ...]:
        """Ends a trainer; returns the packs it did not answer."""
        del self.workers[worker]
        self.changed(worker)
        self._kill(worker.actor)  # also when it only seemed dead: none may work unseen
        return tuple(worker.packs.values())

    def replace(self, worker: Worker) -> tuple[Pack, ...]:
        """Ends a trainer whose place is filled at once; returns the packs it did not answer."""
        self._resized = -math.inf
        return self.remove(worker)

    def least_busy(self, among: list[Worker]) -> Worker:
        """The trainer that a new pack goes to."""
        return min(among, key=lambda worker: len(worker.packs))

    def heard(self, saved: Mapping[Pack, int]) -> None:
        """Who saves a checkpoint is not silent; `saved` has the last step of each pack so far."""
        fresh = {pack for pack, step in saved.items() if self._saved.get(pack) != step}
        self._saved = dict(saved)
        for worker in self.ready if fresh else ():
            if next(iter(worker.packs.values()), None) in fresh:
                worker.since = time.monotonic()

    def overdue(
        self, limit: Callable[[Pack], float], since: float = -math.inf
    ) -> Iterator[tuple[Worker, float]]:
        """Trainers that are silent for longer than their pack may take, and that time.

        What was before `since` is not held against them.
        """
        now = time.monotonic()
        for worker in self.ready:
            running = next(iter(worker.packs.values()), None)
            silent = now - max(worker.since, since)
            if running is not None and silent > (seconds := limit(running)):
                yield worker, seconds

    def _give_back(self, ready: list[Worker], keep: float) -> None:
        """Idle trainers go first; busy ones end their packs."""
        nodes = self._leaving()
        for worker in ready:
            if worker.place is not None and worker.place.node in nodes:
                self._let_go(worker)
        staying = [worker for worker in ready if not worker.leaving]
        staying.sort(key=lambda worker: (len(worker.packs), -len(worker.name), worker.name))
        for worker in staying[: int(max(0, len(staying) - keep))]:
            self._let_go(worker)
        for worker in list(self.workers):
            if worker.leaving and not worker.packs and not worker.suspected:
                self.remove(worker)

    def _let_go(self, worker: Worker) -> None:
        """It ends its packs and is given no more."""
        worker.leaving = True
        self.changed(worker)

    def _tell_when_idle(self, now: float, ready: bool, start: int, room: Room) -> None:
        if ready or not start:
            self._quiet_since, self._told = now, False
        elif now - self._quiet_since > PATIENT_SECONDS or not (room.now or self._told):
            self._quiet_since, self._told = now, True
            self._tell(start, room)
