"""Claims as risks: the most that any attacker can learn, whatever it computes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..accounting import Claim, Training, epsilon_of
from ..accounting.claim import LARGEST_EPSILON
from ..accounting.stated_claims import EpsilonDelta, GaussianDp
from ..errors import SpecError, percent
from ..plan.claims import curves
from ..stats import gdp
from ..stats.claim_verdict import largest_accuracy
from ..stats.curve import Curve
from .figures.primitives import canvas, legend, lines, png
from .quote import quote
from .tables import Run

FPRS = (0.1, 0.01, 0.001)  # shares of wrong accusations
PRIORS = (0.01, 0.1, 0.5)  # beliefs in membership before anything is released
_DELTA = 1e-5  # δ at which curves are accurate if beliefs are read at δ = 0


@dataclass(frozen=True)
class Risk:
    """The most that a claim allows.

    Attributes:
        claim: the claim in words.
        accuracy: share of correct answers to "is this record in?", if half of the records are.
        members: share of members that are found, by the share of non-members that are accused.
        beliefs: what a belief in a record's membership can become, by the belief before.
        unlimited: chance that a release is outside the bound of `beliefs`: δ.
        unit: what the claim protects.
    """

    claim: str
    accuracy: float
    members: dict[float, float]
    beliefs: dict[float, float]
    unlimited: float
    unit: str = "record"

    @property
    def sentence(self) -> str:
        """The accuracy in words."""
        return (
            f"an attacker who knows all other {self.unit}s and guesses whether one is in is "
            f"right in at most {percent(round(self.accuracy, 4))} of cases; blind guessing is "
            f"right in 50 %"
        )


@dataclass(frozen=True)
class Subject:
    """Claims whose risks are compared, by name.

    Attributes:
        claims: at least one claim.
        delta: δ at which the largest change of a belief is read.
        accountant: the accountant that bounds a training run.
    """

    claims: Mapping[str, Claim]
    delta: float
    accountant: str

    def risks(self) -> dict[str, Risk]:
        """Returns the most that each claim allows."""
        by_name = {}
        for name, claim in self.claims.items():
            by_name[name] = self._risk(claim)
        return by_name

    def _risk(self, claim: Claim) -> Risk:
        """Computes the most that a claim allows: accuracy, members found, and changed beliefs.

        By Bayes' rule, odds of prior : (1 - prior) change by at most e^ε.
        """
        curve = self._curve(claim)
        largest_epsilon = math.inf  # at δ = 0, Gaussian noise bounds no ε
        if self.delta > 0 or not isinstance(claim, Training):
            largest_epsilon = epsilon_of(claim, self.delta, self.accountant).upper
        largest_ratio = math.exp(min(largest_epsilon, LARGEST_EPSILON))
        true_positives = curve.true_positive_rate(np.array(FPRS))
        beliefs = {}
        for prior in PRIORS:
            odds = largest_ratio * prior / (1 - prior)
            beliefs[prior] = odds / (1 + odds)
        rates = dict(zip(FPRS, true_positives.tolist(), strict=True))
        return Risk(claim.words, largest_accuracy(curve), rates, beliefs, self.delta, claim.unit)

    def picture(self) -> bytes:
        """Draws the share of members found over that of non-members accused; a PNG's content."""
        x = np.geomspace(1e-4, 1, 200)
        tables = {"blind guessing": pd.DataFrame({"x": x, "y": x})}
        for name, claim in self.claims.items():
            rates = self._curve(claim).true_positive_rate(x)
            tables[name] = pd.DataFrame({"x": x, "y": rates})
        table = pd.concat(tables, names=["series"])
        with canvas(5.0, 3.4) as (figure, (axes,)):
            lines(axes, table.reset_index("series"))
            axes.set_xscale("log")
            axes.set_xlabel("non-members accused")
            axes.set_ylabel("members found, at most")
            legend(axes)
            return png(figure)

    def _curve(self, claim: Claim) -> Curve:
        """Returns the claimed curve, accurate at δ."""
        return curves(claim, self.accountant, self.delta or _DELTA)(claim.noise)


def of_claim(claim: Claim, delta: float) -> Subject:
    """Returns a claim as a subject. An (ε, δ) is also compared with Gaussian noise that meets it.

    Args:
        claim: the claim; an (ε, δ) has its own δ.
        delta: δ for all other claims.
    """
    by_name = {"any mechanism": claim}
    if isinstance(claim, EpsilonDelta):
        delta = claim.delta
        if delta > 0:
            mu = float(gdp.mu(claim.epsilon, delta))
            by_name["Gaussian noise"] = GaussianDp(mu, claim.unit)
    accountant = "gaussian" if claim.gaussian else "pld"
    return Subject(by_name, delta, accountant)


def of_run(run: Run) -> dict[str, Subject]:
    """Returns what each audit claims, and the strongest claim that it leaves, by its label.

    A claim below the measured ε is false.
    """
    subjects = {}
    for index, (audit, cell) in enumerate(run.pairs):
        quoted = quote(run, index)
        claimed = cell.claimed()
        claims = {}
        if audit.claim < math.inf:
            claims["claimed"] = claimed
        if quoted.epsilon is not None:
            claims["measured"] = EpsilonDelta(quoted.epsilon, quoted.delta, claimed.unit)
        if claims:
            subjects[audit.label] = Subject(claims, quoted.delta, audit.accountant)
    if not subjects:
        raise SpecError("", f"{run.directory.location} has neither a claim nor a measured ε")
    return subjects
