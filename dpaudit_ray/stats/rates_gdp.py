"""Clopper-Pearson bounds on both error rates of one test, read as a bound on μ.

A μ-GDP mechanism forces Φ⁻¹(1 - α) - Φ⁻¹(β) ≤ μ on every test (Nasr et al. 2023, section 4).
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from scipy import special

from . import gdp
from .base import Estimator, Scores
from .binomial import clopper_pearson_upper
from .statement import Estimate, Status
from .thresholds import AtOneThreshold, Rates


@dataclasses.dataclass
class Gdp(AtOneThreshold, Estimator):
    """Bound on μ at a threshold fixed before the trials it is judged on.

    Valid like `eps-delta`, and looser than `accuracy`, which bounds one rate instead of two. It
    is tighter only where one kind of error is much rarer than the other.
    """

    name: ClassVar[str] = "gdp"
    status: ClassVar[Status] = Status.IF_GAUSSIAN

    def bound(self, delta: float, confidence: float) -> Estimate:
        alpha = 1 - confidence
        judged, mu = self._judge(mu_of_rates, alpha), 0.0
        if judged.usable:
            errors = (judged.false_positives, judged.false_negatives)
            mu = max(float(mu_lower(errors, judged.sizes, alpha)[0]), 0.0)
        level = (delta, confidence)
        epsilon = gdp.epsilon(mu, delta)
        return self._estimate(epsilon, mu, level, len(self._log), judged.threshold)


def mu_lower(
    errors: tuple[npt.ArrayLike, npt.ArrayLike], sizes: tuple[float, float], alpha: float
) -> Scores:
    """Lower bounds on μ from counts of false positives and negatives, float64 [len(errors)].

    Each rate gets `alpha / 2`. Both are upper bounds, so a negative result means "nothing was
    shown" and must not be flipped into evidence by taking its absolute value.

    Raises:
        ValueError: counts outside 0..size, or `alpha` outside (0, 1).
    """
    fpr = np.atleast_1d(clopper_pearson_upper(errors[0], sizes[0], alpha / 2))
    fnr = np.atleast_1d(clopper_pearson_upper(errors[1], sizes[1], alpha / 2))
    return mu_of_rates(fpr, fnr)


def mu_of_rates(fpr: Rates, fnr: Rates) -> Rates:
    """The μ of the Gaussian trade-off curve through each pair of error rates, float64 [n]."""
    return np.asarray(-special.ndtri(fpr) - special.ndtri(fnr))
