"""Gaussian differential privacy: conversions between μ and (ε, δ).

A mechanism is μ-GDP when distinguishing its two worlds is at least as hard as distinguishing
N(0, 1) from N(μ, 1). Dong, Roth, Su (2022), Corollary 2.13:

    δ(ε) = Φ(-ε/μ + μ/2) - e^ε Φ(-ε/μ - μ/2),   decreasing in ε, increasing in μ.

All functions broadcast; for scalars they return a float. They compute in logarithms, so that no e^ε
overflows.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, ndtr, ndtri

from .error_rates import Floats, as_floats, in_unit, nonnegative, shaped

_BISECTIONS = 60  # from a bracket of ratio 2 this is below one unit in the last place


def delta(epsilon: ArrayLike, mu: ArrayLike) -> Any:
    """Returns the smallest δ at which a μ-GDP mechanism is (ε, δ)-DP.

    Args:
        epsilon: ε, at least 0.
        mu: μ, at least 0.
    """
    epsilons = nonnegative("epsilon", epsilon)
    pairs = np.broadcast_arrays(epsilons, nonnegative("mu", mu))
    return shaped(np.exp(_log_delta(*pairs)))


def epsilon(mu: ArrayLike, delta: ArrayLike) -> Any:
    """Returns the smallest ε ≥ 0 at which a μ-GDP mechanism is (ε, δ)-DP.

    Args:
        mu: μ, at least 0; ε is infinite if it is.
        delta: δ, in (0, 1).
    """
    at_least_0 = nonnegative("mu", mu)
    mus, deltas = np.broadcast_arrays(at_least_0, in_unit("delta", delta))
    logs = np.log(deltas)
    start = np.maximum(mus, 1e-3)
    result = _last_where(lambda epsilons: _log_delta(epsilons, mus) > logs, start)
    result[np.isinf(mus)] = np.inf
    return shaped(result)


def mu(epsilon: ArrayLike, delta: ArrayLike) -> Any:
    """Returns the largest μ for which all μ-GDP mechanisms are (ε, δ)-DP: inverts `epsilon`.

    Args:
        epsilon: ε, at least 0.
        delta: δ, in (0, 1).
    """
    at_least_0 = nonnegative("epsilon", epsilon)
    epsilons, deltas = np.broadcast_arrays(at_least_0, in_unit("delta", delta))
    logs = np.log(deltas)
    start = np.full_like(epsilons, 1e-3)
    return shaped(_last_where(lambda mus: _log_delta(epsilons, mus) <= logs, start))


def true_positive_rate(fpr: ArrayLike, mu: ArrayLike) -> Any:
    """Returns the ROC curve: the largest true-positive rate of a test of a μ-GDP mechanism.

    Args:
        fpr: false-positive rate of the test, in [0, 1].
        mu: μ, at least 0.
    """
    rate = as_floats(fpr)
    if not np.all((rate >= 0) & (rate <= 1)):
        raise ValueError(f"fpr must lie in [0, 1], got {fpr!r}")
    quantile = ndtri(rate)
    return shaped(np.asarray(ndtr(quantile + nonnegative("mu", mu))))


def _log_delta(epsilon: Floats, mu: Floats) -> Floats:
    """Returns log δ(ε) of μ-GDP; -inf where μ is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = -epsilon / mu
        first = log_ndtr(ratio + mu / 2)
        second = epsilon + log_ndtr(ratio - mu / 2)
        # log(e^first - e^second); `minimum` prevents the log of a negative number by rounding.
        share = np.exp(np.minimum(second - first, 0.0))
        log_delta = first + np.log1p(-share)
    return np.where(mu > 0, log_delta, -np.inf)


def _last_where(
    holds: Callable[[Floats], NDArray[np.bool_]],
    start: Floats,
) -> Floats:
    """Returns the largest x ≥ 0 for which a condition holds that is true up to some x; 0 if none.

    Args:
        holds: the condition of all elements, float64 [n] to bool [n].
        start: first guess of each x, above 0, [n]; doubled while the condition holds.
    """
    high = start.astype(float)
    while np.any(grow := holds(high) & np.isfinite(high)):
        high = np.where(grow, 2 * high, high)
    low = np.zeros_like(high)
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        is_below = holds(middle)
        low = np.where(is_below, middle, low)
        high = np.where(is_below, high, middle)
    return np.where(holds(np.zeros_like(high)), low, 0.0)
