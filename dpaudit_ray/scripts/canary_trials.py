"""L1, every step a trial, and L2, every run: bits, scores, and the test of the claim.

A step-trial is one release with a canary in it or not, by a fair coin of its own. Given all steps
before, a release with the accounted noise multiplier σ is μ-Gaussian differentially private with
μ = 1/σ with regard to that coin. So scores of one run after another are trials of one claim, and
`stats.claim_verdict` holds its level for them: it bets by earlier trials alone. A run-trial has the
canary in the whole run or not at all, drawn into each step at the accounted rate.
"""

import dataclasses
import functools
import math
from typing import Any

import numpy as np

from ..errors import plain
from ..stats import curve as curves
from ..stats import gdp
from ..stats.claim_verdict import ClaimTest
from ..stats.curve import Curve
from .script_findings import ALPHA, Judgement, Measured

ALTERNATIVE = 0.7  # of the accounted noise: what should have been found, were it so
POWER = 0.8
_AUDITS = 25  # simulated, to tell power
_SIZES = tuple(round(100 * 1.5**k) for k in range(14))  # 100 to 19 462


@dataclasses.dataclass
class CanaryTrials:
    """The trials of one layer: the test that their bits and scores are folded into, in order."""

    layer: int
    planned: int
    curve: Curve
    claim: str  # in words
    noise: float | None = None  # multiplier that is claimed of a step
    members: int = 0  # trials with the canary

    def __post_init__(self) -> None:
        self.test = ClaimTest(self.curve, self.planned)

    @property
    def count(self) -> int:
        return self.test.trials  # missed ones among them

    def fold(self, scores: list[float], members: list[bool]) -> None:
        self.members += sum(members)
        if scores:
            self.test.fold(np.asarray(scores, np.float64), np.asarray(members, np.bool_))
            self.test.look()

    def miss(self, member: bool) -> None:
        """Adds a trial without an outcome, which counts against whoever guesses."""
        self.test.miss(np.asarray([member]))

    @property
    def refuted(self) -> int | None:
        """Trials after which the claim was refuted; None while it is not."""
        return self.test.refuted_after(ALPHA[self.layer])

    def measured(self, claimed: float, delta: float) -> Measured | None:
        """The lower bound on ε at `delta`: of one step (L1), or of the run, of which ε is claimed.

        Claims nested around the one that is tested are held against the same trials by the same
        test, so that verdict and bound have one error. None where no ε is claimed.
        """
        level = ALPHA[self.layer]
        if self.noise is not None:
            least = self.test.effective_noise(lambda s: curves.gaussian(1 / s), self.noise, level)
            bound = 0.0 if least is None else float(gdp.epsilon(1 / least, delta))
            claimed = float(gdp.epsilon(1 / self.noise, delta))
            what = "one step with a record in it"
            return Measured(1, what, bound, claimed, delta, "Gaussian noise")
        if not claimed > 0:
            return None
        epsilons, deltas = np.array([claimed]), np.array([delta])
        times = self.test.effective_noise(lambda s: Curve(epsilons / s, deltas), 1.0, level)
        bound = 0.0 if times is None else claimed / times
        return Measured(2, "the run", bound, claimed, delta, "nothing")

    def judge(self, needed: int | None) -> Judgement:
        """What the trials say; `needed` of them would find noise of 0.7 of what is accounted."""
        self.test.look(now=True)
        judged = Judgement(self.layer)
        name, what = {1: ("every step a trial", "steps"), 2: ("runs", "runs")}[self.layer]
        if (after := self.refuted) is not None:
            seen = f"canaries guessed too well: refuted after {after} {what} of {self.count}"
            judged.find("guessed", f"{self.count} {what}", look=name, claim=self.claim, seen=seen)
            return judged.look(name, seen)
        if not self.count:
            return judged.look(name, "no time for a run", done=False)
        said = f"{self.count} {what}, {self.members} with the canary: nothing against {self.claim}"
        if needed is not None and self.count < needed:
            said += f"; {needed} would find noise of {ALTERNATIVE:g} of it"
        return judged.look(name, said, complete=needed is not None and self.count >= needed)


def step_trials(noise: float, planned: int) -> CanaryTrials:
    """L1: the claim is that of one step with this noise multiplier."""
    claim = f"a noise multiplier of {noise:.3g}"
    return CanaryTrials(1, planned, curves.gaussian(1 / noise), claim, noise)


def run_trials(claims: list[dict[str, Any]], planned: int) -> CanaryTrials | None:
    """L2: the claim is what all accountants of the run say; None where they say nothing."""
    points = []
    for i, delta in enumerate(claims[0]["deltas"] if claims else []):
        epsilons = [claim["epsilons"][i] for claim in claims]
        # (ε, δ) of several accountants add up in both; each δ is one of theirs.
        epsilon = math.inf if None in epsilons else sum(max(value, 0.0) for value in epsilons)
        if epsilon < 50:
            points.append((epsilon, min(1.0, len(claims) * delta)))
    if not points:
        return None
    e, d = (np.array(values) for values in zip(*sorted(points), strict=True))
    shown = points[-4:-3] or points[-1:]
    said = ", ".join(f"ε = {a:.3g} at δ = {plain(b, '.2g')}" for a, b in shown)
    return CanaryTrials(2, planned, Curve(e, d), said)


def run_score(trials: list[dict[str, Any]]) -> float:
    """The logarithm of the likelihood ratio of a run's steps, with the canary against without.

    Each score x is N(b, σ²) where the canary was drawn into the step (b = 1) or not, so a step's
    ratio is 1 − q + q exp((2 x − 1) / 2 σ²).
    """
    total = 0.0
    for trial in trials:
        noise, rate = trial["noise"] or 1.0, min(trial["rate"] or 1.0, 1.0)
        exponent = (2 * trial["score"] - 1) / (2 * max(noise, 1e-6) ** 2)
        without = math.log1p(-rate) if rate < 1 else -math.inf
        total += float(np.logaddexp(without, math.log(rate) + exponent))
    return total


@functools.cache
def steps_needed(noise: float) -> int | None:
    """Step-trials that find 0.7 of this noise with a chance of 0.8; None beyond 20,000."""
    return next((size for size in _SIZES if _finds_alternative(noise, size)), None)


def _finds_alternative(noise: float, size: int) -> bool:
    """Whether so many step-trials find it in enough simulated audits."""
    rng = np.random.default_rng(7)
    missed = 0
    for _ in range(_AUDITS):
        members = rng.random(size) < 0.5
        test = step_trials(noise, size).test
        test.fold(rng.normal(size=size) + members / (ALTERNATIVE * noise), members)
        test.look(now=True)
        missed += test.refuted_after(ALPHA[1]) is None
        if missed > _AUDITS - POWER * _AUDITS:
            return False
    return True


def runs_needed(claim: Curve) -> int:
    """Runs after which perfect guesses refute a claim: fewer show nothing."""
    odds = np.exp(-claim.epsilons)
    most = float(np.min((1 + claim.deltas * odds) / (1 + odds)))
    if most >= 1:
        return 10**9
    # Perfect guesses of n coins have a chance of most^n under the claim.
    return math.ceil(1.6 * math.log(1 / ALPHA[2]) / -math.log(most))
