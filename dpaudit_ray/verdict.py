"""`dpaudit verify`: do the trials of a run contradict the claim, whatever the mechanism is?

Every audit is judged once, at its last recorded step, by the claim test (`stats.claim`). Its
evidence is an e-process, so the verdict may be asked for at any XX"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import numpy as np
from scipy import special

from . import accounting, prefix
from .mechanisms.base import Claimed
from .prefix import FoldedPack
from .report.tables import EXACT, Run
from .stats import claim, gdp
from .stats.claim import Claim, Curve
from .stats.guessing import GuessCounter

# What CONSISTENT means: noise this much smaller than claimed would have been found ...
ALTERNATIVE = 0.7
REQUIRED_POWER = 0.8  # ... with at least this probability
# By which a computed ε may exceed a claim of the same δ: a finer grid moves none by more than this,
# nor do the accountants' own roundings.
EXACT_TOLERANCE = 1e-5
_SIMULATIONS = 100


class Verdict(StrEnum):
    """What the trials say about the claim."""

    VIOLATION = "VIOLATION"  # the claim is refuted
    CONSISTENT = "CONSISTENT"  # it is not, and a real violation would have been found
    INCONCLUSIVE = "INCONCLUSIVE"  # it is not, and neither would a violation have been


@dataclasses.dataclass(frozen=True)
class AuditVerdict:
    """One audit against its claim.

    `evidence` and `needed` are logarithms to base 10 of e-values; `trials` were used, the claim
    was first refuted after `refuted_after` of them (None: never). With the run's confidence the
    training is no more private than noise multiplier `effective_noise` (None: any noise would
    do); `power` is the chance that noise of 0.7 of the claimed one would have been found.
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
    """All audits, by whether trials or exact numbers speak for them, and what all say together."""

    verdict: Verdict
    confidence: float
    audits: tuple[AuditVerdict, ...]
    exact: tuple[ExactVerdict, ...] = ()


def of(run: Run) -> RunVerdict:
    """Judges every audit on the finished prefix of its trials.

    The run is CONSISTENT when every mechanism in it has an audit that is: an adversary that is
    too weak to find anything does not spoil what a stronger one shows.
    """
    confidence = min(cell.audit.confidence for cell in run.sweep.cells)
    sampled = [index for index, cell in enumerate(run.sweep.cells) if cell.mechanism.sampled]
    alpha = (1 - confidence) / max(len(sampled), 1)
    found: dict[int, AuditVerdict | ExactVerdict] = {
        index: _audit(run, index, alpha) if index in sampled else _exact(run, index)
        for index in range(len(run.plan.audits))
    }
    return RunVerdict(
        _together(run, [one.verdict for one in found.values()]),
        confidence,
        tuple(one for one in found.values() if isinstance(one, AuditVerdict)),
        tuple(one for one in found.values() if isinstance(one, ExactVerdict)),
    )


def _together(run: Run, verdicts: list[Verdict]) -> Verdict:
    """What the verdicts on all audits, in their order, say about the run."""
    if Verdict.VIOLATION in verdicts:
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


def _audit(run: Run, index: int, alpha: float) -> AuditVerdict:
    audit, cell = run.plan.audits[index], run.sweep.cells[index]
    claimed = cell.mechanism.claimed(cell.adversary, audit.horizons[-1])
    accountant = next(iter(audit.claims))
    family = claims(claimed, accountant, cell.audit.delta)
    tested = _Tested.of(
        list(run.prefix(audit)), audit.trials, family(claimed.noise_multiplier), alpha
    )
    noise = claimed.noise_multiplier
    bound = tested.state.effective_noise(family, noise / 30, noise * 30, 1 - alpha)
    power = tested.power(audit.trials)
    verdict = Verdict.INCONCLUSIVE
    if tested.refuted_after is not None:
        verdict = Verdict.VIOLATION
    elif tested.state.trials == audit.trials and power >= REQUIRED_POWER:
        verdict = Verdict.CONSISTENT
    return AuditVerdict(
        label=audit.label,
        verdict=verdict,
        claim=audit.claim,
        accountant=accountant,
        noise_multiplier=noise,
        effective_noise=bound if bound < noise * 30 else None,
        evidence=tested.evidence / math.log(10),
        needed=-math.log10(alpha),
        trials=tested.state.trials,
        planned=audit.trials,
        refuted_after=tested.refuted_after,
        power=power,
    )


@dataclasses.dataclass(frozen=True)
class _Tested:
    """The claim test after all trials of the prefix, looking after every pack."""

    state: Claim
    curve: Curve
    alpha: float
    evidence: float  # the largest that any look saw: once refuted, a claim stays refuted
    refuted_after: int | None
    hits: GuessCounter

    @classmethod
    def of(cls, packs: list[FoldedPack], planned: int, curve: Curve, alpha: float) -> _Tested:
        state, hits = Claim(planned=planned), GuessCounter()
        best, refuted_after = -math.inf, None
        for pack in packs:
            prefix.fold(state, pack)
            hits.fold(prefix.values(pack), pack.members)
            best = max(best, state.evidence(curve))
            if refuted_after is None and best >= -math.log(alpha):
                refuted_after = state.trials
        return cls(state, curve, alpha, best if packs else 0.0, refuted_after, hits)

    def power(self, trials: int) -> float:
        """Chance that this adversary would have refuted the claim, had the noise been less.

        Simulated at a fixed seed with Gaussian scores, as far apart as the adversary's hit rate
        says they would be with ALTERNATIVE times the noise.
        """
        if self.hits.guesses == 0:
            return 0.0
        rate = min(self.hits.hits / self.hits.guesses, 1 - 0.5 / self.hits.guesses)
        mu = 2 * float(special.ndtri(max(rate, 0.5))) / ALTERNATIVE
        rng = np.random.default_rng(0)
        found = 0
        for _ in range(_SIMULATIONS):
            members = rng.random(trials) < 0.5
            state = Claim(planned=trials)
            state.fold(rng.normal(size=trials) + mu * members, members)
            found += state.refutes(self.curve, 1 - self.alpha)
        return found / _SIMULATIONS


def claims(claimed: Claimed, accountant: str, delta: float) -> Callable[[float], Curve]:
    """The curve that `accountant` claims for each noise multiplier, all else as in `claimed`."""

    @functools.cache
    def curve(noise: float) -> Curve:
        if claimed.sample_rate == 1 and accountant == accounting.Accountant.GAUSSIAN:
            return claim.gaussian(math.sqrt(claimed.releases) / noise)
        at = functools.partial(
            accounting.epsilon,
            noise,
            claimed.releases,
            sample_rate=claimed.sample_rate,
            accountant=accountant,
        )
        # The points that matter are those of the Gaussian claim with the same ε at δ.
        points = claim.gaussian(float(gdp.mu(at(delta), delta))).epsilons
        deltas = [_delta(noise, claimed, float(e), accountant) for e in points]
        return Curve(points, np.array(deltas))

    return curve


def _delta(noise: float, claimed: Claimed, epsilon: float, accountant: str) -> float:
    value: Any = accounting.delta(
        noise, claimed.releases, epsilon, sample_rate=claimed.sample_rate, accountant=accountant
    )
    return min(float(value), 1.0)
