"""Whole curves instead of one number: ε at every δ, and μ along the ROC.

All come from one simultaneous band of the ROC (`error_rates`), so every point of a curve holds
together with all others, and none assumes a trade-off curve. If it is Gaussian, μ is the same at
every point of the ROC.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from .base import checked
from .error_rates import Floats, in_unit, upper_rates
from .threshold_rates import Worlds, epsilon_of_rates, mu_of_rates

MOST = 20_000  # thresholds of a curve: any choice of them holds, and no figure shows more


@dataclasses.dataclass(frozen=True)
class MuProfile:
    """μ along the ROC, float64 [n] each, from the highest threshold to the lowest.

    `fpr` is the observed false-positive rate, `mu` the observed z(1 - FPR) - z(FNR) (infinite
    where a rate is 0 or 1), `lower` and `upper` the band that holds at all points together.
    """

    fpr: Floats
    mu: Floats
    lower: Floats
    upper: Floats

    @property
    def gaussian(self) -> bool:
        """Whether one μ fits the whole band. False refutes a Gaussian curve at the band's level."""
        return len(self.lower) == 0 or bool(self.lower.max() <= self.upper.min())


def mu_profile(
    scores: npt.ArrayLike, members: npt.ArrayLike, confidence: float, size: int = 0
) -> MuProfile:
    """μ at each threshold between the scores, with a two-sided simultaneous band at `confidence`.

    `scores` float [R], higher = more "in", not finite where diverged; `members` bool [R], the
    secret bits; `size` as in `upper_rates`.
    """
    in_unit("confidence", confidence)
    worlds = Worlds.observed(*checked(scores, members))
    thresholds = worlds.midpoints(MOST)[::-1]
    if min(worlds.sizes) == 0:
        return MuProfile(*(np.empty(0) for _ in range(4)))
    errors = worlds.errors(thresholds)
    # Four one-sided bands: an upper and a lower one for either rate.
    tail = (1 - confidence) / 4
    both = [
        np.split(upper_rates(n, tail, size)(np.concatenate([k, n - k])), 2)
        for k, n in zip(errors, worlds.sizes, strict=True)
    ]
    high = [upper for upper, _ in both]
    low = [np.maximum(1 - mirrored, 0.0) for _, mirrored in both]
    rates = [k / n for k, n in zip(errors, worlds.sizes, strict=True)]
    with np.errstate(invalid="ignore"):
        point = mu_of_rates(rates[0], rates[1])
    return MuProfile(
        fpr=np.asarray(rates[0]),
        mu=np.where(np.isnan(point), 0.0, point),
        lower=mu_of_rates(high[0], high[1]),
        upper=mu_of_rates(low[0], low[1]),
    )


def epsilon_curve(
    scores: npt.ArrayLike,
    members: npt.ArrayLike,
    deltas: npt.ArrayLike,
    confidence: float,
    size: int = 0,
) -> Floats:
    """Lower bounds on ε at each δ, float64 [len(deltas)], all valid together; else as above."""
    d = np.atleast_1d(np.asarray(deltas, dtype=np.float64))
    if not np.all((d >= 0) & (d < 1)):
        raise ValueError(f"deltas must lie in [0, 1), got {d.tolist()}")
    in_unit("confidence", confidence)
    worlds = Worlds.observed(*checked(scores, members))
    if min(worlds.sizes) == 0:
        return np.zeros(len(d))
    # Upper bounds on both error rates at each distinct test, valid together at `confidence`.
    tests = np.unique(np.stack(worlds.errors(worlds.midpoints(MOST))), axis=1)
    tail = (1 - confidence) / 2
    fpr, fnr = (
        upper_rates(n, tail, size)(counts) for n, counts in zip(worlds.sizes, tests, strict=True)
    )
    return np.array([np.max(epsilon_of_rates(fpr, fnr, delta), initial=0.0) for delta in d])
