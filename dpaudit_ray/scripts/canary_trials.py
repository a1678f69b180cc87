"""The step test, every step a trial, and the run test: bits, scores, and the test of the claim.

A step trial is one release with a canary in it or not, by a fair random bit. Given all steps
before, a release with the accounted noise multiplier σ is μ-Gaussian differentially private with
μ = 1/σ with regard to that bit. So the steps of one run after another are trials of one claim, and
`stats.claim_verdict` holds its level for them, as it bets by earlier trials alone. In a run trial,
by such a bit, the canary is sampled into each step of the run at the accounted rate, or never.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

from ..errors import plain
from ..stats import curve as curves
from ..stats import gdp
from ..stats.claim_verdict import ClaimTest
from ..stats.curve import Curve
from . import claims as claims_of_scripts
from .protocol import Claim, Trial
from .script_findings import ALPHA, Judgement, Measured

ALTERNATIVE = 0.7  # times the accounted noise: less noise that should have been found
POWER = 0.8  # probability that trials find ALTERNATIVE
_LARGEST_EPSILON = 50.0  # a larger ε cannot be tested by runs
_AUDITS = 25  # audits that are simulated to estimate power
_SIZES = tuple(round(100 * 1.5**k) for k in range(14))  # numbers of trials, 100 to 19 462
_FACTORS = np.geomspace(1 / 30, 30, 341)  # of the claimed ε, 2 % apart, that runs are tested for
NAMES = {1: "every step a trial", 2: "runs"}  # of the tests in reports, by layer


@dataclasses.dataclass
class CanaryTrials:
    """Trials of one layer: the test that their bits and scores are folded into, in order.

    Attributes:
        layer: 1 step test, 2 run test.
        planned: number of trials that the test is tuned for.
        curve: the claimed trade-off curve of one trial.
        claim: the claim in words.
        noise: noise multiplier that is claimed of a step; None for runs.
        members: number of trials with the canary.
    """

    layer: int
    planned: int
    curve: Curve
    claim: str
    noise: float | None = None
    members: int = 0

    def __post_init__(self) -> None:
        self.test = ClaimTest(self.curve, self.planned)

    @property
    def count(self) -> int:
        """Number of trials, failed ones included."""
        return self.test.trials

    def fold(self, scores: list[float], members: list[bool]) -> None:
        """Adds trials in order, with their membership bits, and tests the claim again."""
        self.members += sum(members)
        if scores:
            self.test.fold(np.asarray(scores, np.float64), np.asarray(members, np.bool_))
            self.test.look()

    def miss(self, member: bool) -> None:
        """Adds a trial without an outcome, which counts as a wrong guess."""
        self.test.miss(np.asarray([member]))

    @property
    def refuted(self) -> int | None:
        """Trials after which the claim was refuted; None while it is not."""
        return self.test.refuted_after(ALPHA[self.layer])

    def measured(self, claimed: float, delta: float) -> Measured | None:
        """Returns a lower bound on ε at `delta`, of a step or a run; None if no ε is claimed.

        The same test compares the same trials with stronger and weaker claims of the same kind. The
        bound is the ε of the weakest claim that the test refutes. Of steps, it costs no error
        beyond that of the verdict. Of runs, it errs as often as the verdict, and perhaps apart.
        """
        level = ALPHA[self.layer]
        if self.noise is not None:
            # The least noise multiplier that is refuted. One step with noise σ is 1/σ-GDP.
            least = self.test.effective_noise(lambda s: curves.gaussian(1 / s), self.noise, level)
            bound = 0.0 if least is None else float(gdp.epsilon(1 / least, delta))
            claimed = float(gdp.epsilon(1 / self.noise, delta))
            return Measured(
                1, "one step with the record in its batch", bound, claimed, delta, "Gaussian noise"
            )
        if not claimed > 0:
            return None
        epsilons = np.array([claimed])
        deltas = np.array([delta])
        # From the strongest claim on, as tests of curves that are not Gaussian are not nested.
        claims = (Curve(epsilons * factor, deltas) for factor in _FACTORS)
        refuted = self.test.count_refuted(claims, level)
        bound = claimed * float(_FACTORS[refuted - 1]) if refuted else 0.0
        return Measured(2, "whole run", bound, claimed, delta, "nothing")

    def judge(self, needed: int | None) -> Judgement:
        """Judges the trials.

        Args:
            needed: number of trials that would find ALTERNATIVE times the accounted noise, or that
                a test of runs needs; None if the trials cannot show as much.
        """
        self.test.look(now=True)
        unit = {1: "steps", 2: "runs"}[self.layer]
        name = NAMES[self.layer]
        judgement = Judgement(self.layer, name)
        after = self.refuted
        if after is not None:
            observed = f"too many correct guesses: refuted after {after} of {self.count} {unit}"
            judgement.find(
                "guessed",
                f"{self.count} {unit}",
                check=name,
                claim=self.claim,
                observed=observed,
            )
            return judgement.observe(observed)
        if not self.count:
            return judgement.miss("no time for a run")
        summary = f"{self.count} {unit}, {self.members} with the canary: no evidence against "
        summary += self.claim
        is_complete = needed is not None and self.count >= needed
        if needed is not None and not is_complete:
            summary += f"; {needed} would detect {ALTERNATIVE:g} times the noise"
        return judgement.observe(summary, complete=is_complete)


def step_trials(noise: float, planned: int) -> CanaryTrials:
    """Returns the step test of the claim that a step has this noise multiplier."""
    claim = f"a noise multiplier of {noise:.3g}"
    return CanaryTrials(1, planned, curves.gaussian(1 / noise), claim, noise)


def run_trials(claims: Sequence[Claim], planned: int) -> CanaryTrials | None:
    """Returns the run test of the ε that all accountants state; None if they state none."""
    curve = claims_of_scripts.stated_curve(claims)
    points = [(epsilon, delta) for epsilon, delta in curve if epsilon < _LARGEST_EPSILON]
    if not points:
        return None
    epsilons, deltas = (np.array(values) for values in zip(*sorted(points), strict=True))
    # The curve begins with the largest δ. The fourth smallest is about 1e-5.
    quoted = points[-4:-3] or points[-1:]
    texts = [f"ε = {epsilon:.3g} at δ = {plain(delta, '.2g')}" for epsilon, delta in quoted]
    return CanaryTrials(2, planned, Curve(epsilons, deltas), ", ".join(texts))


def run_score(trials: Sequence[Trial]) -> float:
    """Returns the logarithm of the likelihood ratio of a run's steps, with the canary or without.

    Each score x is N(b, σ²) where the canary was drawn into the step (b = 1) or not, so a step's
    ratio is 1 − q + q exp((2 x − 1) / 2 σ²).
    """
    total = 0.0
    for trial in trials:
        # 1 where nothing is known; noise of 0 would be divided by.
        noise = max(trial.noise or 1.0, 1e-6)
        rate = min(trial.rate or 1.0, 1.0)
        exponent = (2 * trial.score - 1) / (2 * noise**2)
        log_without = math.log1p(-rate) if rate < 1 else -math.inf
        total += float(np.logaddexp(log_without, math.log(rate) + exponent))
    return total


@functools.cache
def steps_needed(noise: float) -> int | None:
    """Returns how many step trials find ALTERNATIVE times this noise with POWER; None for no size.

    Sizes up to 20,000 are tried.
    """
    return next((size for size in _SIZES if _finds_alternative(noise, size)), None)


def _finds_alternative(noise: float, size: int) -> bool:
    """Returns whether `size` step trials find ALTERNATIVE times the noise in simulated audits.

    They must find it in a share of POWER of the audits.
    """
    rng = np.random.default_rng(7)
    missed = 0
    for _ in range(_AUDITS):
        members = rng.random(size) < 0.5
        test = step_trials(noise, size).test
        test.fold(rng.normal(size=size) + members / (ALTERNATIVE * noise), members)
        test.look(now=True)
        missed += test.refuted_after(ALPHA[1]) is None
        # More misses than a test of the required power may have.
        if missed > _AUDITS - POWER * _AUDITS:
            return False
    return True


def runs_needed(claim: Curve) -> int:
    """Returns after how many runs perfect guesses refute a claim; fewer runs cannot refute it."""
    odds = np.exp(-claim.epsilons)
    # The largest share of correct guesses that the claim allows.
    most = float(np.min((1 + claim.deltas * odds) / (1 + odds)))
    if most >= 1:  # no number of runs refutes it
        return 10**9
    # Perfect guesses of n coins have a probability of most^n under the claim. The test needs 1.6
    # times as many as for a probability of ALPHA.
    return math.ceil(1.6 * math.log(1 / ALPHA[2]) / -math.log(most))
