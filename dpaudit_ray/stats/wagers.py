"""Guesses with abstention at many thresholds, counted so that any (ε, δ) can be bet against.

A slot guesses "in" above a threshold (`up`), "out" below one (`down`), or both with a gap between
them, and abstains elsewhere. Under (ε, δ)-DP with fair bits the payoff

    Y = 1[guess right] - e^ε 1[guess wrong]

has mean at most δ/2 for one direction and δ for both, whatever happened before. A constant bet
makes the wealth Π (1 + λ (Y_i - mean)) a function of three counts, so a state of a few dozen
integers serves every ε, every δ and every bet.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from .base import Members, Scores

Floats = npt.NDArray[np.float64]

# Distance of a threshold from the midpoint of the two classes, in standard deviations.
OFFSETS = np.linspace(0.0, 3.3, 12)
STAKES = np.array([0.02, 0.08, 0.2, 0.45, 0.75, 0.95])  # share of the stake lost by a wrong guess
SIDES = np.array([0.5, 0.5, 1.0])  # share of δ that up, down and both may use
_FIRST_EPOCH = 32


@dataclasses.dataclass
class Wagers:
    """Right and wrong guesses of each slot, int64 [3, len(OFFSETS)], over `rounds` trials.

    Thresholds are placed by the mean and spread of both worlds' past scores, at trials 32, 64,
    128, ...: fixed trial numbers, so that any split of the stream gives the same counts. Before
    the first placement nothing is guessed. A diverged trial is a wrong guess in every slot, even
    then.
    """

    trials: int = 0
    rounds: int = 0
    right: npt.NDArray[np.int64] = dataclasses.field(
        default_factory=lambda: np.zeros((3, len(OFFSETS)), dtype=np.int64)
    )
    wrong: npt.NDArray[np.int64] = dataclasses.field(
        default_factory=lambda: np.zeros((3, len(OFFSETS)), dtype=np.int64)
    )
    centre: float = math.nan
    spread: float = math.nan
    _epoch: int = _FIRST_EPOCH
    _origin: float = math.nan
    _moments: Floats = dataclasses.field(default_factory=lambda: np.zeros((3, 2)))

    def fold(self, scores: Scores, members: Members) -> None:
        """Adds trials in order."""
        start = 0
        while start < len(scores):
            stop = min(len(scores), start + self._epoch - self.trials)
            self._count(scores[start:stop], members[start:stop])
            self._remember(scores[start:stop], members[start:stop])
            self.trials += stop - start
            start = stop
            if self.trials == self._epoch:
                self._place()
                self._epoch *= 2

    def _count(self, scores: Scores, members: Members) -> None:
        finite = np.isfinite(scores)[:, None]
        diverged = int((~finite).sum())
        self.wrong += diverged
        if not (math.isfinite(self.centre) and math.isfinite(self.spread)):
            self.rounds += diverged
            return
        distance = np.where(finite, (scores - self.centre)[:, None], 0.0)
        up = finite & (distance >= self.spread * OFFSETS)
        down = finite & (distance < -self.spread * OFFSETS)
        bit = members[:, None]
        right = np.array([(up & bit).sum(0), (down & ~bit).sum(0)])
        wrong = np.array([(up & ~bit).sum(0), (down & bit).sum(0)])
        self.right += np.vstack([right, right.sum(0)])
        self.wrong += np.vstack([wrong, wrong.sum(0)])
        self.rounds += len(scores)

    def _remember(self, scores: Scores, members: Members) -> None:
        """Counts, sums and sums of squares per world, from the first finite score as origin."""
        finite = np.isfinite(scores)
        if math.isnan(self._origin) and finite.any():
            self._origin = float(scores[finite][0])
        for world in (0, 1):
            with np.errstate(over="ignore", invalid="ignore"):
                x = scores[finite & (members == bool(world))] - self._origin
                for power in (0, 1, 2):
                    terms = np.concatenate([[self._moments[power, world]], x**power])
                    # cumsum adds strictly in order, so a split stream sums to the same bits
                    self._moments[power, world] = np.cumsum(terms)[-1]

    def _place(self) -> None:
        count, total, square = self._moments
        if count.min() == 0:
            return
        with np.errstate(over="ignore", invalid="ignore"):
            means = total / count
            within = float(np.sum(square - count * means**2) / count.sum())
            self.centre = float(means.mean()) + self._origin
            self.spread = math.sqrt(max(within, 0.0)) if math.isfinite(within) else math.nan

    def log_wealth(self, epsilons: npt.ArrayLike, deltas: npt.ArrayLike) -> Floats:
        """Log wealth against each (ε, δ), float64 [len(epsilons), 3, offsets, stakes].

        Every entry is the logarithm of a supermartingale if the mechanism is (ε, δ)-DP.
        """
        e = np.exp(np.asarray(epsilons, dtype=np.float64))[:, None, None, None]
        d = np.asarray(deltas, dtype=np.float64)[:, None, None, None] * SIDES[:, None, None]
        share = STAKES / (e + d)
        right, wrong = self.right[..., None], self.wrong[..., None]
        quiet = self.rounds - right - wrong
        gain = right * np.log1p(share * (1 - d)) + wrong * np.log1p(-STAKES)
        return np.asarray(gain + quiet * np.log1p(-share * d))
