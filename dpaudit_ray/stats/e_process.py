"""E-processes for a mean and for a hit rate: lower bounds that are valid at every look at once.

Betting, for outcomes in [0, 1]: a gambler who believes that the mean exceeds m bets a share λ_i of
the stake on each outcome, chosen from the outcomes before it. If no conditional mean exceeds m, the
wealth Π (1 + λ_i (X_i - m)) is a supermartingale and reaches 1/alpha with probability at most alpha
(Waudby-Smith, Ramdas 2024).

The beta-binomial mixture, for hits and misses: likelihood ratios against a hit rate p, mixed over
the rates above p, are a supermartingale for every process whose conditional hit rate stays at or
below p. It exceeds 1/alpha with probability at most alpha, ever (Ville 1939; Robbins 1970).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy import special

from .error_rates import Floats, in_unit, root

# Two gamblers share the stake. The bold one wins most on outcomes of small variance (many
# canaries), the cautious one on hits and misses, where one early loss costs much. Each: the
# largest bet, as a share of what would lose everything, and virtual outcomes before the first.
GAMBLERS = ((0.9, 1.0), (0.5, 3.0))
_GRID = 65  # means that are tried before the root between two of them is found
UNIFORM = (1.0, 1.0)  # parameters of a Beta distribution over hit rates


def mean_lower(outcomes: npt.ArrayLike, alpha: float) -> float:
    """The largest mean of outcomes in [0, 1] refuted at `alpha`, at any look; 1/2 if none."""
    in_unit("alpha", alpha)
    values = np.asarray(outcomes, dtype=np.float64)
    if values.ndim != 1 or not np.all((values >= 0) & (values <= 1)):
        raise ValueError("outcomes must be a 1-D array of numbers in [0, 1]")
    if len(values) == 0:
        return 0.5
    target, moments = -math.log(alpha), _moments(values)

    def excess(m: float) -> float:
        wealth = [_log_wealth(values, *gambler, m) for gambler in moments]
        most = np.maximum.reduce(wealth)
        # A mean is below the largest of its terms: no other look can have the largest mean.
        near = most >= most.max() - math.log(len(wealth))
        return float(log_mean([path[near] for path in wealth]).max()) - target

    # Wealth need not fall steadily in m: the bound ends at the first mean that is not refuted.
    grid = np.linspace(0.5, 1.0, _GRID)[:-1]
    standing = next((i for i, m in enumerate(grid) if excess(float(m)) < 0), len(grid) - 1)
    if standing == 0:
        return 0.5
    low, high = float(grid[standing - 1]), float(grid[standing])
    if excess(high) >= 0 and excess(high := 1 - 1e-12) >= 0:
        return high
    return root(excess, low, high, xtol=1e-10)


def evidence(outcomes: npt.ArrayLike, mean: float) -> Floats:
    """Log wealth of bets against "no mean exceeds `mean`", an e-process, float64 [n]."""
    values = np.asarray(outcomes, dtype=np.float64)
    return log_mean([_log_wealth(values, *gambler, mean) for gambler in _moments(values)])


def log_mean(logs: npt.ArrayLike) -> Floats:
    """Log of the mean wealth of gamblers, whose logs these are, [gamblers, any]."""
    wealth = np.asarray(logs, dtype=np.float64)
    return np.asarray(np.logaddexp.reduce(wealth) - math.log(len(wealth)))  # quicker than logsumexp


def _moments(values: Floats) -> list[tuple[float, Floats, Floats]]:
    """Each gambler's largest share, and shrunk mean and variance before each outcome."""
    moments = []
    for share, virtual in GAMBLERS:
        weight = virtual + np.arange(len(values))
        sums = virtual / 2 + np.concatenate([[0.0], np.cumsum(values)[:-1]])
        after = (sums + values) / (weight + 1)
        squares = np.concatenate([[0.0], np.cumsum((values - after) ** 2)[:-1]])
        moments.append((share, sums / weight, (virtual / 4 + squares) / weight))
    return moments


def _log_wealth(values: Floats, share: float, mean: Floats, variance: Floats, m: float) -> Floats:
    """Log wealth after each outcome of bets that maximise its expected growth, to second order."""
    edge = mean - m
    stakes = np.clip(edge / (variance + edge**2), 0.0, share / m)
    return np.asarray(np.cumsum(np.log1p(stakes * (values - m))))


def anytime_lower(
    hits: int, trials: int, alpha: float, prior: tuple[float, float] = UNIFORM
) -> float:
    """Largest refuted hit rate ≥ 1/2; 0.5 when chance itself is not refuted."""
    in_unit("alpha", alpha)
    if not 0 <= hits <= trials:
        raise ValueError(f"hits must lie in 0..{trials}, got {hits}")
    target = -math.log(alpha)

    def excess(rate: float) -> float:
        return log_mixture(rate, hits, trials, prior) - target

    if trials == 0 or excess(0.5) <= 0:
        return 0.5
    # Just below the observed rate the mixture has lost its evidence; between the two it crosses.
    top = min(hits / trials, 1 - 1e-15)
    if excess(top) >= 0:
        return top
    return root(excess, 0.5, top, xtol=1e-14, rtol=1e-14)


def log_mixture(rate: float, hits: int, trials: int, prior: tuple[float, float] = UNIFORM) -> float:
    """Log likelihood ratio against `rate`, averaged over rates above it, Beta(prior)."""
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
    density = b * math.log1p(-x) + a * math.log(x) - math.log(b) - special.betaln(a, b)
    return float(density + math.log(series))
