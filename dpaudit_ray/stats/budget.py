"""Error budget of an audit or sweep, split over all bounds that may decide.

The best of three estimators at ten recorded steps is wrong more often than 1 - confidence, unless
the error was split first. Figures that decide nothing need no share.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import special

from .error_rates import as_floats


@dataclass(frozen=True)
class Budget:
    """Error 1 - confidence of one audit, whose `estimators` decide at each of the steps `steps`."""

    confidence: float
    estimators: tuple[str, ...] = ()
    steps: tuple[int, ...] = ()


@dataclass(frozen=True)
class SweepBudget:
    """Error of a sweep, split evenly over all bounds that decide.

    It is 1 - confidence, with the lowest confidence of its audits.
    """

    audits: tuple[Budget, ...] = ()

    @property
    def confidence(self) -> float:
        """Confidence at which all bounds hold simultaneously."""
        return min((audit.confidence for audit in self.audits), default=0.95)

    @property
    def parts(self) -> int:
        """Number of shares, at least 1: steps × estimators, over all audits."""
        bounds = (len(audit.estimators) * len(audit.steps) for audit in self.audits)
        return max(sum(bounds), 1)

    @property
    def each(self) -> float:
        """Confidence that each bound must have if all decide (Bonferroni)."""
        return 1 - (1 - self.confidence) / self.parts

    @property
    def each_audit(self) -> float:
        """Confidence that each bound must have if every audit decides by one bound only."""
        return 1 - (1 - self.confidence) / max(len(self.audits), 1)


def average_evidence(log_values: Sequence[float]) -> float:
    """Returns the log of the mean of e-values, from their logs.

    The mean is an e-value, too, however they depend on each other.
    """
    logs = as_floats(log_values)
    return float(special.logsumexp(logs)) - math.log(logs.size)
