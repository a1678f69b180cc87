"""Bounds on μ from bits guessed simultaneously: canaries of one training run, or many runs.

One run (Mahloujifar, Melis, Chaudhuri 2025, Algorithm 3, for two choices per canary): for a
candidate μ, the number of correct guesses goes down from the observed v, one by one. ρ and η bound
the mass of "correct" and "wrong" at or above each count, and the blow-up g(x) = Φ(Φ⁻¹(x) - μ) of
μ-GDP determines how fast they grow. A μ whose masses exceed r / m, of r guesses on m canaries, is
refuted.

Independent runs with one bit each do not interfere: the r most confident of m guesses err like r
samples beyond the (r + 1)-th most extreme of m samples from the worst pair of distributions (Xiang
et al. 2025), if r is fixed before any output is observed. Canaries of one run may interfere;
`order_statistics` has the assumption under which the same holds for them.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtr, betaincinv, ndtr, ndtri

from . import gdp
from .base import Estimator
from .error_rates import Floats, check_counts, in_unit, last_refuted, nonnegative
from .lower_bound import Estimate, Status
from .one_run import Canaries, largest_refuted

SHARE = 0.6  # share of independent trials that are guessed
_LARGEST_MU = 40.0  # above any μ that a run could refute
_NODES = 128  # nodes of the quadrature over order statistics


def mu_lower(
    correct: int,
    guesses: int,
    canaries: int,
    confidence: float,
) -> float:
    """Computes a lower bound on μ from one training run; 0 if no μ is refuted.

    Args:
        correct: number of correct guesses.
        guesses: number of guesses, made from the run's output alone.
        canaries: number of canaries with a random bit, guessed or not.
        confidence: confidence of the bound, in (0, 1).
    """
    in_unit("confidence", confidence)
    check_counts(correct, guesses, canaries)
    if guesses == 0:
        return 0.0

    return largest_refuted(
        lambda mu: _is_refuted(mu, correct, guesses, canaries, 1 - confidence), _LARGEST_MU
    )


@dataclass
class OneRunFdp(Canaries, Estimator):
    """Bound on μ from one training run; its ε assumes a Gaussian trade-off function.

    `independent` training runs have the tighter `gaussian_mu`, for `guesses` or 60 % of the trials.
    """

    name = "one-run-fdp"
    status = Status.IF_GAUSSIAN
    one_run = True
    _lower = staticmethod(mu_lower)  # lower bound for canaries of one training run

    def bound(self, delta: float, confidence: float) -> Estimate:
        """Bounds μ by correct guesses, and converts it to the ε of a Gaussian mechanism."""
        total = len(self._log)
        threshold = math.nan
        if self.independent:
            mu, threshold = self._independent(confidence)
        else:
            mu = self._of_one_training(self._lower, confidence)
        epsilon = float(gdp.epsilon(mu, delta))
        return self._estimate(epsilon, mu, (delta, confidence), total, threshold)

    def _independent(self, confidence: float) -> tuple[float, float]:
        """Returns a bound on μ from runs of one canary each, and the lowest score guessed "in".

        They are 0 and NaN if more trials failed than are to be guessed.
        """
        masks, failed, trials = self._masks()
        guesses = min(self.fixed or math.ceil(SHARE * trials), trials)
        made = masks.fixed(guesses - failed)  # none if that is negative
        if made.guesses + failed != guesses:
            return 0.0, math.nan
        mu = gaussian_mu(made.right, guesses, trials, confidence) if guesses else 0.0
        return mu, made.threshold


def _is_refuted(
    mu: float,
    correct: int,
    guesses: int,
    canaries: int,
    level: float,
) -> bool:
    """Returns whether μ is refuted: the masses ρ + η of Algorithm 3 exceed guesses / canaries.

    Args:
        mu: the candidate.
        correct: number of correct guesses, from which the masses are followed down to 0.
        guesses: number of guesses.
        canaries: number of canaries with a random bit, guessed or not.
        level: error probability: that of `correct` or more correct guesses.
    """
    rho = level * correct / canaries
    eta = level * (guesses - correct) / canaries
    limit = guesses / canaries
    for i in range(correct - 1, -1, -1):
        blow_up = float(ndtr(ndtri(rho) - mu))
        if blow_up <= eta:
            break  # nothing changes any more
        growth = i / (guesses - i) * (blow_up - eta)
        rho = min(1.0, rho + growth)
        eta = blow_up
        if rho + eta > limit:
            return True  # their sum only grows
    return rho + eta > limit and not math.isnan(rho)


def gaussian_p_value(
    mistakes: int,
    guesses: int,
    canaries: int,
    mu: float,
) -> float:
    """Computes P(at most `mistakes` among the most confident guesses) if canaries do not interfere.

    Args:
        mistakes: largest number of wrong guesses.
        guesses: number of guesses, fixed beforehand.
        canaries: number of canaries with a random bit, guessed or not.
        mu: μ, the GDP parameter of each canary.
    """
    check_counts(mistakes, guesses, canaries)
    nonnegative("mu", mu)
    if guesses == canaries:
        return float(bdtr(mistakes, guesses, ndtr(-mu / 2)))
    # Probability beyond the (r + 1)-th largest |score| of N(±μ/2, 1), at Gauss-Legendre quantiles.
    nodes, weights = _quadrature()
    mass = betaincinv(guesses + 1, canaries - guesses, (nodes + 1) / 2)
    # Bisects the |score| with this probability beyond it.
    low = np.zeros_like(mass)
    high = np.full_like(mass, mu / 2 + 40.0)  # beyond 40 standard deviations lies no mass
    for _ in range(60):  # bisection to the last bits
        middle = (low + high) / 2
        mass_beyond = ndtr(mu / 2 - middle) + ndtr(-mu / 2 - middle)
        below = mass_beyond > mass
        low = np.where(below, middle, low)
        high = np.where(below, high, middle)
    rates = ndtr(-(low + high) / 2 - mu / 2) / mass  # of mistakes among guesses beyond it
    return float(bdtr(mistakes, guesses, rates) @ weights) / 2


@functools.cache  # takes 3 ms, and is needed for each of hundreds of μ
def _quadrature() -> tuple[Floats, Floats]:
    """Returns nodes and weights of the Gauss-Legendre rule on [-1, 1], float64 [_NODES] each."""
    return np.polynomial.legendre.leggauss(_NODES)


def gaussian_mu(
    correct: int,
    guesses: int,
    canaries: int,
    confidence: float,
) -> float:
    """Computes a lower bound on μ; its arguments are those of `mu_lower`.

    It assumes that canaries do not interfere: given its own bit, no canary's score depends on the
    bits of others.
    """
    in_unit("confidence", confidence)
    check_counts(correct, guesses, canaries)

    def excess(mu: float) -> float:
        """Returns the error of the bound, less the p-value against μ: above 0 if μ is refuted."""
        return (1 - confidence) - gaussian_p_value(guesses - correct, guesses, canaries, mu)

    return last_refuted(excess, most=_LARGEST_MU, xtol=1e-10)
