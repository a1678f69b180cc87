"""What went wrong so far, and what follows from it: two budgets and a circuit breaker."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Mapping

from ..errors import ClusterError
from ..plan import preparing
from ..plan.failures import Failure
from ..plan.model import Pack, Part
from ..sweep.resources import ResourceSpec
from .executors import Lost

SAME_FAILURES = 3  # packs of an audit that fail the same way in a row: the others would as well
LOSSES_PER_PACK = 5  # trainers that die under one pack before the pack is held responsible
NODES_PER_PACK = 20  # nodes that vanish under one pack: it may be what ends them
_CALLED = {"trainer": "worker", "node": "node"}


class Ledger:
    """Counts failed packs (the user's code) and lost trainers (infrastructure) apart.

    A pack of which some trials failed counts among the failed ones, too.

    `recorded` are failures of an earlier try that are not run again in this one. They are in a row
    where no later pack of their audit was done: `reached` has the first trial of its last one.
    """

    def __init__(
        self,
        resources: ResourceSpec,
        labels: list[str],
        tell: Callable[[str], None] = lambda line: None,
        recorded: Iterable[Failure] = (),
        reached: Mapping[int, int] | None = None,
    ) -> None:
        self._resources = resources
        self._labels = labels
        self._tell = tell
        self._streaks: dict[int, list[Failure]] = {}
        self._lost_under: collections.Counter[tuple[str, Pack]] = collections.Counter()
        self.failures: list[Failure] = []  # of this try
        self.with_misses = 0  # packs of this try that are done, but for trials that failed
        self.losses = 0
        self.trials_failed: collections.Counter[int] = collections.Counter()
        self.trials_lost: collections.Counter[int] = collections.Counter()
        self.closed: set[int] = set()  # audits that are given up
        self.exhausted = False  # more packs failed than the sweep allows
        for failure in recorded:
            self.trials_failed[failure.pack.audit] += failure.pack.size
            if failure.pack.first > (reached or {}).get(failure.pack.audit, -1):
                self._in_a_row(failure)

    def done(self, pack: Pack, missed: int = 0) -> None:
        """A pack that worked shows that its audit can, though `missed` of its trials did not."""
        self._streaks.pop(pack.audit, None)
        if missed:
            self.with_misses += 1
            self._hold_to_budget()

    def failed(self, failure: Failure) -> None:
        """Counts a pack that raised."""
        self.failures.append(failure)
        self.trials_failed[failure.pack.audit] += failure.pack.size
        if isinstance(failure.pack, Part):
            self._unprepared(failure, failure.pack.waiting)
        else:
            self._in_a_row(failure)
        self._hold_to_budget()

    def lost(self, lost: Lost) -> list[Pack]:
        """Counts a trainer that died; returns the packs to run again.

        Only what died by itself is held against the sweep's budget: nodes come and go.

        Raises:
            ClusterError: more were lost than the sweep allows.
        """
        for pack in lost.packs:
            self.trials_lost[pack.audit] += pack.size
        self._tell_of(lost)
        if lost.foreseen or not lost.begun or not lost.packs:
            return list(lost.packs)
        first, *others = lost.packs
        self._lost_under[lost.cause, first] += 1
        limit = LOSSES_PER_PACK if lost.cause == "trainer" else NODES_PER_PACK
        if self._lost_under[lost.cause, first] < limit:
            return [first, *others]
        message = f"its {_CALLED[lost.cause]} died {limit} times (last: {lost.reason})"
        self.failed(Failure(first, "WorkerLost", message, lost.reason))
        return others

    def _hold_to_budget(self) -> None:
        limit = self._resources.max_trial_failures
        failed = len(self.failures) + self.with_misses
        if failed > limit and not self.exhausted:
            self.exhausted = True
            some = f" ({self.with_misses} of them in some trials only)" if self.with_misses else ""
            self._tell(
                f"{failed} packs failed{some}, more than resources.max_trial_failures = {limit}: "
                "no more are started"
            )

    def _tell_of(self, lost: Lost) -> None:
        if lost.cause == "node":
            self._tell(f"{lost.reason} ({len(lost.packs)} packs run again; not a failure)")
            return
        self.losses += 1
        limit = self._resources.max_worker_losses
        if self.losses > limit:
            raise ClusterError(
                f"lost {self.losses} workers, more than resources.max_worker_losses = {limit} "
                f"(last: {lost.reason}); finished packs are safe: run the same command again to "
                "resume"
            )
        count = f"{self.losses} of at most {limit}"
        self._tell(f"worker lost ({count}) with {len(lost.packs)} packs: {lost.reason}")

    def _unprepared(self, failure: Failure, waiting: tuple[int, ...]) -> None:
        """Audits that wait for a part that failed are not started; told once."""
        new = [audit for audit in waiting if audit not in self.closed]
        self.closed.update(new)
        if new:
            self._tell(preparing.line([self._labels[each] for each in new], failure))

    def _in_a_row(self, failure: Failure) -> None:
        audit = failure.pack.audit
        streak = self._streaks.setdefault(audit, [])
        if streak and streak[-1].kind != failure.kind:
            streak.clear()
        streak.append(failure)
        if len(streak) >= SAME_FAILURES and audit not in self.closed:
            self.closed.add(audit)
            self._tell(
                f"{self._labels[audit]}: stopped, {SAME_FAILURES} packs in a row failed the same "
                f"way ({failure.message}); the other audits go on"
            )
