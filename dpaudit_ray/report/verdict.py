"""`dpaudit verify`: do the trials of a run contradict the claim, whatever the mechanism is?

Every audit is judged once, at its last recorded step, by `stats.claim_verdict`: an e-process that
may be looked at for ever, and sharper tests for the declared number of trials. The verdict may be
asked for at any time. Audits share the error, and so do the two ways of refuting; e-values of all
audits are averaged as well, since evidence that no single audit has may lie in several. What tells
CONSISTENT from INCONCLUSIVE is power: the chance that a broken promise would have been found.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from enum import StrEnum

import numpy as np
from scipy import special

from .. import accounting
from ..plan import claims, score_stream
from ..stats import gdp
from ..stats.budget import average_evidence
from ..stats.claim_verdict import EVIDENCE_SHARE, ClaimTest, RunTest
from .tables import EXACT, Run

# By which a computed ε may exceed a claim of the same δ: a finer grid moves none by more than this,
# nor do the accountants' own roundings. Of an ε in the millions, a float keeps less than that.
EXACT_TOLERANCE, _ROUNDING = 1e-5, 1e-9
# Noise this much smaller than claimed would have been found ...
ALTERNATIVE = 0.7
REQUIRED_POWER = 0.8  # ... with at least this probability
SIMULATIONS = 50
_AGREE = 20  # are enough where all end alike: at a power of 0.8, once in a hundred
_SHORTER = (2_000, 20_000)  # trials: a longer audit is imagined as long as these first
_MORE = (2, 4, 8, 16)  # times the trials, that are tried
_MOST = 200_000
Test = ClaimTest | RunTest
MIXED = (
    "the code was changed while an audit ran: a violation is one of some version of it, and no "
    "version is CONSISTENT"
)


class Verdict(StrEnum):
    """What the trials say about the claim."""

    VIOLATION = "VIOLATION"  # the claim is refuted
    CONSISTENT = "CONSISTENT"  # it is not, and a real violation would have been found
    INCONCLUSIVE = "INCONCLUSIVE"  # it is not, and neither would a violation have been


@dataclasses.dataclass(frozen=True)
class AuditVerdict:
    """One audit against its claim.

    `evidence` and `needed` are logarithms to base 10 of e-values; `trials` were used, the claim
    was first refuted after `refuted_after` of them (None: never), by enough evidence or by a test
    for the declared number of trials. With the run's confidence the training is no more private
    than noise multiplier `effective_noise` (None: any noise would do); `power` is the chance that
    noise of 0.7 of the claimed one would have been found. `diverged` counts trainings per world,
    (out, in); where they are `lopsided`, diverging depends on the bit and nothing is CONSISTENT;
    nor is anything whose trials more than one version of the code computed (`mixed`), or that has
    a bound `above` its claim which holds together with all others of the run. `enough` trials
    would give the audit of a run that is nearest to it the power that it lacks; None if none X
    """

    label: str
    verdict: Verdict
    claim: float
    accountant: str
    noise_multiplier: float
    effective_noise: float | None
    evidence: float
    needed: float
    trials: int
    planned: int
    refuted_after: int | None
    power: float
    diverged: tuple[int, int] = (0, 0)
    lopsided: bool = False
    mixed: bool = False
    above: bool = False
    enough: int | None = None
    remark: str = ""

    @property
    def weak(self) -> bool:
        """Whether all trials are done, and more power is what it lacks."""
        open_yet = self.verdict is Verdict.INCONCLUSIVE
        return open_yet and self.trials == self.planned and self.power < REQUIRED_POWER


@dataclasses.dataclass(frozen=True)
class ExactVerdict:
    """One audit without trials: ε at δ is known, and so is whether it exceeds the claim.

    Every recorded step is compared. `epsilon` and `claim` are those of `step`: the last, or where
    the claim is exceeded most. INCONCLUSIVE, with NaN, only while nothing is computed.
    """

    label: str
    verdict: Verdict
    claim: float
    accountant: str
    epsilon: float
    step: int


@dataclasses.dataclass(frozen=True)
class RunVerdict:
    """All audits, by whether trials or exact numbers speak for them, and what all say together.

    `evidence` and `needed` are those of the averaged e-values, logarithms to base 10.
    """

    verdict: Verdict
    confidence: float
    audits: tuple[AuditVerdict, ...]
    exact: tuple[ExactVerdict, ...] = ()
    evidence: float = 0.0
    needed: float = math.inf


def judge(run: Run, thorough: bool = True) -> RunVerdict:
    """Judges every audit on the finished prefix of its trials.

    The run is CONSISTENT when every mechanism in it has an audit that is: an adversary that is
    too weak to find anything does not spoil what a stronger one shows. Without `thorough`
    `effective_noise` is looked for where a claim is refuted only, and `power` where all trials are
    done: the rest takes most of the time.
    """
    confidence = min(cell.audit.confidence for cell in run.sweep.cells)
    sampled = [index for index, cell in enumerate(run.sweep.cells) if cell.mechanism.sampled]
    alpha = (1 - confidence) / max(len(sampled), 1)
    tests, audits = dict[int, Test](), dict[int, AuditVerdict]()
    for index in sampled:
        tests[index], audits[index] = _judge_audit(run, index, alpha, thorough)
    exact = {i: _judge_exact(run, i) for i in range(len(run.plan.audits)) if i not in audits}
    weak = [index for index, audit in audits.items() if audit.weak]
    if weak:
        nearest = max(weak, key=lambda index: audits[index].power)
        enough = trials_needed(tests[nearest], alpha)
        audits[nearest] = dataclasses.replace(audits[nearest], enough=enough)
    evidence = average_evidence([test.latest for test in tests.values()] or [0.0])
    needed = -math.log(EVIDENCE_SHARE * (1 - confidence))
    verdicts = {i: audit.verdict for i, audit in audits.items()}
    verdicts |= {i: audit.verdict for i, audit in exact.items()}
    return RunVerdict(
        _together(run, verdicts, evidence >= needed),
        confidence,
        tuple(audits.values()),
        tuple(exact.values()),
        evidence / math.log(10),
        needed / math.log(10),
    )


def _together(run: Run, verdicts: Mapping[int, Verdict], refuted: bool) -> Verdict:
    """What the verdicts on all audits, by their numbers, say about the run.

    `refuted`: their evidence together refutes the claims, whether or not that of one does.
    """
    if refuted or Verdict.VIOLATION in verdicts.values():
        return Verdict.VIOLATION
    shown = dict[str, bool]()
    for index, cell in enumerate(run.sweep.cells):
        mechanism = cell.mechanism.model_dump_json()
        consistent = verdicts[index] is Verdict.CONSISTENT
        shown[mechanism] = shown.get(mechanism, False) or consistent
    return Verdict.CONSISTENT if all(shown.values()) else Verdict.INCONCLUSIVE


def _judge_exact(run: Run, index: int) -> ExactVerdict:
    """Compares at every recorded step: no look costs anything where nothing is random."""
    audit = run.plan.audits[index]
    accountant = next(iter(audit.claims))
    table = run.estimates[run.estimates["audit"] == audit.id]
    rows = table[(table["estimator"] == EXACT) & (table["accountant"] == accountant)]
    verdict, claim, epsilon = Verdict.INCONCLUSIVE, audit.claim, math.nan
    step = audit.horizons[-1]
    if len(rows):
        excess = (rows["epsilon_lower"] - rows["epsilon_upper"] * (1 + _ROUNDING)).to_numpy()
        within = excess.max() <= EXACT_TOLERANCE
        verdict = Verdict.CONSISTENT if within else Verdict.VIOLATION
        shown = rows.iloc[-1 if within else int(np.argmax(excess))]
        claim, epsilon = float(shown["epsilon_upper"]), float(shown["epsilon_lower"])
        step = int(shown["step"])
    return ExactVerdict(audit.label, verdict, claim, accountant, epsilon, step)


def _judge_audit(run: Run, index: int, alpha: float, thorough: bool) -> tuple[Test, AuditVerdict]:
    """The claim test after all trials of the prefix, looking after every pack, and what it says.

    `alpha` is the error that this audit may spend.
    """
    audit, cell = run.plan.audits[index], run.sweep.cells[index]
    claimed = cell.mechanism.claimed(cell.adversary, audit.horizons[-1])
    noise, accountant = claimed.noise_multiplier, next(iter(audit.claims))
    family = claims.curves(claimed, accountant, cell.audit.delta)
    test = claims.test(audit, family(noise))
    for pack in score_stream.up_to_looks(audit, run.prefix(audit), lambda: test.due):
        score_stream.feed(test, pack)
        test.look()
    test.look(now=True)
    refuted_after, done = test.refuted_after(alpha), test.trials == audit.trials
    chance = chance_to_refute(test, alpha) if done or thorough else 0.0
    above, strong = run.above(audit), chance >= REQUIRED_POWER
    verdict, effective_noise = Verdict.INCONCLUSIVE, None
    if refuted_after is not None:
        verdict = Verdict.VIOLATION
    elif done and strong and not (test.lopsided or audit.mixed or above):
        verdict = Verdict.CONSISTENT
    if thorough or verdict is Verdict.VIOLATION:
        effective_noise = test.effective_noise(family, noise, alpha)
    return test, AuditVerdict(
        label=audit.label,
        verdict=verdict,
        claim=audit.claim,
        accountant=accountant,
        noise_multiplier=noise,
        effective_noise=effective_noise,
        evidence=test.best / math.log(10),
        needed=-math.log10(EVIDENCE_SHARE * alpha),
        trials=test.trials,
        planned=audit.trials,
        refuted_after=refuted_after,
        power=chance,
        diverged=test.diverged,
        lopsided=test.lopsided,
        mixed=audit.mixed,
        above=above,
        remark=accounting.remark(claimed.training, accountant),
    )


# Power -------------------------------------------------------------------------------------------


def chance_to_refute(test: Test, alpha: float) -> float:
    """Chance that this adversary would have refuted the claim, had the noise been less.

    Simulated at a fixed seed with Gaussian scores, as far apart as the adversary's hit rate says
    they would be with ALTERNATIVE times the noise. Each takes as long as the audit's own test.
    0 where the claim allows scores as far apart: it is refuted with probability alpha at most.
    """
    if isinstance(test, RunTest):
        return test.share_found(ALTERNATIVE, alpha, SIMULATIONS)
    mu = _imagined(test)
    if mu is None:
        return 0.0
    for trials in _SHORTER:
        if trials < test.planned and _share_found(test, mu, trials, alpha, required=1.0) == 1:
            return 1.0  # so few trials would have done
    return _share_found(test, mu, test.planned, alpha)


def trials_needed(test: Test, alpha: float) -> int | None:
    """A number of trials that would give this adversary the required power; None: none tried did.

    Doubled until it does, so up to twice as many as are needed.
    """
    if isinstance(test, RunTest) or (mu := _imagined(test)) is None:
        return None
    for size in (more * test.planned for more in _MORE):
        if size <= _MOST and _share_found(test, mu, size, alpha, REQUIRED_POWER) >= REQUIRED_POWER:
            return size
    return None


def _imagined(test: ClaimTest) -> float | None:
    """μ of the scores with ALTERNATIVE times the noise; None where that keeps the claim."""
    hits = test.hits
    if hits.guesses == 0:
        return None
    rate = min(hits.hits / hits.guesses, 1 - 0.5 / hits.guesses)
    mu = 2 * float(special.ndtri(max(rate, 0.5))) / ALTERNATIVE
    kept = np.asarray(gdp.delta(test.curve.epsilons, mu)) <= test.curve.deltas
    return None if kept.all() else mu


def _share_found(
    test: ClaimTest, mu: float, trials: int, alpha: float, required: float = 0.0
) -> float:
    """Share of simulated audits of so many trials that refute the claim.

    No more of them are simulated than show that it is below `required`, where it is.
    """
    rng = np.random.default_rng(0)
    refuted = 0
    for tried in range(1, SIMULATIONS + 1):
        members = rng.random(trials) < 0.5
        imagined = ClaimTest(test.curve, trials)
        imagined.fold(rng.normal(size=trials) + mu * members, members)
        imagined.look(now=True)
        refuted += imagined.refuted_after(alpha) is not None
        hopeless = (SIMULATIONS - (tried - refuted)) / SIMULATIONS < required
        if hopeless or (tried == _AGREE and refuted in (0, tried)):
            break
    return refuted / tried
