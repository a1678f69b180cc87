"""Clopper-Pearson bounds on both error rates of one test: (ε, δ) without any assumption.

(ε, δ)-DP forces α + e^ε β ≥ 1 - δ and β + e^ε α ≥ 1 - δ on every test with false-positive rate
α and false-negative rate β (Nasr et al. 2021, eq. 4-5, with the inequality the right way round).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from .base import Estimator, Scores
from .binomial import clopper_pearson_upper
from .statement import Estimate, Status
from .thresholds import AtOneThreshold


@dataclasses.dataclass
class EpsDelta(AtOneThreshold, Estimator):
    """Assumption-free bound at a threshold fixed before the trials it is judged on."""

    name: ClassVar[str] = "eps-delta"
    status: ClassVar[Status] = Status.CERTIFIED

    def bound(self, delta: float, confidence: float) -> Estimate:
        alpha = 1 - confidence
        judged = self._judge(lambda a, b: epsilon_of_rates(a, b, delta), alpha)
        epsilon = 0.0
        if judged.usable:
            errors = (judged.false_positives, judged.false_negatives)
            epsilon = float(epsilon_lower(errors, judged.sizes, delta, alpha)[0])
        level = (delta, confidence)
        return self._estimate(epsilon, math.nan, level, len(self._log), judged.threshold)


def epsilon_lower(
    errors: tuple[npt.ArrayLike, npt.ArrayLike],
    sizes: tuple[float, float],
    delta: float,
    alpha: float,
) -> Scores:
    """Lower bounds on ε from counts of false positives and negatives, float64 [len(errors)].

    Each rate gets `alpha / 2`, so both upper bounds hold together at level 1 - alpha; both
    directions are read off the same rectangle and need no further split.

    Raises:
        ValueError: counts outside 0..size, or `alpha` outside (0, 1).
    """
    fpr = np.atleast_1d(clopper_pearson_upper(errors[0], sizes[0], alpha / 2))
    fnr = np.atleast_1d(clopper_pearson_upper(errors[1], sizes[1], alpha / 2))
    return np.asarray(epsilon_of_rates(fpr, fnr, delta))


def epsilon_of_rates(fpr: npt.ArrayLike, fnr: npt.ArrayLike, delta: float) -> Any:
    """The smallest ε ≥ 0 at which a test with these error rates is possible; broadcasts.

    No test is flipped: rates on the wrong side of the diagonal show nothing, and bounds of
    such rates even less (both are *upper* bounds).
    """
    a, b = np.asarray(fpr, dtype=np.float64), np.asarray(fnr, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        up = np.log(np.maximum(1 - delta - a, 0) / b)
        down = np.log(np.maximum(1 - delta - b, 0) / a)
    return np.fmax(np.fmax(up, down), 0.0)
