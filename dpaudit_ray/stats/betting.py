"""Lower confidence bounds for the mean of outcomes in [0, 1], valid at every look at once.

A gambler who believes the mean exceeds m bets a share λ_i of the stake on each outcome, chosen
from the outcomes before it. If no conditional mean exceeds m, the wealth Π (1 + λ_i (X_i - m)) is
a supermartingale and reaches 1/alpha with probability at most alpha (Waudby-Smith, Ramdas 2024).

Outcomes that are not hits and misses come from several canaries in one training, and from pairs
of trainings that share their noise (`several`).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from .binomial import check_alpha

Outcomes = npt.NDArray[np.float64]

# Two gamblers share the stake. The bold one wins most on outcomes of small variance (many
# canaries, coupled pairs), the cautious one on hits and misses, where one early loss costs much.
# Each: the largest bet, as a share of what would lose everything at the worst outcome, and the
# virtual outcomes that its running moments start from.
GAMBLERS = ((0.9, 1.0), (0.5, 3.0))
_GRID = 65


def mean_lower(outcomes: npt.ArrayLike, alpha: float, floor: float = 0.5) -> float:
    """The largest mean that the outcomes refute at level `alpha`, or `floor` if not even that.

    Args:
        outcomes: float64 [n] in [0, 1], in the order they were observed.
        alpha: error probability over all n and every earlier stop.
        floor: the smallest mean of interest, in [0, 1).

    Raises:
        ValueError: an argument outside its bounds.
    """
    check_alpha(alpha)
    values = np.asarray(outcomes, dtype=np.float64)
    if values.ndim != 1 or not np.all((values >= 0) & (values <= 1)):
        raise ValueError("outcomes must be a 1-D array of numbers in [0, 1]")
    if not 0 <= floor < 1:
        raise ValueError(f"floor must lie in [0, 1), got {floor}")
    if len(values) == 0:
        return floor
    target, moments = -math.log(alpha), _moments(values)

    def excess(m: float) -> float:
        wealth = [_log_wealth(values, *each, m) for each in moments]
        most = np.maximum.reduce(wealth)
        # A mean is below the largest of its terms: no other look can have the largest mean.
        near = most >= most.max() - math.log(len(wealth))
        return float(_mean([one[near] for one in wealth]).max()) - target

    # Wealth need not fall steadily in m: the bound ends at the first mean that is not refuted.
    grid = np.linspace(floor, 1.0, _GRID)[:-1]
    standing = next((i for i, m in enumerate(grid) if excess(float(m)) < 0), len(grid) - 1)
    if standing == 0:
        return floor
    low, high = float(grid[standing - 1]), float(grid[standing])
    if excess(high) >= 0:
        high = 1 - 1e-12
        if excess(high) >= 0:
            return high
    from scipy import optimize  # as long to import as all else of this package

    return float(optimize.brentq(excess, low, high, xtol=1e-10))


def evidence(outcomes: npt.ArrayLike, mean: float) -> Outcomes:
    """Log wealth after each outcome of bets against "no mean exceeds `mean`", float64 [n].

    Its exponential is an e-process: 1 / alpha is reached with probability alpha at most.
    """
    values = np.asarray(outcomes, dtype=np.float64)
    return _mean([_log_wealth(values, *each, mean) for each in _moments(values)])


def _mean(wealth: list[Outcomes]) -> Outcomes:
    return np.asarray(np.logaddexp.reduce(wealth, axis=0) - math.log(len(wealth)))


def _moments(values: Outcomes) -> list[tuple[float, Outcomes, Outcomes]]:
    """Of each gambler the largest share, and running moments: they depend on no mean."""
    return [(share, *_running_moments(values, weight)) for share, weight in GAMBLERS]


def _running_moments(values: Outcomes, virtual: float) -> tuple[Outcomes, Outcomes]:
    """Mean and variance before each outcome, shrunk towards 1/2 and 1/4."""
    weight = virtual + np.arange(len(values))
    sums = virtual / 2 + np.concatenate([[0.0], np.cumsum(values)[:-1]])
    after = (sums + values) / (weight + 1)
    squares = np.concatenate([[0.0], np.cumsum((values - after) ** 2)[:-1]])
    return sums / weight, (virtual / 4 + squares) / weight


def _log_wealth(
    values: Outcomes, share: float, mean: Outcomes, variance: Outcomes, m: float
) -> Outcomes:
    """Log wealth after each outcome of bets that maximise its expected growth, to second order."""
    edge = mean - m
    stakes = np.clip(edge / (variance + edge**2), 0.0, share / m if m > 0 else np.inf)
    return np.asarray(np.cumsum(np.log1p(stakes * (values - m))))
