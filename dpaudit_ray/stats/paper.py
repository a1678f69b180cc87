"""Procedures of the papers, verbatim, so that their figures can be compared.

They maximise over thresholds, or over numbers of guesses, on the scores from which the bound is
computed. Instead of the nominal 5 %, errors of 6 to 14 % were measured for 1000 to 5000 trials; of
1000 one-run audits of randomised response at ε = 1 with 1000 canaries and δ = 0, 48 % exceeded the
truth. So their status is `paper`, which supports no verdict.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from . import gdp
from .base import Estimator, Members, Scores
from .lower_bound import Estimate, Status
from .one_run import epsilon_lower, p_value
from .threshold_rates import Gain, Worlds, best_test, epsilon_of_rates, mu_of_rates
from .trial_log import Logged, with_diverged_guessed

_COUNTS_TRIED = 24  # numbers of guesses of each kind, in addition to 0


@dataclass
class _BestThreshold(Logged, Estimator):
    """Base of the papers' bounds, at the threshold that is best on the same trials."""

    status = Status.PAPER
    fair = False

    def _best(
        self,
        alpha: float,
        gain: Gain,
    ) -> tuple[float, float]:
        """Returns the largest bound over all thresholds, and its threshold.

        The papers do not mention diverged trials: here, they are errors at every threshold.

        Args:
            alpha: error probability at each threshold, half of which is for either error rate.
            gain: maps upper bounds on both error rates to a bound on ε or μ.
        """
        scores, members = self._log.arrays()
        scores = with_diverged_guessed(scores, members, len(scores))
        worlds = Worlds.from_scores(scores, members)
        return best_test(worlds, alpha, gain)


@dataclass
class PaperGdp(_BestThreshold):
    """Cebere, Bellet, Papernot, Algorithm 4: best threshold, two-sided intervals, GDP.

    Error rates get *upper* bounds; the "lower bound" of the paper's text would bound nothing.
    """

    name = "paper-gdp"

    def bound(self, delta: float, confidence: float) -> Estimate:
        """Converts the largest μ of all thresholds to ε, as published."""
        level = delta, confidence
        mu, threshold = self._best(1 - confidence, mu_of_rates)
        epsilon = gdp.epsilon(max(mu, 0.0), delta)
        return self._estimate(epsilon, mu, level, len(self._log), threshold)


@dataclass
class PaperEpsDelta(_BestThreshold):
    """Nasr et al. 2021, eq. 4-5: best threshold, two-sided intervals, no trade-off curve.

    The paper prints the inequality the wrong way round; the right one is that of `eps-delta`.
    """

    name = "paper-eps-delta"

    def bound(self, delta: float, confidence: float) -> Estimate:
        """Bounds ε at the threshold that is best for these trials, as the paper does."""
        level = delta, confidence
        gain = functools.partial(epsilon_of_rates, delta=delta)
        epsilon, threshold = self._best(1 - confidence, gain)
        return self._estimate(epsilon, math.nan, level, len(self._log), threshold)


@dataclass
class PaperOneRun(Logged, Estimator):
    """The best of some 600 pairs (k+, k-), each at the full confidence.

    `independent` training runs of one canary each are judged as if they were one run.
    """

    independent: bool = False

    name = "paper-one-run"
    status = Status.PAPER
    one_run = True

    def bound(self, delta: float, confidence: float) -> Estimate:
        """Takes the best of all pairs of numbers of guesses, as published."""
        scores, members = self._log.arrays()
        epsilon = largest_of_pairs(scores, members, delta, confidence)
        level = delta, confidence
        return self._estimate(epsilon, math.nan, level, len(scores))


def largest_of_pairs(
    scores: Scores,
    members: Members,
    delta: float,
    confidence: float,
) -> float:
    """Returns the largest ε of Theorem 3.1 over pairs (k+, k-).

    Args:
        scores: float64 [m]; those that are not finite are not guessed.
        members: the secret bits, bool [m].
        delta: δ, in [0, 1].
        confidence: confidence of the bound for each pair, in (0, 1).
    """
    finite = np.isfinite(scores)
    order = np.argsort(scores[finite], kind="stable")
    rising = scores[finite][order]
    bits = members[finite][order]
    canaries = len(scores)
    # Correct guesses of "in" by the number of highest scores, and of "out" by that of lowest ones.
    correct_in = np.concatenate([[0], np.cumsum(bits[::-1])])
    correct_out = np.concatenate([[0], np.cumsum(~bits)])
    best = 0.0
    for above in _counts(rising[::-1]):
        for below in _counts(rising):
            guesses = int(above + below)
            correct = int(correct_in[above] + correct_out[below])
            if guesses > len(bits) or correct == 0:
                continue
            # Pairs that do not refute the best ε so far are not solved.
            if p_value(correct, guesses, canaries, best, delta) < 1 - confidence:
                best = epsilon_lower(correct, guesses, canaries, delta, confidence)
    return best


def _counts(scores: Scores) -> NDArray[np.intp]:
    """Returns 0 and some numbers of first scores between which no equal scores are divided.

    Args:
        scores: sorted scores, float64 [n].
    """
    n = len(scores)
    # Numbers of first scores after which another value follows, or none.
    ends = np.flatnonzero(np.r_[np.diff(scores) != 0, n > 0]) + 1
    numbers = np.geomspace(1, max(n, 1), _COUNTS_TRIED).astype(int)
    last = np.searchsorted(ends, numbers, side="right") - 1
    return np.unique(np.r_[0, ends[last[last >= 0]]])
