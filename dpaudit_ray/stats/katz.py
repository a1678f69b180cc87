"""Asymptotic bounds on the ratio of two proportions, and the ε that they suggest.

All of these hold in the limit of many errors only: fewer than thirty on the rarer side and they
are off. Their status is `approximate`.
"""

from __future__ import annotations

import dataclasses
import math
from enum import StrEnum
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from scipy import special

from .base import Estimator
from .binomial import check_alpha
from .rates import epsilon_of_rates
from .statement import Estimate, Status
from .thresholds import AtOneThreshold

Floats = npt.NDArray[np.float64]


class Ratio(StrEnum):
    """How the ratio's uncertainty is approximated."""

    KATZ_LOG = "katz-log"  # Katz et al. 1978: the logarithm is normal
    ADJUSTED_LOG = "adjusted-log"  # Walter 1975: the same with half a count added
    BAILEY = "bailey"  # Bailey 1987: the cube root is normal
    INV_SINH = "inv-sinh"  # Newcombe 2001: the logarithm by way of the inverse hyperbolic sine


@dataclasses.dataclass
class Katz(AtOneThreshold, Estimator):
    """Lu et al. 2022: delta-method bound on ln((TPR - δ)/FPR), either direction.

    Each direction gets half of the error. Nothing is reported where an error count is zero,
    because the approximation does not exist there.
    """

    name: ClassVar[str] = "katz"
    status: ClassVar[Status] = Status.APPROXIMATE

    def bound(self, delta: float, confidence: float) -> Estimate:
        alpha, epsilon = 1 - confidence, 0.0
        judged = self._judge(lambda a, b: epsilon_of_rates(a, b, delta), alpha)
        if judged.usable:
            fp, fn, (out, inside) = judged.false_positives, judged.false_negatives, judged.sizes
            up = epsilon_lower((fp, fn), (out, inside), delta, alpha / 2)
            down = epsilon_lower((fn, fp), (inside, out), delta, alpha / 2)
            epsilon = float(np.fmax(np.fmax(up, down), 0.0)[0])
        level = (delta, confidence)
        return self._estimate(epsilon, math.nan, level, len(self._log), judged.threshold)


def epsilon_lower(
    errors: tuple[npt.ArrayLike, npt.ArrayLike],
    sizes: tuple[float, float],
    delta: float,
    alpha: float,
) -> Floats:
    """Bound on ln((TPR - δ)/FPR) in one direction, float64 [n]; NaN where it does not exist.

    Args:
        errors: false positives and false negatives, [n] each.
        sizes: trials without and with the canary.
        delta: δ of the bound.
        alpha: one-sided error probability, reached in the limit.
    """
    check_alpha(alpha)
    fpr = np.atleast_1d(np.asarray(errors[0], dtype=np.float64)) / sizes[0]
    tpr = 1 - np.atleast_1d(np.asarray(errors[1], dtype=np.float64)) / sizes[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        centre = np.log((tpr - delta) / fpr)
        variance = tpr * (1 - tpr) / (sizes[1] * (tpr - delta) ** 2)
        variance = variance + (1 - fpr) / (sizes[0] * fpr)
        bound = centre - special.ndtri(1 - alpha) * np.sqrt(variance)
    return np.where((fpr > 0) & (tpr > delta), bound, np.nan)


def ratio_lower(
    true_positives: npt.ArrayLike,
    false_positives: npt.ArrayLike,
    sizes: tuple[int, int],
    alpha: float,
    ratio: Ratio = Ratio.KATZ_LOG,
) -> Floats:
    """Lower bound on TPR / FPR, float64 [n]; its logarithm bounds ε at δ = 0 in one direction.

    Args:
        true_positives: guesses "in" among `sizes[0]` trials with the canary, [n].
        false_positives: guesses "in" among `sizes[1]` trials without it, [n].
        sizes: trials with and without the canary.
        alpha: one-sided error probability, reached in the limit.
        ratio: the approximation. Degenerate counts are moved as in R's asbio (ci.prat).

    Raises:
        ValueError: counts outside 0..size, or `alpha` outside (0, 1).
    """
    check_alpha(alpha)
    counts = [np.atleast_1d(np.asarray(k, np.float64)) for k in (true_positives, false_positives)]
    for k, size in zip(counts, sizes, strict=True):
        if not np.all((k >= 0) & (k <= size)):
            raise ValueError(f"counts must lie in 0..{size}, got {k.tolist()}")
    z = float(special.ndtri(1 - alpha))
    x, y = _moved(counts[0], counts[1], sizes, ratio, z)
    added = 0.5 if ratio is Ratio.ADJUSTED_LOG else 0.0
    x, y = x + added, y + added
    n, m = (np.float64(size + added) for size in sizes)
    with np.errstate(divide="ignore", invalid="ignore"):
        point = (x / n) / (y / m)
        first, second = 1 / x - 1 / n, 1 / y - 1 / m
        spread = np.sqrt(first + second)
        match ratio:
            case Ratio.BAILEY:
                root = np.sqrt(first + second - z**2 * first * second / 9)
                bound = point * ((1 - z * root / 3) / (1 - z**2 * second / 9)) ** 3
            case Ratio.INV_SINH:
                bound = point * np.exp(-2 * np.arcsinh(z * spread / 2))
            case _:
                bound = point * np.exp(-z * spread)
    return np.where(x > 0, bound, 0.0)


def _moved(
    x: Floats, y: Floats, sizes: tuple[int, int], ratio: Ratio, z: float
) -> tuple[Floats, Floats]:
    """Counts moved off the edges where the approximation does not exist."""
    full_x, full_y = x == sizes[0], y == sizes[1]
    shrink_x = full_x if ratio is Ratio.BAILEY else full_x & full_y
    shrink_y = full_y if ratio is Ratio.BAILEY else full_x & full_y
    if ratio is not Ratio.ADJUSTED_LOG:
        y = np.where(y == 0, z**2 if ratio is Ratio.INV_SINH else 0.5, y)
    return np.where(shrink_x, x - 0.5, x), np.where(shrink_y, y - 0.5, y)
