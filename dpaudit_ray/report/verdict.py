"""The verdict of `dpaudit verify`: whether trials contradict the claim, whatever the mechanism is.

Every audit is judged once, at its last recorded step, by `stats.claim_verdict`, which may be done
at any time. Audits share the error, and their e-values are averaged, since evidence may lie in
several of them.

Terminal, page, `Result` and metrics show the verdict as one `Answer`. Computing it takes seconds,
so it is stored in the run directory, and read again if it has this user's seal and the trials are
the same.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from .. import __version__, accounting
from ..accounting import Training
from ..accounting.stated_claims import EpsilonDelta
from ..errors import DpauditError, RunDirectoryError, StorageError, percent, plain, printable
from ..plan import claims, outcomes, score_stream
from ..stats.budget import average_evidence
from ..stats.claim_verdict import EVIDENCE_SHARE, RunTest
from ..storage import strangers
from ..storage.scores import PackScores
from . import detection
from .detection import ALTERNATIVE, REQUIRED_POWER, Test
from .quote import Quote, epsilon_text, quote
from .tables import EXACT, Run

# A computed ε may exceed a claim of the same δ by this: a finer grid, or an accountant's rounding,
# changes ε by no more. Floats of an ε in the millions have fewer digits: hence _ROUNDING, relative.
EXACT_TOLERANCE = 1e-5
_ROUNDING = 1e-9
LESS_NOISE = f"{percent(round(1 - ALTERNATIVE, 6))} less noise"
SHORTFALL = f"a {percent(round(1 - ALTERNATIVE, 6))} shortfall in noise"
FILE = "verdict.json"
QUICK_TRIALS = 200_000  # more trials are not judged while a user waits for another result


class Verdict(StrEnum):
    """The result of testing a claim by trials."""

    VIOLATION = "VIOLATION"  # the claim is refuted
    CONSISTENT = "CONSISTENT"  # not refuted, and a real violation would have been found
    INCONCLUSIVE = "INCONCLUSIVE"  # not refuted, but a violation might not have been found


@dataclass(frozen=True)
class _Judged:
    """Fields of the verdict on any audit: `quote` is the ε to quote, `claim` the accountant's."""

    label: str
    verdict: Verdict
    quote: Quote
    claim: float
    accountant: str


@dataclass(frozen=True)
class AuditVerdict(_Judged):
    """The verdict on one sampled audit, and the numbers that it rests on.

    With the run's confidence the training is no more private than `effective_noise`. An audit is
    never CONSISTENT if a training diverged, or if a bound that holds simultaneously with all
    others of the run is `above` its claim.

    Attributes:
        noise_multiplier: the claimed noise multiplier.
        effective_noise: least refuted noise multiplier; None if none that was tried is refuted.
        evidence: log10 of the largest e-value against the claim.
        needed: log10 of an e-value that refutes the claim.
        trials: trials that were used.
        planned: trials that were declared.
        refuted_after: trials after which the claim first was refuted; None if it was not.
        power: probability that 0.7 of the claimed noise would have been found.
        diverged: diverged training runs without and with the canary.
        divergence: the number of a diverged trial, and why it diverged.
        lopsided: whether diverging depends on the canary.
        mixed: always False; other programs read this key.
        above: whether a bound exceeds the claim.
        remark: the accountant's remark on the claim.
    """

    noise_multiplier: float
    effective_noise: float | None
    evidence: float
    needed: float
    trials: int
    planned: int
    refuted_after: int | None
    power: float
    diverged: tuple[int, int] = (0, 0)
    divergence: str = ""
    lopsided: bool = False
    mixed: bool = False
    above: bool = False
    remark: str = ""

    @property
    def failed_trials(self) -> str:
        """The clause on trials that ended in NaN or infinity; "" without any."""
        outside, inside = self.diverged
        failed = outside + inside
        if not failed:
            return ""
        which = f"{failed:,} of {self.trials:,} trials"
        if failed == self.trials:
            which = f"all {failed:,} trials"
        clause = f"{which} ended in NaN or infinity"
        if self.lopsided:  # one world diverged more often than chance explains
            clause += f", which depends on the canary ({inside:,} with it, {outside:,} without)"
        return f"{clause}, {self.divergence}" if self.divergence else clause


@dataclass(frozen=True)
class ExactVerdict(_Judged):
    """The verdict on one audit without trials: ε at δ is known at every recorded step."""

    epsilon: float  # the bound at `step`, as is `claim`; NaN while nothing is computed
    step: int  # the last step, or the step at which ε exceeds the claim most


@dataclass(frozen=True)
class RunVerdict:
    """The verdict on all audits, sampled and exact, and their evidence together."""

    verdict: Verdict
    confidence: float
    audits: tuple[AuditVerdict, ...]
    exact: tuple[ExactVerdict, ...] = ()
    evidence: float = 0.0  # log10 of the averaged e-values, like `needed`
    needed: float = math.inf
    hints: tuple[str, ...] = ()  # changes that would decide a weak audit


Progress = Callable[[int, int], None]  # called with the numbers of judged audits and of all


def judge(
    run: Run,
    thorough: bool = True,
    progress: Progress | None = None,
) -> RunVerdict:
    """Judges every audit on the finished prefix of its trials.

    The run is CONSISTENT if every mechanism in it has an audit that is, no audit has a bound
    `above` its claim, and no training diverged.

    Args:
        run: the run.
        thorough: if False, `effective_noise` is computed only for refuted claims, and `power` only
            for complete audits: both take most of the time.
        progress: called after each audit.
    """
    confidence = min(cell.audit.confidence for cell in run.sweep.cells)
    # Numbers of the sampled audits that claim anything, which share the error equally.
    claiming = [
        index
        for index, (audit, cell) in enumerate(run.pairs)
        if cell.sampled and audit.claim < math.inf
    ]
    alpha = (1 - confidence) / max(len(claiming), 1)
    tests = {}
    audits = {}
    exact = {}
    for index, cell in enumerate(run.sweep.cells):
        if cell.sampled:
            tests[index], audits[index] = _judge_audit(run, index, alpha, thorough)
        else:
            exact[index] = _judge_exact(run, index)
        if progress is not None:
            progress(index + 1, len(run.plan.audits))
    evidence, needed = _all_evidence([tests[index] for index in claiming], 1 - confidence)
    verdicts = {index: audit.verdict for index, audit in (audits | exact).items()}
    # For each mechanism, the first of VIOLATION, CONSISTENT, INCONCLUSIVE that an audit of it has.
    decisive = _by_mechanism(run, verdicts).values()
    verdict = Verdict.CONSISTENT
    if evidence >= needed or Verdict.VIOLATION in decisive:
        verdict = Verdict.VIOLATION
    elif Verdict.INCONCLUSIVE in decisive or any(
        audit.above or audit.failed_trials for audit in audits.values()
    ):
        verdict = Verdict.INCONCLUSIVE
    hints = list[str]()
    nearest = _nearest_weak(audits, claiming)
    if verdict is Verdict.INCONCLUSIVE and nearest is not None:
        with suppress(DpauditError):  # code or data that a hint needs may be missing
            hints += detection.hints_for_weak_audit(run, nearest, tests[nearest], alpha)
    return RunVerdict(
        verdict,
        confidence,
        audits=tuple(audits.values()),
        exact=tuple(exact.values()),
        evidence=evidence / math.log(10),
        needed=needed / math.log(10),
        hints=tuple(hints),
    )


def _nearest_weak(audits: Mapping[int, AuditVerdict], claiming: Sequence[int]) -> int | None:
    """Returns the number of the most powerful audit that is complete but too weak; or None.

    Args:
        audits: verdicts by number.
        claiming: numbers of the audits that claim anything.
    """
    weak = {}  # powers by number
    for index in claiming:
        audit = audits[index]
        is_complete = audit.trials == audit.planned and not audit.failed_trials
        if is_complete and audit.power < REQUIRED_POWER:
            weak[index] = audit.power
    return max(weak, key=weak.__getitem__, default=None)


def _all_evidence(
    tests: Sequence[Test],
    alpha: float,
) -> tuple[float, float]:
    """Returns the log of an e-value against all claims together, and the log that refutes them.

    The e-value is the average over all tests, each weighted by the share of its error that it gives
    its e-process. So the average reaches its threshold, 1 / (mean share · α), whenever one test
    reaches its own threshold, and no further error is spent.

    Args:
        tests: tests of the audits that claim anything.
        alpha: error of all tests together.
    """
    if not tests:
        return 0.0, -math.log(EVIDENCE_SHARE * alpha)
    shares = np.array([test.evidence_share for test in tests])
    weights = np.log(shares / shares.mean())
    latest = [test.latest + weight for test, weight in zip(tests, weights, strict=True)]
    return average_evidence(latest), -math.log(float(shares.mean()) * alpha)


def _by_mechanism(
    run: Run,
    verdicts: Mapping[int, Verdict],
) -> dict[str, Verdict]:
    """Returns a verdict for each mechanism that claims anything, by its JSON.

    Of the verdicts on its audits, it is the first in the order VIOLATION, CONSISTENT, INCONCLUSIVE.
    If no mechanism claims anything, all of them are in the result.
    """
    by_mechanism = dict[str, Verdict]()
    claiming = [index for index in verdicts if run.plan.audits[index].claim < math.inf]
    for index in claiming or verdicts:
        verdict = verdicts[index]
        mechanism = run.sweep.cells[index].mechanism.model_dump_json()
        earlier = by_mechanism.get(mechanism, verdict)
        by_mechanism[mechanism] = min(earlier, verdict, key=list(Verdict).index)
    return by_mechanism


def _judge_exact(run: Run, index: int) -> ExactVerdict:
    """Compares ε with the claim at every recorded step. Nothing is random: no error is spent."""
    audit = run.plan.audits[index]
    table = run.rows(audit)
    rows = table[(table["estimator"] == EXACT) & (table["accountant"] == audit.accountant)]
    verdict = Verdict.INCONCLUSIVE
    claim = audit.claim
    epsilon = math.nan
    step = audit.horizons[-1]
    if len(rows):
        largest_allowed = rows["epsilon_upper"] * (1 + _ROUNDING)
        excess = (rows["epsilon_lower"] - largest_allowed).to_numpy()
        within = excess.max() <= EXACT_TOLERANCE
        verdict = Verdict.CONSISTENT if within else Verdict.VIOLATION
        row = rows.iloc[-1 if within else int(np.argmax(excess))]
        claim = float(row["epsilon_upper"])
        epsilon = float(row["epsilon_lower"])
        step = int(row["step"])
    quoted = quote(run, index)
    if verdict is Verdict.VIOLATION:
        quoted = replace(quoted, epsilon=epsilon, claim=claim, step=step)
    return ExactVerdict(audit.label, verdict, quoted, claim, audit.accountant, epsilon, step)


def _judge_audit(
    run: Run,
    index: int,
    alpha: float,
    thorough: bool,
) -> tuple[Test, AuditVerdict]:
    """Tests the claim of an audit by all trials of its prefix.

    Args:
        run: the run.
        index: number of the audit.
        alpha: error probability that may be spent.
        thorough: whether to compute the effective noise and the power of every audit.
    """
    audit, cell = run.pairs[index]
    claimed = cell.claimed()
    noise = claimed.noise
    accountant = audit.accountant
    test = claims.test(audit, cell)
    watched = test if isinstance(test, RunTest) else test.process
    between_looks = () if isinstance(test, RunTest) else test.between_looks
    divergence = ""
    for pack in run.finished_prefix(audit):
        if isinstance(pack, PackScores) and pack.diverged and not divergence:
            trial, reason = next(iter(pack.diverged.items()))
            divergence = printable(f"trial {trial} {reason}")
        # Only the e-process needs each look; all other parts take the packs of a file at once.
        for part in score_stream.parts_between_looks(audit, pack, lambda: test.due):
            score_stream.feed(watched, part)
            test.look()
        for state in between_looks:
            score_stream.feed(state, pack)
    test.look(now=True)
    refuted_after = test.refuted_after(alpha)
    complete = test.trials == audit.trials
    power = detection.chance_to_refute(test, alpha) if complete or thorough else 0.0
    above = run.has_bound_above_claim(audit)
    verdict = Verdict.INCONCLUSIVE
    if refuted_after is not None:
        verdict = Verdict.VIOLATION
    elif complete and power >= REQUIRED_POWER and not (sum(test.diverged) or above):
        verdict = Verdict.CONSISTENT
    effective_noise = None
    if thorough or verdict is Verdict.VIOLATION:
        nested = claimed.gaussian and ":" not in accountant
        effective_noise = test.effective_noise(claims.family(cell), noise, alpha, nested)
    return test, AuditVerdict(
        label=audit.label,
        verdict=verdict,
        quote=quote(run, index, refuted=refuted_after is not None),
        claim=audit.claim,
        accountant=accountant,
        noise_multiplier=noise,
        effective_noise=effective_noise,
        evidence=test.best / math.log(10),
        needed=-math.log10(test.evidence_share * alpha),
        trials=test.trials,
        planned=audit.trials,
        refuted_after=refuted_after,
        power=power,
        diverged=test.diverged,
        divergence=divergence,
        lopsided=test.lopsided,
        above=above,
        remark=accounting.remark(claimed, accountant),
    )


# The stored answer -------------------------------------------------------------------------------


@dataclass(frozen=True)
class AuditAnswer:
    """The verdict on one audit, its reason, and the ε to quote."""

    label: str
    verdict: Verdict
    reason: str
    quote: Quote


@dataclass(frozen=True)
class Answer:
    """The verdict on a run in words.

    Attributes:
        verdict: the verdict.
        sentence: the verdict, and what was found and measured.
        help: next steps.
        audits: the answers on the audits.
        quote: the largest quote of the audits whose mechanisms decide the verdict.
        judged: number of trials that the verdict rests on.
        derived: always True; other programs read this key.
        failed_trials: trials whose scores are not finite.
    """

    verdict: Verdict
    sentence: str
    help: tuple[str, ...]
    audits: tuple[AuditAnswer, ...]
    quote: Quote
    judged: int
    derived: bool = True
    failed_trials: int = 0


def current(run: Run, progress: Progress | None = None) -> Answer:
    """Returns the stored answer if it is of the present trials; else computes and stores it.

    The answer is stored with a seal of this user over its content and the stamps of score files.
    Another answer, or the same one after a score file was written, does not fit the seal.
    """
    answer = stored_answer(run)
    if answer is not None:
        return answer
    stamps = _stamps(run)
    answer = compute_answer(run, progress)
    content = {"of": _basis(run), **asdict(answer)}
    with suppress(StorageError):
        seal = strangers.seal(_digest(content) + stamps)
        run.directory.write_json(FILE, {**content, "seal": seal})
    return answer


def current_or_stored(run: Run, progress: Progress | None = None) -> Answer | None:
    """Returns `current`, or the stored answer alone if there are many trials; None without one."""
    if sum(map(run.done, run.plan.audits)) > QUICK_TRIALS:
        return stored_answer(run)
    return current(run, progress)


def stored_answer(run: Run) -> Answer | None:
    """Returns what an earlier call of this user stored of the same scores; None without it."""
    with suppress(DpauditError):
        answer = unsealed_answer(run)
        if answer is not None:
            content = run.directory.read_json(FILE)
            seal = content.pop("seal", None)
            return answer if strangers.is_sealed(_digest(content) + _stamps(run), seal) else None
    return None


def unsealed_answer(run: Run) -> Answer | None:
    """Returns what any user stored of the same trials, bounds and failures; None without it.

    The seal is not checked: another user may have written the answer by hand.

    Raises:
        RunDirectoryError: the file is damaged.
    """
    content = run.directory.read_json(FILE)
    try:
        if content is None or content["of"] != _basis(run):
            return None
        return TypeAdapter(Answer).validate_python(content)
    except (ValueError, TypeError, KeyError) as error:
        raise RunDirectoryError(f"{run.directory.location}/{FILE} is no answer") from error


def _basis(run: Run) -> str:
    """Returns a digest of all that the answer depends on, this package's version included."""
    recorded = outcomes.read(run.directory, run.plan)
    return _digest(
        [
            __version__,
            run.plan.fingerprint,
            [[audit.label, audit.trials, run.done(audit)] for audit in run.plan.audits],
            sorted(str(failure.pack) for failure in outcomes.failed(run.directory, run.plan)),
            [astuple(kind) for kind in recorded.missed],
            run.complete,
            run.estimates.to_csv(index=False),
        ]
    )


def _stamps(run: Run) -> str:
    """Returns a digest that changes whenever a score file is written, whatever its name."""
    return _digest([run.directory.stamps(audit.id) for audit in run.plan.audits])


def _digest(content: Any) -> str:
    """Returns the SHA-256 of plain data, the same in every process."""
    text = json.dumps(content, default=str, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


# The answer in words -----------------------------------------------------------------------------


def compute_answer(run: Run, progress: Progress | None = None) -> Answer:
    """Computes the answer from the finished trials, which takes seconds."""
    return in_words(run, judge(run, thorough=False, progress=progress))


def quotes(run: Run, answer: Answer | None) -> list[Quote]:
    """Returns the ε to quote of every audit; without an answer, as if no claim were refuted."""
    if answer is not None:
        return [audit.quote for audit in answer.audits]
    return [quote(run, index) for index in range(len(run.plan.audits))]


def in_words(run: Run, verdict: RunVerdict) -> Answer:
    """Returns a verdict as an answer: a sentence, reasons, and next steps."""
    # Both have their audits in the order of the sweep.
    sampled = iter(verdict.audits)
    exact = iter(verdict.exact)
    audits = []
    failures = outcomes.failed(run.directory, run.plan)
    for index, cell in enumerate(run.sweep.cells):
        audit: AuditVerdict | ExactVerdict
        if cell.sampled:
            audit = next(sampled)
            own_failures = [failure for failure in failures if failure.pack.audit == index]
            reason = _reason(run, index, audit, own_failures)
        else:
            audit = next(exact)
            reason = _exact_reason(audit)
        audits.append(AuditAnswer(audit.label, audit.verdict, reason, audit.quote))
    headline = _headline(run, verdict.verdict, audits)
    return Answer(
        verdict=verdict.verdict,
        sentence=f"{verdict.verdict}: {_sentence(run, verdict, audits, headline)}{_unit(run)}",
        help=tuple(_next_steps(run, verdict)),
        audits=tuple(audits),
        quote=headline,
        judged=sum(audit.trials for audit in verdict.audits),
        failed_trials=sum(sum(audit.diverged) for audit in verdict.audits),
    )


def _headline(run: Run, verdict: Verdict, audits: Sequence[AuditAnswer]) -> Quote:
    """Returns the ε to quote for the run: the largest of audits whose mechanism has its verdict.

    Bounds that hold simultaneously for all audits come before those that hold one by one.

    Args:
        run: the run.
        verdict: verdict of the run.
        audits: answers of all audits.
    """
    verdicts = _by_mechanism(run, {index: audit.verdict for index, audit in enumerate(audits)})

    def rank(index: int) -> tuple[bool, bool, bool, float]:
        """Returns how well an audit's quote stands for the run: the largest value is best."""
        mechanism = run.sweep.cells[index].mechanism.model_dump_json()
        decides = verdicts.get(mechanism) is verdict
        quote = audits[index].quote
        return decides, quote.together, quote.epsilon is not None, quote.epsilon or 0

    return audits[max(range(len(audits)), key=rank)].quote


def _exact_reason(audit: ExactVerdict) -> str:
    """Returns why an audit without trials has its verdict."""
    if math.isnan(audit.epsilon):
        return "nothing has been computed yet"
    against = "where the claim is"
    if audit.verdict is Verdict.VIOLATION:
        against = f"at step {audit.step}, above the claim of"
    claim = epsilon_text(audit.claim, digits=4)
    return f"ε is {epsilon_text(audit.epsilon, digits=4)} {against} {claim}"


def _reason(
    run: Run,
    index: int,
    audit: AuditVerdict,
    failures: Sequence[outcomes.Failure],
) -> str:
    """Returns why a sampled audit has its verdict.

    Args:
        run: the run.
        index: number of the audit.
        audit: verdict on the audit.
        failures: failed packs of the audit.
    """
    if audit.verdict is Verdict.VIOLATION:
        return _why_refuted(run, index, audit)
    if audit.verdict is Verdict.CONSISTENT:
        return f"{audit.trials:,} trials do not refute the claim, but would have found {SHORTFALL}"
    # INCONCLUSIVE: the first of these reasons that holds.
    if audit.failed_trials:
        return audit.failed_trials
    if index in run.decided:
        return f"`stop_when` ended it after {run.decided[index]:,} of {audit.planned:,} trials"
    planned = run.plan.audits[index]
    done = run.done(planned)
    if audit.claim == math.inf and done:
        return "it claims nothing, so there is nothing to refute"
    if audit.trials == 0:
        return f"{done:,} trials are done, but not the first ones" if done else "no trials are done"
    if audit.above:
        return (
            "a bound exceeds its claim simultaneously with all others, but the test of the "
            "entire claim does not refute it"
        )
    if failures:
        failed = sum(failure.pack.size for failure in failures)
        finished = f", and {done:,} are done" if done else ""
        message = printable(failures[0].message)
        return f"{failed:,} of {audit.planned:,} trials failed{finished}: {message}"
    if audit.trials < audit.planned:
        used = f", {audit.trials:,} of them usable before a gap" if audit.trials < done else ""
        return f"{done:,} of {audit.planned:,} trials are done{used}"
    if not planned.independent and audit.power == 0:
        runs = planned.trials // planned.in_a_training
        verb = "is" if runs == 1 else "are"
        return (
            f"the test of the entire claim counts training runs, and {runs:,} {verb} too few to "
            f"detect {SHORTFALL}"
        )
    return f"the audit is weak: its power to detect {SHORTFALL} is {percent(round(audit.power, 2))}"


def _why_refuted(run: Run, index: int, audit: AuditVerdict) -> str:
    """Returns after how many trials a claim was refuted, and how little noise they show.

    Args:
        run: the run.
        index: number of the audit.
        audit: verdict on the audit.
    """
    claimed = run.sweep.cells[index].claimed()
    refuted = "the claim is refuted"
    if _only_as_gaussian(run, index, audit.quote):
        of_epsilon = EpsilonDelta(audit.claim, audit.quote.delta).words
        refuted = f"as Gaussian releases, the claim is refuted (its {of_epsilon} is not exceeded)"
    reason = f"{refuted} after {audit.refuted_after:,} of {audit.planned:,} trials"
    effective = audit.effective_noise
    if effective is None or effective > audit.noise_multiplier:
        return reason
    if isinstance(claimed, Training):
        less = f"a noise multiplier of {effective:.3g} where {audit.noise_multiplier:.3g}"
        return f"{reason}: no more private than with {less} is claimed"
    weaker = claimed.weakened(effective)
    if (audit.quote.epsilon or 0.0) >= weaker.epsilon_at(audit.quote.delta):
        return reason  # the quoted bound, which follows, shows more
    return f"{reason}: no more private than {weaker.words} where {claimed.words} is claimed"


def _only_as_gaussian(run: Run, index: int, quote: Quote) -> bool:
    """Returns whether a refuted claim was stated as Gaussian releases, and its ε is not exceeded.

    The mechanism may add another kind of noise, of which only that ε is promised.
    """
    cell = run.sweep.cells[index]
    is_stated = isinstance(cell.claimed(), Training) and not cell.mechanism.adds_gaussian_noise
    return is_stated and not quote.above and math.isfinite(quote.claim)


def _sentence(
    run: Run,
    verdict: RunVerdict,
    audits: list[AuditAnswer],
    largest: Quote,
) -> str:
    """Returns what follows the verdict: what was found and measured, and with which power.

    Args:
        run: the run.
        verdict: verdict on the run.
        audits: the answers on the run's audits.
        largest: the quote that stands for the run.
    """
    several = len(audits) > 1
    same = [audit for audit in audits if audit.verdict is verdict.verdict]
    # First one that claims anything, if possible with a quote above its claim.
    same.sort(key=lambda audit: (audit.quote.claim == math.inf, not audit.quote.above))
    finding = ""
    if same:
        finding = f"{same[0].label}: {same[0].reason}" if several else same[0].reason
    label = f"{largest.label}; " if several else ""
    quoted = measured(largest, label)
    failed = [audit for audit in verdict.audits if audit.failed_trials]
    if failed and verdict.verdict is Verdict.INCONCLUSIVE:
        finding = failed[0].failed_trials
        if several:
            more = f" (and trials of {len(failed) - 1} more audits)" if len(failed) > 1 else ""
            finding = f"{failed[0].label}: {finding}{more}"
        finite = sum(audit.trials - sum(audit.diverged) for audit in verdict.audits)
        beginning = "no violation found, but" if finite else "nothing was audited:"
        return f"{beginning} {finding}. {quoted}."
    if verdict.verdict is Verdict.VIOLATION:
        if not same:
            finding = "all audits together refute their claims, although none does alone"
        elif len(same) > 1:
            finding += f" (and {len(same) - 1} more audits)"
        for audit in failed[:1]:
            finding += f"; {audit.failed_trials}"
        return f"{finding}. {quoted}."
    if verdict.verdict is Verdict.CONSISTENT:
        sentence = f"no violation found. {quoted}."
        if not verdict.audits:
            return sentence
        who = f"{len(same)} of {len(audits)} audits" if several else "This audit"
        return f"{sentence} {who} would have detected {SHORTFALL}."
    done = sum(map(run.done, run.plan.audits))
    if several and done < run.plan.trials and not run.complete:
        finding = f"{done:,} of {run.plan.trials:,} trials are done"
    return f"no violation found, but {finding}. {quoted}."


def _unit(run: Run) -> str:
    """Returns a sentence on what the claims protect; "" if they protect each record."""
    units = {cell.claimed().unit for cell in run.sweep.cells if cell.sampled}
    if units <= {"record"}:
        return ""
    return f" The claim is for each {' or '.join(sorted(units))}."


def measured(quote: Quote, label: str = "") -> str:
    """Returns the sentence on the quoted ε, without its full stop.

    Args:
        quote: the quote.
        label: text before the level of the quote.
    """
    if quote.epsilon is None:
        return f"No ε can be quoted: {quote.reason}"
    claim = " where nothing is claimed"
    if quote.claim < math.inf:
        relation = ", above" if quote.above else " of"
        claim = f"{relation} the claimed {epsilon_text(quote.claim)}"
    level = f"({label}{quote.level})"
    if quote.epsilon == 0 and not quote.exact:
        return f"No ε above 0 is shown{claim} {level}"
    sign = "=" if quote.exact else "≥"
    return f"Measured ε {sign} {quote.text}{claim} {level}"


def _next_steps(run: Run, verdict: RunVerdict) -> Iterator[str]:
    """Yields next steps, the first one first."""

    def again(reason: str) -> Iterator[str]:
        """Yields the hint to run the sweep once more, if such a sweep is valid."""
        fresh = detection.options_of_new_run(run, "again", {})
        if fresh is not None:
            yield f"a separate run with another seed: {reason}: {fresh[1]}"

    if verdict.verdict is Verdict.VIOLATION:
        # `verdict.audits` has the sampled audits only.
        sampled = [index for index, cell in enumerate(run.sweep.cells) if cell.sampled]
        for index, audit in zip(sampled, verdict.audits, strict=True):
            is_refuted = audit.verdict is Verdict.VIOLATION
            if is_refuted and _only_as_gaussian(run, index, audit.quote):
                fields = (
                    f"{{epsilon: {plain(audit.claim, '.6g')}, delta: {plain(audit.quote.delta)}}}"
                )
                yield f"if you claim only its ε, state it: `mechanism.claim: {fields}`"
                break
        yield from again("a leak appears again, a chance result does not")
    elif outcomes.only_failed(run.directory, run.plan, run.decided):
        yield "all remaining work has failed; fix the cause, then `dpaudit run --retry-failed`"
    elif not run.complete:
        yield "`dpaudit run` with the same sweep file resumes the run"
    yield from verdict.hints
    above = any(audit.above for audit in verdict.audits)
    if verdict.verdict is Verdict.INCONCLUSIVE and above:
        yield from again("it shows whether a bound exceeds its claim by chance")
