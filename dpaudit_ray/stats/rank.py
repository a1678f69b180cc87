"""The rank test as a bound on μ: surer guesses weigh more (see `ranking` for why it holds)."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import ClassVar

import numpy as np
from scipy import special

from . import gdp
from .base import Estimator, Members, Scores
from .curve import gaussian
from .diverged import LEARN, Diverged
from .ranking import ClaimKey, Group, distribution, two_means
from .statement import Estimate, Status
from .thresholds import Logged

_LOOK = 1.25
_SMALLEST, _RATIO, _STEPS = 0.005, 1.02, 400  # μ from 0.005 to 13.5


@dataclasses.dataclass
class Rank(Logged, Estimator):
    """Fixed-R bound on μ: 1.5 times fewer trials than `accuracy` for ε ≤ 4.

    All trials are one group, ranked around the midpoint of the two groups that their scores fall
    into: no bit is used, so no trial is spent on a threshold. While trials arrive, the bound is
    that of the last look. Of diverged trials, the first fifth of the planned ones teach which way
    the later ones are guessed, and are ranked last.
    """

    name: ClassVar[str] = "rank"
    status: ClassVar[Status] = Status.IF_GAUSSIAN

    def __post_init__(self) -> None:
        super().__post_init__()
        self._known: dict[tuple[int, float], float] = {}  # trials, confidence -> μ

    def bound(self, delta: float, confidence: float) -> Estimate:
        trials, level = self._looked(), (delta, confidence)
        scores, members = self._log.arrays()
        scores, members = scores[:trials], members[:trials]
        centre = two_means(scores)
        if members.all() or not members.any():
            self._known = {(trials, confidence): 0.0}  # one world alone is an accident
        if (trials, confidence) not in self._known:
            group = self._group(scores, members, centre)
            self._known = {(trials, confidence): mu_lower(group, 1 - confidence)}
        mu = self._known[trials, confidence]
        return self._estimate(float(gdp.epsilon(mu, delta)), mu, level, len(self._log), centre)

    def _looked(self) -> int:
        """Trials of the last look: all when they are complete, else at sizes a quarter apart,
        since the test is computed for each."""
        trials = len(self._log)
        if trials >= self.planned or trials < 2:
            return trials
        steps = math.floor(math.log(trials) / math.log(_LOOK) + 1e-9)
        return min(math.ceil(_LOOK**steps), trials)

    def _group(self, scores: Scores, members: Members, centre: float) -> Group:
        learn = math.ceil(LEARN * self.planned)
        taught = Diverged()
        taught.fold(scores[:learn], members[:learn])
        lesson = np.isinf(scores) & (np.arange(len(scores)) < learn)
        judged = Group.of(scores[~lesson], members[~lesson], centre, taught)
        return Group(np.concatenate([judged.mistakes, ~members[lesson]]))


def mu_lower(group: Group, alpha: float) -> float:
    """The largest μ that the order of mistakes refutes at level `alpha`; 0 when none.

    Found on a grid of μ, as tests of them are kept; between two of them by what the normal
    quantile of the p-value is in between.
    """
    if len(group.mistakes) == 0 or _excess(0, group, alpha) <= 0:
        return 0.0
    low, high = 0, _STEPS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _excess(middle, group, alpha) > 0 else (low, middle)
    left, right = _excess(low, group, alpha), _excess(high, group, alpha)
    share = left / (left - right) if high < _STEPS and right < left else 0.0
    # Down to 2e-8 of μ: matrix products on another number of threads have other last bits.
    return float(_mu(low) * _RATIO ** (math.floor(share * 2**20) / 2**20))


def _excess(index: int, group: Group, alpha: float) -> float:
    """How far below `alpha` the p-value is, as quantiles of the normal distribution."""
    weights, costs = distribution(len(group.mistakes), _claim(index))
    return float(special.ndtri(alpha) - special.ndtri(costs.at_most(weights.cost(group))))


def _mu(index: int) -> float:
    return float(_SMALLEST * _RATIO**index)


@functools.lru_cache(maxsize=_STEPS + 1)
def _claim(index: int) -> ClaimKey:
    return ClaimKey.of(gaussian(_mu(index)))
