"""The e-process of a claim: do trials contradict an accountant's curve, whatever the mechanism is?

A claim is a curve δ(ε); every point of it bounds the payoff of a guess with abstention
(`payoffs`). Four ways of betting share the stake, none of which assumes a trade-off curve for the
true mechanism: plain guessing with every stake at once, constant stakes at many points of the
curve, the same on diverged trials alone, and the mixture that past trials recommend
(`Portfolio`). Reaching 1/alpha refutes the claim, at any look.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from . import gdp
from .base import Estimator
from .curve import Curve, gaussian
from .e_process import log_mixture
from .lower_bound import Estimate, Status
from .payoffs import LOSSES, PLAIN, WINS, Portfolio, Wagered

Floats = npt.NDArray[np.float64]
_POINTS = 12  # of a curve, for constant stakes
_BOLD = 3  # the largest stakes: for diverged trials, which are rare and nearly sure


@dataclasses.dataclass
class Claim(Wagered, Estimator):
    """Evidence against claims, gathered while trials arrive.

    As an estimator it reports the largest refuted μ of the Gaussian family; `evidence` takes any
    accountant's curve.
    """

    name: ClassVar[str] = "claim"
    status: ClassVar[Status] = Status.IF_GAUSSIAN
    interim_valid: ClassVar[bool] = True

    @property
    def trials(self) -> int:
        """Trials folded so far."""
        return self._wagers.trials

    def evidence(self, curve: Curve) -> float:
        """Natural logarithm of the wealth against `curve`: refuted at level alpha from ln(1/alpha).

        The logarithm of an e-value: e-values of several audits may be averaged, and one that is
        looked at often needs no correction.
        """
        learnt = Portfolio.from_curve(curve).log_wealth(self._wagers.epochs)
        return _mean([self._plain(curve), *self._constant(curve), learnt])

    def _plain(self, curve: Curve) -> float:
        """Guesses around the midpoint against the best accuracy that the claim allows.

        Stakes of all sizes are mixed, so that no violation is too small to be found.
        """
        rate = (1 + float(curve.deltas[curve.epsilons == 0].min(initial=1.0))) / 2
        if rate >= 1:
            return 0.0
        counts = self._wagers.counts
        hits, misses = int(WINS[PLAIN] @ counts), int(LOSSES[PLAIN] @ counts)
        return log_mixture(rate, hits, hits + misses)

    def _constant(self, curve: Curve) -> tuple[float, float]:
        """Constant stakes at points of the curve: in all slots, and on diverged trials alone."""
        few = curve.thinned(_POINTS)
        wealth = self._wagers.log_wealth(few.epsilons, few.deltas)
        return _mean(wealth), _mean(wealth[:, -1, -_BOLD:])

    def bound(self, delta: float, confidence: float) -> Estimate:
        level, target = (delta, confidence), -math.log(1 - confidence)

        def excess(mu: float) -> float:  # without what was learnt: this is asked after every pack
            return _mean([self._plain(gaussian(mu)), *self._constant(gaussian(mu))]) - target

        mu = _end(excess, 0.0, 40.0)
        return self._estimate(float(gdp.epsilon(mu, delta)), mu, level, self.trials)


def _mean(logs: npt.ArrayLike) -> float:
    """Logarithm of the mean of wealths that are given by their logarithms."""
    values = np.asarray(logs, dtype=np.float64).ravel()
    # For so few numbers a fifth of what scipy's logsumexp takes.
    return float(np.logaddexp.reduce(values)) - math.log(len(values))


def _end(excess: Callable[[float], float], low: float, high: float) -> float:
    """Where what is refuted ends, between `low` (nothing is) and `high` (all is)."""
    from scipy import optimize  # as long to import as all else of this package

    if excess(low) < 0:
        return low
    if excess(high) >= 0:
        return high
    return float(optimize.brentq(excess, low, high, xtol=1e-9, rtol=1e-5))
