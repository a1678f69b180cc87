"""Several canaries per training: the unit is a training run, its outcome A lies in [0, 1].

The mean of A, the share of its canaries that were guessed, is at most the best guessing accuracy,
Φ(μ/2) for a Gaussian trade-off curve, whatever the dependence inside the run. To pool the canaries
of a run as if they were trials of their own is not valid: it errs in 30 to 50 % where they depend.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np

from . import e_process
from .base import Members, Scores, alike_in_a_row
from .error_rates import Floats
from .guess_count_bound import GuessCounter, ThroughCurve
from .lower_bound import Estimate, Status

WARMUP = 20  # scores that only set the first threshold


class RunAccuracies:
    """Share of each run's canaries that were guessed, as runs come in.

    The threshold of a run is told by the runs before it, as `GuessCounter` has it; runs before
    `WARMUP` scores of both worlds were seen are left out. A run without output guessed none.
    """

    def __init__(self, canaries: int) -> None:
        if canaries < 1:
            raise ValueError(f"canaries must be at least 1, got {canaries}")
        self.canaries = canaries
        self.counter = GuessCounter(WARMUP)
        self.skipped = 0  # runs before the first that is judged
        self._shares: list[Scores] = []
        self._rest = (np.empty(0), np.empty(0, np.bool_), np.empty(0, np.bool_))

    def fold(self, scores: Scores, members: Members, ran: bool = True) -> None:
        """Adds scores in order, run after run; one that is not whole yet is kept back."""
        came = (scores, members, np.full(len(scores), ran))
        values, bits, lived = (
            np.concatenate([old, new]) for old, new in zip(self._rest, came, strict=True)
        )
        whole = len(values) // self.canaries * self.canaries
        self._rest = (values[whole:], bits[whole:], lived[whole:])
        alive = np.asarray(lived[:whole].reshape(-1, self.canaries).all(axis=1))
        for runs, gave in alike_in_a_row(alive):
            trials = slice(runs.start * self.canaries, runs.stop * self.canaries)
            self._add(values[trials], bits[trials], gave)

    def _add(self, scores: Scores, members: Members, ran: bool) -> None:
        """Adds whole runs, all of which gave an output, or none."""
        starts = self.counter.trials + np.arange(0, len(scores), self.canaries)
        judged, shares = starts >= WARMUP, np.zeros(len(starts))
        if ran:
            guessed, right = self.counter.fold(scores, members, self.canaries)
            judged = guessed[:: self.canaries]
            shares = right.reshape(-1, self.canaries).mean(axis=1)
        else:
            self.counter.miss(members)
        self.skipped += int((~judged).sum())
        self._shares.append(shares[judged])

    @property
    def trials(self) -> int:
        return self.counter.trials + len(self._rest[0])

    def outcomes(self) -> Floats:
        """The shares so far, float64 [runs that are judged]."""
        self._shares = [np.concatenate([*self._shares, np.empty(0)])]
        return self._shares[0]


@dataclasses.dataclass
class SeveralCanaries(ThroughCurve):
    """Trainings of `canaries` canaries each, a coin for each: one outcome for every training."""

    canaries: int = 1
    name: ClassVar[str] = "several-canaries"
    status: ClassVar[Status] = Status.IF_GAUSSIAN
    interim_valid: ClassVar[bool] = True
    by_run: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._runs = RunAccuracies(self.canaries)
        self._known: tuple[int, float, float] = (0, 0.0, 0.5)  # of so many trials, at alpha

    def _fold(self, scores: Scores, members: Members) -> None:
        self._runs.fold(scores, members)

    def _miss(self, members: Members) -> None:
        self._runs.fold(np.full(len(members), math.nan), members, ran=False)

    def bound(self, delta: float, confidence: float) -> Estimate:
        runs, alpha = self._runs, 1 - confidence
        if self._known[:2] != (runs.trials, alpha):
            self._known = (runs.trials, alpha, e_process.mean_lower(runs.outcomes(), alpha))
        shown = self._read(self._known[2], delta)
        return self._estimate(*shown, (delta, confidence), runs.trials, runs.counter.threshold)
