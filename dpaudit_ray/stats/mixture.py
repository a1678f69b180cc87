"""The beta-binomial mixture: a test of "the hit rate never exceeds p" that may be looked at daily.

Mixing likelihood ratios against p over rates above p gives a supermartingale for every process
whose conditional hit rate stays at or below p. It exceeds 1/alpha with probability at most
alpha, ever (Ville 1939; Robbins 1970).
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from .binomial import check_alpha

Prior = tuple[float, float]
UNIFORM: Prior = (1.0, 1.0)


def anytime_lower(hits: int, trials: int, alpha: float, prior: Prior = UNIFORM) -> float:
    """Largest refuted hit rate ≥ 1/2; 0.5 when chance itself is not refuted.

    Raises:
        ValueError: `alpha` outside (0, 1), hits outside 0..trials, or a prior of no mass.
    """
    from scipy import optimize  # as long to import as all else of this package

    check_alpha(alpha)
    if not 0 <= hits <= trials:
        raise ValueError(f"hits must lie in 0..{trials}, got {hits}")
    if not min(prior) > 0:
        raise ValueError(f"prior must be two positive numbers, got {prior}")
    target = -math.log(alpha)

    def excess(rate: float) -> float:
        return log_mixture(rate, hits, trials, prior) - target

    if trials == 0 or excess(0.5) <= 0:
        return 0.5
    # Just below the observed rate the mixture has lost its evidence; between the two it crosses.
    top = min(hits / trials, 1 - 1e-15)
    if excess(top) >= 0:
        return top
    return float(optimize.brentq(excess, 0.5, top, xtol=1e-14, rtol=1e-14))


def log_mixture(rate: float, hits: int, trials: int, prior: Prior = UNIFORM) -> float:
    """Log of the mixture process against "the conditional hit rate never exceeds `rate`".

    The prior is Beta(prior) restricted to rates above `rate`, which makes it one-sided.
    """
    a, b = prior
    misses = trials - hits
    return float(
        special.betaln(a + hits, b + misses)
        - special.betaln(a, b)
        + _log_beta_tail(a + hits, b + misses, rate)
        - _log_beta_tail(a, b, rate)
        - hits * math.log(rate)
        - misses * math.log1p(-rate)
    )


def _log_beta_tail(a: float, b: float, x: float) -> float:
    """log P(Beta(a, b) > x), far beyond where the probability itself underflows."""
    tail = float(special.betaincc(a, b, x))
    if tail > 1e-290:
        return math.log(tail)
    # Only for x far above the mean, where this series (DLMF 8.17.8) falls at every term.
    k = np.arange(10_000)
    terms = np.cumprod((a + b + k) / (b + 1 + k) * (1 - x))
    series = 1 + float(terms.sum())
    return float(
        b * math.log1p(-x) + a * math.log(x) - math.log(b) - special.betaln(a, b)
        + math.log(series)
    )  # fmt: skip
