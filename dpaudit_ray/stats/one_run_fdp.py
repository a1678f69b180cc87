"""Bounds on μ from bits guessed all at once: canaries of one training, or many trainings.

One training (Mahloujifar, Melis, Chaudhuri 2025, Algorithm 3, for two choices per canary): for a
candidate μ-GDP curve, the number of right guesses is followed downwards from the observed v. ρ and
η bound the mass of "right" and "wrong" at or above each count, and the curve's blow-up
g(x) = Φ(Φ⁻¹(x) - μ) says how fast they must shrink. A μ whose masses exceed r / m is refuted.

Independent trainings of one coin each do not interfere: the r most confident of m guesses err like
r draws beyond the (r + 1)-th most extreme of m draws from the worst pair of distributions (Xiang et
al. 2025). Given all outputs their bits, and so the mistakes, are independent, and no r of them err
less than the r most extreme. That is far tighter than the recursion, and certified as long as r is
fixed before any output is seen. Canaries of one training may interfere: of them it proves nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from scipy import special

from . import gdp
from .base import Estimator
from .error_rates import check_counts, in_unit, nonnegative, root
from .lower_bound import Estimate, Status
from .one_run import Canaries, largest_refuted

SHARE = 0.6  # of independent trials that are guessed
_LARGEST_MU = 40.0  # beyond any μ that a run could show
_NODES = 128  # of the quadrature over order statistics
Floats = npt.NDArray[np.float64]


@dataclasses.dataclass
class OneRunFdp(Canaries, Estimator):
    """Bound on μ from one training; its ε assumes that the curve is Gaussian.

    `independent` trainings do not interfere, so the sharper `gaussian_mu` holds for a number of
    guesses that no output had a part in: `guesses`, or `SHARE` of the trials.
    """

    name: ClassVar[str] = "one-run-fdp"
    status: ClassVar[Status] = Status.IF_GAUSSIAN
    one_run: ClassVar[bool] = True

    def bound(self, delta: float, confidence: float) -> Estimate:
        total, threshold = len(self._log), math.nan
        if self.independent:
            mu, threshold = self._independent(confidence)
        else:
            mu = self._of_one_training(lambda v, r, split: mu_lower(v, r, total, split), confidence)
        epsilon = float(gdp.epsilon(mu, delta))
        return self._estimate(epsilon, mu, (delta, confidence), total, threshold)

    def _independent(self, confidence: float) -> tuple[float, float]:
        """(lower bound on μ, threshold on scores) from trainings of one canary each.

        The surest `fixed` trials are guessed, or a SHARE of them. A training without output could
        have failed because of its bit, so it counts as a wrong guess.
        """
        masks, missed, trials = self._masks()
        wanted = min(self.fixed or math.ceil(SHARE * trials), trials)
        judged = masks.fixed(wanted - missed)  # so many are guessed, or none if that is negative
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

    Raises ValueError for an argument outside its bounds.
    """
    in_unit("confidence", confidence)
    check_counts(correct, guesses, canaries, 0.0)
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
    """P(at most `mistakes` among the most confident `guesses`) if each canary is μ-GDP.

    Raises ValueError for counts out of order, or a negative μ.
    """
    check_counts(mistakes, guesses, canaries)
    nonnegative("mu", mu)
    if guesses == canaries:
        return float(special.bdtr(mistakes, guesses, special.ndtr(-mu / 2)))
    # Mass beyond the (r + 1)-th largest |score| of N(±μ/2, 1), at Gauss-Legendre quantiles.
    nodes, weights = _quadrature()
    mass = special.betaincinv(guesses + 1, canaries - guesses, (nodes + 1) / 2)
    cut = _cut(mass, mu)
    rates = special.ndtr(-cut - mu / 2) / mass
    return float(special.bdtr(mistakes, guesses, rates) @ weights) / 2


@functools.cache  # 3 ms, for each of hundreds of μ
def _quadrature() -> tuple[Floats, Floats]:
    """Nodes and weights of the Gauss-Legendre rule on [-1, 1], float64 [_NODES] each."""
    return np.polynomial.legendre.leggauss(_NODES)


def gaussian_mu(correct: int, guesses: int, canaries: int, confidence: float) -> float:
    """The μ refuted at `confidence` if canaries did not interfere; 0 when nothing is shown.

    Raises ValueError for counts out of order, or a confidence outside (0, 1).
    """
    in_unit("confidence", confidence)
    check_counts(correct, guesses, canaries)

    def excess(mu: float) -> float:
        return gaussian_p_value(guesses - correct, guesses, canaries, mu) - (1 - confidence)

    if excess(0.0) >= 0:
        return 0.0
    high = 1.0
    while excess(high) < 0 and high < _LARGEST_MU:
        high *= 2
    return root(excess, 0.0, high, xtol=1e-10) if excess(high) >= 0 else high


def _cut(mass: Floats, mu: float) -> Floats:
    """t with P(|N(μ/2, 1)| > t) = mass, by bisection on all nodes at once."""
    low, high = np.zeros_like(mass), np.full_like(mass, mu / 2 + 40.0)
    for _ in range(60):
        middle = (low + high) / 2
        beyond = special.ndtr(mu / 2 - middle) + special.ndtr(-mu / 2 - middle) > mass
        low, high = np.where(beyond, middle, low), np.where(beyond, high, middle)
    return (low + high) / 2
