"""The one answer of a run: its verdict in a sentence, why, and what would help.

Terminal, page, `Result` and metrics all show this one. It takes seconds, so it is kept in the run
directory with what it was computed from, and computed again where that has changed. Kept answers
are believed where this user's seal is under them, and the score files are those that were judged.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter

from ..errors import DpauditError, RunDirectoryError, StorageError
from ..plan import outcomes
from ..storage import seal
from ..storage.run_directory import RunDirectory
from ..version import __version__
from . import verdict
from .tables import Run
from .verdict import ALTERNATIVE, AuditVerdict, ExactVerdict, RunVerdict, Verdict

FILE = "verdict.json"
QUICK_TRIALS = 200_000  # up to so many are judged while somebody waits for something else


@dataclasses.dataclass(frozen=True)
class AuditAnswer:
    """What is said of one audit: its verdict, and why it is that."""

    label: str
    verdict: Verdict
    reason: str


@dataclasses.dataclass(frozen=True)
class Answer:
    """What is said of a run. `sentence` begins with the verdict; `help` is what to do next.

    `judged` is the number of trials that it rests on. One that is not `derived` is what somebody
    wrote into the run directory.
    """

    verdict: Verdict
    sentence: str
    help: tuple[str, ...]
    audits: tuple[AuditAnswer, ...]
    judged: int
    derived: bool = True


def current(run: Run) -> Answer:
    """The answer that is kept, if it is of the trials that are there; else computed, and kept.

    A reader who may not write there computes it every time.
    """
    if (before := kept(run)) is not None:
        return before
    files, computed = _stamps(run), derived(run)
    content = {"of": _basis(run)} | dataclasses.asdict(computed)
    digest = _digest(content)
    sealed = content | {"digest": digest, "seal": seal.sign(digest + files)}
    with contextlib.suppress(StorageError):
        run.directory.write_json(FILE, sealed)
    return computed


def quick(run: Run) -> Answer | None:
    """The answer where it is kept, or found while somebody waits.

    Where it takes long, what was `recorded`; None where nothing was.
    """
    if sum(map(run.done, run.plan.audits)) > QUICK_TRIALS:
        return kept(run) or recorded(run)
    return current(run)


def kept(run: Run) -> Answer | None:
    """What an earlier call of this user kept of the same scores; None where there is none."""
    stored, raw = _stored(run)
    believed = stored is not None and seal.holds(raw["digest"] + _stamps(run), raw.get("seal"))
    return stored if believed else None


def recorded(run: Run) -> Answer | None:
    """What anybody kept of as many trials, not `derived`; None where there is none.

    Who edits it by hand is not believed; who forges its digest, too, is found by `dpaudit check`.
    """
    stored, _ = _stored(run)
    return None if stored is None else dataclasses.replace(stored, derived=False)


def sound(directory: RunDirectory) -> bool:
    """False where the file is not as it was written; true where there is none."""
    try:
        raw = directory.read_json(FILE)
    except RunDirectoryError as error:
        if isinstance(error.__cause__, OSError):  # it says nothing about what is in it
            raise
        return False
    return raw is None or _has_digest(raw)


def _stored(run: Run) -> tuple[Answer | None, Any]:
    """The answer in the file, if it is of as many trials, and all that the file holds."""
    with contextlib.suppress(DpauditError, ValueError, TypeError, KeyError):
        raw = run.directory.read_json(FILE)
        if _has_digest(raw) and raw["of"] == _basis(run):
            stored = TypeAdapter(Answer).validate_python(raw)
            if [entry.label for entry in stored.audits] == [a.label for a in run.plan.audits]:
                return stored, raw
    return None, None


def _has_digest(raw: Any) -> bool:
    """Whether the content of the file is what its digest is of."""
    if not isinstance(raw, dict) or "digest" not in raw:
        return False
    content = {key: value for key, value in raw.items() if key not in ("digest", "seal")}
    return bool(raw["digest"] == _digest(content))


def _basis(run: Run) -> str:
    """Changes when the answer may: with plan, trials, failures, estimates, and this package."""
    basis = [
        __version__,
        run.plan.fingerprint,
        [[audit.trials, run.done(audit), audit.mixed] for audit in run.plan.audits],
        sorted(str(failure.pack) for failure in outcomes.failed(run.directory, run.plan)),
        [dataclasses.astuple(kind) for kind in outcomes.read(run.directory, run.plan).missed],
        run.directory.complete,
        run.estimates.to_csv(index=False),
    ]
    return _digest(basis)


def _stamps(run: Run) -> str:
    """Changes with every score file that is written anew, whatever its name."""
    return _digest([run.directory.stamps(audit.id) for audit in run.plan.audits])


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, default=str, sort_keys=True).encode()).hexdigest()


# In words ----------------------------------------------------------------------------------------


def derived(run: Run) -> Answer:
    """The verdict by the trials that are there, in words; takes seconds."""
    judged = verdict.judge(run, thorough=False)
    sampled, exact = iter(judged.audits), iter(judged.exact)
    lost: collections.Counter[int] = collections.Counter()
    for failure in outcomes.failed(run.directory, run.plan):
        lost[failure.pack.audit] += failure.pack.size
    audits = []
    for index, cell in enumerate(run.sweep.cells):
        audit = next(sampled) if cell.mechanism.sampled else next(exact)
        if isinstance(audit, ExactVerdict):
            reason = _reason_exact(audit)
        else:
            reason = _reason(run, index, lost[index], audit)
        audits.append(AuditAnswer(run.plan.audits[index].label, audit.verdict, reason))
    sentence = f"{judged.verdict}: {_sentence(run, judged, audits)}"
    trials = sum(audit.trials for audit in judged.audits)
    return Answer(judged.verdict, sentence, tuple(_help(run, judged)), tuple(audits), trials)


def _reason_exact(audit: ExactVerdict) -> str:
    if audit.epsilon != audit.epsilon:
        return "nothing is computed yet"
    if audit.verdict is Verdict.VIOLATION:
        return (
            f"ε is {audit.epsilon:.4f} at step {audit.step}, above the claim of {audit.claim:.4f}"
        )
    return f"ε is {audit.epsilon:.4f} where the claim is {audit.claim:.4f}"


def _reason(run: Run, index: int, failed: int, audit: AuditVerdict) -> str:
    """Why a sampled audit has its verdict; so many of its trials have failed."""
    if audit.verdict is Verdict.VIOLATION:
        reason = f"refuted after {audit.refuted_after:,} of {audit.planned:,} trials"
        if audit.effective_noise is not None:
            reason += (
                f": no more private than with noise multiplier {audit.effective_noise:.3g} where "
                f"{audit.noise_multiplier:.3g} is claimed"
            )
        return reason
    if audit.verdict is Verdict.CONSISTENT:
        return (
            f"{audit.trials:,} trials do not refute the claim, and would have refuted it with "
            f"{ALTERNATIVE:g} of the claimed noise"
        )
    if (ended := run.decided.get(index)) is not None:
        return f"`stop_when` ended it after {ended:,} of {audit.planned:,} trials"
    done = run.done(run.plan.audits[index])
    if audit.trials == 0:
        return "not run" if done == 0 else f"{done:,} trials are done, none of them the first ones"
    if audit.above:
        return (
            "a bound is above its claim even together with all others, while the test of the "
            "whole claim does not refute it"
        )
    if failed:
        return f"{failed:,} of {audit.planned:,} trials failed, and {done:,} are done"
    if audit.trials < audit.planned:
        used = f", {audit.trials:,} of them usable before a gap" if audit.trials < done else ""
        return f"{done:,} of {audit.planned:,} trials are done{used}"
    if audit.lopsided:
        outside, inside = audit.diverged
        return f"diverging depends on the canary: {inside:,} trainings with it, {outside:,} without"
    if audit.mixed:
        return "the code was changed while it ran"
    return (
        f"the audit is too weak to tell: with {ALTERNATIVE:g} of the claimed noise it would "
        f"have shown that with a chance of {audit.power:.0%}"
    )


def _sentence(run: Run, judged: RunVerdict, audits: list[AuditAnswer]) -> str:
    """What follows the verdict, of the first audit that has it where one speaks for all."""
    alike = [audit for audit in audits if audit.verdict is judged.verdict]
    first = ""
    if alike:
        first = f"{alike[0].label}: " * (len(audits) > 1) + alike[0].reason
    if judged.verdict is Verdict.VIOLATION:
        if not alike:
            return "all audits together refute their claims, though none does alone"
        return first + f" (and {len(alike) - 1} more audits)" * (len(alike) > 1)
    if judged.verdict is Verdict.CONSISTENT:
        if not judged.audits:
            return "every ε that was computed is within its claim"
        who = f"{len(alike)} of {len(audits)} audits" if len(alike) < len(audits) else "all audits"
        who = "the audit" if len(audits) == 1 else who
        return (
            f"no claim is refuted, and with {ALTERNATIVE:g} of the claimed noise {who} would "
            "have shown it"
        )
    done = sum(map(run.done, run.plan.audits))
    if len(audits) > 1 and done < run.plan.trials and not run.directory.complete:
        return f"no claim is refuted; {done:,} of {run.plan.trials:,} trials are done"
    return f"no claim is refuted, but {first}"


def _help(run: Run, judged: RunVerdict) -> Iterator[str]:
    """What would help, the nearest first."""
    if judged.verdict is Verdict.VIOLATION:
        yield "run it with another `seed`: chance does not repeat itself, a leak does"
        return
    if outcomes.only_failed(run.directory, run.plan, run.decided):
        yield "all that is left has failed; mend the cause, then `dpaudit run --retry-failed`"
    elif not run.directory.complete:
        yield "`dpaudit run` with the same sweep file goes on"
    if judged.verdict is Verdict.CONSISTENT:
        return
    weak = [audit for audit in judged.audits if audit.weak]
    if trials := [audit.enough for audit in weak if audit.enough is not None]:
        yield f"more trials: about {min(trials):,} (`--set audit.trials={min(trials)}`)"
    if weak:
        yield (
            "an adversary that sees or does more (biased-dimension is the strongest on dp-sgd), "
            "or a claim with less noise"
        )
    if any(audit.above for audit in judged.audits):
        yield "a run with another `seed` decides whether that was chance"
