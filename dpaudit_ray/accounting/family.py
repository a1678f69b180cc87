"""What a hit rate says of the noise: the curves that one claim gives for every noise multiplier.

An audit that knows which mechanism is claimed, and not how much noise it really adds, may read its
certified hit rate through that mechanism in place of a Gaussian curve. A training with noise σ is
told from its neighbour at a rate of (1 + δ(0)) / 2 at best, which falls in σ. A certified rate
above that refutes σ and all noise beyond it; what is left has an ε of at least that of the first
refuted σ. So δ(0) is taken from above and ε from below: the accountants' errors count against what
is shown.

At a sample rate below 1 the Gaussian curve of the same hit rate gives far less: most trials hardly
see the canary, and the few that do are what ε at a small δ is about.
"""

from __future__ import annotations

import dataclasses
import math

from scipy import special

from ..stats import TradeOff, gdp
from .pld import advantage, least_epsilon
from .training import Training

_RATIO = 2 ** (1 / 128)  # between noise multipliers that are tried: half a percent
_LEAST, _MOST = -4 * 128, 8 * 128  # sixteenth of the claimed noise to 256 times


@dataclasses.dataclass(frozen=True)
class Family:
    """A training whose noise multiplier may be another one than `training` has.

    A bound that is new costs a handful of compositions of privacy losses: .05 s each for 200
    sampled steps, and one of .5 s for ε itself. One like it, computed before in the process, costs
    60 µs; all hit rates between two neighbouring noise multipliers are alike.
    """

    training: Training

    @property
    def trade_off(self) -> TradeOff:
        """Gaussian where the claim is: then its size is all that noise changes."""
        fixed = self.training.unamplified.sample_rate == 1
        return TradeOff.GAUSSIAN if fixed else TradeOff.CLAIMED

    def epsilon(self, rate: float, delta: float) -> float:
        """ε at δ is at least this, if a guess of the secret bit is right at `rate` or more.

        0 for a rate that noise of 256 times the claimed multiplier allows.
        """
        if rate <= 0.5 or self.training.steps == 0:
            return 0.0
        if self.trade_off is TradeOff.GAUSSIAN:
            return float(gdp.epsilon(2 * special.ndtri(rate), delta))
        first = self._refuted(rate)
        return 0.0 if first > _MOST else least_epsilon(self._at(first), delta)

    def _at(self, step: int) -> Training:
        noise = self.training.noise_multiplier * _RATIO**step
        return dataclasses.replace(self.training, noise_multiplier=noise)

    def _refuted(self, rate: float) -> int:
        """The least of the noise multipliers that are tried which does not allow this hit rate.

        Between two that were looked at, log μ of the best rate is nearly a line; every fourth try
        halves the rest, so that a bend costs little.
        """
        aim, tries = _log_mu(rate), 0
        low, high = _LEAST - 1, _MOST + 1  # allowed or not looked at, refuted or not looked at
        below, above = math.inf, -math.inf
        guess = 0
        while high - low > 1:
            log_mu = _log_mu((1 + advantage(self._at(guess))) / 2)
            if log_mu >= aim:
                low, below = guess, log_mu
            else:
                high, above = guess, log_mu
            tries += 1
            guess = (low + high) // 2
            if tries % 4:
                slope = math.log(_RATIO)
                if math.isfinite(below) and math.isfinite(above):
                    slope = (below - above) / (high - low)
                start, value = (low, below) if math.isfinite(below) else (high, above)
                guess = start + math.ceil((value - aim) / slope) if slope > 0 else guess
            guess = min(max(guess, low + 1), high - 1)
        return high


def _log_mu(rate: float) -> float:
    """Logarithm of the μ of a Gaussian mechanism with this best hit rate."""
    return math.log(max(2 * float(special.ndtri(min(rate, 1 - 1e-16))), 1e-12))
