"""The `federated` mechanism: rounds of federated averaging with differential privacy of clients.

McMahan et al. (2018): in every round the server draws clients, clips what they send, adds noise to
the sum, and divides by the number of clients that it expects. It is DP-SGD on clients: `dp_sgd`
has its rounds, and `dp_sgd/units.py` what a client sends.
"""

from typing import Annotated, Literal

from pydantic import PositiveFloat

from ..accounting import STATED, Claim
from ..accounting.claim import StatedClaim
from ..accounting.stated_claims import EpsilonDelta, GaussianDp
from ..adversaries.base import Adversary
from ..plugins import nested
from ..stats import TradeOff, gdp
from .dp_sgd import DpSgd
from .dp_sgd.units import Unit


class Federated(DpSgd):
    """Trains by DP-FedAvg. `steps` are rounds, and `batch_size` clients of a round, of N in all.

    `unit` has the clients' own steps and their clipping; `learning_rate`, `optimizer` and
    `schedule` are the server's. `sampling: poisson` lets each client join each round with
    probability `batch_size` / N. For rounds with a fixed number of clients, drawn anew, no
    amplification is proven: their claim is that of `fixed`, where the adversary knows who joins.

    `claim` is what a vendor states, in place of what accountants compute. If the trade-off curve
    is proved to be Gaussian, (ε, δ) stands for the μ whose Gaussian curve has this ε at δ.
    """

    name: Literal["federated"] = "federated"  # type: ignore[assignment]
    unit: Annotated[Unit, nested(Unit)]  # `client`, or `user` for one gradient a round
    learning_rate: PositiveFloat = 1.0  # of the server
    claim: StatedClaim | None = None  # what is stated, if not by an accountant

    @property
    def default_accountant(self) -> str:
        return super().default_accountant if self.claim is None else STATED

    def claimed(self, adversary: Adversary, horizon: int) -> Claim:
        """Returns the stated claim, or else a release for each round that may have the canary."""
        claim = self.claim
        if claim is None:
            return super().claimed(adversary, horizon)
        is_gaussian = self.trade_off(adversary, horizon) is TradeOff.GAUSSIAN
        if is_gaussian and isinstance(claim, EpsilonDelta) and claim.delta > 0:
            return GaussianDp(float(gdp.mu(claim.epsilon, claim.delta)), claim.unit)
        return claim
