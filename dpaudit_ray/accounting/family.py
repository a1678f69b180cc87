"""Conversion of a hit rate to ε by the curves of one claim, for every noise multiplier.

An audit that knows which mechanism is claimed, but not how much noise it really adds, may convert
its certified hit rate by the curves of that mechanism. A training run with noise σ is distinguished
from its neighbour at a rate of (1 + δ(0)) / 2 at best, which falls in σ. A certified rate above
that refutes σ and all larger ones, so the true ε is at least that of the least refuted σ.
δ(0) is taken from above and ε from below, so that errors of accountants can only lower the bound.
"""

from dataclasses import dataclass

from scipy import special

from ..stats import TradeOff, gdp
from ..stats.error_rates import first_where
from .claim import Claim
from .pld import advantage, least_epsilon
from .training import Training

_RATIO = 2 ** (1 / 128)  # of neighbouring noise multipliers that are tried: half a percent more
# Exponents of this ratio that are tried: from a sixteenth of the claimed noise to 256 times it.
_LEAST_EXPONENT = -4 * 128
_MOST_EXPONENT = 8 * 128


@dataclass(frozen=True)
class Family:
    """The claim `claim` with more or less noise."""

    claim: Claim

    @property
    def trade_off(self) -> TradeOff:
        """Gaussian if the claim's curve is: then another size of the noise only changes μ."""
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
        # Without steps, nothing leaks with any noise.
        has_no_steps = isinstance(self.claim, Training) and self.claim.steps == 0
        if rate <= 0.5 or has_no_steps:
            return 0.0
        if self.trade_off is TradeOff.GAUSSIAN:
            return float(gdp.epsilon(2 * special.ndtri(rate), delta))
        multipliers = _MOST_EXPONENT - _LEAST_EXPONENT + 1

        def is_refuted(step: int) -> bool:
            """Returns whether this claim allows only a smaller rate of correct guesses."""
            claim = self._at(step)
            # δ at ε = 0, from above
            delta_at_0 = advantage(claim) if isinstance(claim, Training) else claim.delta_at(0.0)
            return (1 + delta_at_0) / 2 < rate

        first = first_where(is_refuted, multipliers)
        if first == multipliers:
            return 0.0
        refuted = self._at(first)
        if isinstance(refuted, Training):
            return least_epsilon(refuted, delta)
        return refuted.epsilon_at(delta)

    def _at(self, step: int) -> Claim:
        """Returns the claim with the noise of number `step` of the grid; 0 is the least noise."""
        return self.claim.weakened(self.claim.noise * _RATIO ** (_LEAST_EXPONENT + step))
