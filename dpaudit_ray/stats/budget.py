"""One error budget per audit or sweep, split over everything that a decision may rest on.

Each bound is wrong with probability up to 1 - confidence. Who looks at three estimators at ten
recorded steps and acts on the best of them is wrong more often, unless the error was split first.
Only what can change a decision needs a share: figures that are just shown do not. Wherever this
package marks a bound, or picks one of several, it does so at the level of `SweepBudget.each`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy import special


@dataclasses.dataclass(frozen=True)
class Budget:
    """Error 1 - confidence for a whole audit, whose `estimators` decide at each of `steps`.

    Directions of one estimator need no share of their own: every estimator here accounts for both.
    Raises ValueError for a confidence outside (0, 1), or a name or step that appears twice.
    """

    confidence: float
    estimators: tuple[str, ...] = ()
    steps: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class SweepBudget:
    """Error 1 - confidence for a whole sweep, split evenly over all deciding bounds.

    `audits` has one budget per audit that runs trials; the lowest of their confidences is the
    sweep's. An audit without estimators that hold their level decides nothing.
    """

    audits: tuple[Budget, ...] = ()

    @property
    def confidence(self) -> float:
        """Confidence at which all bounds hold together."""
        return min((audit.confidence for audit in self.audits), default=0.95)

    @property
    def parts(self) -> int:
        """Number of shares, at least 1: steps × estimators, over all audits."""
        return max(sum(len(a.estimators) * len(a.steps) for a in self.audits), 1)

    @property
    def each(self) -> float:
        """The confidence that every single bound must have (Bonferroni)."""
        return 1 - (1 - self.confidence) / self.parts

    @property
    def each_audit(self) -> float:
        """The confidence of each bound where every audit decides by one bound only."""
        return 1 - (1 - self.confidence) / max(len(self.audits), 1)


def average_evidence(log_values: Sequence[float]) -> float:
    """Log of the mean of e-values, itself an e-value, whatever the dependence between them.

    The way to combine claim tests over a grid of audits: refuted from ln(1/alpha) on, like each.
    `log_values` are natural logarithms of e-values, one at least.
    """
    logs = np.asarray(log_values, dtype=np.float64)
    return float(special.logsumexp(logs)) - math.log(logs.size)
