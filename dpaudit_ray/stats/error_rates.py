"""Bounds on error rates from counts of errors, at one threshold or at all thresholds.

At one threshold the bounds are exact and one-sided (Clopper and Pearson, 1934). For all thresholds
at once, let V_(1) ≤ ... ≤ V_(n) be uniform order statistics: the true error rates at the n observed
scores. "At k errors the rate is at most u(k)" holds for all thresholds together exactly when
V_(k+1) ≤ u(k) for every k < n. Each V_(k+1) is Beta(k + 1, n - k), so u(k) is a Clopper-Pearson
bound at some level, which `local_level` finds.
"""

import bisect
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainccinv, betaincinv, gammaln, xlogy

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Rates = Floats
# Maps error counts [n] of one world to upper bounds on its error rate [n]; never decreases.
Upper = Callable[[Counts], Rates]
EXACT_LIMIT = 10_000  # trials per world; the exact calibration takes n² time
_BLOCK = 256  # rows of the triangular system that are solved at once


def clopper_pearson_upper(successes: ArrayLike, trials: ArrayLike, alpha: ArrayLike) -> Any:
    """Returns an upper bound that a proportion exceeds with probability `alpha` at most.

    Arguments broadcast. The bound is 1 if all trials are successes.

    Args:
        successes: 0 to `trials`; need not be whole numbers.
        trials: number of independent trials.
        alpha: error probability, in (0, 1).

    Returns:
        A float, or an array of the arguments' common shape.
    """
    k, n, a = _checked(successes, trials, alpha)
    with np.errstate(invalid="ignore"):
        bound = betainccinv(k + 1.0, n - k, a)
    return shaped(np.where(k >= n, 1.0, bound))


def clopper_pearson_lower(successes: ArrayLike, trials: ArrayLike, alpha: ArrayLike) -> Any:
    """Returns a lower bound that a proportion falls below with probability `alpha` at most.

    Arguments broadcast. The bound is 0 if no trial is a success.

    Args:
        successes: 0 to `trials`; need not be whole numbers.
        trials: number of independent trials.
        alpha: error probability, in (0, 1).

    Returns:
        A float, or an array of the arguments' common shape.
    """
    k, n, a = _checked(successes, trials, alpha)
    with np.errstate(invalid="ignore"):
        bound = betaincinv(k, n - k + 1.0, a)
    return shaped(np.where(k <= 0, 0.0, bound))


def as_floats(values: ArrayLike) -> Floats:
    """Returns values as an array of float64, without a copy if they are such an array."""
    return np.asarray(values, dtype=float)


def in_unit(name: str, value: ArrayLike) -> Floats:
    """Returns `value` as an array. Raises ValueError unless all entries are above 0 and below 1."""
    array = as_floats(value)
    if not np.all((array > 0) & (array < 1)):
        raise ValueError(f"{name} must lie in (0, 1), got {value!r}")
    return array


def nonnegative(name: str, value: ArrayLike) -> Floats:
    """Returns `value` as an array. Raises ValueError if an entry is below 0 or NaN."""
    array = as_floats(value)
    if not np.all(array >= 0):
        raise ValueError(f"{name} must be at least 0, got {value!r}")
    return array


def check_counts(
    correct: int,
    guesses: int,
    canaries: int,
    delta: float = 0.0,
) -> None:
    """Raises ValueError unless 0 ≤ correct ≤ guesses ≤ canaries and 0 ≤ δ ≤ 1."""
    if not 0 <= correct <= guesses:
        raise ValueError(f"correct must lie in 0..{guesses} (guesses), got {correct}")
    if not guesses <= canaries:
        raise ValueError(f"guesses must be at most canaries = {canaries}, got {guesses}")
    if not 0 <= delta <= 1:
        raise ValueError(f"delta must lie in [0, 1], got {delta}")


def _checked(
    successes: ArrayLike, trials: ArrayLike, alpha: ArrayLike
) -> tuple[Floats, Floats, Floats]:
    """Returns all three as arrays. Raises ValueError unless 0 ≤ successes ≤ trials, 0 < α < 1."""
    k = nonnegative("successes", successes)
    n = as_floats(trials)
    if not np.all(k <= n):
        raise ValueError(f"successes must be at most trials, got {successes!r} of {trials!r}")
    return k, n, in_unit("alpha", alpha)


def shaped(values: Floats) -> float | Floats:
    """Returns a float for an array without a dimension, else the array."""
    return float(values) if values.ndim == 0 else values


def first_where(
    holds: Callable[[int], bool],
    end: int,
) -> int:
    """Returns the smallest number below `end` from which a condition holds; `end` if none.

    It is found by bisection, so the condition must hold for all larger numbers, too.
    """
    return bisect.bisect_left(range(end), True, key=holds)


def root(
    function: Callable[[float], float],
    low: float,
    high: float,
    **tolerances: float,
) -> float:
    """Finds the sign change of a function between `low` and `high`, by Brent's method.

    `tolerances` are `xtol` and `rtol` of `scipy.optimize.brentq`.
    """
    from scipy import optimize  # its import takes as long as that of all else in this package

    return float(optimize.brentq(function, low, high, **tolerances))


def last_refuted(
    excess: Callable[[float], float],
    high: float = 1.0,
    most: float = math.inf,
    **tolerances: float,
) -> float:
    """Returns the last refuted number, where an excess of evidence falls to 0; or 0.

    Args:
        excess: falling function of a number of at least 0; the number is refuted while it is above
            0.
        high: first number that is tried, and doubled while it is refuted.
        most: numbers are doubled up to this one; then the last one is returned.
        tolerances: tolerances for `root`.
    """
    if excess(0.0) < 0:
        return 0.0
    while excess(high) >= 0:
        if high >= most:
            return high
        high *= 2
    return root(excess, 0.0, high, **tolerances)


def upper_rates(n: int, tail: float, size: int) -> Upper:
    """Returns bounds u(k) for k = 0..n errors of n trials, all valid together with 1 - `tail`.

    Levels fall as n grows, so the level of a larger number of trials is valid, too: audits of about
    the same size share that of `size`, and it is computed once. Beyond `EXACT_LIMIT` trials the
    level is that of Bonferroni.

    Args:
        n: number of trials of one world.
        tail: probability that any of the bounds is exceeded.
        size: number of trials of which the level is taken, if it is larger than n.
    """
    level = tail / n
    if n <= EXACT_LIMIT:
        level = local_level(max(min(size, EXACT_LIMIT), n), tail)

    def upper(counts: Counts) -> Rates:
        """Returns the upper bounds of error counts [n], float64 [n]."""
        # Each bound takes microseconds, so equal counts share one.
        distinct, indices = np.unique(counts, return_inverse=True)
        return np.asarray(clopper_pearson_upper(distinct, n, level)[indices])

    return upper


@functools.cache
def local_level(n: int, tail: float) -> float:
    """Computes the level η of each bound with which all n hold together with 1 - `tail`.

    Args:
        n: number of trials of a world, at most `EXACT_LIMIT`.
        tail: probability that any of the bounds is exceeded.
    """
    if not 1 <= n <= EXACT_LIMIT:
        raise ValueError(f"n must lie in 1..{EXACT_LIMIT}, got {n}")
    in_unit("tail", tail)
    if n == 1:
        return tail
    # Bonferroni: η ≥ tail / n. One bound alone: η ≤ tail. In logarithms the function is nearly
    # linear, so that the root is found in few steps.
    level = root(
        lambda log_level: math.log(miss_probability(n, math.exp(log_level)) / tail),
        math.log(tail / n), math.log(tail), xtol=1e-9, rtol=1e-12,
    )  # fmt: skip
    return math.exp(level)


def miss_probability(n: int, level: float) -> float:
    """Computes P(V_(k+1) > u(k) for some k) if each of these has probability `level`.

    Let f(k) be the probability that k is the first failure. The event that k of the V lie below
    u(k), split by the first failure,

        P(k of n below u(k)) = Σ_{i ≤ k} f(i) P(k - i of n - i below u(k) | all n - i above u(i)),

    is a triangular system of binomial probabilities with a unit diagonal.
    """
    from scipy import linalg  # imported here, as `optimize` in `root`

    k = np.arange(n)
    above = as_floats(betaincinv(n - k, k + 1, level))  # 1 - u(k)
    log_factorials = as_floats(gammaln(np.arange(n + 1.0) + 1))
    tail = log_factorials[n - k] - (n - k) * np.log(above)
    log_below = log_factorials[n] - log_factorials[k] - tail + xlogy(k, 1 - above)
    below = np.exp(log_below)
    first = np.empty(n)
    for start in range(0, n, _BLOCK):
        rows = slice(start, min(start + _BLOCK, n))
        lags = k[rows, None] - k[None, : rows.stop]
        transitions = _transitions(lags, above, tail, log_factorials)
        first[rows] = linalg.solve_triangular(
            transitions[:, start:],
            below[rows] - transitions[:, :start] @ first[:start],
            lower=True,
            unit_diagonal=True,
            check_finite=False,
        )
    return float(first.sum())


def _transitions(
    lags: Counts,
    above: Floats,
    tail: Floats,
    log_factorials: Floats,
) -> Floats:
    """Computes P(k - i of n - i uniforms on (u(i), 1] lie below u(k)); 0 if i > k.

    Rows stand for k, columns for i; the rows' numbers are the last ones of the columns'.

    Args:
        lags: k - i, int64 [rows, columns].
        above: 1 - u(k), float64 [n].
        tail: log((n - k)!) - (n - k) log(1 - u(k)), float64 [n].
        log_factorials: logarithms of 0!, ..., n!, float64 [n + 1].
    """
    stop = lags.shape[1]
    rows = slice(stop - len(lags), stop)
    with np.errstate(divide="ignore", invalid="ignore"):
        widths = above[None, :stop] - above[rows, None]
        powers = lags * np.log(widths)
    differences = powers + tail[None, :stop] - tail[rows, None]
    exponent = differences - log_factorials[np.abs(lags)]
    later = np.exp(np.where(lags > 0, exponent, 0.0))
    return np.where(lags > 0, later, (lags == 0) * 1.0)
