"""Clopper-Pearson bounds on both error rates of one test: (ε, δ) without any assumption.

(ε, δ)-DP forces α + e^ε β ≥ 1 - δ and β + e^ε α ≥ 1 - δ on every test with false-positive rate
α and false-negative rate β (Nasr et al. 2021, eq. 4-5, with the inequality the right way round).
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal

import numpy as np

from .base import Estimate, Estimator, Members, Scores, Status
from .binomial import clopper_pearson_upper
from .thresholds import TrialLog, Worlds


@dataclasses.dataclass
class EpsDelta(Estimator):
    """Assumption-free bound at a threshold fixed before the trials it is judged on.

    `threshold="past"` spends the first `calibration` share of the planned trials to choose the
    threshold and counts errors on the later ones only; `"fixed"` takes the pre-registered
    `value` and counts errors on all.
    """

    threshold: Literal["past", "fixed"] = "past"
    calibration: float = 0.2
    value: float = math.nan
    name: ClassVar[str] = "eps-delta"
    status: ClassVar[Status] = Status.CERTIFIED

    def __post_init__(self) -> None:
        if self.threshold not in ("past", "fixed"):
            raise ValueError(f"threshold must be past or fixed, got {self.threshold!r}")
        if not 0 < self.calibration < 1:
            raise ValueError(f"calibration must lie in (0, 1), got {self.calibration}")
        if (self.threshold == "fixed") != math.isfinite(self.value):
            raise ValueError(f"threshold: fixed goes with a finite value, got {self.value}")
        self._log = TrialLog()

    def _fold(self, scores: Scores, members: Members) -> None:
        self._log.append(scores, members)

    def bound(self, delta: float, confidence: float) -> Estimate:
        scores, members = self._log.arrays()
        first = 0 if self.threshold == "fixed" else math.ceil(self.calibration * self.planned)
        judged = Worlds.of(scores[first:], members[first:])
        threshold = self.value
        if self.threshold == "past":
            past = Worlds.of(scores[:first], members[:first])
            share = (self.planned - first) / max(first, 1)
            threshold = best_threshold(past, share, delta, 1 - confidence)
        epsilon = 0.0
        if math.isfinite(threshold) and min(judged.sizes) > 0:
            errors = judged.errors(threshold)
            epsilon = float(epsilon_lower(errors, judged.sizes, delta, 1 - confidence)[0])
        level = (delta, confidence)
        return self._estimate(epsilon, math.nan, level, len(self._log), threshold)


def epsilon_lower(
    errors: tuple[np.ndarray, np.ndarray],
    sizes: tuple[float, float],
    delta: float,
    alpha: float,
) -> Scores:
    """Lower bounds on ε from counts of false positives and negatives, float64 [len(errors)].

    Each rate gets `alpha / 2`, so both upper bounds hold together at level 1 - alpha; both
    directions are read off the same rectangle and need no further split.
    """
    fpr = np.atleast_1d(clopper_pearson_upper(errors[0], sizes[0], alpha / 2))
    fnr = np.atleast_1d(clopper_pearson_upper(errors[1], sizes[1], alpha / 2))
    with np.errstate(divide="ignore", invalid="ignore"):
        up = np.log(np.maximum(1 - delta - fpr, 0) / fnr)
        down = np.log(np.maximum(1 - delta - fnr, 0) / fpr)
    return np.maximum(np.maximum(up, down), 0.0)


def best_threshold(past: Worlds, share: float, delta: float, alpha: float) -> float:
    """The threshold that would certify most if the rates of `past` recurred on `share` as many.

    Only past trials enter, so any choice here is valid; this one accounts for the interval's
    width. NaN when a world is empty.
    """
    candidates = past.midpoints()
    if min(past.sizes) == 0 or len(candidates) == 0:
        return math.nan
    errors = past.errors(candidates)
    scaled = tuple(share * e for e in errors)
    sizes = tuple(share * s for s in past.sizes)
    bounds = epsilon_lower((scaled[0], scaled[1]), (sizes[0], sizes[1]), delta, alpha)
    best = np.flatnonzero(bounds == bounds.max())
    return float(candidates[best[len(best) // 2]])
