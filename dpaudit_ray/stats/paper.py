"""The papers' own procedures, verbatim, so that their figures can be compared.

They maximise over thresholds on the very scores that the interval is computed from. The
Clopper-Pearson interval is not uniform over such choices: the nominal 5 % error was measured at
6 to 14 % for 1000 to 5000 trials. Their status is `paper`; they never support a verdict.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np
from scipy import special

from . import gdp
from .base import Estimate, Estimator, Members, Scores, Status
from .binomial import clopper_pearson_upper
from .thresholds import TrialLog, Worlds


@dataclasses.dataclass
class PaperGdp(Estimator):
    """Cebere, Bellet, Papernot, Algorithm 4: best threshold, two-sided intervals, GDP."""

    name: ClassVar[str] = "paper-gdp"
    status: ClassVar[Status] = Status.PAPER

    def __post_init__(self) -> None:
        self._log = TrialLog()

    def _fold(self, scores: Scores, members: Members) -> None:
        self._log.append(scores, members)

    def bound(self, delta: float, confidence: float) -> Estimate:
        mu, threshold = algorithm_4(Worlds.of(*self._log.arrays()), confidence)
        epsilon = gdp.epsilon(max(mu, 0.0), delta)
        return self._estimate(epsilon, mu, (delta, confidence), len(self._log), threshold)


def algorithm_4(worlds: Worlds, confidence: float) -> tuple[float, float]:
    """Largest μ over all thresholds, and that threshold; (0, NaN) when a world is empty.

    Error rates get *upper* bounds at (1 - confidence)/2 each, as the two-sided interval of the
    paper; the paper's text says "lower bound", which would not bound anything.
    """
    out, inside = worlds.sizes
    thresholds = worlds.midpoints()
    if out == 0 or inside == 0 or len(thresholds) == 0:
        return 0.0, math.nan
    false_positives, false_negatives = worlds.errors(thresholds)
    tail = (1 - confidence) / 2
    # ε grows with μ, so the best ε is the ε of the best μ: one conversion instead of thousands.
    alphas = clopper_pearson_upper(np.arange(out + 1), out, tail)
    betas = clopper_pearson_upper(np.arange(inside + 1), inside, tail)
    mus = -special.ndtri(alphas)[false_positives] - special.ndtri(betas)[false_negatives]
    best = int(np.argmax(mus))
    return float(mus[best]), float(thresholds[best])
