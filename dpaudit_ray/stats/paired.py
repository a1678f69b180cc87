"""Bounds by pairs of training runs that share their noise: a pair has one outcome A in [0, 1].

Both runs of a pair have the same noise, batches and augmentations; one has the canary. For any ramp
φ of a score, from 0 to 1, that depends on earlier pairs alone,

    A = (φ(score with the canary) + 1 - φ(score without it)) / 2

has a mean of at most the best guessing accuracy, Φ(μ/2) for a Gaussian trade-off function, however
the two scores depend on each other: φ is the probability of guessing "in", so A is the accuracy of
these guesses in both worlds. Noise that both runs share cancels in A, and bets adapt to the spread
of A (`e_process`).

Scores are replaced by their ranks among earlier ones, so a rising map of all scores changes no
bound, and a falling one hardly any.
"""

from dataclasses import dataclass, replace

import numpy as np

from .base import Members, Scores
from .cut import normal_scores
from .error_rates import Floats
from .lower_bound import Status
from .multi_canary import WARMUP, RunAccuracies, SeveralCanaries
from .trial_log import Diverged, TrialLog

# Width of a ramp in standard deviations of scores. With 0.5 or 1.25, bounds at ε = 0.5 to 8 would
# change by 4 %.
_WIDTH = 0.75
_BEYOND_ALL = 100.0  # normal quantile of a score that is above all others


class PairOutcomes(RunAccuracies):
    """Outcomes A of pairs, in their order; a pair has 0 if one of its runs has no output.

    A pair has `canaries` trials in a row; those of the second run have the opposite bits of those
    of the first. The ramp is fitted to all earlier pairs whenever their number has doubled.
    """

    def __init__(self, canaries: int) -> None:
        """Begins without trials; a pair has `canaries` of them, half in each of its runs."""
        super().__init__(canaries)
        if canaries % 2:
            raise ValueError(f"a pair has an even number of trials, got {canaries}")
        self._log = TrialLog()
        self._ramp: _Ramp | None = None  # None before the first fit: pairs are skipped
        # Trials after which a ramp is fitted: at least WARMUP, in complete pairs.
        self._next_fit = -(-WARMUP // canaries) * canaries

    def _add(self, scores: Scores, members: Members, ran: bool) -> None:
        """Adds complete pairs in parts: after each part a ramp is fitted, if that is due.

        Args:
            scores: float64 [pairs · trials of a pair].
            members: the secret bits, of the same shape.
            ran: whether all of them gave an output.

        Raises:
            ValueError: a canary is in both runs of a pair, or in neither.
        """
        halves = members.reshape(-1, 2, self.canaries // 2)
        if (halves[:, 0] == halves[:, 1]).any():
            raise ValueError(
                "each canary must be in one training of its pair, and not in the other; give the "
                "trials of a pair in a row, first one training's, then the other's"
            )
        while len(scores):
            end = self._next_fit - self.counter.trials
            self._add_part(scores[:end], members[:end], ran)
            scores, members = scores[end:], members[end:]
            if self.counter.trials == self._next_fit:
                self._ramp = _Ramp.fitted(*self._log.arrays())
                self._next_fit *= 2

    def _add_part(self, scores: Scores, members: Members, ran: bool) -> None:
        """Adds the outcome of each pair by the current ramp; skips pairs before the first ramp.

        Arguments are those of `_add`.
        """
        shares = np.zeros(len(scores) // self.canaries)
        if self._ramp is None:
            self.skipped += len(shares)
        else:
            if ran:
                correct = self._ramp.correct(scores, members)
                shares = correct.reshape(-1, self.canaries).mean(axis=1)
            self._shares.append(shares)
        if ran:
            self.counter.fold(scores, members, self.canaries)
            self._log.append(scores, members)
        else:
            self.counter.miss(members)


@dataclass(frozen=True)
class _Ramp:
    """The ramp φ: it maps a score to [0, 1] by its ranks among earlier scores of both worlds."""

    inside: Floats  # earlier scores with the canary, sorted
    outside: Floats  # earlier scores without the canary, sorted
    diverged: float  # φ of a run that diverged
    sign: int = 1  # -1 if scores are lower with the canary

    @classmethod
    def fitted(cls, scores: Scores, members: Members) -> "_Ramp":
        """Fits the ramp to earlier scores, float64 [n], and their bits, bool [n].

        It falls if a rising one would have guessed less than half of these trials correctly.
        """
        diverged = Diverged()
        diverged.fold(scores, members)
        # World in which more runs diverged: 1 for in, -1 for out, 0 for neither.
        majority = np.sign(diverged.inside - diverged.outside)
        finite = np.isfinite(scores)
        inside = np.sort(scores[finite & members])
        outside = np.sort(scores[finite & ~members])
        ramp = cls(inside, outside, (majority + 1) / 2)
        correct = ramp.correct(scores[finite], members[finite])
        if correct.sum() >= finite.sum() / 2:
            return ramp
        return replace(ramp, sign=-1)

    def correct(self, scores: Scores, members: Members) -> Floats:
        """Returns the probability that a guess by the ramp is correct, for each score; float64 [n].

        Args:
            scores: float64 [n], not finite where diverged.
            members: the secret bits, bool [n].
        """
        # If all earlier runs of a world diverged, a finite score is evidence of the other world.
        inside: Floats | float = -_BEYOND_ALL
        outside: Floats | float = _BEYOND_ALL
        if len(self.inside):
            inside = normal_scores(scores, self.inside)
        if len(self.outside):
            outside = normal_scores(scores, self.outside)
        middle = np.broadcast_to((inside + outside) / 2, scores.shape)
        phi = np.clip(0.5 + middle / _WIDTH * self.sign, 0.0, 1.0)
        phi = np.where(np.isfinite(scores), phi, self.diverged)
        return np.where(members, phi, 1 - phi)


@dataclass
class Paired(SeveralCanaries):
    """Judges pairs of training runs that share their noise, by one outcome for every pair.

    `curve` is that of `several-canaries`: the trade-off function that converts the mean to ε.
    """

    name = "paired"
    status = Status.IF_GAUSSIAN
    by_pair = True
    learns = False  # bits may be in any order

    canaries: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self._runs = PairOutcomes(self.canaries)
