"""`dpaudit verify`: do the trials of a run contradict the claim, whatever the mechanism is?

Every audit is judged once, at its last recorded step, by `stats.claim_test`: an e-process that
may be looked at for ever, and sharper tests for the declared number of trials. The verdict may be
asked for at any time. Audits share the error, and so do the two ways of refuting; e-values of all
audits are averaged as well, since evidence that no single audit has may lie in several.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from enum import StrEnum

import numpy as np
from scipy import special

from ..mechanisms.base import Claimed
from ..plan import claims, prefix
from ..stats.budget import average_evidence
from ..stats.claim_test import EVIDENCE_SHARE, ClaimTest
from ..stats.curve import Curve
from ..stats.run_test import RunTest
from .tables import EXACT, Run

# What CONSISTENT means: noise this much smaller than claimed would have been found ...
ALTERNATIVE = 0.7
REQUIRED_POWER = 0.8  # ... with at least this probability
# By which a computed ε may exceed a claim of the same δ: a finer grid moves none by more than this,
# nor do the accountants' own roundings.
EXACT_TOLERANCE = 1e-5
_SIMULATIONS = 50
_AGREE = 20  # are enough where all end alike: at a power of 0.8, once in a hundred
MIXED = (
    "the code was changed while an audit ran: a violation is one of some version of it, and no "
    "version is CONSISTENT"
)
_LONG = 50_000  # trials: a longer audit is imagined as long as this first


Test = ClaimTest | RunTest


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
    nor is anything whose trials more than one version of the code computed (`mixed`).
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


def of(run: Run) -> RunVerdict:
    """Judges every audit on the finished prefix of its trials.

    The run is CONSISTENT when every mechanism in it has an audit that is: an adversary that is
    too weak to find anything does not spoil what a stronger one shows.
    """
    confidence = min(cell.audit.confidence for cell in run.sweep.cells)
    sampled = [index for index, cell in enumerate(run.sweep.cells) if cell.mechanism.sampled]
    alpha = (1 - confidence) / max(len(sampled), 1)
    tests = {index: _tested(run, index) for index in sampled}
    found: dict[int, AuditVerdict | ExactVerdict] = {
        index: _audit(run, index, tests[index], alpha) if index in tests else _exact(run, index)
        for index in range(len(run.plan.audits))
    }
    evidence = average_evidence([test.latest for test in tests.values()] or [0.0])
    needed = -math.log(EVIDENCE_SHARE * (1 - confidence))
    return RunVerdict(
        _together(run, [one.verdict for one in found.values()], evidence >= needed),
        confidence,
        tuple(one for one in found.values() if isinstance(one, AuditVerdict)),
        tuple(one for one in found.values() if isinstance(one, ExactVerdict)),
        evidence / math.log(10),
        needed / math.log(10),
    )


def _together(run: Run, verdicts: list[Verdict], refuted: bool) -> Verdict:
    """What the verdicts on all audits, in their order, say about the run.

    `refuted`: their evidence together refutes the claims, whether or not that of one does.
    """
    if refuted or Verdict.VIOLATION in verdicts:
        return Verdict.VIOLATION
    mechanisms = [cell.mechanism.model_dump_json() for cell in run.sweep.cells]
    shown = {
        mechanism
        for mechanism, verdict in zip(mechanisms, verdicts, strict=True)
        if verdict is Verdict.CONSISTENT
    }
    return Verdict.CONSISTENT if shown == set(mechanisms) else Verdict.INCONCLUSIVE


def _exact(run: Run, index: int) -> ExactVerdict:
    """Compares at every recorded step: no look costs anything where nothing is random."""
    audit = run.plan.audits[index]
    accountant = next(iter(audit.claims))
    rows = run.estimates[
        (run.estimates["audit"] == audit.id)
        & (run.estimates["estimator"] == EXACT)
        & (run.estimates["accountant"] == accountant)
    ]
    if len(rows) == 0:
        last = audit.horizons[-1]
        return ExactVerdict(
            audit.label, Verdict.INCONCLUSIVE, audit.claim, accountant, math.nan, last
        )
    excess = (rows["epsilon_lower"] - rows["epsilon_upper"]).to_numpy()
    within = excess.max() <= EXACT_TOLERANCE
    shown = rows.iloc[-1 if within else int(np.argmax(excess))]
    return ExactVerdict(
        label=audit.label,
        verdict=Verdict.CONSISTENT if within else Verdict.VIOLATION,
        claim=float(shown["epsilon_upper"]),
        accountant=accountant,
        epsilon=float(shown["epsilon_lower"]),
        step=int(shown["step"]),
    )


def _tested(run: Run, index: int) -> Test:
    """The claim test after all trials of the prefix, looking after every pack."""
    audit = run.plan.audits[index]
    claimed, family = _claimed(run, index)
    curve = family(claimed.noise_multiplier)
    test = claims.test(audit, curve)
    for pack in prefix.up_to_looks(audit, run.prefix(audit), lambda: test.due):
        prefix.fold(test, pack)
        test.look()
    test.look(now=True)
    return test


def _claimed(run: Run, index: int) -> tuple[Claimed, Callable[[float], Curve]]:
    """What one audit claims, and its curve for each noise multiplier."""
    audit, cell = run.plan.audits[index], run.sweep.cells[index]
    claimed = cell.mechanism.claimed(cell.adversary, audit.horizons[-1])
    return claimed, claims.curves(claimed, next(iter(audit.claims)), cell.audit.delta)


def _audit(run: Run, index: int, test: Test, alpha: float) -> AuditVerdict:
    audit = run.plan.audits[index]
    claimed, family = _claimed(run, index)
    refuted_after, power = test.refuted_after(alpha), _power(test, alpha)
    verdict = Verdict.INCONCLUSIVE
    if refuted_after is not None:
        verdict = Verdict.VIOLATION
    elif test.trials == audit.trials and power >= REQUIRED_POWER:
        unclear = test.lopsided or audit.mixed
        verdict = Verdict.INCONCLUSIVE if unclear else Verdict.CONSISTENT
    return AuditVerdict(
        label=audit.label,
        verdict=verdict,
        claim=audit.claim,
        accountant=next(iter(audit.claims)),
        noise_multiplier=claimed.noise_multiplier,
        effective_noise=test.effective_noise(family, claimed.noise_multiplier, alpha),
        evidence=test.best / math.log(10),
        needed=-math.log10(EVIDENCE_SHARE * alpha),
        trials=test.trials,
        planned=audit.trials,
        refuted_after=refuted_after,
        power=power,
        diverged=test.diverged,
        lopsided=test.lopsided,
        mixed=audit.mixed,
    )


def _power(test: Test, alpha: float) -> float:
    """Chance that this adversary would have refuted the claim, had the noise been less.

    Simulated at a fixed seed with Gaussian scores, as far apart as the adversary's hit rate says
    they would be with ALTERNATIVE times the noise. Each takes as long as the audit's own test.
    """
    if isinstance(test, RunTest):
        return test.share_found(ALTERNATIVE, alpha, _SIMULATIONS)
    hits = test.hits
    if hits.guesses == 0:
        return 0.0
    rate = min(hits.hits / hits.guesses, 1 - 0.5 / hits.guesses)
    mu = 2 * float(special.ndtri(max(rate, 0.5))) / ALTERNATIVE
    if test.planned > _LONG and _share_found(test, mu, _LONG, alpha) == 1:
        return 1.0  # so few trials would have done
    return _share_found(test, mu, test.planned, alpha)


def _share_found(test: ClaimTest, mu: float, trials: int, alpha: float) -> float:
    """Share of simulated audits of so many trials that refute the claim."""
    rng = np.random.default_rng(0)
    found = tried = 0
    while tried < _SIMULATIONS and not (tried == _AGREE and found in (0, tried)):
        members = rng.random(trials) < 0.5
        imagined = ClaimTest(test.curve, trials)
        imagined.fold(rng.normal(size=trials) + mu * members, members)
        imagined.look(now=True)
        found += imagined.refuted_after(alpha) is not None
        tried += 1
    return found / tried
