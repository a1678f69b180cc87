"""Bounds on μ from bits guessed all at once: canaries of one training, or many trainings.

One training (Mahloujifar, Melis, Chaudhuri 2025, Algorithm 3, for two choices per canary): for a
candidate μ-GDP curve, the number of right guesses is followed downwards from the observed v. ρ and
η bound the mass of "right" and "wrong" at or above each count, and the curve's blow-up g(x) =
Φ(Φ⁻¹(x) - μ) says how fast they must shrink. A μ whose masses exceed r / m is refuted.

Independent trainings of one coin each do not interfere: the r most confident of m guesses err like
r draws beyond the (r + 1)-th most extreme of m draws from the worst pair of distributions (Xiang et
al. 2025), as long as r is fixed before any output is seen. Of canaries of one training, which may
interfere, that proves nothing without more; `order_statistics` says with what.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import ClassVar

import numpy as np
from scipy import special

from . import gdp
from .base import Estimator
from .error_rates import Floats, check_counts, in_unit, last_refuted, nonnegative
from .lower_bound import Estimate, Status
from .one_run import Canaries, largest_refuted

SHARE = 0.6  # of independent trials that are guessed
_LARGEST_MU = 40.0  # beyond any μ that a run could show
_NODES = 128  # of the quadrature over order statistics


@dataclasses.dataclass
class OneRunFdp(Canaries, Estimator):
    """Bound on μ from one training; its ε assumes that the curve is Gaussian.

    `independent` trainings have the sharper `gaussian_mu`, for `guesses` or 60 % of the trials.
    """

    name: ClassVar[str] = "one-run-fdp"
    status: ClassVar[Status] = Status.IF_GAUSSIAN
    one_run: ClassVar[bool] = True

    def bound(self, delta: float, confidence: float) -> Estimate:
        total, threshold = len(self._log), math.nan
        if self.independent:
            mu, threshold = self._independent(confidence)
        else:
            mu = self._of_one_training(lambda v, r, at: self.lower(v, r, total, at), confidence)
        epsilon = float(gdp.epsilon(mu, delta))
        return self._estimate(epsilon, mu, (delta, confidence), total, threshold)

    def lower(self, correct: int, guesses: int, canaries: int, confidence: float) -> float:
        """The bound on μ from so many right guesses of canaries of one training."""
        return mu_lower(correct, guesses, canaries, confidence)

    def _independent(self, confidence: float) -> tuple[float, float]:
        """(bound on μ, threshold) from trainings of one canary each; misses are wrong."""
        masks, missed, trials = self._masks()
        wanted = min(self.fixed or math.ceil(SHARE * trials), trials)
        judged = masks.fixed(wanted - missed)  # so many are guessed, or none if that is negative
        if judged.guesses + missed != wanted:
            return 0.0, math.nan  # more trials gave nothing than were to be guessed
        mu = gaussian_mu(judged.right, wanted, trials, confidence) if wanted else 0.0
        return mu, judged.threshold


def mu_lower(correct: int, guesses: int, canaries: int, confidence: float) -> float:
    """Lower bound on μ from one training run, 0 for none; arguments as `one_run.epsilon_lower`."""
    in_unit("confidence", confidence)
    check_counts(correct, guesses, canaries)
    if guesses == 0:
        return 0.0
    level = 1 - confidence
    return largest_refuted(lambda mu: _refuted(mu, correct, guesses, canaries, level), _LARGEST_MU)


def _refuted(mu: float, correct: int, guesses: int, canaries: int, level: float) -> bool:
    """Whether the masses of Algorithm 3, started at `level`, exceed what μ-GDP allows."""
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


def gaussian_p_value(mistakes: int, guesses: int, canaries: int, mu: float) -> float:
    """P(at most `mistakes` among the most confident `guesses`) if each canary is μ-GDP."""
    check_counts(mistakes, guesses, canaries)
    nonnegative("mu", mu)
    if guesses == canaries:
        return float(special.bdtr(mistakes, guesses, special.ndtr(-mu / 2)))
    # Mass beyond the (r + 1)-th largest |score| of N(±μ/2, 1), at Gauss-Legendre quantiles.
    nodes, weights = _quadrature()
    mass = special.betaincinv(guesses + 1, canaries - guesses, (nodes + 1) / 2)
    low, high = np.zeros_like(mass), np.full_like(mass, mu / 2 + 40.0)  # of these |scores|
    for _ in range(60):
        cut = (low + high) / 2
        beyond = special.ndtr(mu / 2 - cut) + special.ndtr(-mu / 2 - cut) > mass
        low, high = np.where(beyond, cut, low), np.where(beyond, high, cut)
    rates = special.ndtr(-(low + high) / 2 - mu / 2) / mass
    return float(special.bdtr(mistakes, guesses, rates) @ weights) / 2


@functools.cache  # 3 ms, for each of hundreds of μ
def _quadrature() -> tuple[Floats, Floats]:
    """Nodes and weights of the Gauss-Legendre rule on [-1, 1], float64 [_NODES] each."""
    return np.polynomial.legendre.leggauss(_NODES)


def gaussian_mu(correct: int, guesses: int, canaries: int, confidence: float) -> float:
    """The μ refuted at `confidence` if canaries did not interfere; 0 when nothing is shown."""
    in_unit("confidence", confidence)
    check_counts(correct, guesses, canaries)

    def excess(mu: float) -> float:
        return (1 - confidence) - gaussian_p_value(guesses - correct, guesses, canaries, mu)

    return last_refuted(excess, most=_LARGEST_MU, xtol=1e-10)
