"""The papers' own procedures, verbatim, so that their figures can be compared.

They maximise over thresholds, or over numbers of guesses, on the very scores that the bound is
computed from. The nominal 5 % error was measured at 6 to 14 % for 1000 to 5000 trials; of 1000
one-run audits of randomised response at ε = 1 with 1000 canaries, δ = 0, 48 % exceeded the truth.
So their status is `paper`, and supports no verdict.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from . import gdp
from .base import Estimator, Members, Scores
from .lower_bound import Estimate, Status
from .one_run import epsilon_lower, p_value
from .threshold_rates import Gain, Worlds, best_test, epsilon_of_rates, mu_of_rates
from .trial_log import Logged, settled

_COUNTS_TRIED = 24  # numbers of guesses of each kind, beside none


@dataclasses.dataclass
class _BestThreshold(Logged, Estimator):
    status: ClassVar[Status] = Status.PAPER
    fair: ClassVar[bool] = False

    def _best(self, alpha: float, gain: Gain) -> tuple[float, float]:
        """No paper speaks of diverged trials: they are errors at every threshold."""
        scores, members = self._log.arrays()
        worlds = Worlds.from_scores(settled(scores, members, len(scores)), members)
        return best_test(worlds, alpha, gain)


@dataclasses.dataclass
class PaperGdp(_BestThreshold):
    """Cebere, Bellet, Papernot, Algorithm 4: best threshold, two-sided intervals, GDP.

    Error rates get *upper* bounds; the paper's text says "lower bound", which would bound nothing.
    """

    name: ClassVar[str] = "paper-gdp"

    def bound(self, delta: float, confidence: float) -> Estimate:
        mu, threshold = self._best(1 - confidence, mu_of_rates)
        epsilon = gdp.epsilon(max(mu, 0.0), delta)
        return self._estimate(epsilon, mu, (delta, confidence), len(self._log), threshold)


@dataclasses.dataclass
class PaperEpsDelta(_BestThreshold):
    """Nasr et al. 2021, eq. 4-5: best threshold, two-sided intervals, no trade-off curve.

    The paper prints the inequality the wrong way round; read rightly it is that of `eps-delta`.
    """

    name: ClassVar[str] = "paper-eps-delta"

    def bound(self, delta: float, confidence: float) -> Estimate:
        level = (delta, confidence)
        shown, threshold = self._best(1 - confidence, lambda a, b: epsilon_of_rates(a, b, delta))
        return self._estimate(shown, math.nan, level, len(self._log), threshold)


@dataclasses.dataclass
class PaperOneRun(Logged, Estimator):
    """The best of some 600 pairs (k+, k-), each at the full confidence.

    `independent` trainings of one canary each are judged as if they were one.
    """

    independent: bool = False

    name: ClassVar[str] = "paper-one-run"
    status: ClassVar[Status] = Status.PAPER
    one_run: ClassVar[bool] = True

    def bound(self, delta: float, confidence: float) -> Estimate:
        scores, members = self._log.arrays()
        best = largest_of_pairs(scores, members, delta, confidence)
        return self._estimate(best, math.nan, (delta, confidence), len(scores))


def largest_of_pairs(scores: Scores, members: Members, delta: float, confidence: float) -> float:
    """Largest ε of Theorem 3.1 over pairs (k+, k-); those that cannot beat it are not solved."""
    finite = np.isfinite(scores)
    order = np.argsort(scores[finite], kind="stable")
    rising, bits = scores[finite][order], members[finite][order]
    total, best = len(scores), 0.0
    inside = np.concatenate([[0], np.cumsum(bits[::-1])])
    outside = np.concatenate([[0], np.cumsum(~bits)])
    for above in _counts(rising[::-1]):
        for below in _counts(rising):
            guesses, right = int(above + below), int(inside[above] + outside[below])
            if guesses > len(bits) or right == 0:
                continue
            if p_value(right, guesses, total, best, delta) < 1 - confidence:
                best = epsilon_lower(right, guesses, total, delta, confidence)
    return best


def _counts(scores: Scores) -> npt.NDArray[np.intp]:
    """How many of the first to guess: none, and some numbers that part no equal scores."""
    ends = np.flatnonzero(np.r_[np.diff(scores) != 0, len(scores) > 0]) + 1
    wanted = np.geomspace(1, max(len(scores), 1), _COUNTS_TRIED).astype(int)
    at = np.searchsorted(ends, wanted, side="right") - 1
    return np.unique(np.r_[0, ends[at[at >= 0]]])
