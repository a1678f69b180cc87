"""Pairs of trainings that share their noise: one bounded outcome for every pair.

Both trainings of a pair draw the same noise, batches and augmentations; one has the canary. For any
ramp φ of a score, from 0 to 1, that rests on earlier pairs alone,

    A = (φ(score with the canary) + 1 - φ(score without it)) / 2

has a mean of at most the best guessing accuracy, Φ(μ/2) for a Gaussian trade-off curve, however the
two scores hang together: A is what φ guesses, in expectation, about a training of either world.
What both trainings share cancels in A, whose spread bets adapt to (`e_process`).

Scores are read by their ranks among earlier ones, so a rising map of all scores changes no bound,
and one that falls hardly any.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from .base import Members, Scores
from .cut import normal_scores
from .error_rates import Floats
from .lower_bound import Status
from .multi_canary import WARMUP, RunAccuracies, SeveralCanaries
from .trial_log import Diverged, TrialLog

# Of a ramp, in standard deviations of scores. From .5 to 1.25, bounds at ε = .5 to 8 differ by 4 %.
_WIDTH = 0.75
_SURE = 100.0


class PairOutcomes(RunAccuracies):
    """A of each pair, as pairs come in; a pair of which a training gave no output has 0.

    A pair is `canaries` trials in a row, its second half with the opposite bits of the first. The
    ramp is learnt from all earlier pairs when their number has doubled.
    """

    def __init__(self, canaries: int) -> None:
        super().__init__(canaries)
        if canaries % 2:
            raise ValueError(f"a pair has an even number of trials, got {canaries}")
        self._log = TrialLog()
        self._ramp: _Ramp | None = None
        self._next = -(-WARMUP // canaries) * canaries  # trials after which a ramp is learnt

    def _add(self, scores: Scores, members: Members, ran: bool) -> None:
        halves = members.reshape(-1, 2, self.canaries // 2)
        if (halves[:, 0] == halves[:, 1]).any():
            raise ValueError(
                "each canary must be in one training of its pair, and not in the other; give the "
                "trials of a pair in a row, first one training's, then the other's"
            )
        while len(scores):
            part = slice(0, self._next - self.counter.trials)
            self._add_part(scores[part], members[part], ran)
            scores, members = scores[part.stop :], members[part.stop :]
            if self.counter.trials == self._next:
                self._ramp = _Ramp.learnt(*self._log.arrays())
                self._next *= 2

    def _add_part(self, scores: Scores, members: Members, ran: bool) -> None:
        shares = np.zeros(len(scores) // self.canaries)
        if self._ramp is None:
            self.skipped += len(shares)
        else:
            if ran:
                shares = self._ramp.right(scores, members).reshape(-1, self.canaries).mean(axis=1)
            self._shares.append(shares)
        if ran:
            self.counter.fold(scores, members, self.canaries)
            self._log.append(scores, members)
        else:
            self.counter.miss(members)


@dataclasses.dataclass(frozen=True)
class _Ramp:
    """φ: where a score lies between earlier ones with the canary and without, float64 each."""

    inside: Floats
    outside: Floats
    diverged: float  # φ of a training that diverged
    rising: bool = True

    @classmethod
    def learnt(cls, scores: Scores, members: Members) -> _Ramp:
        finite, lost = np.isfinite(scores), Diverged()
        lost.fold(scores, members)
        inside, outside = (np.sort(scores[finite & world]) for world in (members, ~members))
        ramp = cls(inside, outside, (np.sign(lost.inside - lost.outside) + 1) / 2)
        rising = bool(ramp.right(scores[finite], members[finite]).sum() >= finite.sum() / 2)
        return dataclasses.replace(ramp, rising=rising)

    def right(self, scores: Scores, members: Members) -> Floats:
        """The share of each guess that is right, float64 [n] in [0, 1]."""
        # Where all of a world diverged so far, a finite score is a sign of the other one.
        inside = normal_scores(scores, self.inside) if len(self.inside) else -_SURE
        outside = normal_scores(scores, self.outside) if len(self.outside) else _SURE
        middle = np.broadcast_to((inside + outside) / 2, scores.shape)
        guess = np.clip(0.5 + middle / _WIDTH * (1 if self.rising else -1), 0.0, 1.0)
        guess = np.where(np.isfinite(scores), guess, self.diverged)
        return np.where(members, guess, 1 - guess)


@dataclasses.dataclass
class Paired(SeveralCanaries):
    """Trainings in pairs that share their noise: one outcome for every pair.

    `curve` is that of `several-canaries`: through what the mean of the outcomes is read as ε.
    """

    name: ClassVar[str] = "paired"
    status: ClassVar[Status] = Status.IF_GAUSSIAN
    by_pair: ClassVar[bool] = True
    learns = False  # which training of a pair has the canary may be in any order

    canaries: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self._runs = PairOutcomes(self.canaries)
