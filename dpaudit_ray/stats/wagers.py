"""Guesses with abstention at many thresholds, counted so that any (ε, δ) can be bet against.

A slot guesses "in" above a threshold (`up`), "out" below one (`down`), or both with a gap between
them, and abstains elsewhere; diverged trials are guessed by slots of their own. Under (ε, δ)-DP
with fair bits the payoff

    Y = 1[guess right] - e^ε 1[guess wrong]

has mean at most δ/2 for one direction and δ for both, whatever happened before. All thresholds
of an epoch are nested, so what a trial did to every slot is one of a few dozen outcomes, and
counts of outcomes serve every ε, every δ and every bet.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from .base import Members, Scores

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

# Distance of a threshold from the midpoint of the two classes, in standard deviations.
OFFSETS = np.linspace(0.0, 3.3, 12)
STAKES = np.array([0.02, 0.08, 0.2, 0.45, 0.75, 0.95])  # share of the stake lost by a wrong guess
_FIRST_EPOCH = 32

_K = len(OFFSETS)
# Outcomes: up and down, right and wrong, by the highest threshold that was passed ...
_UP_RIGHT, _UP_WRONG, _DOWN_RIGHT, _DOWN_WRONG = (np.arange(_K) + _K * i for i in range(4))
DIVERGED_RIGHT, DIVERGED_WRONG, MISSED = range(4 * _K, 4 * _K + 3)  # ... and the others
OUTCOMES = 4 * _K + 3


def _slots() -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_], Floats]:
    """What each slot wins and loses by, bool [slots, outcomes], and its share of δ [slots]."""
    wins, losses, shares = [], [], []
    for up, down, diverged in ((1, 0, 0), (0, 1, 0), (1, 1, 0), (1, 1, 1)):
        for k in range(_K):
            win, loss = np.zeros((2, OUTCOMES), dtype=np.bool_)
            if up:
                win[_UP_RIGHT[k:]], loss[_UP_WRONG[k:]] = True, True
            if down:
                win[_DOWN_RIGHT[k:]], loss[_DOWN_WRONG[k:]] = True, True
            win[DIVERGED_RIGHT], loss[DIVERGED_WRONG] = bool(diverged), bool(diverged)
            wins.append(win)
            losses.append(loss)
            shares.append((up + down) / 2)
    win, loss = np.zeros((2, OUTCOMES), dtype=np.bool_)
    win[DIVERGED_RIGHT], loss[DIVERGED_WRONG] = True, True
    lost = np.array([*losses, loss])
    lost[:, MISSED] = True
    return np.array([*wins, win]), lost, np.array([*shares, 0.5])


WINS, LOSSES, SHARES = _slots()
PLAIN = 2 * _K  # the slot that guesses every finite trial, around the midpoint


@dataclasses.dataclass
class Wagers:
    """Outcomes of trials 32 to 63, 64 to 127, ...: `epochs` are int64 [OUTCOMES] each.

    Thresholds are placed by the mean and spread of both worlds' past scores at the start of an
    epoch: fixed trial numbers, so that any split of the stream gives the same counts. Nothing is
    guessed before the first, nor while one world was not seen. A diverged trial is guessed to be of
    the world in which more have diverged so far; one that counts as a miss is wrong in every slot.
    """

    trials: int = 0
    epochs: list[Counts] = dataclasses.field(default_factory=list)
    centre: float = math.nan
    spread: float = math.nan
    _end: int = _FIRST_EPOCH
    _origin: float = math.nan
    _moments: Floats = dataclasses.field(default_factory=lambda: np.zeros((3, 2)))
    _diverged: Counts = dataclasses.field(default_factory=lambda: np.zeros(2, dtype=np.int64))

    def fold(self, scores: Scores, members: Members) -> None:
        """Adds trials in order."""
        start = 0
        while start < len(scores):
            stop = min(len(scores), start + self._end - self.trials)
            part, bits = scores[start:stop], members[start:stop]
            self._count(self._outcomes(part, bits))
            self._remember(part, bits)
            self._advance(stop - start)
            start = stop

    def miss(self, trials: int) -> None:
        """Adds trials that are wrong in every slot."""
        while trials > 0:
            taken = min(trials, self._end - self.trials)
            self._count(np.full(taken, MISSED))
            self._advance(taken)
            trials -= taken

    @property
    def counts(self) -> Counts:
        """Outcomes of all epochs together, int64 [OUTCOMES]."""
        return np.sum(self.epochs, axis=0) if self.epochs else np.zeros(OUTCOMES, dtype=np.int64)

    def _advance(self, trials: int) -> None:
        self.trials += trials
        if self.trials == self._end:
            self._place()
            self._end *= 2
            self.epochs.append(np.zeros(OUTCOMES, dtype=np.int64))

    def _count(self, outcomes: npt.NDArray[np.int64]) -> None:
        if self.epochs and self._placed:
            self.epochs[-1] += np.bincount(outcomes, minlength=OUTCOMES)

    @property
    def _placed(self) -> bool:
        """Whether this epoch has thresholds: without them nothing is guessed."""
        return not (math.isnan(self.centre) or math.isnan(self.spread))

    def _outcomes(self, scores: Scores, members: Members) -> npt.NDArray[np.int64]:
        finite = np.isfinite(scores)
        with np.errstate(invalid="ignore", over="ignore"):
            distance = np.where(finite, scores - self.centre, 0.0)[:, None]
            passed_up = (distance >= self.spread * OFFSETS).sum(axis=1)
            passed_down = (distance < -self.spread * OFFSETS).sum(axis=1)
        up = np.where(members, _UP_RIGHT[passed_up - 1], _UP_WRONG[passed_up - 1])
        down = np.where(members, _DOWN_WRONG[passed_down - 1], _DOWN_RIGHT[passed_down - 1])
        before = [
            np.cumsum(np.concatenate([[seen], ~finite & (members == bool(world))]))[:-1]
            for world, seen in enumerate(self._diverged)
        ]
        right = (before[1] >= before[0]) == members
        diverged = np.where(right, DIVERGED_RIGHT, DIVERGED_WRONG)
        return np.where(finite, np.where(passed_up > 0, up, down), diverged)

    def _remember(self, scores: Scores, members: Members) -> None:
        """Counts, sums and sums of squares per world, from the first finite score as origin."""
        finite = np.isfinite(scores)
        if math.isnan(self._origin) and finite.any():
            self._origin = float(scores[finite][0])
        for world in (0, 1):
            inside = members == bool(world)
            self._diverged[world] += int((~finite & inside).sum())
            with np.errstate(over="ignore", invalid="ignore"):
                x = scores[finite & inside] - self._origin
                for power in (0, 1, 2):
                    terms = np.concatenate([[self._moments[power, world]], x**power])
                    # cumsum adds strictly in order, so a split stream sums to the same bits
                    self._moments[power, world] = np.cumsum(terms)[-1]

    def _place(self) -> None:
        """Puts the thresholds between the worlds, or where all of one world has diverged, beyond
        the finite scores: those are a sign of the other."""
        count, total, square = self._moments
        if count.min() == 0:
            if (count + self._diverged).min() > 0:
                self.centre, self.spread = (math.inf if count[1] == 0 else -math.inf), 1.0
            return
        with np.errstate(over="ignore", invalid="ignore"):
            means = total / count
            within = float(np.sum(square - count * means**2) / count.sum())
            self.centre = float(means.mean()) + self._origin
            self.spread = math.sqrt(max(within, 0.0)) if math.isfinite(within) else math.nan

    def log_wealth(self, epsilons: npt.ArrayLike, deltas: npt.ArrayLike) -> Floats:
        """Log wealth of constant stakes, float64 [len(epsilons), slots, stakes].

        Every entry is the logarithm of a supermartingale if the mechanism is (ε, δ)-DP.
        """
        shrink = np.exp(-np.asarray(epsilons, dtype=np.float64))[:, None, None]
        d = np.asarray(deltas, dtype=np.float64)[:, None, None] * SHARES[:, None]
        share, counts = STAKES * shrink / (1 + d * shrink), self.counts
        right, wrong = (WINS @ counts)[:, None], (LOSSES @ counts)[:, None]
        quiet = int(counts.sum()) - right - wrong
        gain = right * np.log1p(share * (1 - d)) + wrong * np.log1p(-STAKES)
        return np.asarray(gain + quiet * np.log1p(-share * d))
