"""Whose fault a failed pack is: its own, or that of the trainer and node it failed on.

A pack that failed is run again by another trainer, on another node where there is one. If it fails
there too, the fault is the pack's, and the failure counts. If it is done there, the first trainer
is at fault.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ..plan.failures import Failure
from ..plan.model import Pack
from .nodes import Nodes, Place
from .pool import Worker


@dataclasses.dataclass(frozen=True)
class Case:
    """A failed pack, and who failed at it."""

    failure: Failure
    worker: Worker


class Suspects:
    """Open cases, by pack.

    Args:
        nodes: counts faults by node.
        tell: takes a line for the user about a trainer that is at fault.
        changed: takes a trainer that is suspected, or no longer.
    """

    def __init__(
        self, nodes: Nodes, tell: Callable[[str], None], changed: Callable[[Worker], None]
    ) -> None:
        self._nodes, self._tell, self._changed = nodes, tell, changed
        self._cases: dict[Pack, Case] = {}
        self._guilty: set[str] = set()

    def case(self, pack: Pack) -> Case | None:
        """The open case of a pack that is due on another trainer, or runs there."""
        return self._cases.get(pack)

    def failed(self, failure: Failure, worker: Worker) -> bool:
        """Whether the pack is to be tried by another trainer; else it has been, and failed."""
        if failure.pack in self._cases:
            self.drop(failure.pack)
            return False
        self._cases[failure.pack] = Case(failure, worker)
        worker.suspected.add(failure.pack)
        self._changed(worker)
        return True

    def drop(self, pack: Pack) -> None:
        """Ends a case without a verdict on its trainer."""
        if (case := self._cases.pop(pack, None)) is not None:
            case.worker.suspected.discard(pack)
            self._changed(case.worker)

    def done(self, pack: Pack, by: Worker) -> Worker | None:
        """The trainer that failed at a pack which another has done, the first time it did so."""
        case = self._cases.get(pack)
        if case is None:
            return None
        self.drop(pack)
        if case.worker.name in self._guilty:
            return None
        self._guilty.add(case.worker.name)
        here, there = case.worker.place, by.place
        assert here is not None
        assert there is not None
        self._tell(
            f"{case.worker.name} on node {here.address} failed ({case.failure.message}) at "
            f"{pack.what}, which {by.name} on node {there.address} did: it is replaced"
        )
        if here.node != there.node:
            self._nodes.fault(here)
        return case.worker

    def other(self, case: Case, ready: list[Worker]) -> Worker | None:
        """Who tries the pack next; None while there is no other trainer."""
        others = [worker for worker in ready if worker is not case.worker]
        return min(others, key=lambda worker: _doubt(worker, case.worker.place), default=None)


def _doubt(worker: Worker, failed_on: Place | None) -> tuple[bool, bool, bool, int]:
    """Trusted trainers that have done a pack, on another node, come first; idle ones of those."""
    same = (
        worker.place is not None and failed_on is not None and worker.place.node == failed_on.node
    )
    return not worker.trusted, not worker.proven, same, len(worker.packs)
