"""Bounds by training runs of several canaries: a run has an outcome A in [0, 1].

A is the share of its canaries that were guessed correctly. Its mean is at most the best guessing
accuracy, Φ(μ/2) for a Gaussian trade-off function, however the canaries of a run depend on each
other. To pool them as if they were independent trials is not valid: if they are dependent, the
bound is wrong in 30 to 50 % of audits.
"""

import math
from dataclasses import dataclass

import numpy as np

from . import e_process
from .base import Members, Scores, stretches_of_equal
from .error_rates import Floats
from .guess_count_bound import GuessCounter, ThroughCurve
from .lower_bound import Estimate, Status

WARMUP = 20  # scores that only set the first threshold


class RunAccuracies:
    """Outcomes of training runs, in their order.

    The threshold of a run depends on the runs before it, as in `GuessCounter`. The first runs are
    skipped, until there are `WARMUP` scores, and some of either world. A run without output has the
    outcome 0.
    """

    def __init__(self, canaries: int) -> None:
        """Begins without trials; each run has `canaries` of them."""
        if canaries < 1:
            raise ValueError(f"canaries must be at least 1, got {canaries}")
        self.canaries = canaries
        self.counter = GuessCounter(WARMUP)
        self.skipped = 0  # number of runs without an outcome
        self._shares: list[Floats] = []  # outcomes so far, in parts
        # Of a run that is not complete yet: scores, bits, and whether each trial gave an output.
        self._pending = (np.empty(0), np.empty(0, bool), np.empty(0, bool))

    def fold(
        self,
        scores: Scores,
        members: Members,
        ran: bool = True,
    ) -> None:
        """Adds trials in order, run after run; an incomplete run waits for its other trials.

        Args:
            scores: float64 [n].
            members: the secret bits, bool [n].
            ran: whether the trials gave an output.
        """
        new = (scores, members, np.full(len(scores), ran))
        values, bits, has_output = (
            np.concatenate(parts) for parts in zip(self._pending, new, strict=True)
        )
        end = len(values) // self.canaries * self.canaries
        self._pending = (values[end:], bits[end:], has_output[end:])
        by_run = has_output[:end].reshape(-1, self.canaries)
        runs_ran = np.asarray(by_run.all(axis=1))  # one trial without output makes its run fail
        for runs, have_output in stretches_of_equal(runs_ran):
            first = runs.start * self.canaries
            end = runs.stop * self.canaries
            self._add(values[first:end], bits[first:end], have_output)

    def _add(self, scores: Scores, members: Members, ran: bool) -> None:
        """Adds complete runs, all of which gave an output, or none.

        Args:
            scores: float64 [runs · canaries].
            members: the secret bits, of the same shape.
            ran: whether they gave an output; if not, they have the outcome 0.
        """
        starts = np.arange(0, len(scores), self.canaries)
        counted = self.counter.trials + starts >= WARMUP  # whether each run has an outcome
        shares = np.zeros(len(starts))
        if ran:
            guessed, correct = self.counter.fold(scores, members, self.canaries)
            counted = guessed[:: self.canaries]  # either all canaries of a run are guessed, or none
            by_run = correct.reshape(-1, self.canaries)
            shares = by_run.mean(axis=1)
        else:
            self.counter.miss(members)
        self.skipped += int((~counted).sum())
        self._shares.append(shares[counted])

    @property
    def trials(self) -> int:
        return self.counter.trials + len(self._pending[0])

    def outcomes(self) -> Floats:
        """Returns the outcomes so far, float64 [runs that are not skipped]."""
        # Joins the parts once for later calls; `concatenate` needs one array at least.
        self._shares = [np.concatenate([*self._shares, np.empty(0)])]
        return self._shares[0]


@dataclass
class SeveralCanaries(ThroughCurve):
    """Judges training runs of several canaries, each with a random bit, by one outcome a run.

    Attributes:
        canaries: number of canaries in each run.
    """

    canaries: int = 1
    name = "several-canaries"
    status = Status.IF_GAUSSIAN
    interim_valid = True
    by_run = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._runs = RunAccuracies(self.canaries)
        self._last_bound = (0, 0.0, 0.5)  # trials, alpha, lower bound on the mean accuracy

    def _fold(self, scores: Scores, members: Members) -> None:
        self._runs.fold(scores, members)

    def _miss(self, members: Members) -> None:
        scores = np.full(len(members), math.nan)
        self._runs.fold(scores, members, ran=False)

    def bound(self, delta: float, confidence: float) -> Estimate:
        """Bounds ε at δ by the mean accuracy, whose bound is saved for other δ."""
        runs = self._runs
        alpha = 1 - confidence
        if self._last_bound[:2] != (runs.trials, alpha):
            accuracy = e_process.mean_lower(runs.outcomes(), alpha)
            self._last_bound = (runs.trials, alpha, accuracy)
        epsilon, mu = self._read(self._last_bound[2], delta)
        level = delta, confidence
        return self._estimate(epsilon, mu, level, runs.trials, runs.counter.threshold)
