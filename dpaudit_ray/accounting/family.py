"""Bounds the noise by a hit rate: the curves of one claim for every noise multiplier.

An audit that knows which mechanism is claimed, not how much noise it really adds, may read its
certified hit rate through that mechanism. A training run with noise σ is distinguished from its
neighbour at a rate of (1 + δ(0)) / 2 at best, which falls in σ. A certified rate above that
refutes σ and all larger ones, so the true noise has an ε of at least that of the least refuted σ.
δ(0) is taken from above and ε from below, so that errors of accountants can only lower the bound.
"""

from dataclasses import dataclass

from scipy import special

from ..stats import TradeOff, gdp
from ..stats.error_rates import first_where
from .claim import Claim
from .pld import advantage, least_epsilon
from .training import Training

_RATIO = 2 ** (1 / 128)  # between noise multipliers that are tried: half a percent
# Exponents of this ratio that are tried: from a sixteenth of the claimed noise to 256 times.
_LEAST = -4 * 128
_MOST = 8 * 128


@dataclass(frozen=True)
class Family:
    """A claim whose noise may be more or less than `claim` has."""

    claim: Claim

    @property
    def trade_off(self) -> TradeOff:
        """Gaussian if the claim is: then another noise changes μ only."""
        is_gaussian = self.claim.gaussian
        if isinstance(self.claim, Training):
            is_gaussian = self.claim.unamplified.sample_rate == 1
        return TradeOff.GAUSSIAN if is_gaussian else TradeOff.CLAIMED

    def epsilon(self, rate: float, delta: float) -> float:
        """Returns a lower bound on ε at `delta`.

        If no noise explains the rate, the mechanism is not one of this family, which the verdict's
        test refutes. The bound is then the one with a sixteenth of the claimed noise.

        Args:
            rate: a lower bound on the probability of a correct guess of the secret bit.
            delta: δ, in (0, 1); also 0 for claims of a finite ε there.
        """
        promises_all = isinstance(self.claim, Training) and self.claim.steps == 0
        if rate <= 0.5 or promises_all:  # no step leaks anything, with any noise
            return 0.0
        if self.trade_off is TradeOff.GAUSSIAN:
            return float(gdp.epsilon(2 * special.ndtri(rate), delta))
        multipliers = _MOST - _LEAST + 1

        def is_refuted(step: int) -> bool:
            """Returns whether this claim allows only a smaller rate of correct guesses."""
            claim = self._at(step)
            gain = advantage(claim) if isinstance(claim, Training) else claim.delta_at(0.0)
            return (1 + gain) / 2 < rate

        first = first_where(is_refuted, multipliers)
        if first == multipliers:
            return 0.0
        refuted = self._at(first)
        if isinstance(refuted, Training):
            return least_epsilon(refuted, delta)
        return refuted.epsilon_at(delta)

    def _at(self, step: int) -> Claim:
        """Returns the claim with the noise of a step of `_RATIO`, from 0 for the least."""
        return self.claim.weakened(self.claim.noise * _RATIO ** (_LEAST + step))
