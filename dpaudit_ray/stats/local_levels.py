"""Simultaneous upper bounds on an error rate at every threshold at once.

Let V_(1) ≤ ... ≤ V_(n) be uniform order statistics: the true error rates at the n observed
scores. "At k errors the rate is at most u(k)" holds for all thresholds together exactly when
V_(k+1) ≤ u(k) for every k < n. Each V_(k+1) is Beta(k + 1, n - k), so u(k) has the shape of a
Clopper-Pearson bound; what is left is its level.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt
from scipy import special

from .binomial import clopper_pearson_upper
from .thresholds import Upper

EXACT_LIMIT = 10_000  # trials per world; the exact calibration takes n² time
_BLOCK = 256

Floats = npt.NDArray[np.float64]


def upper_rates(n: int, tail: float, size: int = 0) -> Upper:
    """Bounds u(k) for k = 0..n errors of n trials, all valid together, as a function of k [m].

    Args:
        n: trials of this world, at least 1.
        tail: chance that any of the bounds fails, in (0, 1).
        size: calibrate for this many trials instead, where that is more than n and within
            `EXACT_LIMIT`: levels fall as n grows, so audits of about one size share one.

    Beyond `EXACT_LIMIT` trials the level is that of Bonferroni, which costs little at such sizes.
    """
    exact = n <= EXACT_LIMIT
    level = local_level(max(min(size, EXACT_LIMIT), n), tail) if exact else tail / n
    return lambda counts: np.asarray(clopper_pearson_upper(counts, n, level))


@functools.lru_cache(maxsize=4096)
def local_level(n: int, tail: float) -> float:
    """The level η at which all n bounds hold together with probability 1 - tail, exactly.

    Raises:
        ValueError: n outside 1..EXACT_LIMIT, or tail outside (0, 1).
    """
    from scipy import optimize  # as long to import as all else of this package

    if not 1 <= n <= EXACT_LIMIT:
        raise ValueError(f"n must lie in 1..{EXACT_LIMIT}, got {n}")
    if not 0 < tail < 1:
        raise ValueError(f"tail must lie in (0, 1), got {tail}")
    if n == 1:
        return tail
    # Bonferroni: η ≥ tail / n. One bound alone: η ≤ tail. In logarithms it is nearly linear.
    root = optimize.brentq(
        lambda log_level: math.log(miss_probability(n, math.exp(log_level)) / tail),
        math.log(tail / n), math.log(tail), xtol=1e-9, rtol=1e-12,
    )  # fmt: skip
    return math.exp(root)


def miss_probability(n: int, level: float) -> float:
    """P(V_(k+1) > u(k) for some k) when each has probability `level`.

    Let f(k) be the chance that k is the first failure. Then exactly k of the V lie below u(k),
    and splitting that event by its first failure i gives, for every k,

        P(k of n below u(k)) = Σ_{i ≤ k} f(i) P(k - i of n - i below u(k) | all n - i above u(i)),

    a triangular system of binomial probabilities with a unit diagonal.
    """
    from scipy import linalg  # as long again

    k = np.arange(n)
    # 1 - u(k), accurate near 0
    above = np.asarray(special.betaincinv(n - k, k + 1, level), dtype=np.float64)
    logs = np.asarray(special.gammaln(np.arange(n + 1.0) + 1), dtype=np.float64)
    tail = logs[n - k] - (n - k) * np.log(above)
    below = np.exp(logs[n] - logs[k] - tail + special.xlogy(k, 1 - above))
    first = np.empty(n)
    for start in range(0, n, _BLOCK):
        rows = slice(start, min(start + _BLOCK, n))
        given = _transitions(k[rows, None] - k[None, : rows.stop], above, tail, logs)
        rest = below[rows] - given[:, :start] @ first[:start]
        first[rows] = linalg.solve_triangular(
            given[:, start:], rest, lower=True, unit_diagonal=True, check_finite=False
        )
    return float(first.sum())


def _transitions(
    lags: npt.NDArray[np.int64], above: Floats, tail: Floats, logs: Floats
) -> Floats:  # fmt: skip
    """P(k - i of n - i uniforms on (u(i), 1] lie below u(k)), rows k, columns i; 0 where i > k."""
    stop = lags.shape[1]
    start = stop - len(lags)
    with np.errstate(divide="ignore", invalid="ignore"):
        powers = lags * np.log(above[None, :stop] - above[start:stop, None])
    exponent = powers + tail[None, :stop] - tail[start:stop, None] - logs[np.abs(lags)]
    return np.where(lags > 0, np.exp(np.where(lags > 0, exponent, 0.0)), (lags == 0) * 1.0)
