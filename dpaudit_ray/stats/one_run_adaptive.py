"""Canaries of one training guessed one after another, each by the bits of those before it.

Adaptive guesses in one run are an idea of Keinan, Shenfeld, Ligett (2025). That they may be counted
is shown here. Let q = e^ε / (1 + e^ε). Given the bits of the canaries before, the training is an
(ε, δ)-DP function of the next bit, hence randomised response at ε which tells the bit outright with
chance δ (Kairouz, Oh, Viswanath 2015, Theorem 3.1). Where it does not, a guess by the output and by
earlier bits is right with chance q at most, so a stake whose factor is c / q when right and (1 - c)
/ (1 - q) when wrong, c > q, gains nothing in the mean. Where it does, and that is m δ canaries in
the mean, a factor is 1 / q at most. So under (ε, δ)-DP, for every i ≥ 0,

    P[wealth ≥ q^-i / a] ≤ a + m δ / (i + 1).

c is the chance that a mixture of logistic curves gives, weighted by how they told earlier bits: no
number of guesses is to be set, and a score may tell of one side only. Values of ε are tested from 0
up, on a fixed grid, until one is not refuted; so no test needs a part of the error.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import ClassVar

import numpy as np
from scipy import special

from .base import Estimator, Members, Scores
from .error_rates import Floats
from .lower_bound import Estimate, Status
from .trial_log import Logged

LARGEST, STEP = 20.0, 1e-3  # no log odds are beyond
GRID = np.arange(0, LARGEST, STEP)  # of ε
_SLOPES = 0.1 * 2.0 ** np.arange(0, 8.5, 0.5)  # of log odds by normal quantile
_CENTRES = (-0.5, -0.25, 0.0, 0.25, 0.5)  # of curves that tell of both sides
_STARTS = (0.0, 0.5, 1.0, 1.5, 2.0)  # from where curves tell of one
_BLOCK = 4096  # canaries at once: 8 MiB
_LEAKS = np.unique(np.geomspace(1, 4096, 64).astype(np.int64)) - 1  # i


@dataclasses.dataclass
class OneRunAdaptive(Logged, Estimator):
    """ε from stakes on every canary of a training, in their order; no curve is assumed.

    A score that is not a number is not guessed. A trial without output loses the largest stake of
    all. Several trainings are one after another, as are `independent` ones of one canary each.
    """

    independent: bool = False

    name: ClassVar[str] = "one-run-adaptive"
    status: ClassVar[Status] = Status.CERTIFIED
    one_run: ClassVar[bool] = True
    needs_independence: ClassVar[bool] = True

    learns = True  # each canary is guessed by the bits of those before it

    def bound(self, delta: float, confidence: float) -> Estimate:
        scores, members = self._log.arrays()
        ran = ~np.isnan(scores)
        odds = predicted(scores[ran], members[ran])
        evidence = Evidence.from_odds(odds, members[ran], int((~ran).sum()))
        epsilon = evidence.refuted(max(self.planned, len(scores)), delta, 1 - confidence)
        return self._estimate(epsilon, math.nan, (delta, confidence), len(scores))


def predicted(scores: Scores, members: Members) -> Floats:
    """Log odds of "in" [m]: canary i's from the ranks of all scores and the bits before i."""
    odds = np.zeros(len(scores))
    at = np.flatnonzero(np.isfinite(scores))
    if not len(at):
        return odds
    _, place, alike = np.unique(scores[at], return_inverse=True, return_counts=True)
    below = np.cumsum(alike) - alike / 2  # equal scores have one quantile, in their middle
    quantiles, signs = special.ndtri(below[place] / len(at)), np.where(members[at], 1.0, -1.0)
    scores_so_far = np.zeros(len(_curves(np.zeros(1))[0]))
    for first in range(0, len(at), _BLOCK):
        block = slice(first, first + _BLOCK)
        curves = _curves(quantiles[block])
        gains = special.log_expit(signs[block, None] * curves)
        before = scores_so_far + np.cumsum(gains, axis=0) - gains
        odds[at[block]] = special.logsumexp(before + special.log_expit(curves), axis=1)
        odds[at[block]] -= special.logsumexp(before + special.log_expit(-curves), axis=1)
        scores_so_far = scores_so_far + gains.sum(axis=0)
    return np.clip(odds, -LARGEST, LARGEST)


def _curves(quantiles: Floats) -> Floats:
    """Log odds by each curve, float64 [m, curves]."""
    both = [quantiles - centre for centre in _CENTRES]
    above = [np.maximum(quantiles - start, 0) for start in _STARTS]
    below = [np.minimum(quantiles + start, 0) for start in _STARTS]
    lines = np.stack(both + above + below, axis=1)
    return np.asarray((lines[:, :, None] * _SLOPES).reshape(len(quantiles), -1))


@dataclasses.dataclass(frozen=True)
class Evidence:
    """Wealth that stakes bring at any ε: sums over the canaries of which c > q, by rising c."""

    sure: Floats  # log odds of c, [n]; the sums have one element more, and end with 0
    gains: Floats
    right: Floats
    wrong: Floats
    missed: int

    @classmethod
    def from_odds(cls, odds: Floats, members: Members, missed: int = 0) -> Evidence:
        """Evidence of guesses by log odds of "in", float64 [m]."""
        order = np.argsort(np.abs(odds), kind="stable")
        sure, right = np.abs(odds)[order], ((odds > 0) == members)[order]
        gains = special.log_expit(np.where(right, sure, -sure))
        return cls(sure, _from(gains), _from(right), _from(~right), missed)

    def log_wealth(self, epsilon: Floats) -> Floats:
        """Log of the product of all factors, at each ε."""
        first = np.searchsorted(self.sure, epsilon, side="right")
        wealth = self.gains[first] - self.right[first] * special.log_expit(epsilon)
        wealth = wealth - self.wrong[first] * special.log_expit(-epsilon)
        lost = special.log_expit(-LARGEST) - special.log_expit(-epsilon)
        return np.asarray(wealth + self.missed * lost)

    def refuted(self, canaries: int, delta: float, alpha: float) -> float:
        """The last ε of the grid before the first that is not refuted; 0 if none is."""
        kept = np.flatnonzero(self.log_wealth(GRID) < needed(canaries, delta, alpha))
        last = (kept[0] if len(kept) else len(GRID)) - 1
        return float(GRID[max(last, 0)])


def _from(values: Floats | Members) -> Floats:
    """Sums of each element and all after it, and 0."""
    return np.concatenate([np.cumsum(values[::-1])[::-1], [0]])


@functools.lru_cache
def needed(canaries: int, delta: float, alpha: float) -> Floats:
    """Log wealth that refutes each ε: least over i of -log(a) - i log(q), a + mδ/(i + 1) = α."""
    left = alpha - canaries * delta / (_LEAKS + 1)
    with np.errstate(divide="ignore"):
        no_leak = -np.log(np.maximum(left, 0.0))
    return np.asarray(np.min(no_leak[:, None] - np.outer(_LEAKS, special.log_expit(GRID)), axis=0))
