"""The curve of μ along the ROC, in place of one number.

Its bounds come from a simultaneous band of the ROC (`error_rates`), so they hold at all points
simultaneously, and none assumes a trade-off function. If that is Gaussian, μ is the same at every
point.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from .base import checked
from .error_rates import Floats, in_unit, upper_rates
from .threshold_rates import Worlds, mu_of_rates

MOST = 20_000  # thresholds of a curve at most: any choice is valid, and no figure resolves more


@dataclass(frozen=True)
class MuProfile:
    """μ along the ROC, float64 [n] each, from the highest threshold to the lowest.

    Attributes:
        fpr: the observed false-positive rate.
        mu: the observed z(1 - FPR) - z(FNR); infinite where a rate is 0 or 1.
        lower: lower ends of the band that holds simultaneously at all points.
        upper: upper ends of the band.
    """

    fpr: Floats
    mu: Floats
    lower: Floats
    upper: Floats

    @property
    def gaussian(self) -> bool:
        """Whether one μ fits the entire band; if not, the trade-off function is not Gaussian."""
        return len(self.lower) == 0 or bool(self.lower.max() <= self.upper.min())


def mu_profile(
    scores: ArrayLike, members: ArrayLike, confidence: float, size: int = 0
) -> MuProfile:
    """Computes μ at each threshold between scores, with a two-sided simultaneous band.

    At a threshold with error rates α and β, μ is Φ⁻¹(1 - α) - Φ⁻¹(β). Bounds on both rates at all
    thresholds together give bounds on μ at all of them.

    Args:
        scores: float [R], higher = more "in"; not finite if the run diverged.
        members: the secret bits, bool [R].
        confidence: confidence of the band, in (0, 1).
        size: number of trials of a world for which levels are computed, at least; see
            `upper_rates`.
    """
    in_unit("confidence", confidence)
    worlds = Worlds.observed(*checked(scores, members))
    if min(worlds.sizes) == 0:
        return MuProfile(*np.empty((4, 0)))
    thresholds = worlds.midpoints(MOST)[::-1]
    tail = (1 - confidence) / 4  # four one-sided bands: an upper and a lower one for either rate
    # Rates of false positives and of false negatives, with their lower and upper bounds.
    rates, low, high = [], [], []
    for errors, n in zip(worlds.errors(thresholds), worlds.sizes, strict=True):
        upper = upper_rates(n, tail, size)
        rates.append(errors / n)
        high.append(upper(errors))
        low.append(np.maximum(1 - upper(n - errors), 0.0))
    with np.errstate(invalid="ignore"):
        mu = mu_of_rates(*rates)
    mu = np.where(np.isnan(mu), 0.0, mu)  # one rate is 0 and the other 1: no better than chance
    return MuProfile(rates[0], mu, lower=mu_of_rates(*high), upper=mu_of_rates(*low))
