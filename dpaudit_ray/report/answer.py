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

from ..errors import DpauditError, RunDirectoryError, StorageError
from ..plan import outcomes
from ..storage import seal
from ..storage.run_directory import RunDirectory
from ..version import __version__
from . import power, verdict
from .tables import Run
from .verdict import AuditVerdict, ExactVerdict, RunVerdict, Verdict

FILE = "verdict.json"
QUICK_TRIALS = 200_000  # up to so many are judged while somebody waits for something else


@dataclasses.dataclass(frozen=True)
class AuditAnswer:
    """What is said of one audit: its verdict, and why it is that."""

    label: str
    verdict: Verdict
    reason: str

    @property
    def violates(self) -> bool:
        """Whether its claim is refuted."""
        return self.verdict is Verdict.VIOLATION


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


def of(run: Run) -> Answer:
    """The answer that is kept, if it is of the trials that are there; else it is computed."""
    return kept(run) or worded(run, verdict.of(run, thorough=False))


def keep(run: Run) -> Answer:
    """The same; and the run directory has it from then on. Raises StorageError."""
    if (known := kept(run)) is not None:
        return known
    files = _files(run)
    found = worded(run, verdict.of(run, thorough=False))
    content = {"of": _basis(run)} | dataclasses.asdict(found)
    digest = _digest(content)
    sealed = {"digest": digest, "seal": seal.of(digest + files)}
    run.directory.write_json(FILE, content | sealed)
    return found


def kept(run: Run) -> Answer | None:
    """What an earlier call of this user kept of the same scores; None where there is none."""
    found, raw = _recorded(run)
    believed = found is not None and seal.holds(raw["digest"] + _files(run), raw.get("seal"))
    return found if believed else None


def recorded(run: Run) -> Answer | None:
    """What anybody kept of as many trials, not `derived`; None where there is none.

    Who edits it by hand is not believed; who forges its digest, too, is found by `dpaudit check`.
    """
    found, _ = _recorded(run)
    return None if found is None else dataclasses.replace(found, derived=False)


def _recorded(run: Run) -> tuple[Answer | None, Any]:
    """The answer in the file, and all that the file holds."""
    with contextlib.suppress(DpauditError, ValueError, TypeError, KeyError):
        raw = run.directory.read_json(FILE)
        if not _is_sound(raw) or raw["of"] != _basis(run):
            return None, None
        found = _from_json(raw)
        if [one.label for one in found.audits] == [audit.label for audit in run.plan.audits]:
            return found, raw
    return None, None


def sound(directory: RunDirectory) -> bool:
    """False where the file is not as it was written; true where there is none."""
    try:
        raw = directory.read_json(FILE)
    except RunDirectoryError as error:
        if isinstance(error.__cause__, OSError):  # it says nothing about what is in it
            raise
        return False
    return raw is None or _is_sound(raw)


def _is_sound(raw: Any) -> bool:
    known = isinstance(raw, dict) and "digest" in raw
    beside = ("digest", "seal")
    return known and raw["digest"] == _digest({k: v for k, v in raw.items() if k not in beside})


def quick(run: Run) -> Answer | None:
    """The answer where it is kept, or found while somebody waits, and then kept if it can be.

    Where it takes long, what was `recorded`; None where nothing was.
    """
    trials = sum(run.done(audit) for audit in run.plan.audits)
    if trials > QUICK_TRIALS:
        return kept(run) or recorded(run)
    try:
        return keep(run)
    except StorageError:  # a reader may not be allowed to write
        return of(run)


def _from_json(raw: dict[str, Any]) -> Answer:
    audits = tuple(
        AuditAnswer(str(one["label"]), Verdict(one["verdict"]), str(one["reason"]))
        for one in raw["audits"]
    )
    told = tuple(map(str, raw["help"]))
    return Answer(Verdict(raw["verdict"]), str(raw["sentence"]), told, audits, int(raw["judged"]))


def _basis(run: Run) -> str:
    """Changes when the answer may: with plan, trials, failures, estimates, and this package."""
    known = [
        __version__,
        run.plan.fingerprint,
        [[audit.trials, run.done(audit), audit.mixed] for audit in run.plan.audits],
        sorted(str(each.pack) for each in outcomes.failed(run.directory, run.plan)),
        [dataclasses.astuple(each) for each in outcomes.read(run.directory, run.plan).missed],
        run.directory.complete,
        run.estimates.to_csv(index=False),
    ]
    return _digest(known)


def _files(run: Run) -> str:
    """Changes with every score file that is written anew, whatever its name."""
    return _digest([run.directory.stamps(audit.id) for audit in run.plan.audits])


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, default=str, sort_keys=True).encode()).hexdigest()


def worded(run: Run, found: RunVerdict) -> Answer:
    """A verdict in words."""
    sampled, exact = iter(found.audits), iter(found.exact)
    lost: collections.Counter[int] = collections.Counter()
    for each in outcomes.failed(run.directory, run.plan):
        lost[each.pack.audit] += each.pack.size
    audits = tuple(
        _sampled(run, index, lost[index], next(sampled))
        if cell.mechanism.sampled
        else _exact(next(exact))
        for index, cell in enumerate(run.sweep.cells)
    )
    sentence = f"{found.verdict}: {_said(run, found, audits)}"
    judged = sum(one.trials for one in found.audits)
    return Answer(found.verdict, sentence, tuple(_help(run, found)), audits, judged)


def _sampled(run: Run, index: int, failed: int, one: AuditVerdict) -> AuditAnswer:
    audit, ended = run.plan.audits[index], run.decided.get(index)
    if ended is not None and one.verdict is Verdict.INCONCLUSIVE:
        said = f"`stop_when` ended it after {ended:,} of {one.planned:,} trials"
        return AuditAnswer(audit.label, one.verdict, said)
    return AuditAnswer(audit.label, one.verdict, _reason(run.done(audit), failed, one))


def _exact(one: ExactVerdict) -> AuditAnswer:
    if one.epsilon != one.epsilon:
        said = "nothing is computed yet"
    elif one.verdict is Verdict.VIOLATION:
        said = f"ε is {one.epsilon:.4f} at step {one.step}, above the claim of {one.claim:.4f}"
    else:
        said = f"ε is {one.epsilon:.4f} where the claim is {one.claim:.4f}"
    return AuditAnswer(one.label, one.verdict, said)


def _reason(done: int, failed: int, one: AuditVerdict) -> str:
    """Why a sampled audit has its verdict."""
    if one.verdict is Verdict.VIOLATION:
        said = f"refuted after {one.refuted_after:,} of {one.planned:,} trials"
        if one.effective_noise is None:
            return said
        return (
            f"{said}: no more private than with noise multiplier {one.effective_noise:.3g} where "
            f"{one.noise_multiplier:.3g} is claimed"
        )
    if one.verdict is Verdict.CONSISTENT:
        return (
            f"{one.trials:,} trials do not refute the claim, and would have refuted it with "
            f"{power.ALTERNATIVE:g} of the claimed noise"
        )
    return _why_open(done, failed, one)


def _why_open(done: int, failed: int, one: AuditVerdict) -> str:
    if one.trials == 0:
        return "not run" if done == 0 else f"{done:,} trials are done, none of them the first ones"
    if one.above:
        return (
            "a bound is above its claim even together with all others, while the test of the "
            "whole claim does not refute it"
        )
    if failed:
        return f"{failed:,} of {one.planned:,} trials failed, and {done:,} are done"
    if one.trials < one.planned:
        used = f", {one.trials:,} of them usable before a gap" if one.trials < done else ""
        return f"{done:,} of {one.planned:,} trials are done{used}"
    if one.lopsided:
        outside, inside = one.diverged
        return f"diverging depends on the canary: {inside:,} trainings with it, {outside:,} without"
    if one.mixed:
        return "the code was changed while it ran"
    return (
        f"the audit is too weak to tell: with {power.ALTERNATIVE:g} of the claimed noise it would "
        f"have shown that with a chance of {one.power:.0%}"
    )


def _said(run: Run, found: RunVerdict, audits: tuple[AuditAnswer, ...]) -> str:
    if found.verdict is Verdict.VIOLATION:
        refuted = [one for one in audits if one.verdict is Verdict.VIOLATION]
        if not refuted:
            return "all audits together refute their claims, though none does alone"
        more = f" (and {len(refuted) - 1} more audits)" * (len(refuted) > 1)
        return f"{_named(refuted[0], audits)}{refuted[0].reason}{more}"
    if found.verdict is Verdict.CONSISTENT:
        if not found.audits:
            return "every ε that was computed is within its claim"
        shown = sum(one.verdict is Verdict.CONSISTENT for one in audits)
        who = f"{shown} of {len(audits)} audits" if shown < len(audits) else "all audits"
        who = "the audit" if len(audits) == 1 else who
        return (
            f"no claim is refuted, and with {power.ALTERNATIVE:g} of the claimed noise {who} would "
            "have shown it"
        )
    lacking = [one for one in audits if one.verdict is Verdict.INCONCLUSIVE]
    if len(audits) > 1 and (partial := _partial(run)):
        return f"no claim is refuted; {partial}"
    return f"no claim is refuted, but {_named(lacking[0], audits)}{lacking[0].reason}"


def _named(one: AuditAnswer, audits: tuple[AuditAnswer, ...]) -> str:
    return f"{one.label}: " if len(audits) > 1 else ""


def _partial(run: Run) -> str:
    """How much of the run is done, where that is not all."""
    planned = sum(audit.trials for audit in run.plan.audits)
    done = sum(run.done(audit) for audit in run.plan.audits)
    partial = done < planned and not run.directory.complete
    return f"{done:,} of {planned:,} trials are done" if partial else ""


def _help(run: Run, found: RunVerdict) -> Iterator[str]:
    """What would help, the nearest first."""
    if found.verdict is Verdict.VIOLATION:
        yield "run it with another `seed`: chance does not repeat itself, a leak does"
        return
    if outcomes.only_failed(run.directory, run.plan, run.decided):
        yield "all that is left has failed; mend the cause, then `dpaudit run --retry-failed`"
    elif not run.directory.complete:
        yield "`dpaudit run` with the same sweep file goes on"
    if found.verdict is Verdict.CONSISTENT:
        return
    weak = [one for one in found.audits if one.weak]
    if trials := [one.enough for one in weak if one.enough is not None]:
        yield f"more trials: about {min(trials):,} (`--set audit.trials={min(trials)}`)"
    if weak:
        yield (
            "an adversary that sees or does more (biased-dimension is the strongest on dp-sgd), "
            "or a claim with less noise"
        )
    if any(one.above for one in found.audits):
        yield "a run with another `seed` decides whether that was chance"
