"""Bounds on a mean share: of independent units, each with a number of hits among its scores.

Units may have different distributions. Their mean share is Σ E[hits] / Σ size, given the sizes.

Betting (Waudby-Smith, Ramdas 2024), here with bets that are fixed beforehand. A gambler whose stake
is u in (0, 1] multiplies their wealth by 1 + u (hits - v size) / (v S) for each unit, where S is
the largest size: no factor is negative. Factors of n units are independent, so expected wealth is
the product of their means, at most the n-th power of the mean of these (AM-GM), and that is at most
1 if the mean share is at most v. Hence wealth exceeds 1/alpha with probability at most alpha
(Markov). The same holds for a mean of gamblers, which depends neither on the order of units nor on
any variance.

Binomial: a sum of n independent numbers in [0, 1] of mean v is below a binomial one in the convex
order (Hoeffding 1956), so P(sum ≥ x) ≤ E max(B - t, 0) / (x - t) for every t < x (Bentkus 2004). It
holds for means of such sums, too: for U-statistics, which average over pairings (Hoeffding 1963).
"""

import math

import numpy as np
from scipy import special

from .error_rates import Floats, root

# Two thirds of the wealth are for the boldest gambler, who wins most if shares differ little, a
# third for 16 others, with stakes by the arcsine law: those near 0 win most if units have all hits
# or none.
_ANGLES = (np.arange(16) + 0.5) * math.pi / 32
_ARCSINE_STAKES = np.sin(_ANGLES) ** 2
_STAKES = np.append(_ARCSINE_STAKES, 1.0)[:, None]  # [gamblers, 1]
_ARCSINE_WEALTH = np.full(16, 1 / 48)
_WEALTH = np.append(_ARCSINE_WEALTH, 2 / 3)
_LOG_WEALTH = np.log(_WEALTH)
_SMALLEST = 1e-12  # rates below count as 0
_MANY = 4096  # if there are more units, equal ones are counted instead of listed


def evidence(hits: Floats, sizes: Floats, rate: float) -> float:
    """Returns the log wealth of bets against a mean share of at most `rate`; -inf for one unit.

    Args:
        hits: float64 [units], each from 0 to its size.
        sizes: float64 [units].
        rate: mean share that the bets are against, in (0, 1].
    """
    if np.count_nonzero(sizes) < 2:
        return -math.inf  # one unit is no evidence about others
    unit_counts = np.ones(len(hits))
    if len(hits) > _MANY:
        # A complex number stands for the pair of hits and size.
        units, numbers = np.unique(hits + 1j * sizes, return_counts=True)
        hits, sizes = units.real, units.imag
        unit_counts = numbers.astype(float)
    gains = (hits / rate - sizes) / sizes.max()  # gain of a stake of 1
    factors = np.maximum(1 + _STAKES * gains, 0.0)
    with np.errstate(divide="ignore"):  # the boldest may lose everything
        growth = np.log(factors) @ unit_counts
    return float(np.logaddexp.reduce(_LOG_WEALTH + growth))


def betting_lower(hits: Floats, sizes: Floats, alpha: float) -> float:
    """Returns a bound that exceeds the mean share with probability at most `alpha`.

    Args:
        hits: float64 [units], each from 0 to its size.
        sizes: float64 [units].
        alpha: error probability, in (0, 1).
    """

    def excess(log_rate: float) -> float:
        """Returns how much the evidence against this mean share exceeds ln(1 / α)."""
        log_wealth = evidence(hits, sizes, math.exp(log_rate))
        return log_wealth + math.log(alpha)

    lowest = math.log(_SMALLEST)
    if excess(lowest) < 0:
        return 0.0
    return math.exp(root(excess, lowest, 0.0, xtol=1e-10))


def binomial_lower(total: float, units: int, alpha: float) -> float:
    """Returns a bound that exceeds the mean share with probability at most `alpha`.

    Args:
        total: sum of the units' shares, in [0, units], or the mean of such sums over pairings.
        units: number of independent units.
        alpha: error probability, in (0, 1).
    """

    def excess(rate: float) -> float:
        """Returns the error of the bound, less the p-value against a rate."""
        return alpha - binomial_p_value(total, units, rate)

    if units < 2 or excess(_SMALLEST) < 0:
        return 0.0
    return root(excess, _SMALLEST, 1.0, xtol=1e-10)


def binomial_p_value(total: float, units: int, rate: float) -> float:
    """Bounds the probability of a sum of at least `total`, if the mean share is at most `rate`.

    Args:
        total: sum of the units' shares, in [0, units].
        units: number of independent units.
        rate: largest mean share, in (0, 1).
    """
    if total <= units * rate:
        return 1.0
    # Any thresholds t < total are allowed, and one of the integers is best. Some are tried, more of
    # them near the total.
    below = math.ceil(total) - 1
    steps = np.geomspace(1, below + 1, 64)
    whole_steps = steps.astype(np.int64)
    thresholds = (below + 1 - whole_steps).astype(float)
    # E max(B - t, 0) = n v P(B' ≥ t) - t P(B > t), where B' is of n - 1 units.
    at_least = _tail(thresholds - 1, units - 1, rate)
    above = _tail(thresholds, units, rate)
    mean_excess = units * rate * at_least - thresholds * above
    return float(np.min(mean_excess / (total - thresholds)))


def _tail(counts: Floats, units: int, rate: float) -> Floats:
    """Returns P(B > count) for each count and a binomial number B, float64 [n].

    Args:
        counts: whole numbers of at least -1, float64 [n].
        units: number of trials of B.
        rate: probability of a success.
    """
    inner = np.clip(counts, 0, units - 1)
    tail = special.betainc(inner + 1, units - inner, rate)
    tail = np.where(counts >= units, 0.0, tail)
    return np.where(counts < 0, 1.0, tail)
