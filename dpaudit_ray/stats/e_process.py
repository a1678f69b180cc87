"""E-processes for a mean and for a hit rate: lower bounds that hold at all looks simultaneously.

Betting, for outcomes in [0, 1]: a gambler who believes that the mean exceeds m bets a share λ_i of
the stake on each outcome, chosen from the outcomes before it. If no conditional mean exceeds m, the
wealth Π (1 + λ_i (X_i - m)) is a supermartingale and reaches 1/alpha with probability at most alpha
(Waudby-Smith, Ramdas 2024).

The beta-binomial mixture, for hits and misses: likelihood ratios against a hit rate p, mixed over
the rates above p, are a supermartingale for every process whose conditional hit rate stays at or
below p. It exceeds 1/alpha with probability at most alpha, ever (Ville 1939; Robbins 1970).
"""

import itertools
import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincc, betaln

from .error_rates import Floats, as_floats, in_unit, root

# Two gamblers share the stake. The bold one wins most on outcomes of small variance (many
# canaries), the cautious one on hits and misses, where one early loss costs much. Each has a
# largest bet, as a share of the bet that could lose everything, and a number of virtual outcomes,
# of mean 1/2 and variance 1/4, before the first.
GAMBLERS = ((0.9, 1.0), (0.5, 3.0))
_GRID = 65  # means that are tried before the root between two of them is found
UNIFORM = (1.0, 1.0)  # parameters of a Beta distribution over hit rates


def mean_lower(outcomes: ArrayLike, alpha: float) -> float:
    """Returns the largest mean of outcomes in [0, 1] that any look refutes at `alpha`; or 1/2.

    Args:
        outcomes: float [n], in order.
        alpha: error of all looks together, in (0, 1).
    """
    in_unit("alpha", alpha)
    values = as_floats(outcomes)
    if values.ndim != 1 or not np.all((values >= 0) & (values <= 1)):
        raise ValueError("outcomes must be a 1-D array of numbers in [0, 1]")
    if len(values) == 0:
        return 0.5
    target = -math.log(alpha)
    moments = _moments(values)

    def excess(m: float) -> float:
        """Returns the largest log wealth of any look against a mean of `m`, less ln(1 / α)."""
        wealth = [_log_wealth(values, *gambler, m) for gambler in moments]
        largest = np.maximum.reduce(wealth)
        # A mean of two is between the larger one and half of it: no other look can be the best.
        may_be_best = largest >= largest.max() - math.log(len(wealth))
        mean = log_mean([path[may_be_best] for path in wealth])
        return float(mean.max()) - target

    # Wealth need not fall steadily in m: the bound ends at the first mean that is not refuted.
    grid = np.linspace(0.5, 1.0, _GRID)[:-1].tolist()
    if excess(grid[0]) < 0:
        return 0.5
    for low, high in itertools.pairwise(grid):
        if excess(high) < 0:
            return root(excess, low, high, xtol=1e-10)
    last = 1 - 1e-12
    if excess(last) >= 0:
        return last
    return root(excess, grid[-2], last, xtol=1e-10)


def evidence(outcomes: ArrayLike, mean: float) -> Floats:
    """Computes the log wealth of bets against "no mean exceeds `mean`", after each outcome, [n].

    It is an e-process. `outcomes` are in [0, 1].
    """
    values = as_floats(outcomes)
    wealth = [_log_wealth(values, *gambler, mean) for gambler in _moments(values)]
    return log_mean(wealth)


def log_mean(logs: ArrayLike) -> Floats:
    """Computes the log of the mean wealth from the gamblers' log wealth, [gamblers, any]."""
    wealth = as_floats(logs)
    return np.asarray(np.logaddexp.reduce(wealth) - math.log(len(wealth)))  # faster than logsumexp


def _moments(values: Floats) -> list[tuple[float, Floats, Floats]]:
    """Computes what each gambler's bets depend on, in the order of `_log_wealth`.

    Returns:
        The largest share, and mean and variance of the outcomes before each, virtual ones included.
    """
    moments = []
    for share, virtual in GAMBLERS:
        weight = virtual + np.arange(len(values))  # number of outcomes before each
        sums = virtual / 2 + _before(values)
        mean_after = (sums + values) / (weight + 1)
        squares = _before((values - mean_after) ** 2)
        variance = (virtual / 4 + squares) / weight
        moments.append((share, sums / weight, variance))
    return moments


def _before(values: Floats) -> Floats:
    """Returns the sum of all values before each value, float64 [n]."""
    sums = np.cumsum(values)
    return np.concatenate([[0.0], sums[:-1]])


def _log_wealth(
    values: Floats,
    share: float,
    mean: Floats,
    variance: Floats,
    m: float,
) -> Floats:
    """Computes log wealth after each bet against "the mean is at most m", float64 [n].

    Each bet maximises the expected growth of wealth, to second order.

    Args:
        values: outcomes in [0, 1], [n].
        share: largest bet, as a share of the bet that could lose everything.
        mean: mean of each outcome, as expected before it, [n].
        variance: variance of each outcome, as expected before it, [n].
        m: the mean that is bet against.
    """
    edge = mean - m
    stakes = np.clip(edge / (variance + edge**2), 0.0, share / m)
    growth = np.log1p(stakes * (values - m))
    return np.cumsum(growth)


def anytime_lower(
    hits: int,
    trials: int,
    alpha: float,
    prior: tuple[float, float] = UNIFORM,
) -> float:
    """Returns the largest hit rate that is refuted at any look; 1/2 if chance is not refuted.

    Args:
        hits: number of correct guesses.
        trials: number of guesses.
        alpha: error of all looks together, in (0, 1).
        prior: parameters (a, b) of the Beta distribution that likelihood ratios are mixed over.
    """
    in_unit("alpha", alpha)
    if not 0 <= hits <= trials:
        raise ValueError(f"hits must lie in 0..{trials}, got {hits}")
    target = -math.log(alpha)

    def excess(rate: float) -> float:
        """Returns how much the evidence against this hit rate exceeds ln(1 / α)."""
        return log_mixture(rate, hits, trials, prior) - target

    if trials == 0 or excess(0.5) <= 0:
        return 0.5
    # At the observed rate the mixture has no evidence any more: it crosses ln(1 / α) below.
    top = min(hits / trials, 1 - 1e-15)
    if excess(top) >= 0:
        return top
    return root(excess, 0.5, top, xtol=1e-14, rtol=1e-14)


def log_mixture(
    rate: float,
    hits: int,
    trials: int,
    prior: tuple[float, float] = UNIFORM,
) -> float:
    """Returns the log of the likelihood ratio against `rate`, averaged over Beta rates above it.

    Arguments are those of `anytime_lower`. With the Beta function B, and probabilities P of Beta
    variables, the average is

        B(a + hits, b + misses) P(posterior > rate)
        / (B(a, b) P(prior > rate) rate^hits (1 - rate)^misses).
    """
    a, b = prior
    misses = trials - hits
    after = (a + hits, b + misses)
    return float(
        betaln(*after)
        - betaln(a, b)
        + _log_beta_tail(*after, rate)
        - _log_beta_tail(a, b, rate)
        - hits * math.log(rate)
        - misses * math.log1p(-rate)
    )


def _log_beta_tail(a: float, b: float, x: float) -> float:
    """Computes log P(Beta(a, b) > x), also if the probability underflows."""
    tail = float(betaincc(a, b, x))
    if tail > 1e-290:
        return math.log(tail)
    # That happens only for x far above the mean, where each term of this series (DLMF 8.17.8) is
    # smaller than the one before it.
    k = np.arange(10_000)
    ratios = (a + b + k) / (b + 1 + k) * (1 - x)
    terms = np.cumprod(ratios)
    series = 1 + float(terms.sum())
    log_powers = b * math.log1p(-x) + a * math.log(x)
    density = log_powers - math.log(b) - betaln(a, b)
    return float(density + math.log(series))
