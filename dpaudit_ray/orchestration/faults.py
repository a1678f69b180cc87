"""Finds out who is at fault if a pack fails, and how long a pack may take."""

import collections
from collections.abc import Callable, Mapping
from typing import Literal

from ..plan.model import Pack, Part
from ..plan.outcomes import Failure
from .progress import Tell
from .workers import Capacity, Worker

FACTOR = 10  # limit in multiples of the slowest pack of the audit, per trial
SHORTEST = 120.0  # seconds: an audit is opened, files are not cached, storage fails for a minute
FIRST = 1800.0  # seconds, while no pack of the audit was timed; doubled after each timeout


class FaultAttribution:
    """Finds out who is at fault if a pack fails: the pack, its trainer, or the trainer's node.

    The pack is run again by another trainer, if possible on another node. If it fails there too,
    the fault is the pack's, and the failure counts; if it is done, the first trainer is at fault.

    Attributes:
        earlier: failures of an earlier attempt at the sweep, by pack.
    """

    def __init__(
        self,
        capacity: Capacity,
        tell: Tell,
        notify_change: Callable[[Worker], None],
    ) -> None:
        """Suspects no trainer yet.

        Args:
            capacity: counts the faults of nodes.
            tell: takes a line for the user.
            notify_change: is called with a trainer that is suspected, or no longer suspected.
        """
        self._capacity = capacity
        self._tell = tell
        self._notify_change = notify_change
        # Failed packs that another trainer is to run or runs: how they failed, and by which one.
        self._suspicions: dict[Pack, tuple[Failure, Worker]] = {}
        self._culprits = set[str]()  # names of trainers that were found at fault
        self.earlier: Mapping[Pack, Failure] = {}

    def suspect(self, pack: Pack) -> Worker | None:
        """Returns the trainer that failed at a pack, while another one tries it."""
        return self._suspicions[pack][1] if pack in self._suspicions else None

    def failure(self, pack: Pack) -> Failure | None:
        """Returns how the pack failed when it was run before, here or in an earlier attempt."""
        return self._suspicions[pack][0] if pack in self._suspicions else self.earlier.get(pack)

    def record_failure(self, failure: Failure, worker: Worker) -> bool:
        """Records a failure; returns whether another trainer is to try the pack.

        If the pack has failed on two trainers, the first of them is no longer suspected.
        """
        if failure.pack in self._suspicions:
            self.forget(failure.pack)
            return False
        self._suspicions[failure.pack] = failure, worker
        worker.suspected.add(failure.pack)
        self._notify_change(worker)
        return True

    def forget(self, pack: Pack) -> None:
        """Forgets which trainer failed at a pack, if one did: it is no longer suspected."""
        if pack in self._suspicions:
            _, worker = self._suspicions.pop(pack)
            worker.suspected.discard(pack)
            self._notify_change(worker)

    def record_success(self, pack: Pack, by: Worker) -> Worker | None:
        """Returns the trainer that is at fault: it failed at a pack that another one has done.

        Args:
            pack: the pack that is done.
            by: the trainer that has done it.

        Returns:
            The trainer; None if no other failed at the pack, or if the one that did was found at
            fault before.
        """
        if pack not in self._suspicions:
            return None
        failure, culprit = self._suspicions[pack]
        self.forget(pack)
        if culprit.name in self._culprits:
            return None
        self._culprits.add(culprit.name)
        self._tell(
            f"{culprit} failed ({failure.message}) at {pack.what}, which {by} did: it is replaced"
        )
        if culprit.node != by.node:
            self._capacity.count_fault(culprit.node, culprit.address)
        return culprit

    def next_trainer(
        self,
        suspect: Worker | None,
        ready: list[Worker],
    ) -> Worker | None:
        """Returns the trainer that is to try a pack next, once it is idle; None if there is none.

        Preferred are trainers that are trusted, have done a pack, run on another node than the
        suspect, and are idle, in this order.

        Args:
            suspect: the trainer that failed at the pack.
            ready: trainers that run on a node.
        """

        def doubts(worker: Worker) -> tuple[bool, bool, bool, bool]:
            """Returns reasons against a trainer, the gravest first: False sorts before True."""
            same_node = suspect is not None and worker.node == suspect.node
            return not worker.trusted, not worker.proven, same_node, bool(worker.pack)

        candidates = (worker for worker in ready if worker is not suspect)
        return min(candidates, key=doubts, default=None)


class Deadlines:
    """Limits the seconds that a pack may take, by the packs that were timed, or by the sweep."""

    def __init__(
        self,
        fixed: float | Literal["auto"],
        trial_limits: Mapping[int, float | None] | None = None,
    ) -> None:
        """Begins without a timed pack.

        Args:
            fixed: the limit that the sweep sets, in seconds.
            trial_limits: seconds after which a mechanism ends a trial, by index of its audit; None
                if the mechanism ends no trial.
        """
        self._fixed = fixed
        self._trial_limits = trial_limits or {}
        # Seconds per trial, or of a part of a preparation; the key is of `_kind`.
        self._slowest = collections.defaultdict[tuple[int, bool], float](float)
        self._timeouts = collections.Counter[Pack]()

    def record_seconds(self, pack: Pack, seconds: float) -> None:
        """Takes the seconds of a pack that was done."""
        kind = _kind(pack)
        self._slowest[kind] = max(self._slowest[kind], seconds / (pack.size or 1))

    def record_timeout(self, pack: Pack) -> None:
        """Counts a timeout of a pack: its trainer hung, or the limit is too low."""
        self._timeouts[pack] += 1

    def limit_seconds(self, pack: Pack) -> float:
        """Returns the limit for a pack; a guess until a pack of its audit was timed.

        The guess doubles each time that the pack was silent for longer.
        """
        if self._fixed != "auto":
            return self._fixed
        limit = FIRST * 2.0 ** self._timeouts[pack]
        slowest = self._slowest.get(_kind(pack))
        if slowest is not None:
            limit = max(SHORTEST, FACTOR * slowest * (pack.size or 1))
        trial_limit = None if isinstance(pack, Part) else self._trial_limits.get(pack.audit)
        return limit if trial_limit is None else max(limit, SHORTEST + trial_limit * pack.size)


def _kind(pack: Pack) -> tuple[int, bool]:
    """Returns a key that packs of about the same duration share: the audit, and whether a part."""
    return pack.audit, isinstance(pack, Part)
