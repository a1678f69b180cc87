"""A bound that may choose its threshold on the scores it is computed from.

Both error rates are bounded at every threshold at once, so any functional of the whole ROC may
be maximised. That is the valid form of what the papers do (`paper-gdp`, `paper-eps-delta`); the
price is 0.3 to 2.3 in ε against `accuracy`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal

from . import gdp
from .base import Estimator
from .diverged import LEARN, settled
from .local_levels import Levels, next_size, upper_rates
from .rates import epsilon_of_rates
from .rates_gdp import mu_of_rates
from .statement import Estimate, Status
from .thresholds import Logged, Upper, Worlds, best_test


@dataclasses.dataclass
class Band(Logged, Estimator):
    """Largest bound over all thresholds, under a band that holds at all of them together.

    `levels` is how the band spreads its error; `curve: any` reports the (ε, δ) bound that
    assumes no trade-off curve, `gaussian` the bound on μ.
    """

    levels: Literal["equal-local", "dkw", "bonferroni"] = "equal-local"
    curve: Literal["gaussian", "any"] = "gaussian"
    name: ClassVar[str] = "band"
    status: ClassVar[Status] = Status.IF_GAUSSIAN

    def __post_init__(self) -> None:
        if self.levels not in tuple(Levels):
            raise ValueError(f"levels must be one of {', '.join(Levels)}, got {self.levels!r}")
        if self.curve not in ("gaussian", "any"):
            raise ValueError(f"curve must be gaussian or any, got {self.curve!r}")
        super().__post_init__()

    def bound(self, delta: float, confidence: float) -> Estimate:
        scores, members = self._log.arrays()
        learn = math.ceil(LEARN * self.planned)
        worlds, level = Worlds.of(settled(scores, members, learn), members), (delta, confidence)
        if min(worlds.sizes) == 0:
            mu = 0.0 if self.curve == "gaussian" else math.nan
            return self._estimate(0.0, mu, level, len(self._log))
        complete = len(self._log) >= self.planned
        uppers = both_uppers(worlds.sizes, 1 - confidence, Levels(self.levels), complete)
        if self.curve == "any":
            epsilon, threshold = best_test(
                worlds, uppers, lambda a, b: epsilon_of_rates(a, b, delta)
            )
            return self._estimate(epsilon, math.nan, level, len(self._log), threshold)
        mu, threshold = best_test(worlds, uppers, mu_of_rates)
        mu = max(mu, 0.0)
        return self._estimate(gdp.epsilon(mu, delta), mu, level, len(self._log), threshold)


def both_uppers(
    sizes: tuple[int, int], alpha: float, levels: Levels, exact: bool = True
) -> tuple[Upper, Upper]:
    """Upper bounds on both error rates, valid at every threshold there is at 1 - alpha.

    A miss counts as an error of its world at each threshold. Without `exact`, the level is that of
    a slightly larger audit, which is cached across audits.
    """
    out, inside = (upper_rates(n, alpha / 2, levels, 0 if exact else next_size(n)) for n in sizes)
    return out, inside
