"""Snapshots of a sweep while it runs, and how fast it goes."""

import itertools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..plan.model import Pack

Tell = Callable[[str], None]  # takes a line for the user
WINDOW_SECONDS = 30.0  # older packs predict little: audits differ, trainers come and go
_LINE_SECONDS = 2.0  # between two lines about progress
_LATE_SECONDS = 2.0  # age of a snapshot that shows no pause in the training


class OccasionalLines:
    """Reports lines about progress, one every few seconds; all others are dropped."""

    def __init__(self, report: Tell) -> None:
        """Reports the first line after _LINE_SECONDS."""
        self._report = report
        self._last = time.monotonic()

    def show(self, line: str) -> None:
        """Reports a line, unless another one was reported a moment before."""
        now = time.monotonic()
        if now - self._last >= _LINE_SECONDS:
            self._last = now
            self._report(line)


def tell_nobody(line: str) -> None:
    """Drops a line for the user."""


@dataclass(frozen=True)
class Activity:
    """The part of a snapshot that only the driver knows.

    Attributes:
        packs_in_flight: packs that trainers work on.
        trainers: trainers that run on a node.
        pack_seconds: duration of the last pack that was done.
        last_result: Unix time at which a pack last ended.
        failed: trials in failed packs, by audit.
        lost: trials in packs whose trainer died, by audit.
        training_seconds: time since the first pack began to train.
        running: audits with packs in flight.
        over: audits that get no more packs.
        stopping: no audit gets more packs.
        refuted: audits whose claim the verdict has refuted.
    """

    packs_in_flight: int = 0
    trainers: int = 0
    pack_seconds: float | None = None
    last_result: float | None = None
    failed: Mapping[int, int] = field(default_factory=dict)
    lost: Mapping[int, int] = field(default_factory=dict)
    training_seconds: float | None = None
    running: frozenset[int] = frozenset()
    over: frozenset[int] = frozenset()
    stopping: bool = False
    refuted: frozenset[int] = frozenset()


@dataclass(frozen=True)
class AuditProgress:
    """A snapshot of one audit.

    Attributes:
        label: name of the audit in the sweep.
        trials: planned trials.
        done: stored trials.
        epsilon_lower: a bound that holds for all audits and looks simultaneously.
        claim: ε that the accountant claims.
        delta: δ of bound and claim.
        failed: trials in failed packs.
        lost: trials in packs whose trainer died.
        decided: trials that were enough for `stop_when`.
        assumes: assumption of the bound.
        parts_done: stored parts of the preparation that trials wait for.
        parts: number of all parts.
        verdict_refutes: the verdict on all trials has refuted the claim.
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
    verdict_refutes: bool = False

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
        """Whether the claim is refuted: by the bound, or by the verdict if that is known."""
        return self.verdict_refutes or self.above


@dataclass(frozen=True)
class Progress:
    """A snapshot of the sweep; `saved` has the last checkpoint's step of each long pack."""

    audits: tuple[AuditProgress, ...]
    activity: Activity = Activity()
    saved: "Mapping[Pack, int]" = field(default_factory=dict)

    @property
    def done(self) -> int:
        """Finished trials."""
        return sum(audit.done for audit in self.audits)

    @property
    def trials(self) -> int:
        """Planned trials. A decided audit counts with the trials that are done."""
        return sum(audit.trials if audit.decided is None else audit.done for audit in self.audits)

    @property
    def ended(self) -> int:
        """Trials that are done, or whose packs failed."""
        return self.done + sum(self.activity.failed.values())

    @property
    def trials_remaining(self) -> int:
        """Number of trials that are still to be run, of audits that are not decided or over."""
        count = 0
        for index, audit in enumerate(self.audits):
            if audit.decided is None and index not in self.activity.over:
                count += max(0, audit.trials - audit.done - self.activity.failed.get(index, 0))
        return count

    @property
    def phase(self) -> str:
        """Activity before the first pack is done and after the last trial; "" in between."""
        activity = self.activity
        packs = activity.packs_in_flight
        if activity.stopping:
            plural = "" if packs == 1 else "s"
            return f"stopping, {packs} pack{plural} under way"
        if not self.trials_remaining:
            return "the last estimates are computed"
        if activity.pack_seconds is not None:
            return ""
        if not activity.trainers:
            return "trainers start and import what they run"
        if not packs:
            return "packs are handed out"
        waiting = [audit for audit in self.audits if audit.waits]
        # If every audit that is not finished waits for its preparation, no pack can be trained.
        if len(waiting) == sum(audit.done < audit.trials for audit in self.audits):
            done = sum(audit.parts_done for audit in waiting)
            parts = sum(audit.parts for audit in waiting)
            return f"preparing, {done} of {parts} parts done"
        return "the first packs are trained"


class Speed:
    """Trials per second and remaining seconds, by the packs that have ended."""

    def __init__(self) -> None:
        """Begins without a snapshot."""
        # Seconds of a clock, and the trials that had ended then. The first is the training's start.
        self._ends: list[tuple[float, int]] = []

    def add(self, progress: Progress, now: float) -> None:
        """Takes a snapshot, at `now` seconds of any one clock."""
        ended = progress.ended
        if not self._ends or ended < self._ends[-1][1]:  # failed packs may be taken back
            self._ends = [(now, ended)]
        if ended == self._ends[-1][1]:
            return
        trained = progress.activity.training_seconds
        if len(self._ends) == 1 and trained is not None:
            self._ends = [(now - trained, self._ends[0][1])]
        self._ends.append((now, ended))
        # The rate is computed from the last end before the window on.
        while len(self._ends) > 2 and self._ends[1][0] < now - WINDOW_SECONDS:
            del self._ends[0]

    def rate(self, now: float) -> float:
        """Returns trials per second since the first of `_ends`; NaN while none has ended.

        While no pack ends, the rate stays for as long as the longest time between two ends so far.
        After that it falls.

        Args:
            now: seconds of the clock of `add`.
        """
        if len(self._ends) < 2:
            return math.nan
        moments = [moment for moment, _ in self._ends]
        longest = max(after - before for before, after in itertools.pairwise(moments))
        end = max(moments[-1], now - max(longest, _LATE_SECONDS))
        seconds = end - moments[0]
        trials = self._ends[-1][1] - self._ends[0][1]
        return trials / seconds if seconds > 0 else math.nan

    def seconds_left(self, progress: Progress, now: float) -> float:
        """Returns the seconds for the trials that are still to be run; NaN while unknown."""
        return progress.trials_remaining / self.rate(now) if progress.trials_remaining else 0.0
