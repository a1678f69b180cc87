"""One training, many canaries, read as a bound on μ.

Mahloujifar, Melis, Chaudhuri (2025), Algorithm 3, for two choices per canary. For a candidate
μ-GDP curve, the number of right guesses is followed downwards from the observed v: ρ and η bound
the mass of "right" and "wrong" at or above each count, and the curve's blow-up
g(x) = Φ(Φ⁻¹(x) - μ) says how fast they must shrink. A μ whose masses exceed r / m is refuted.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from scipy import special

from . import gdp
from .base import Estimator
from .binomial import check_counts
from .one_run import Canaries
from .one_run_order import gaussian_mu
from .statement import Estimate, Status

SHARE = 0.6  # of independent trials that are guessed
_LARGEST, _PRECISION = 40.0, 1e-10


@dataclasses.dataclass
class OneRunFdp(Canaries, Estimator):
    """Bound on μ from one training; its ε assumes that the curve is Gaussian.

    `independent` trainings do not interfere, so the sharper `one_run_order` holds for a number of
    guesses that no output had a part in: `guesses`, or `SHARE` of the trials.
    """

    name: ClassVar[str] = "one-run-fdp"
    status: ClassVar[Status] = Status.IF_GAUSSIAN
    one_run: ClassVar[bool] = True

    def bound(self, delta: float, confidence: float) -> Estimate:
        level = (delta, confidence)
        mu, threshold = self._independent(confidence) if self.independent else (0.0, math.nan)
        if not self.independent:
            attempts = self._attempts()
            split = 1 - (1 - confidence) / max(len(attempts), 1)
            bounds = [mu_lower(v, r, len(self._log), split) for v, r in attempts]
            mu = max(bounds, default=0.0)
        epsilon = float(gdp.epsilon(mu, delta))
        return self._estimate(epsilon, mu, level, len(self._log), threshold)

    def _independent(self, confidence: float) -> tuple[float, float]:
        """(μ, threshold) of many trainings; those without output are among the guesses."""
        masks, missed, trials = self._masks()
        wanted = min(self.fixed or math.ceil(SHARE * trials), trials)
        judged = masks.fixed(wanted - missed)
        if judged.guesses + missed != wanted:
            return 0.0, math.nan  # more trials gave nothing than were to be guessed
        mu = gaussian_mu(judged.right, wanted, trials, confidence) if wanted else 0.0
        return mu, judged.threshold


def mu_lower(correct: int, guesses: int, canaries: int, confidence: float) -> float:
    """Lower bound on μ from one training run; 0 when nothing is shown.

    Args:
        correct: right guesses, v.
        guesses: guesses made, r; from the training's output alone.
        canaries: canaries that had a coin, m, guessed or not.
        confidence: level of the bound, in (0, 1).

    Raises:
        ValueError: an argument outside its bounds.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie in (0, 1), got {confidence}")
    check_counts(correct, guesses, canaries, 0.0)
    level = 1 - confidence
    if guesses == 0 or not _refuted(0.0, correct, guesses, canaries, level):
        return 0.0
    low, high = 0.0, 1.0
    while high < _LARGEST and _refuted(high, correct, guesses, canaries, level):
        low, high = high, 2 * high
    while high - low > _PRECISION * max(high, 1.0):
        middle = (low + high) / 2
        refuted = _refuted(middle, correct, guesses, canaries, level)
        low, high = (middle, high) if refuted else (low, middle)
    return low


def _refuted(mu: float, correct: int, guesses: int, canaries: int, level: float) -> bool:
    rho = level * correct / canaries
    eta = level * (guesses - correct) / canaries
    limit = guesses / canaries
    for i in range(correct - 1, -1, -1):
        shrunk = float(special.ndtr(special.ndtri(rho) - mu))
        if shrunk <= eta:
            break  # nothing changes any more
        rho = min(1.0, rho + i / (guesses - i) * (shrunk - eta))
        eta = shrunk
        if rho + eta > limit:
            return True  # both only grow
    return rho + eta > limit and not math.isnan(rho)
