"""Gaussian differential privacy: conversions between μ and (ε, δ).

A mechanism is μ-GDP when telling its two worlds apart is at least as hard as telling N(0, 1) from
N(μ, 1). Dong, Roth, Su (2022), Corollary 2.13:

    δ(ε) = Φ(-ε/μ + μ/2) - e^ε Φ(-ε/μ - μ/2),   decreasing in ε, increasing in μ.

All functions broadcast; scalars in, a float out. All is computed in logarithms: no e^ε overflows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from .error_rates import Floats, in_unit, nonnegative, shaped

_BISECTIONS = 60  # from a bracket of ratio 2 this is below one unit in the last place


def delta(epsilon: npt.ArrayLike, mu: npt.ArrayLike) -> Any:
    """The smallest δ at which a μ-GDP mechanism is (ε, δ)-DP; μ and ε at least 0."""
    e, m = np.broadcast_arrays(nonnegative("epsilon", epsilon), nonnegative("mu", mu))
    return shaped(np.exp(_log_delta(e, m)))


def epsilon(mu: npt.ArrayLike, delta: npt.ArrayLike) -> Any:
    """The smallest ε ≥ 0 at which a μ-GDP mechanism is (ε, δ)-DP; δ in (0, 1)."""
    m, d = np.broadcast_arrays(nonnegative("mu", mu), in_unit("delta", delta))
    log_d = np.log(d)
    result = _last_where(lambda e: _log_delta(e, m) > log_d, np.maximum(m, 1e-3))
    return shaped(np.where(np.isinf(m), np.inf, result))


def mu(epsilon: npt.ArrayLike, delta: npt.ArrayLike) -> Any:
    """The largest μ whose mechanisms are all (ε, δ)-DP: the inverse of `epsilon` in μ."""
    e, d = np.broadcast_arrays(nonnegative("epsilon", epsilon), in_unit("delta", delta))
    log_d = np.log(d)
    return shaped(_last_where(lambda m: _log_delta(e, m) <= log_d, np.full_like(e, 1e-3)))


def true_positive_rate(fpr: npt.ArrayLike, mu: npt.ArrayLike) -> Any:
    """The ROC curve: no test of a μ-GDP mechanism hits more often at this false-positive rate."""
    rate, m = np.broadcast_arrays(np.asarray(fpr, dtype=np.float64), nonnegative("mu", mu))
    if not np.all((rate >= 0) & (rate <= 1)):
        raise ValueError(f"fpr must lie in [0, 1], got {fpr!r}")
    return shaped(special.ndtr(special.ndtri(rate) + m))


def _log_delta(e: Floats, m: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        first = special.log_ndtr(-e / m + m / 2)
        second = e + special.log_ndtr(-e / m - m / 2)
        value = first + np.log1p(-np.exp(np.minimum(second - first, 0.0)))
    return np.where(m > 0, value, -np.inf)


def _last_where(holds: Callable[[Floats], npt.NDArray[np.bool_]], start: Floats) -> Floats:
    """Largest x ≥ 0 with holds(x), for a condition that is true up to a point and false beyond."""
    high = start.astype(np.float64)
    while np.any(grow := holds(high) & np.isfinite(high)):
        high = np.where(grow, 2 * high, high)
    low = np.zeros_like(high)
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        inside = holds(middle)
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    return np.where(holds(np.zeros_like(high)), low, 0.0)
