"""Claims as risks: the most that any attacker can learn, whatever it computes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..accounting import Claim
from ..accounting.claim import LARGEST_EPSILON
from ..accounting.stated_claims import EpsilonDelta, GaussianDp
from ..errors import percent
from ..stats import gdp
from ..stats.claim_verdict import largest_accuracy
from .figures.primitives import canvas, legend, lines, png

FPRS = (0.1, 0.01, 0.001)  # shares of wrong accusations
PRIORS = (0.01, 0.1, 0.5)  # beliefs before anything is released


@dataclass(frozen=True)
class Risk:
    """The most that a claim allows.

    Attributes:
        claim: the claim in words.
        accuracy: share of correct answers to "is this record in?", where half of them are.
        members: share of members that are found, by the share of non-members that are accused.
        beliefs: what a belief in a record's membership can become, by the belief before.
        unlimited: chance that a release is outside the bound of `beliefs`: δ.
    """

    claim: str
    accuracy: float
    members: dict[float, float]
    beliefs: dict[float, float]
    unlimited: float

    @property
    def sentence(self) -> str:
        """The accuracy in words."""
        return (
            f"an attacker who knows all other records, and guesses whether one is in, is right in "
            f"at most {_percent(self.accuracy)} of cases, where blind guessing is right in 50 %"
        )


def of_claim(claim: Claim, delta: float) -> Risk:
    """Returns the most that a claim allows.

    Args:
        claim: the claim.
        delta: δ at which the largest change of a belief is read.
    """
    curve = claim.curve
    largest_ratio = math.exp(min(claim.epsilon_at(delta), LARGEST_EPSILON))
    true_positives = curve.true_positive_rate(np.array(FPRS))
    beliefs = {}
    for prior in PRIORS:
        odds = largest_ratio * prior / (1 - prior)
        beliefs[prior] = odds / (1 + odds)
    rates = dict(zip(FPRS, true_positives.tolist(), strict=True))
    return Risk(claim.words, largest_accuracy(curve), rates, beliefs, delta)


def variants(claim: Claim) -> dict[str, Claim]:
    """Returns a claim by the name of its mechanism; an (ε, δ) also as that of Gaussian noise."""
    by_name = {"any mechanism": claim}
    if isinstance(claim, EpsilonDelta) and claim.delta > 0:
        mu = float(gdp.mu(claim.epsilon, claim.delta))
        by_name["Gaussian noise"] = GaussianDp(mu)
    return by_name


def picture(claims: Mapping[str, Claim]) -> bytes:
    """Draws the share of members found over that of non-members accused; a PNG file's content."""
    x = np.geomspace(1e-4, 1, 200)
    tables = {"blind guessing": pd.DataFrame({"x": x, "y": x})}
    for name, claim in claims.items():
        rates = claim.curve.true_positive_rate(x)
        tables[name] = pd.DataFrame({"x": x, "y": rates})
    table = pd.concat(tables, names=["series"])
    with canvas(5.0, 3.4) as (figure, (axes,)):
        lines(axes, table.reset_index("series"))
        axes.set_xscale("log")
        axes.set_xlabel("non-members accused")
        axes.set_ylabel("members found, at most")
        legend(axes)
        return png(figure)


def _percent(share: float) -> str:
    return percent(round(share, 4))
