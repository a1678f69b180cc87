"""How the one-run paper picks its numbers of guesses: those that come out best.

Steinke, Nasr, Jagielski (2023), section 4, report the best of several k+ and k-, and say that the
confidence is less for it. Theorem 3.1 holds for numbers not picked by what comes out: of 1000
audits of randomised response at ε = 1 with 1000 canaries, δ = 0, 48 % exceeded the truth.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from .base import Estimator, Members, Scores
from .one_run import epsilon_lower, p_value
from .statement import Estimate, Status
from .thresholds import Logged

_EACH = 24  # numbers of guesses of each kind, beside none


@dataclasses.dataclass
class PaperOneRun(Logged, Estimator):
    """The best of some 600 pairs (k+, k-), each at the full confidence.

    `independent` trainings of one canary each are judged as if they were one.
    """

    independent: bool = False

    name: ClassVar[str] = "paper-one-run"
    status: ClassVar[Status] = Status.PAPER
    one_run: ClassVar[bool] = True

    def bound(self, delta: float, confidence: float) -> Estimate:
        scores, members = self._log.arrays()
        best = largest(scores, members, delta, confidence)
        return self._estimate(best, math.nan, (delta, confidence), len(scores))


def largest(scores: Scores, members: Members, delta: float, confidence: float) -> float:
    """Largest ε of Theorem 3.1 over pairs (k+, k-); those that cannot beat it are not solved."""
    finite = np.isfinite(scores)
    order = np.argsort(scores[finite], kind="stable")
    rising, bits = scores[finite][order], members[finite][order]
    total, best = len(scores), 0.0
    inside = np.concatenate([[0], np.cumsum(bits[::-1])])
    outside = np.concatenate([[0], np.cumsum(~bits)])
    for above in _counts(rising[::-1]):
        for below in _counts(rising):
            guesses, right = int(above + below), int(inside[above] + outside[below])
            if guesses > len(bits) or right == 0:
                continue
            if p_value(right, guesses, total, best, delta) < 1 - confidence:
                best = epsilon_lower(right, guesses, total, delta, confidence)
    return best


def _counts(scores: Scores) -> npt.NDArray[np.intp]:
    """How many of the first to guess: none, and some numbers that part no equal scores."""
    ends = np.flatnonzero(np.r_[np.diff(scores) != 0, len(scores) > 0]) + 1
    wanted = np.geomspace(1, max(len(scores), 1), _EACH).astype(int)
    at = np.searchsorted(ends, wanted, side="right") - 1
    return np.unique(np.r_[0, ends[at[at >= 0]]])
