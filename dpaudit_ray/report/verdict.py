"""`dpaudit verify`: do the trials of a run contradict the claim, whatever the mechanism is?

Every audit is judged once, at its last recorded step, by `stats.claim_verdict`: an e-process that
may be looked at for ever, and sharper tests for the declared number of trials. The verdict may be
asked for at any time. Audits share the error, and so do the two ways of refuting; e-values of all
audits are averaged as well, since evidence that no single audit has may lie in several.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from enum import StrEnum

import numpy as np

from .. import accounting
from ..mechanisms.base import Claimed
from ..plan import claims, score_stream
from ..stats.budget import average_evidence
from ..stats.claim_verdict import EVIDENCE_SHARE
from ..stats.curve import Curve
from . import power
from .power import Test
from .tables import EXACT, Run

# By which a computed ε may exceed a claim of the same δ: a finer grid moves none by more than this,
# nor do the accountants' own roundings. Of an ε in the millions, a float keeps less than that.
EXACT_TOLERANCE, _ROUNDING = 1e-5, 1e-9
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
    would give the audit of a run that is nearest to it the power that it lacks; None if none that
    were tried do. `remark` is what the claim
    takes for granted.
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
        return open_yet and self.trials == self.planned and self.power < power.REQUIRED_POWER


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


def of(run: Run, thorough: bool = True) -> RunVerdict:
    """Judges every audit on the finished prefix of its trials.

    The run is CONSISTENT when every mechanism in it has an audit that is: an adversary that is
    too weak to find anything does not spoil what a stronger one shows. Without `thorough`
    `effective_noise` is looked for where a claim is refuted only, and `power` where all trials are
    done: the rest takes most of the time.
    """
    confidence = min(cell.audit.confidence for cell in run.sweep.cells)
    sampled = [index for index, cell in enumerate(run.sweep.cells) if cell.mechanism.sampled]
    alpha = (1 - confidence) / max(len(sampled), 1)
    tests = {index: _tested(run, index) for index in sampled}
    found: dict[int, AuditVerdict | ExactVerdict] = {
        index: _audit(run, index, tests[index], (alpha, thorough))
        if index in tests
        else _exact(run, index)
        for index in range(len(run.plan.audits))
    }
    if (nearest := _nearest(found)) is not None:
        index, one = nearest
        found[index] = dataclasses.replace(one, enough=power.enough(tests[index], alpha))
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


def _nearest(found: Mapping[int, AuditVerdict | ExactVerdict]) -> tuple[int, AuditVerdict] | None:
    """The audit that lacks the least power, of those that are done and say nothing for it."""
    judged = [(i, one) for i, one in found.items() if isinstance(one, AuditVerdict)]
    return max((each for each in judged if each[1].weak), key=lambda e: e[1].power, default=None)


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
    claimed = rows["epsilon_upper"].to_numpy()
    excess = rows["epsilon_lower"].to_numpy() - claimed * (1 + _ROUNDING)
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
    for pack in score_stream.up_to_looks(audit, run.prefix(audit), lambda: test.due):
        score_stream.feed(test, pack)
        test.look()
    test.look(now=True)
    return test


def _claimed(run: Run, index: int) -> tuple[Claimed, Callable[[float], Curve]]:
    """What one audit claims, and its curve for each noise multiplier."""
    audit, cell = run.plan.audits[index], run.sweep.cells[index]
    claimed = cell.mechanism.claimed(cell.adversary, audit.horizons[-1])
    return claimed, claims.curves(claimed, next(iter(audit.claims)), cell.audit.delta)


def _audit(run: Run, index: int, test: Test, asked: tuple[float, bool]) -> AuditVerdict:
    """`asked`: the error that this audit may spend, and whether its noise is wanted in any case."""
    audit, (alpha, thorough) = run.plan.audits[index], asked
    claimed, family = _claimed(run, index)
    refuted_after, done = test.refuted_after(alpha), test.trials == audit.trials
    chance = power.of(test, alpha) if done or thorough else 0.0
    above, strong = run.above(audit), chance >= power.REQUIRED_POWER
    unclear = test.lopsided or audit.mixed or above
    if refuted_after is not None:
        verdict = Verdict.VIOLATION
    else:
        consistent = done and strong and not unclear
        verdict = Verdict.CONSISTENT if consistent else Verdict.INCONCLUSIVE
    noise = claimed.noise_multiplier
    wanted = thorough or verdict is Verdict.VIOLATION
    return AuditVerdict(
        label=audit.label,
        verdict=verdict,
        claim=audit.claim,
        accountant=next(iter(audit.claims)),
        noise_multiplier=noise,
        effective_noise=test.effective_noise(family, noise, alpha) if wanted else None,
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
        remark=accounting.remark(claimed.training, next(iter(audit.claims))),
    )
