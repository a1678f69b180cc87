"""The papers' own procedures, verbatim, so that their figures can be compared.

They maximise over thresholds on the very scores that the interval is computed from. The
Clopper-Pearson interval is not uniform over such choices: the nominal 5 % error was measured at
6 to 14 % for 1000 to 5000 trials. Their status is `paper`; they never support a verdict.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from . import gdp
from .base import Estimator
from .diverged import settled
from .rates import epsilon_of_rates
from .rates_gdp import mu_of_rates
from .statement import Estimate, Status
from .thresholds import Logged, TrialLog, Worlds, best_test, two_rate_uppers


@dataclasses.dataclass
class PaperGdp(Logged, Estimator):
    """Cebere, Bellet, Papernot, Algorithm 4: best threshold, two-sided intervals, GDP."""

    name: ClassVar[str] = "paper-gdp"
    status: ClassVar[Status] = Status.PAPER
    fair: ClassVar[bool] = False

    def bound(self, delta: float, confidence: float) -> Estimate:
        mu, threshold = algorithm_4(_as_published(self._log), confidence)
        epsilon = gdp.epsilon(max(mu, 0.0), delta)
        return self._estimate(epsilon, mu, (delta, confidence), len(self._log), threshold)


@dataclasses.dataclass
class PaperEpsDelta(Logged, Estimator):
    """Nasr et al. 2021, eq. 4-5: best threshold, two-sided intervals, no trade-off curve.

    The paper prints the inequality the wrong way round; read rightly it is that of `eps-delta`.
    """

    name: ClassVar[str] = "paper-eps-delta"
    status: ClassVar[Status] = Status.PAPER
    fair: ClassVar[bool] = False

    def bound(self, delta: float, confidence: float) -> Estimate:
        worlds = _as_published(self._log)
        epsilon, threshold = best_test(
            worlds,
            two_rate_uppers(worlds.sizes, 1 - confidence),
            lambda a, b: epsilon_of_rates(a, b, delta),
        )
        level = (delta, confidence)
        return self._estimate(epsilon, math.nan, level, len(self._log), threshold)


def _as_published(log: TrialLog) -> Worlds:
    """No paper speaks of diverged trials: they are errors at every threshold."""
    scores, members = log.arrays()
    return Worlds.of(settled(scores, members, len(scores)), members)


def algorithm_4(worlds: Worlds, confidence: float) -> tuple[float, float]:
    """Largest μ over all thresholds, and that threshold; (0, NaN) when a world is empty.

    Error rates get *upper* bounds at (1 - confidence)/2 each, as the two-sided interval of the
    paper; the paper's text says "lower bound", which would not bound anything.
    """
    # ε grows with μ, so the best ε is the ε of the best μ: one conversion instead of thousands.
    return best_test(worlds, two_rate_uppers(worlds.sizes, 1 - confidence), mu_of_rates)
