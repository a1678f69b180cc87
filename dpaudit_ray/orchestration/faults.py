"""Whose fault it is when a pack fails, and how long one may take before its trainer hangs."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
from typing import Literal

from ..plan.model import Pack, Part
from ..plan.outcomes import Failure
from .workers import Capacity, Worker

FACTOR = 10  # times the slowest pack of the audit, trial for trial
SHORTEST = 120.0  # seconds: opening an audit, a cold file cache, storage that fails for a minute
FIRST = 1800.0  # seconds, while no pack of the audit was timed; doubled after each that is lost so


class FaultAttribution:
    """Finds out whose fault a failed pack is: its own, or that of the trainer or node it failed on.

    It is run again by another trainer, on another node where there is one. If it fails there too,
    the fault is the pack's, and the failure counts; if it is done, the first trainer is at fault.
    `changed` takes a trainer that is suspected, or no longer.
    """

    def __init__(
        self, capacity: Capacity, tell: Callable[[str], None], changed: Callable[[Worker], None]
    ) -> None:
        self._capacity, self._tell, self._changed = capacity, tell, changed
        # Failed packs that are due on another trainer, or run there, and who failed at them.
        self._suspicions: dict[Pack, tuple[Failure, Worker]] = {}
        self._guilty: set[str] = set()
        self.earlier: Mapping[Pack, Failure] = {}  # of an earlier try of the sweep

    def suspect(self, pack: Pack) -> Worker | None:
        """The trainer that failed at a pack, while that is tried by another."""
        return self._suspicions[pack][1] if pack in self._suspicions else None

    def failure(self, pack: Pack) -> Failure | None:
        """How the pack failed when it was run before, here or in an earlier try."""
        return self._suspicions[pack][0] if pack in self._suspicions else self.earlier.get(pack)

    def failed(self, failure: Failure, worker: Worker) -> bool:
        """Whether the pack is to be tried by another trainer; else it has been, and failed."""
        if failure.pack in self._suspicions:
            self.drop(failure.pack)
            return False
        self._suspicions[failure.pack] = failure, worker
        worker.suspected.add(failure.pack)
        self._changed(worker)
        return True

    def drop(self, pack: Pack) -> None:
        """Ends a suspicion without a verdict on its trainer."""
        if pack in self._suspicions:
            _, worker = self._suspicions.pop(pack)
            worker.suspected.discard(pack)
            self._changed(worker)

    def done(self, pack: Pack, by: Worker) -> Worker | None:
        """The trainer that failed at a pack which another has done, the first time it did so."""
        if pack not in self._suspicions:
            return None
        failure, guilty = self._suspicions[pack]
        self.drop(pack)
        if guilty.name in self._guilty:
            return None
        self._guilty.add(guilty.name)
        self._tell(
            f"{guilty.name} on node {guilty.address} failed ({failure.message}) at "
            f"{pack.what}, which {by.name} on node {by.address} did: it is replaced"
        )
        if guilty.node != by.node:
            self._capacity.fault(guilty.node, guilty.address)
        return guilty

    def other(self, suspect: Worker | None, ready: list[Worker]) -> Worker | None:
        """Who is to try a pack next, perhaps once idle: a trusted one that works, elsewhere."""

        def doubt(worker: Worker) -> tuple[bool, bool, bool, bool]:
            same = suspect is not None and worker.node == suspect.node
            return not worker.trusted, not worker.proven, same, worker.pack is not None

        return min((w for w in ready if w is not suspect), key=doubt, default=None)


class Deadlines:
    """How many seconds a pack may take: from the packs that were timed, or as the sweep sets them.

    `trial_limits`: seconds that each trial may take, by audits whose mechanism ends it then.
    """

    def __init__(
        self, fixed: float | Literal["auto"], trial_limits: Mapping[int, float | None] | None = None
    ) -> None:
        self._fixed, self._trial_limits = fixed, trial_limits or {}
        self._slowest: dict[tuple[int, bool], float] = {}  # seconds per trial, or of a part
        self._missed: collections.Counter[Pack] = collections.Counter()

    def measured(self, pack: Pack, seconds: float) -> None:
        """A pack took that long."""
        slowest = self._slowest.get(_kind(pack), 0.0)
        self._slowest[_kind(pack)] = max(slowest, seconds / (pack.size or 1))

    def missed(self, pack: Pack) -> None:
        """Its trainer was silent for longer than the limit: it hung, or the limit is too low."""
        self._missed[pack] += 1

    def seconds(self, pack: Pack) -> float:
        """The limit for a pack; a guess until a pack of its audit was timed."""
        if self._fixed != "auto":
            return self._fixed
        if _kind(pack) not in self._slowest:
            usual = FIRST * 2.0 ** self._missed[pack]
        else:
            usual = max(SHORTEST, FACTOR * self._slowest[_kind(pack)] * (pack.size or 1))
        limit = None if isinstance(pack, Part) else self._trial_limits.get(pack.audit)
        return usual if limit is None else max(usual, SHORTEST + limit * pack.size)


def _kind(pack: Pack) -> tuple[int, bool]:
    return pack.audit, isinstance(pack, Part)
