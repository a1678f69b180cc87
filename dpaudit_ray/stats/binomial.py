"""Exact one-sided bounds on a binomial proportion (Clopper and Pearson, 1934)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

Array = npt.NDArray[np.float64]


def clopper_pearson_upper(
    successes: npt.ArrayLike, trials: npt.ArrayLike, alpha: npt.ArrayLike
) -> Any:
    """Upper bound that the true proportion exceeds with probability at most `alpha`.

    The arguments broadcast. Scalars in, a float out; arrays in, a float64 array out.
    No trials bound nothing: the result is 1.

    Raises:
        ValueError: counts outside 0..trials, or `alpha` outside (0, 1).
    """
    k, n, a = _checked(successes, trials, alpha)
    with np.errstate(invalid="ignore"):
        bound = special.betainccinv(k + 1.0, n - k, a)
    return _shaped(np.where(k >= n, 1.0, bound))


def clopper_pearson_lower(
    successes: npt.ArrayLike, trials: npt.ArrayLike, alpha: npt.ArrayLike
) -> Any:
    """Lower bound that the true proportion falls below with probability at most `alpha`.

    The arguments broadcast. Scalars in, a float out; arrays in, a float64 array out.
    No trials bound nothing: the result is 0.

    Raises:
        ValueError: counts outside 0..trials, or `alpha` outside (0, 1).
    """
    k, n, a = _checked(successes, trials, alpha)
    with np.errstate(invalid="ignore"):
        bound = special.betaincinv(k, n - k + 1.0, a)
    return _shaped(np.where(k <= 0, 0.0, bound))


def check_alpha(alpha: npt.ArrayLike) -> Array:
    """Returns `alpha` as an array, or raises ValueError when any entry is outside (0, 1)."""
    a = np.asarray(alpha, dtype=np.float64)
    if not np.all((a > 0) & (a < 1)):
        raise ValueError(f"alpha must lie in (0, 1), got {alpha!r}")
    return a


def check_counts(correct: int, guesses: int, canaries: int, delta: float = 0.0) -> None:
    """Raises ValueError unless 0 ≤ correct ≤ guesses ≤ canaries and 0 ≤ δ ≤ 1."""
    if not 0 <= correct <= guesses:
        raise ValueError(f"correct must lie in 0..{guesses} (guesses), got {correct}")
    if not guesses <= canaries:
        raise ValueError(f"guesses must be at most canaries = {canaries}, got {guesses}")
    if not 0 <= delta <= 1:
        raise ValueError(f"delta must lie in [0, 1], got {delta}")


def _checked(
    successes: npt.ArrayLike, trials: npt.ArrayLike, alpha: npt.ArrayLike
) -> tuple[Array, Array, Array]:
    k = np.asarray(successes, dtype=np.float64)
    n = np.asarray(trials, dtype=np.float64)
    if not np.all(k >= 0):
        raise ValueError(f"successes must be at least 0, got {successes!r}")
    if not np.all(k <= n):
        raise ValueError(f"successes must be at most trials, got {successes!r} of {trials!r}")
    return k, n, check_alpha(alpha)


def _shaped(values: Array) -> float | Array:
    return float(values) if values.ndim == 0 else values
