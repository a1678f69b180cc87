"""Trainers that work on a pack for longer than it may take."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from ..plan.model import Pack, Plan
from .deadlines import SHORTEST, Deadlines
from .executors import Lost
from .link import Link
from .pool import Pool, Worker
from .suspects import Suspects
from .trainer import runs_of
from .watch import LOOK_SECONDS


class Hangs:
    """Replaces those that hang, after a line about each audit whose first pack takes long.

    Args:
        link: while the aggregator is silent, and for as long before, nobody is to blame.
        tell: takes a line for the user.
    """

    def __init__(
        self,
        plan: Plan,
        deadlines: Deadlines,
        pool: Pool,
        suspects: Suspects,
        link: Link,
        tell: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._plan, self._deadlines, self._pool = plan, deadlines, pool
        self._suspects, self._link, self._tell = suspects, link, tell
        self._looked = -math.inf
        self._slow: set[int] = set()  # audits of whose first pack the user was told

    def found(self) -> list[Lost]:
        """The packs of those that hang now."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS / 4 or self._link.silent:
            return []
        self._looked = now
        since = self._link.silence.ended
        overdue = list(self._pool.overdue(self._limit, since))
        lost = [self._replaced(worker, seconds) for worker, seconds in overdue]
        for worker, _ in self._pool.overdue(lambda pack: SHORTEST, since):
            self._tell_of_the_first(worker, next(iter(worker.packs.values())))
        return lost

    def _limit(self, pack: Pack) -> float:
        seconds = self._deadlines.of(pack)
        return seconds if self._suspects.case(pack) is None else seconds * runs_of(pack)

    def _replaced(self, worker: Worker, seconds: float) -> Lost:
        assert worker.place is not None
        packs = self._pool.replace(worker)
        self._deadlines.missed(packs[0])
        reason = f"{worker.name} on node {worker.place.address} was silent for {seconds:.0f} s"
        return Lost(packs, reason)

    def _tell_of_the_first(self, worker: Worker, pack: Pack) -> None:
        if pack.audit in self._slow or not self._deadlines.unknown(pack):
            return
        self._slow.add(pack.audit)
        self._tell(
            f"{self._plan.audits[pack.audit].label}: {worker.name} has worked for {SHORTEST:.0f} s "
            f"on its first pack and counts as hung after {self._limit(pack):.0f} s; "
            "resources.pack_deadline sets another limit"
        )
