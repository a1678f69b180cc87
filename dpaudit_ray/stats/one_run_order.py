"""One training, many canaries that do not interfere: how often the most confident guesses err.

If canaries were independent given their bits, the r most confident of m guesses would err like r
draws beyond the (r + 1)-th most extreme of m draws from the worst pair of distributions (Xiang et
al. 2025). That is far tighter than Theorem 3.1 (`one_run`), and not certified: canaries in one
training do interfere, and dependence cannot be excluded from one run. For looking at, beside the
bounds. Independent trainings of one coin each are such canaries: given all outputs their bits, and
so the mistakes, are independent, and no r of them err less than the r most extreme. That certifies
as long as r is fixed before any output is seen; `independent` says what to do when it is not.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
from scipy import special

from .binomial import check_alpha, check_counts

Floats = npt.NDArray[np.float64]
_NODES = 128
_LARGEST = 40.0


def gaussian_p_value(mistakes: int, guesses: int, canaries: int, mu: float) -> float:
    """P(at most `mistakes` among the most confident `guesses`) if each canary is μ-GDP.

    Raises:
        ValueError: counts out of order, or a negative μ.
    """
    check_counts(mistakes, guesses, canaries)
    if not mu >= 0:
        raise ValueError(f"mu must be at least 0, got {mu}")
    if guesses == canaries:
        return float(special.bdtr(mistakes, guesses, special.ndtr(-mu / 2)))
    # Mass beyond the (r + 1)-th largest |score| of N(±μ/2, 1), at Gauss-Legendre quantiles.
    nodes, weights = _quadrature()
    mass = special.betaincinv(guesses + 1, canaries - guesses, (nodes + 1) / 2)
    cut = _cut(mass, mu)
    rates = special.ndtr(-cut - mu / 2) / mass
    return float(special.bdtr(mistakes, guesses, rates) @ weights) / 2


def gaussian_mu(correct: int, guesses: int, canaries: int, confidence: float) -> float:
    """The μ refuted at `confidence` if canaries did not interfere; 0 when nothing is shown.

    Raises:
        ValueError: counts out of order, or confidence outside (0, 1).
    """
    from scipy import optimize  # as long to import as all else of this package

    check_alpha(1 - confidence)
    check_counts(correct, guesses, canaries)

    def excess(mu: float) -> float:
        return gaussian_p_value(guesses - correct, guesses, canaries, mu) - (1 - confidence)

    if excess(0.0) >= 0:
        return 0.0
    high = 1.0
    while excess(high) < 0 and high < _LARGEST:
        high *= 2
    return float(optimize.brentq(excess, 0.0, high, xtol=1e-10)) if excess(high) >= 0 else high


@functools.cache
def _quadrature() -> tuple[Floats, Floats]:
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return nodes, weights


def _cut(mass: Floats, mu: float) -> Floats:
    """t with P(|N(μ/2, 1)| > t) = mass, by bisection on all nodes at once."""
    low, high = np.zeros_like(mass), np.full_like(mass, mu / 2 + 40.0)
    for _ in range(60):
        middle = (low + high) / 2
        beyond = special.ndtr(mu / 2 - middle) + special.ndtr(-mu / 2 - middle) > mass
        low, high = np.where(beyond, middle, low), np.where(beyond, high, middle)
    return (low + high) / 2
