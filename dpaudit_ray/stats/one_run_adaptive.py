"""Canaries of one training run, guessed one after another, each by the bits before it.

Adaptive guesses in one run are an idea of Keinan, Shenfeld, Ligett (2025). That they may be counted
is proved here. Let q = e^ε / (1 + e^ε). Given the bits of the canaries before, training is an (ε,
δ)-DP function of the next bit, hence randomised response at ε which reveals the bit with
probability δ (Kairouz, Oh, Viswanath 2015, Theorem 3.1). If it does not, a guess by the output and
by earlier bits is correct with probability at most q, so a stake whose factor is c / q when correct
and (1 - c) / (1 - q) when wrong, c > q, gains nothing in the mean. If it does, for m δ canaries in
the mean, a factor is 1 / q at most. So under (ε, δ)-DP, for every i ≥ 0,

    P[wealth ≥ q^-i / a] ≤ a + m δ / (i + 1).

c is the probability of the guess by a mixture of logistic curves, weighted by their likelihood on
earlier bits: no number of guesses is to be set, and scores may be informative at one end only.
Values of ε are tested from 0 up, on a fixed grid, until one is not refuted, so that no test needs a
part of the error.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from scipy.special import log_expit, logsumexp, ndtri

from .base import Estimator, Members, Scores
from .error_rates import Floats
from .lower_bound import Estimate, Status
from .trial_log import Logged

LARGEST = 20.0  # largest log odds of a guess, and largest ε that is tested
STEP = 1e-3  # distance between values of ε that are tested
GRID = np.arange(0, LARGEST, STEP)  # grid of ε
# Curves of the mixture have log odds that are linear in the normal quantile of a score, with these
# slopes. They are 0 at one of the centres, or on one side of one of the starts.
_SLOPES = 0.1 * 2.0 ** np.arange(0, 8.5, 0.5)
_CENTRES = (-0.5, -0.25, 0.0, 0.25, 0.5)
_STARTS = (0.0, 0.5, 1.0, 1.5, 2.0)
_BLOCK = 4096  # canaries in one step of the computation: 8 MiB
# Values of i, numbers of revealed bits, at which the module's inequality is used.
_LEAKS = np.unique(np.geomspace(1, 4096, 64).astype(np.int64)) - 1


@dataclass
class OneRunAdaptive(Logged, Estimator):
    """Bound on ε by stakes on every canary of a run, in order; no trade-off function is assumed.

    A score that is not a number is not guessed. A trial without output loses the largest stake.
    Several runs follow each other, as do `independent` ones of one canary each.
    """

    independent: bool = False

    name = "one-run-adaptive"
    status = Status.CERTIFIED
    one_run = True
    needs_independence = True

    learns = True  # each canary is guessed by the bits of the canaries before it

    def bound(self, delta: float, confidence: float) -> Estimate:
        """Bounds ε by bets on all canaries, at odds that are fitted to earlier bits."""
        scores, members = self._log.arrays()
        ran = ~np.isnan(scores)
        failed = len(scores) - int(ran.sum())
        odds = predict(scores[ran], members[ran])
        evidence = Evidence.from_odds(odds, members[ran], failed)
        level = delta, confidence
        canaries = max(self.planned, len(scores))
        epsilon = evidence.largest_refuted(canaries, delta, 1 - confidence)
        return self._estimate(epsilon, math.nan, level, len(scores))


def predict(scores: Scores, members: Members) -> Floats:
    """Predicts each canary's bit by the ranks of all scores and by earlier bits.

    Args:
        scores: float64 [m]; for those that are not finite, the odds are even.
        members: the secret bits, bool [m].

    Returns:
        Log odds of "in", float64 [m].
    """
    odds = np.zeros(len(scores))
    finite = np.flatnonzero(np.isfinite(scores))
    n = len(finite)
    values = scores[finite]
    _, ranks, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle_ranks = np.cumsum(counts) - counts / 2  # equal scores share one
    quantiles = ndtri(middle_ranks[ranks] / n)
    signs = np.where(members[finite], 1.0, -1.0)
    # Log likelihood of each curve on the bits so far.
    log_weights = np.zeros(_curves(np.zeros(1)).shape)
    for first in range(0, n, _BLOCK):
        block = slice(first, first + _BLOCK)
        curves = _curves(quantiles[block])
        gains = log_expit(signs[block, None] * curves)  # log probability of the true bit
        before = log_weights + np.cumsum(gains, axis=0) - gains  # log weights before each canary
        inside = logsumexp(before + log_expit(curves), axis=1)
        outside = logsumexp(before + log_expit(-curves), axis=1)
        odds[finite[block]] = inside - outside
        log_weights = log_weights + gains.sum(axis=0)
    return np.clip(odds, -LARGEST, LARGEST)


def _curves(quantiles: Floats) -> Floats:
    """Returns the log odds of "in" by each curve of the mixture, float64 [m, curves].

    Args:
        quantiles: normal quantiles of the ranks of scores, float64 [m].
    """
    both = [quantiles - centre for centre in _CENTRES]
    above = [np.maximum(quantiles - start, 0) for start in _STARTS]
    below = [np.minimum(quantiles + start, 0) for start in _STARTS]
    lines = np.stack(both + above + below, axis=1)
    odds = lines[:, :, None] * _SLOPES
    return odds.reshape(len(quantiles), -1)


@dataclass(frozen=True)
class Evidence:
    """Evidence of guesses against each ε: the wealth of stakes on the canaries with c > q.

    Canaries are sorted by c, the predicted probability of their guess. Those with c > q are the
    last ones, so sums over them are entries of sums from each canary to the last.

    Attributes:
        log_odds: log odds of c, rising, float64 [n].
        gains_from: sums of log c for correct guesses and log(1 - c) for wrong ones, from each
            canary to the last, and a 0 at the end; float64 [n + 1].
        correct_from: numbers of correct guesses, summed in the same way.
        wrong_from: numbers of wrong guesses, summed in the same way.
        failed: number of trials without an output, which lose the largest stake.
    """

    log_odds: Floats
    gains_from: Floats
    correct_from: Floats
    wrong_from: Floats
    failed: int

    @classmethod
    def from_odds(cls, odds: Floats, members: Members, failed: int) -> "Evidence":
        """Guesses bits by predicted odds, and sorts the canaries by the odds of their guess.

        Args:
            odds: log odds of "in", float64 [m].
            members: the secret bits, bool [m].
            failed: trials without an output.
        """
        log_odds = np.abs(odds)
        order = np.argsort(log_odds, kind="stable")
        log_odds = log_odds[order]
        guesses = odds > 0
        correct = (guesses == members)[order]
        signed = np.where(correct, log_odds, -log_odds)
        gains = log_expit(signed)
        right, wrong = _sums_from(correct), _sums_from(~correct)
        return cls(log_odds, _sums_from(gains), right, wrong, failed)

    def log_wealth(self, epsilon: Floats) -> Floats:
        """Returns the log wealth of the bets against each ε, float64 [n] like `epsilon`.

        It sums log(c / q) for correct guesses and log((1 - c) / (1 - q)) for wrong ones.
        """
        # First of the canaries with c > q.
        first = np.searchsorted(self.log_odds, epsilon, side="right")
        log_q = log_expit(epsilon)
        log_not_q = log_expit(-epsilon)  # log(1 - q)
        wealth = self.gains_from[first] - self.correct_from[first] * log_q
        wealth = wealth - self.wrong_from[first] * log_not_q
        largest_loss = log_expit(-LARGEST) - log_not_q
        return np.asarray(wealth + self.failed * largest_loss)

    def largest_refuted(self, canaries: int, delta: float, alpha: float) -> float:
        """Returns the last ε of the grid before the first that is not refuted; 0 if none is.

        Args:
            canaries: m, those with a random bit.
            delta: δ, in [0, 1].
            alpha: error probability, in (0, 1).
        """
        refuted = self.log_wealth(GRID) >= refuting_log_wealth(canaries, delta, alpha)
        last = len(GRID) - 1
        if not refuted.all():
            last = int(np.argmin(refuted)) - 1
        return float(GRID[max(last, 0)])


def _sums_from(values: Floats | Members) -> Floats:
    """Returns the sum of each element and all behind it, and a 0 at the end: [n + 1]."""
    sums = np.cumsum(values[::-1])[::-1]
    return np.concatenate([sums, [0]])


@functools.lru_cache
def refuting_log_wealth(canaries: int, delta: float, alpha: float) -> Floats:
    """Returns the log wealth that refutes each ε of the grid, float64 [GRID].

    It is the least over i of -log(a) - i log(q), where a + m δ / (i + 1) = α, by the inequality of
    the module; infinite where no a is above 0. Arguments are those of `Evidence.largest_refuted`.
    """
    remaining = alpha - canaries * delta / (_LEAKS + 1)
    with np.errstate(divide="ignore"):
        without_leaks = -np.log(np.maximum(remaining, 0.0))
    leaks = np.outer(_LEAKS, log_expit(GRID))
    log_wealth = without_leaks[:, None] - leaks
    return np.asarray(log_wealth.min(axis=0))
