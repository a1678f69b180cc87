"""An (ε, δ) bound that assumes no trade-off curve and may be looked at after every trial.

Wealth is spread over twelve thresholds, ways of guessing and six stakes (`wagers`); its
average is a supermartingale under (ε, δ)-DP, and an ε at which it reaches 1/alpha is refuted.
It certifies more than the best Clopper-Pearson bound under a simultaneous band.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from scipy import special

from .base import Estimator, Members, Scores
from .statement import Estimate, Status
from .wagers import Wagers


@dataclasses.dataclass
class EpsDeltaAnytime(Estimator):
    """Time-uniform assumption-free bound."""

    name: ClassVar[str] = "eps-delta-anytime"
    status: ClassVar[Status] = Status.CERTIFIED
    interim_valid: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._wagers = Wagers()

    def _fold(self, scores: Scores, members: Members) -> None:
        self._wagers.fold(scores, members)

    def _miss(self, members: Members) -> None:
        self._wagers.miss(len(members))

    def bound(self, delta: float, confidence: float) -> Estimate:
        wagers, level = self._wagers, (delta, confidence)
        epsilon = refuted_epsilon(wagers, delta, 1 - confidence)
        return self._estimate(epsilon, math.nan, level, wagers.trials, wagers.centre)


def refuted_epsilon(wagers: Wagers, delta: float, alpha: float) -> float:
    """The largest ε whose wealth has reached 1/alpha; 0 when not even ε = 0 is refuted."""

    from scipy import optimize  # as long to import as all else of this package

    def excess(epsilon: float) -> float:
        wealth = wagers.log_wealth([epsilon], [delta])
        return float(special.logsumexp(wealth)) - math.log(wealth.size) + math.log(alpha)

    if excess(0.0) < 0:
        return 0.0
    high = 1.0
    while excess(high) >= 0:  # each right guess earns at most e^-ε: this ends
        high *= 2
    return float(optimize.brentq(excess, 0.0, high, xtol=1e-10))
