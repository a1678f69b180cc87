"""How fast trials end, and how long the rest takes: from packs that ended, and nothing else."""

from __future__ import annotations

import collections
import itertools
import math

from .progress import Progress

WINDOW_SECONDS = 30.0  # what was before says little: audits differ, trainers come and go
_LATE_SECONDS = 2.0  # a snapshot may be as old without a pause in the training


class Speed:
    """Is told of snapshots as they come; times are those of one steady clock, in seconds.

    Nothing is known until a pack has ended. Time counts since that one was begun, so that neither
    Ray's start nor a preparation passes for training.
    """

    def __init__(self) -> None:
        self._ends: collections.deque[tuple[float, int]] = collections.deque()

    def see(self, progress: Progress, now: float) -> None:
        """Takes a snapshot."""
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
