"""Bets on all points of a claim at once, learnt from the epochs before.

One slot against one (ε, δ), with everything staked, multiplies the wealth by

    V = 1 + (Y - δ) / (e^ε + δ),

which is 0 for a wrong guess and has mean at most 1. Every mixture of such bets and of cash has
mean at most 1 as well, and every bet that adds up payoffs of several points of the curve is one.
A mixture that would have grown over the epochs so far is bet on the next: it tends to the best
single-round bet against the claim (Cover 1991 for portfolios; Waudby-Smith, Ramdas 2024 for bets
as tests). Two cautions share the stake, since little is known at first.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
from scipy import special

from .curve import Curve
from .wagers import LOSSES, OUTCOMES, SHARES, WINS, Counts

Floats = npt.NDArray[np.float64]

_POINTS = 16  # of the curve that are bet on
_BETS = 12  # that are added to the mixture, one after another
_WORTH = 1.0  # nats of growth below which a further bet is taken for noise
_LARGEST = 0.95  # share that one bet may take
_STEPS = 24
_CAUTIONS = np.array([0.4, 1.0])  # shares of what was learnt that are staked


@dataclasses.dataclass(frozen=True)
class Portfolio:
    """Bets against one claim: `values` float64 [bets, OUTCOMES]."""

    values: Floats

    @classmethod
    def of(cls, curve: Curve) -> Portfolio:
        """All slots against some points of the curve."""
        few = curve.thinned(_POINTS)
        shrink = np.exp(-few.epsilons)[:, None]
        quiet = 1 / (1 + few.deltas[:, None] * SHARES * shrink)
        right = quiet * (1 + shrink)
        values = np.where(WINS, right[..., None], np.where(LOSSES, 0.0, quiet[..., None]))
        return cls(values.reshape(-1, OUTCOMES))

    def log_wealth(self, epochs: list[Counts]) -> float:
        """Natural logarithm of the wealth after these epochs, from a stake of 1."""
        logs = np.zeros(len(_CAUTIONS))
        learnt = np.zeros(OUTCOMES, dtype=np.int64)
        for counts in epochs:
            if counts.any():
                gain = _CAUTIONS[:, None] * (self.mixture(learnt) - 1)
                logs = logs + np.log1p(gain) @ counts
            learnt = learnt + counts
        return float(special.logsumexp(logs)) - float(np.log(len(_CAUTIONS)))

    def mixture(self, counts: Counts) -> Floats:
        """What a mixture that grows on these counts makes of each outcome, float64 [OUTCOMES].

        From cash on, the bet that promises most is added at its best share (Frank, Wolfe 1956),
        until what it adds could be noise. Every outcome keeps some cash.
        """
        mixed, total = np.ones(OUTCOMES), int(counts.sum())
        for _ in range(_BETS if total else 0):
            promise = self.values @ (counts / mixed)
            best = self.values[int(np.argmax(promise))]
            share = _best_share(mixed, best, counts)
            added = (1 - share) * mixed + share * best
            if float(np.log(added / mixed) @ counts) < _WORTH:
                break
            mixed = added
        return mixed


def _best_share(mixed: Floats, bet: Floats, counts: Counts) -> float:
    """The share of `bet` in [0, _LARGEST] at which the mixture grows most, by bisection."""
    low, high = 0.0, _LARGEST
    difference = bet - mixed
    for _ in range(_STEPS):
        share = (low + high) / 2
        slope = float((difference / (mixed + share * difference)) @ counts)
        low, high = (share, high) if slope > 0 else (low, share)
    return low
