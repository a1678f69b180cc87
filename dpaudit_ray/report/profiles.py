"""Whole curves of one audit: its trade-off curve, whether that is Gaussian, and ε at other δ."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from scipy import special

from .. import imports
from ..accounting import Training
from ..plan import claims
from ..plan.model import PlannedAudit
from ..stats import profile
from ..stats.curve import Curve
from ..stats.profile import MuProfile
from .figures import COLOURS, STYLE, png, say, side_by_side
from .tables import Run
from .tradeoff import ObservedTradeOff

Floats = npt.NDArray[np.float64]
_DELTAS = np.logspace(-8, -1, 29)


@dataclasses.dataclass(frozen=True)
class Profile:
    """What the last step's scores say about the whole curve, at the audit's confidence.

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
    def of(
        cls, run: Run, audit: PlannedAudit, values: Floats, members: npt.NDArray[np.bool_]
    ) -> Profile:
        """Computes the curves from an audit's scores at its last step, float64 [n]."""
        cell = run.sweep.cells[run.plan.audits.index(audit)]
        confidence = cell.audit.confidence
        claimed = cell.mechanism.claimed(cell.adversary, audit.horizons[-1])
        points = np.linspace(0.0, 2 * audit.claim, 60)
        size = _shared_size(len(values))
        return cls(
            ObservedTradeOff.of(values, members),
            profile.mu_profile(values, members, confidence, size=size),
            _DELTAS,
            profile.epsilon_curve(values, members, _DELTAS, confidence, size=size),
            _claim(claimed.training, points, audit, cell.audit.delta),
        )

    def figure(self) -> bytes:
        """A PNG: the trade-off curve with its fit, μ along it with its band, and ε at every δ."""
        with mpl.rc_context(STYLE):
            figure, (left, middle, right) = side_by_side(3)
            self.tradeoff.draw(left, self.claim)
            self._mu_panel(middle)
            self._epsilon_panel(right)
            return png(figure)

    def _mu_panel(self, axes: Any) -> None:
        if self.tradeoff.saturated:
            say(axes, "Both worlds are told apart without an error.\nHow far they are apart, more "
                      "trials would show.")  # fmt: skip
            return
        rates = self.mu.fpr
        inside = (rates > 0) & (rates < 1) & np.isfinite(self.mu.mu)
        places = -special.ndtri(rates[inside])
        axes.plot(places, self.mu.mu[inside], color=COLOURS[0], lw=1, label="observed")
        axes.fill_between(
            places,
            np.maximum(self.mu.lower[inside], 0),
            np.minimum(self.mu.upper[inside], 2 * np.max(self.mu.mu[inside], initial=1.0)),
            color=COLOURS[0],
            alpha=0.2,
            label="band, all points together",
        )
        axes.set_xlabel("threshold, as the z-score of its false-positive rate")
        axes.set_ylabel("μ")
        axes.set_ylim(bottom=0)
        axes.legend(loc="lower left", frameon=False, fontsize=7)

    def _epsilon_panel(self, axes: Any) -> None:
        claimed, epsilons = self.claim.deltas, self.claim.epsilons
        axes.semilogx(claimed[claimed > 0], epsilons[claimed > 0], color="black", label="claim")
        axes.semilogx(
            self.deltas, self.epsilons, color=COLOURS[2], label="lower bound, no assumption"
        )
        tallest = float(np.max(epsilons[claimed >= self.deltas[0]], initial=0.0))
        axes.set_xlim(self.deltas[0], self.deltas[-1])
        axes.set_xticks([1e-8, 1e-6, 1e-4, 1e-2], ["1e-8", "1e-6", "1e-4", "1e-2"])
        axes.minorticks_off()
        axes.set_xlabel("δ")
        axes.set_ylabel("ε")
        axes.set_ylim(0, 1.05 * max(tallest, float(np.max(self.epsilons)), 0.1))
        axes.legend(frameon=False, fontsize=7)


def _shared_size(trials: int) -> int:
    """What no world of so many trials exceeds, but by a chance of 1 in 16,000.

    One calibration then does for all audits of that many trials; a larger world has its own
    (`stats.error_rates.upper_rates`).
    """
    return math.ceil(trials / 2 + 2 * math.sqrt(trials))


def _claim(training: Training, points: Floats, audit: PlannedAudit, delta: float) -> Curve:
    """The first accountant's curve; its one recorded point where that may not be imported."""
    accountant = next(iter(audit.claims))
    if ":" in accountant and imports.is_data(accountant):
        return Curve(np.array([audit.claim]), np.array([delta]))
    return claims.at_points(training, points, accountant)
