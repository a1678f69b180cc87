"""The trade-off curve that the scores trace, and the Gaussian one closest to its middle."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from ..stats import gdp, profile
from ..stats.base import checked
from ..stats.curve import Curve
from ..stats.threshold_rates import Worlds
from .figures import COLOURS

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class ObservedTradeOff:
    """Observed error rates at every threshold, and μ of the fit.

    Estimates, not bounds: a few trials trace a curve that is better than the true one here and
    worse there. `alpha` and `beta` are false-positive and false-negative rates, float64 [n],
    alpha increasing.
    """

    alpha: Floats
    beta: Floats
    mu: float

    @classmethod
    def of(cls, scores: npt.ArrayLike, members: npt.ArrayLike) -> ObservedTradeOff:
        """Fits μ where both errors together are rarest: the point that most trials speak for."""
        worlds = Worlds.observed(*checked(scores, members))
        if min(worlds.sizes) == 0:
            return cls(np.empty(0), np.empty(0), 0.0)
        thresholds = np.concatenate([[np.inf], worlds.midpoints()[::-1], [-np.inf]])
        counts = zip(worlds.errors(thresholds), worlds.sizes, strict=True)
        alpha, beta = (np.asarray(errors / trials, dtype=np.float64) for errors, trials in counts)
        # One half of an error per world: a perfect attack has no finite μ.
        floor = 0.5 / min(worlds.sizes)
        error = max(float((alpha + beta).min()) / 2, floor)
        return cls(alpha, beta, max(-2 * float(special.ndtri(error)), 0.0))

    @property
    def saturated(self) -> bool:
        """Whether some threshold errs nowhere: no number of trials so far shows an end."""
        return bool(len(self.alpha)) and float((self.alpha + self.beta).min()) == 0

    @property
    def gap(self) -> float:
        """How far the curve ever is from the fit, in α or β, whichever is less.

        Both curves are steep at one end, where a difference of one trial in α is a large one in β.
        """
        if len(self.alpha) == 0:
            return 0.0
        upwards = np.abs(self.beta - gaussian(self.alpha, self.mu))
        sideways = np.abs(self.alpha - gaussian(self.beta, self.mu))  # G_μ is its own inverse
        return float(np.max(np.minimum(upwards, sideways)))

    def draw(self, axes: Any, claim: Curve) -> None:
        """The curve, its fit, and the curve below which the claim lets no test come."""
        rates = np.linspace(0.0, 1.0, 400)
        least = 1 - profile.true_positive_rate(rates, claim.epsilons, claim.deltas)
        axes.step(self.alpha, self.beta, where="post", color=COLOURS[0], lw=1.6, label="observed")
        axes.plot(rates, gaussian(rates, self.mu), "--", color=COLOURS[1], lw=1.2,
                  label=f"Gaussian, μ = {self.mu:.2f}")  # fmt: skip
        axes.plot(rates, least, color="black", lw=1, label="claim")
        axes.set_xlabel("false-positive rate α")
        axes.set_ylabel("false-negative rate β")
        # All of a steep curve is a corner: show errors of up to eight times those of the middle.
        reach = min(max(8 * float(special.ndtr(-self.mu / 2)), 0.02), 1.0)
        axes.set_xlim(-0.02 * reach, reach)
        axes.set_ylim(-0.02 * reach, reach)
        axes.set_aspect("equal")
        # Told where it is free: looking for the best place takes a while among thousands of points.
        axes.legend(loc="upper right", frameon=False, fontsize=7)


def gaussian(alpha: npt.ArrayLike, mu: float) -> Floats:
    """G_μ(α) = Φ(Φ⁻¹(1 - α) - μ): the fewest misses of a μ-GDP mechanism (Dong et al., 2022)."""
    return np.asarray(1 - gdp.true_positive_rate(alpha, mu), dtype=np.float64)
