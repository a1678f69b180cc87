"""Bayesian bounds from both error rates at one threshold (Zanella-Béguelin et al. 2023).

The rates get independent Beta posteriors from Jeffreys priors; the bound is a quantile of the ε
that they imply. It is credible, not certified: at a symmetric threshold, where ε is the larger
of two directions, it was measured to exceed the truth in 10 to 16 % of audits at 95 %.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from scipy import special

from .base import Estimator
from .binomial import check_alpha
from .rates import epsilon_of_rates
from .statement import Estimate, Status
from .thresholds import AtOneThreshold

_JEFFREYS = 0.5
_NODES, _LARGEST = 512, 60.0

Counts = tuple[int, int, int, int]  # false positives, false negatives, trials out, trials in


@dataclasses.dataclass
class Bayes(AtOneThreshold, Estimator):
    """The (1 - confidence) posterior quantile of ε at a threshold fixed beforehand."""

    name: ClassVar[str] = "bayes"
    status: ClassVar[Status] = Status.CREDIBLE

    def bound(self, delta: float, confidence: float) -> Estimate:
        judged = self._judge(lambda a, b: epsilon_of_rates(a, b, delta), 1 - confidence)
        epsilon = 0.0
        if judged.usable:
            counts = (judged.false_positives, judged.false_negatives, *judged.sizes)
            # Diverged trials are errors; turned around they would count for the adversary.
            epsilon = posterior_epsilon(counts, delta, 1 - confidence, turned=False)
        level = (delta, confidence)
        return self._estimate(epsilon, math.nan, level, len(self._log), judged.threshold)


def posterior_epsilon(
    counts: Counts, delta: float, probability: float, turned: bool = True
) -> float:
    """The ε that the mechanism's ε stays below with the given posterior probability.

    Args:
        counts: false positives, false negatives, and trials per world (out, in).
        delta: δ of the bound.
        probability: posterior mass below the result, in (0, 1).
        turned: whether a test that is worse than chance counts with its answer turned around,
            as in the published method.

    Raises:
        ValueError: probability outside (0, 1), or counts outside 0..trials.
    """
    from scipy import optimize  # as long to import as all else of this package

    check_alpha(probability)
    fp, fn, out, inside = counts
    if not (0 <= fp <= out and 0 <= fn <= inside):
        raise ValueError(f"errors must lie within trials, got {fp} of {out} and {fn} of {inside}")
    nodes, weights = _quadrature()
    # Integrating over quantiles of the false-positive rate puts the nodes where the mass is.
    rates = special.betaincinv(fp + _JEFFREYS, out - fp + _JEFFREYS, (nodes + 1) / 2)

    def mass_below(epsilon: float) -> float:
        low, high = _region(rates, epsilon, delta)
        a, b = fn + _JEFFREYS, inside - fn + _JEFFREYS
        top = special.betainc(a, b, high) if turned else 1.0
        inner = top - special.betainc(a, b, np.minimum(low, high) if turned else low)
        return float(inner @ weights) / 2

    if mass_below(0.0) >= probability:
        return 0.0
    if mass_below(_LARGEST) <= probability:
        return _LARGEST
    return float(
        optimize.brentq(lambda e: mass_below(e) - probability, 0.0, _LARGEST, xtol=1e-10)
    )  # fmt: skip


@functools.cache
def _quadrature() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Nodes and weights on [-1, 1]; finding them costs as much as using them."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return nodes, weights


def jeffreys_interval(counts: Counts, delta: float, alpha: float) -> tuple[float, float]:
    """(lower, upper) ε from equal-tailed Jeffreys intervals of both rates, alpha / 2 each.

    The ends are forced to 0 and 1 where a count is 0 or complete, as is usual for this interval.

    Raises:
        ValueError: `alpha` outside (0, 1).
    """
    check_alpha(alpha)
    fp, fn, out, inside = counts
    ends = [_equal_tailed(k, n, alpha / 2) for k, n in ((fp, out), (fn, inside))]
    (fpr_low, fpr_high), (fnr_low, fnr_high) = ends
    lower = float(epsilon_of_rates(fpr_high, fnr_high, delta))
    upper = float(epsilon_of_rates(fpr_low, fnr_low, delta))
    return lower, upper


def _region(
    fpr: npt.NDArray[np.float64], epsilon: float, delta: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """False-negative rates that (ε, δ)-DP allows beside each false-positive rate.

    Below, by the test as it is; above, by the same test with its answer turned around.
    """
    shrink = math.exp(-epsilon)
    low = np.maximum(shrink * (1 - delta - fpr), 1 - delta - fpr / shrink)
    high = np.minimum(1 - shrink * (fpr - delta), (1 - fpr) / shrink + delta)
    return np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0)


def _equal_tailed(k: int, n: int, alpha: float) -> tuple[float, float]:
    a, b = k + _JEFFREYS, n - k + _JEFFREYS
    low = 0.0 if k == 0 else float(special.betaincinv(a, b, alpha / 2))
    high = 1.0 if k == n else float(special.betaincinv(a, b, 1 - alpha / 2))
    return low, high
