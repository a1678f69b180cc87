"""What is shown of a sweep while it runs, and how fast it goes."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..plan.model import Pack

Tell = Callable[[str], None]  # takes a line for the user
WINDOW_SECONDS = 30.0  # what was before says little: audits differ, trainers come and go
_LATE_SECONDS = 2.0  # a snapshot may be as old without a pause in the training


def tell_nobody(line: str) -> None:
    """Drops a line for the user."""


@dataclasses.dataclass(frozen=True)
class Activity:
    """What only the driver knows: its packs, its trainers, and trials failed and lost by audit.

    The last pack that was done took `pack_seconds` and came at `last_result` (Unix time); training
    began `training_seconds` ago. Audits that are `running` have packs in flight, those `over` get
    no more, and none does once the sweep is `stopping`. The verdict has refuted `refuted`.
    """

    packs_in_flight: int = 0
    trainers: int = 0
    pack_seconds: float | None = None
    last_result: float | None = None
    failed: Mapping[int, int] = dataclasses.field(default_factory=dict)
    lost: Mapping[int, int] = dataclasses.field(default_factory=dict)
    training_seconds: float | None = None
    running: frozenset[int] = frozenset()
    over: frozenset[int] = frozenset()
    stopping: bool = False
    refuted: frozenset[int] = frozenset()


@dataclasses.dataclass(frozen=True)
class AuditProgress:
    """What is shown of one audit while it runs.

    `epsilon_lower`, at `delta`, holds for all audits and looks at once, given what it `assumes`. By
    `stop_when` `decided` trials were enough. Trials wait for `parts` of a preparation.
    """

    label: str
    trials: int
    done: int
    epsilon_lower: float
    claim: float
    delta: float
    failed: int = 0
    lost: int = 0
    decided: int | None = None
    assumes: str = ""
    parts_done: int = 0
    parts: int = 0
    judged: bool = False

    @property
    def waits(self) -> bool:
        """Whether its preparation is not complete."""
        return self.parts_done < self.parts

    @property
    def above(self) -> bool:
        """Whether the bound that is shown exceeds the claim."""
        return self.done > 0 and self.epsilon_lower > self.claim

    @property
    def refuted(self) -> bool:
        """Whether the claim is, by the bound, or the verdict on all trials, when that is known."""
        return self.judged or self.above


@dataclasses.dataclass(frozen=True)
class Progress:
    """A snapshot of the sweep; `saved` has the last checkpoint's step of each long pack."""

    audits: tuple[AuditProgress, ...]
    activity: Activity = Activity()
    saved: Mapping[Pack, int] = dataclasses.field(default_factory=dict)

    @property
    def done(self) -> int:
        """Finished trials."""
        return sum(audit.done for audit in self.audits)

    @property
    def trials(self) -> int:
        """Planned trials; of a decided audit, those that are done."""
        return sum(a.trials if a.decided is None else a.done for a in self.audits)

    @property
    def ended(self) -> int:
        """Trials that are done, or whose packs failed."""
        return self.done + sum(self.activity.failed.values())

    @property
    def left(self) -> int:
        """Trials that are still to be run: none of audits that are decided or given up."""
        failed, over = self.activity.failed, self.activity.over
        return sum(
            max(0, audit.trials - audit.done - failed.get(index, 0))
            for index, audit in enumerate(self.audits)
            if audit.decided is None and index not in over
        )

    @property
    def phase(self) -> str:
        """What goes on until a first pack is done, and once none is left; empty in between."""
        activity = self.activity
        if activity.stopping:
            packs = activity.packs_in_flight
            return f"stopping, {packs} pack{'s' * (packs != 1)} under way"
        if not self.left:
            return "the last estimates are computed"
        if activity.pack_seconds is not None:
            return ""
        if not activity.trainers:
            return "trainers start and import what they run"
        if not activity.packs_in_flight:
            return "packs are handed out"
        waiting = [audit for audit in self.audits if audit.waits]
        if len(waiting) == sum(audit.done < audit.trials for audit in self.audits):
            done = sum(audit.parts_done for audit in waiting)
            return f"preparing, {done} of {sum(a.parts for a in waiting)} parts done"
        return "the first packs are trained"


class Speed:
    """Trials per second and seconds left, by packs that ended since the first began to train."""

    def __init__(self) -> None:
        self._ends: collections.deque[tuple[float, int]] = collections.deque()

    def see(self, progress: Progress, now: float) -> None:
        """Takes a snapshot, at `now` seconds of any one clock."""
        ended = progress.ended
        if not self._ends or ended < self._ends[-1][1]:  # failed packs may be taken back
            self._ends = collections.deque([(now, ended)])
        if ended == self._ends[-1][1]:
            return
        if len(self._ends) == 1 and (trained := progress.activity.training_seconds) is not None:
            self._ends = collections.deque([(now - trained, self._ends[0][1])])
        self._ends.append((now, ended))
        while len(self._ends) > 2 and self._ends[1][0] < now - WINDOW_SECONDS:
            self._ends.popleft()

    def rate(self, now: float) -> float:
        """Trials per second; NaN while unknown. Falls when nothing ends for longer than before."""
        if len(self._ends) < 2:
            return math.nan
        (first, before), (last, after) = self._ends[0], self._ends[-1]
        longest = max(b - a for (a, _), (b, _) in itertools.pairwise(self._ends))
        seconds = max(last, now - max(longest, _LATE_SECONDS)) - first
        return (after - before) / seconds if seconds > 0 else math.nan

    def seconds_left(self, progress: Progress, now: float) -> float:
        """For the trials that are still to be run; NaN while unknown."""
        return progress.left / self.rate(now) if progress.left else 0.0
