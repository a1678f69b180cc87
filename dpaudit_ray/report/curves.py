"""What the scores of one audit say of its whole trade-off curve: whether it is Gaussian, and ε at
every δ."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt
from scipy import special

from .. import imports
from ..accounting import Training
from ..plan import claims
from ..plan.model import PlannedAudit
from ..stats import gdp, profile
from ..stats.base import checked
from ..stats.curve import Curve
from ..stats.profile import MuProfile
from ..stats.threshold_rates import Worlds
from .tables import Run

Floats = npt.NDArray[np.float64]
_DELTAS = np.logspace(-8, -1, 29)


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
    def from_scores(cls, scores: npt.ArrayLike, members: npt.ArrayLike) -> ObservedTradeOff:
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
        """Largest distance of the curve from the fit, in α or β, whichever is less.

        Both curves are steep at one end, where a difference of one trial in α is a large one in β.
        """
        if len(self.alpha) == 0:
            return 0.0
        upwards = np.abs(self.beta - gaussian_trade_off(self.alpha, self.mu))
        sideways = np.abs(self.alpha - gaussian_trade_off(self.beta, self.mu))  # its own inverse
        return float(np.max(np.minimum(upwards, sideways)))


def gaussian_trade_off(alpha: npt.ArrayLike, mu: float) -> Floats:
    """G_μ(α) = Φ(Φ⁻¹(1 - α) - μ): the fewest misses of a μ-GDP mechanism (Dong et al., 2022)."""
    return np.asarray(1 - gdp.true_positive_rate(alpha, mu), dtype=np.float64)


@dataclasses.dataclass(frozen=True)
class Profile:
    """Curves that the last step's scores trace, at the audit's confidence.

    `epsilons` are lower bounds at `deltas`, valid together; `claim` is the claimed curve.
    """

    tradeoff: ObservedTradeOff
    mu: MuProfile
    deltas: Floats
    epsilons: Floats
    claim: Curve

    @property
    def gaussian(self) -> bool:
        """False when no single μ fits: then no ε converted from a μ should be believed."""
        return self.mu.gaussian

    @classmethod
    def from_scores(
        cls, run: Run, audit: PlannedAudit, scores: Floats, members: npt.NDArray[np.bool_]
    ) -> Profile:
        """Computes the curves from an audit's scores at its last step, float64 [n]."""
        cell = run.sweep.cells[run.plan.audits.index(audit)]
        confidence = cell.audit.confidence
        claimed = cell.mechanism.claimed(cell.adversary, audit.horizons[-1])
        # No world of so many trials is larger, but by a chance of 1 in 16,000: one calibration
        # does for all audits of that many, and a larger world has its own (`stats.error_rates`).
        size = math.ceil(len(scores) / 2 + 2 * math.sqrt(len(scores)))
        return cls(
            ObservedTradeOff.from_scores(scores, members),
            profile.mu_profile(scores, members, confidence, size=size),
            _DELTAS,
            profile.epsilon_curve(scores, members, _DELTAS, confidence, size=size),
            _claim(claimed.training, audit, cell.audit.delta),
        )


def _claim(training: Training, audit: PlannedAudit, delta: float) -> Curve:
    """The first accountant's curve; its one recorded point where that may not be imported."""
    accountant = next(iter(audit.claims))
    if ":" in accountant and imports.is_data(accountant):
        return Curve(np.array([audit.claim]), np.array([delta]))
    return claims.at_points(training, np.linspace(0.0, 2 * audit.claim, 60), accountant)
