"""`dpaudit verify`: do the trials of a run contradict the claim, whatever the mechanism is?

Every audit is judged once, at its last recorded step, by `stats.claim_verdict`, and may be at any
time. Audits share the error, and e-values of all are averaged: evidence may lie in several audits.

Terminal, page, `Result` and metrics show the verdict as one answer. It takes seconds, so it is kept
in the run directory, and believed where this user's seal is under it and the trials are the same.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from .. import __version__, accounting
from ..errors import DpauditError, RunDirectoryError, StorageError, percent, printable
from ..plan import claims, outcomes, score_stream
from ..stats.budget import average_evidence
from ..stats.claim_verdict import EVIDENCE_SHARE, RunTest
from ..storage import strangers
from . import detection
from .detection import ALTERNATIVE, REQUIRED_POWER, Test
from .quote import Quote, epsilon_text, quote
from .tables import EXACT, Run

# By which a computed ε may exceed a claim of the same δ: a finer grid moves none by more than this,
# nor do the accountants' own roundings. Of an ε in the millions, a float keeps less than that.
EXACT_TOLERANCE, _ROUNDING = 1e-5, 1e-9
LESS_NOISE = f"{percent(round(1 - ALTERNATIVE, 6))} less noise"
FILE = "verdict.json"
QUICK_TRIALS = 200_000  # up to so many are judged while somebody waits for something else


class Verdict(StrEnum):
    """What the trials say about the claim."""

    VIOLATION = "VIOLATION"  # the claim is refuted
    CONSISTENT = "CONSISTENT"  # it is not, and a real violation would have been found
    INCONCLUSIVE = "INCONCLUSIVE"  # it is not, and neither would a violation have been


@dataclasses.dataclass(frozen=True)
class _Judged:
    label: str
    verdict: Verdict
    quote: Quote
    claim: float
    accountant: str


@dataclasses.dataclass(frozen=True)
class AuditVerdict(_Judged):
    """One audit against its claim.

    With the run's confidence the training is no more private than `effective_noise`. Nothing is
    CONSISTENT where what diverged is `lopsided`, or where a bound that holds together with all
    others of the run is `above` its claim.
    """

    noise_multiplier: float
    effective_noise: float | None  # as a noise multiplier; None: any noise would do
    evidence: float  # log10 of an e-value, like `needed`
    needed: float
    trials: int  # that were used
    planned: int
    refuted_after: int | None  # trials after which the claim first was; None: never
    power: float  # chance that noise of 0.7 of the claimed one would have been found
    diverged: tuple[int, int] = (0, 0)  # trainings per world, (out, in)
    lopsided: bool = False
    mixed: bool = False  # always: other programs read this key
    above: bool = False
    remark: str = ""

    @property
    def divergence(self) -> str:
        """What is said where trainings of one world diverge too often."""
        outside, inside = self.diverged
        return f"diverging depends on the canary: {inside:,} trainings with it, {outside:,} without"


@dataclasses.dataclass(frozen=True)
class ExactVerdict(_Judged):
    """One audit without trials: ε at δ is known, and compared at every recorded step."""

    epsilon: float  # like `claim` of this step; NaN while nothing is computed
    step: int  # the last, or where the claim is exceeded most


@dataclasses.dataclass(frozen=True)
class RunVerdict:
    """All audits, by whether trials or exact numbers speak for them, and what all say together."""

    verdict: Verdict
    confidence: float
    audits: tuple[AuditVerdict, ...]
    exact: tuple[ExactVerdict, ...] = ()
    evidence: float = 0.0  # log10 of the averaged e-values, like `needed`
    needed: float = math.inf
    hints: tuple[str, ...] = ()  # what would decide it where an audit is weak


Progress = Callable[[int, int], None]  # called with audits judged so far, and all of them


def judge(run: Run, thorough: bool = True, progress: Progress | None = None) -> RunVerdict:
    """Judges every audit on the finished prefix of its trials; calls `progress` after each.

    The run is CONSISTENT when every mechanism in it has an audit that is, and no audit has a bound
    `above` its claim. Without `thorough`, `effective_noise` is looked for where a claim is refuted
    only, and `power` where all trials are done: the rest takes most of the time.
    """
    confidence = min(cell.audit.confidence for cell in run.sweep.cells)
    sampled = [index for index, cell in enumerate(run.sweep.cells) if cell.mechanism.sampled]
    claiming = [index for index in sampled if run.plan.audits[index].claim < math.inf]
    alpha = (1 - confidence) / max(len(claiming), 1)
    tests, audits = dict[int, Test](), dict[int, AuditVerdict]()
    exact = dict[int, ExactVerdict]()
    number = len(run.plan.audits)
    for index, cell in enumerate(run.sweep.cells):
        if cell.mechanism.sampled:
            tests[index], audits[index] = _judge_audit(run, index, alpha, thorough)
        else:
            exact[index] = _judge_exact(run, index)
        if progress is not None:
            progress(index + 1, number)
    evidence, needed = _all_evidence([tests[index] for index in claiming], 1 - confidence)
    verdicts = {index: audit.verdict for index, audit in (audits | exact).items()}
    whole = _together(run, verdicts, evidence >= needed)
    if whole is Verdict.CONSISTENT and any(audit.above for audit in audits.values()):
        whole = Verdict.INCONCLUSIVE
    hints = list[str]()
    weak = [i for i in claiming if audits[i].trials == audits[i].planned]
    weak = [i for i in weak if audits[i].power < REQUIRED_POWER]
    if whole is Verdict.INCONCLUSIVE and weak:
        nearest = max(weak, key=lambda index: audits[index].power)
        with contextlib.suppress(DpauditError):  # code or data that would tell are not here
            hints += detection.for_weak(run, nearest, tests[nearest], alpha)
    judged, logs = (*audits.values(),), (evidence / math.log(10), needed / math.log(10))
    return RunVerdict(whole, confidence, judged, (*exact.values(),), *logs, tuple(hints))


def _all_evidence(tests: Sequence[Test], alpha: float) -> tuple[float, float]:
    """Returns the log of an e-value against all claims at once, and what refutes them at `alpha`.

    It is an average, weighted by the share of the error that each test gives its e-process: so
    it reaches the bar whenever one of them does, and costs no error beyond theirs.
    """
    if not tests:
        return 0.0, -math.log(EVIDENCE_SHARE * alpha)
    shares = np.array([test.evidence_share for test in tests])
    weights = np.log(shares / shares.mean())
    latest = [test.latest + weight for test, weight in zip(tests, weights, strict=True)]
    return average_evidence(latest), -math.log(float(shares.mean()) * alpha)


def _together(run: Run, verdicts: Mapping[int, Verdict], refuted: bool) -> Verdict:
    """What verdicts by number say of the run; `refuted`: all evidence together refutes claims."""
    shown = set(_by_mechanism(run, verdicts).values())
    if refuted or Verdict.VIOLATION in shown:
        return Verdict.VIOLATION
    return Verdict.INCONCLUSIVE if Verdict.INCONCLUSIVE in shown else Verdict.CONSISTENT


def _by_mechanism(run: Run, verdicts: Mapping[int, Verdict]) -> dict[str, Verdict]:
    """The first verdict, in their order, of each mechanism that claims anything; of all if none."""
    shown = dict[str, Verdict]()
    claiming = {i: v for i, v in verdicts.items() if run.plan.audits[i].claim < math.inf}
    for index, verdict in (claiming or verdicts).items():
        mechanism = run.sweep.cells[index].mechanism.model_dump_json()
        shown[mechanism] = min(shown.get(mechanism, verdict), verdict, key=list(Verdict).index)
    return shown


def _judge_exact(run: Run, index: int) -> ExactVerdict:
    """Compares at every recorded step: no look costs anything where nothing is random."""
    audit = run.plan.audits[index]
    accountant = next(iter(audit.claims))
    table = run.rows(audit)
    rows = table[(table["estimator"] == EXACT) & (table["accountant"] == accountant)]
    verdict, claim, epsilon = Verdict.INCONCLUSIVE, audit.claim, math.nan
    step = audit.horizons[-1]
    if len(rows):
        excess = (rows["epsilon_lower"] - rows["epsilon_upper"] * (1 + _ROUNDING)).to_numpy()
        within = excess.max() <= EXACT_TOLERANCE
        verdict = Verdict.CONSISTENT if within else Verdict.VIOLATION
        row = rows.iloc[-1 if within else int(np.argmax(excess))]
        claim, epsilon = float(row["epsilon_upper"]), float(row["epsilon_lower"])
        step = int(row["step"])
    shown = quote(run, index)
    if verdict is Verdict.VIOLATION:
        shown = dataclasses.replace(shown, epsilon=epsilon, claim=claim, step=step)
    return ExactVerdict(audit.label, verdict, shown, claim, accountant, epsilon, step)


def _judge_audit(run: Run, index: int, alpha: float, thorough: bool) -> tuple[Test, AuditVerdict]:
    """The claim test after all trials of the prefix, and what it says; `alpha` may be spent."""
    audit, cell = run.plan.audits[index], run.sweep.cells[index]
    claimed = cell.mechanism.claimed(cell.adversary, audit.horizons[-1])
    noise, accountant = claimed.noise_multiplier, next(iter(audit.claims))
    family = claims.curves(claimed, accountant, cell.audit.delta)
    test = claims.test(audit, family(noise))
    watched = test if isinstance(test, RunTest) else test.process
    rest = () if isinstance(test, RunTest) else test.between_looks
    for pack in run.prefix(audit):
        for part in score_stream.up_to_looks(audit, pack, lambda: test.due):
            score_stream.feed(watched, part)
            test.look()
        for state in rest:
            score_stream.feed(state, pack)
    test.look(now=True)
    refuted_after, done = test.refuted_after(alpha), test.trials == audit.trials
    chance = detection.chance_to_refute(test, alpha) if done or thorough else 0.0
    above, strong = run.above(audit), chance >= REQUIRED_POWER
    verdict, effective_noise = Verdict.INCONCLUSIVE, None
    if refuted_after is not None:
        verdict = Verdict.VIOLATION
    elif done and strong and not (test.lopsided or above):
        verdict = Verdict.CONSISTENT
    if thorough or verdict is Verdict.VIOLATION:
        nested = claimed.gaussian and ":" not in accountant
        effective_noise = test.effective_noise(family, noise, alpha, nested)
    return test, AuditVerdict(
        label=audit.label,
        verdict=verdict,
        quote=quote(run, index, refuted_after is not None),
        claim=audit.claim,
        accountant=accountant,
        noise_multiplier=noise,
        effective_noise=effective_noise,
        evidence=test.best / math.log(10),
        needed=-math.log10(test.evidence_share * alpha),
        trials=test.trials,
        planned=audit.trials,
        refuted_after=refuted_after,
        power=chance,
        diverged=test.diverged,
        lopsided=test.lopsided,
        above=above,
        remark=accounting.remark(claimed.training, accountant),
    )


# The answer, as it is kept -----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class AuditAnswer:
    """What is said of one audit: its verdict, why it is that, and the ε to quote."""

    label: str
    verdict: Verdict
    reason: str
    quote: Quote


@dataclasses.dataclass(frozen=True)
class Answer:
    """What is said of a run."""

    verdict: Verdict
    sentence: str  # which begins with the verdict
    help: tuple[str, ...]  # what to do next
    audits: tuple[AuditAnswer, ...]
    quote: Quote  # the largest of its audits' quotes, of the mechanisms that decide the verdict
    judged: int  # trials that it rests on
    derived: bool = True  # always: other programs read this key


def current(run: Run, progress: Progress | None = None) -> Answer:
    """The answer that is kept, if it is of the trials that are there; else computed, and kept."""
    if (before := kept(run)) is not None:
        return before
    stamps, computed = _stamps(run), derived(run, progress)
    content = {"of": _basis(run)} | dataclasses.asdict(computed)
    with contextlib.suppress(StorageError):
        sealed = content | {"seal": strangers.seal(_digest(content) + stamps)}
        run.directory.write_json(FILE, sealed)
    return computed


def quick(run: Run, progress: Progress | None = None) -> Answer | None:
    """Returns the kept answer, or a new one where few trials are to judge; None where many are."""
    if sum(map(run.done, run.plan.audits)) > QUICK_TRIALS:
        return kept(run)
    return current(run, progress)


def kept(run: Run) -> Answer | None:
    """What an earlier call of this user kept of the same scores; None where there is none."""
    with contextlib.suppress(DpauditError):
        if (answer := stored(run)) is not None:
            content = run.directory.read_json(FILE)
            sealed = content.pop("seal", None)
            return answer if strangers.sealed(_digest(content) + _stamps(run), sealed) else None
    return None


def stored(run: Run) -> Answer | None:
    """What anybody kept of the same trials, bounds and failures; RunDirectoryError for damage."""
    raw = run.directory.read_json(FILE)
    try:
        if raw is None or raw["of"] != _basis(run):
            return None
        return TypeAdapter(Answer).validate_python(raw)
    except (ValueError, TypeError, KeyError) as error:
        raise RunDirectoryError(f"{run.directory.location}/{FILE} is no answer") from error


def _basis(run: Run) -> str:
    """Changes when the answer may: with plan, trials, failures, estimates, and this package."""
    basis = [
        __version__,
        run.plan.fingerprint,
        [[audit.label, audit.trials, run.done(audit)] for audit in run.plan.audits],
        sorted(str(failure.pack) for failure in outcomes.failed(run.directory, run.plan)),
        [dataclasses.astuple(kind) for kind in outcomes.read(run.directory, run.plan).missed],
        run.complete,
        run.estimates.to_csv(index=False),
    ]
    return _digest(basis)


def _stamps(run: Run) -> str:
    """Changes with every score file that is written anew, whatever its name."""
    return _digest([run.directory.stamps(audit.id) for audit in run.plan.audits])


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, default=str, sort_keys=True).encode()).hexdigest()


# In words ----------------------------------------------------------------------------------------


def derived(run: Run, progress: Progress | None = None) -> Answer:
    """The verdict by the trials that are there, in words; takes seconds."""
    return worded(run, judge(run, thorough=False, progress=progress))


def quotes(run: Run, answer: Answer | None) -> list[Quote]:
    """The ε to quote of every audit, also where no answer is there: then none refutes its claim."""
    if answer is not None:
        return [audit.quote for audit in answer.audits]
    return [quote(run, index) for index in range(len(run.plan.audits))]


def worded(run: Run, judged: RunVerdict) -> Answer:
    """A verdict as an answer: a sentence, why, and what would help."""
    sampled, exact = iter(judged.audits), iter(judged.exact)
    lost = collections.defaultdict[int, list[outcomes.Failure]](list)
    for failure in outcomes.failed(run.directory, run.plan):
        lost[failure.pack.audit].append(failure)
    audits = []
    for index, cell in enumerate(run.sweep.cells):
        audit = next(sampled) if cell.mechanism.sampled else next(exact)
        if isinstance(audit, AuditVerdict):
            reason = _reason(run, index, lost[index], audit)
        elif math.isnan(audit.epsilon):
            reason = "nothing is computed yet"
        else:
            above = audit.verdict is Verdict.VIOLATION
            against = f"at step {audit.step}, above the claim of" if above else "where the claim is"
            claim = epsilon_text(audit.claim, digits=4)
            reason = f"ε is {epsilon_text(audit.epsilon, digits=4)} {against} {claim}"
        audits.append(AuditAnswer(audit.label, audit.verdict, reason, audit.quote))
    # The largest quote of the mechanisms that decide; of those that hold together, if any do.
    shown = _by_mechanism(run, {index: audit.verdict for index, audit in enumerate(audits)})
    quotes = [
        (shown.get(cell.mechanism.model_dump_json()) is judged.verdict, audit.quote)
        for cell, audit in zip(run.sweep.cells, audits, strict=True)
    ]
    _, largest = max(
        quotes,
        key=lambda it: (it[0], it[1].together, it[1].epsilon is not None, it[1].epsilon or 0),
    )
    return Answer(
        verdict=judged.verdict,
        sentence=f"{judged.verdict}: {_sentence(run, judged, audits, largest)}",
        help=tuple(_help(run, judged)),
        audits=tuple(audits),
        quote=largest,
        judged=sum(audit.trials for audit in judged.audits),
    )


def _reason(run: Run, index: int, lost: list[outcomes.Failure], audit: AuditVerdict) -> str:
    """Why a sampled audit has its verdict; `lost` are its packs that have failed."""
    if audit.verdict is Verdict.VIOLATION:
        reason = f"the claim is refuted after {audit.refuted_after:,} of {audit.planned:,} trials"
        if audit.effective_noise is None:
            return reason
        return (
            f"{reason}: no more private than with noise multiplier {audit.effective_noise:.3g} "
            f"where {audit.noise_multiplier:.3g} is claimed"
        )
    if audit.verdict is Verdict.CONSISTENT:
        return f"{audit.trials:,} trials do not refute the claim, and {LESS_NOISE} would have shown"
    if (ended := run.decided.get(index)) is not None:
        return f"`stop_when` ended it after {ended:,} of {audit.planned:,} trials"
    done = run.done(run.plan.audits[index])
    if audit.claim == math.inf and done:
        return "it claims nothing, so there is nothing to refute"
    if audit.trials == 0:
        return f"{done:,} trials are done, but not the first ones" if done else "no trial is done"
    if audit.above:
        return (
            "a bound is above its claim even together with all others, while the test of the "
            "whole claim does not refute it"
        )
    if failed := sum(failure.pack.size for failure in lost):
        rest = f", and {done:,} are done" * bool(done)
        why = printable(lost[0].message)
        return f"{failed:,} of {audit.planned:,} trials failed{rest}: {why}"
    if audit.trials < audit.planned:
        used = f", {audit.trials:,} of them usable before a gap" if audit.trials < done else ""
        return f"{done:,} of {audit.planned:,} trials are done{used}"
    if audit.lopsided:
        return audit.divergence
    planned = run.plan.audits[index]
    if not planned.independent and audit.power == 0:
        runs = planned.trials // planned.in_a_training
        enough = f"{runs:,} is" if runs == 1 else f"{runs:,} are"
        return (
            f"the test of the whole claim counts training runs, and {enough} too few to notice "
            f"{LESS_NOISE}"
        )
    chance = percent(round(audit.power, 2))
    return f"the audit is weak: it would have noticed {LESS_NOISE} with a chance of {chance}"


def _sentence(run: Run, judged: RunVerdict, audits: list[AuditAnswer], largest: Quote) -> str:
    """What follows the verdict: what was found, the ε that was measured, and what that is worth."""
    several, outcome = len(audits) > 1, judged.verdict
    alike = [audit for audit in audits if audit.verdict is outcome]
    alike.sort(key=lambda audit: (audit.quote.claim == math.inf, not audit.quote.above))
    first = f"{alike[0].label}: " * several + alike[0].reason if alike else ""
    if largest.epsilon is None:
        measured = f"There is no ε to quote: {largest.reason}."
    else:
        level = f"{largest.label}; " * several + largest.level
        claim = f"{', above' if largest.above else ' of'} the claimed {epsilon_text(largest.claim)}"
        claim = claim if largest.claim < math.inf else " where nothing is claimed"
        sign = "=" if largest.exact else "≥"
        measured = f"Measured ε {sign} {largest.text}{claim} ({level})."
        if largest.epsilon == 0 and not largest.exact:
            measured = f"No ε above 0 is shown{claim} ({level})."
    if outcome is Verdict.VIOLATION:
        more = f" (and {len(alike) - 1} more audits)" * (len(alike) > 1)
        all_of_them = "all audits together refute their claims, though none does alone"
        return f"{first + more or all_of_them}. {measured}"
    if outcome is Verdict.CONSISTENT:
        who = f"{len(alike)} of {len(audits)} audits" if several else "This audit"
        noticed = f" {who} would have noticed {LESS_NOISE}." * bool(judged.audits)
        return f"no violation found. {measured}{noticed}"
    done = sum(map(run.done, run.plan.audits))
    if several and done < run.plan.trials and not run.complete:
        first = f"{done:,} of {run.plan.trials:,} trials are done"
    return f"no violation found, but {first}. {measured}"


def _help(run: Run, judged: RunVerdict) -> Iterator[str]:
    def again(why: str) -> Iterator[str]:
        if fresh := detection.options_of_its_own(run, "again", {}):
            yield f"a run of its own with another seed: {why}: {fresh[1]}"

    if judged.verdict is Verdict.VIOLATION:
        yield from again("chance does not repeat itself, a leak does")
    elif outcomes.only_failed(run.directory, run.plan, run.decided):
        yield "all that is left has failed; mend the cause, then `dpaudit run --retry-failed`"
    elif not run.complete:
        yield "`dpaudit run` with the same sweep file goes on"
    yield from judged.hints
    if judged.verdict is Verdict.INCONCLUSIVE and any(audit.above for audit in judged.audits):
        yield from again("it decides whether a bound is above its claim by chance")
