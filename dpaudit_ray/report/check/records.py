"""What a run keeps beside scores and estimates: each record held against what it is a record of."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from ...errors import DamagedArraysError, RunDirectoryError, first_line
from ...plan import decisions, failures, missed, preparing
from ...plan.failures import Failure
from ...storage.contents import DEPTH, Contents, Kind, digest
from ...storage.fence import FILE as OWNER
from ...storage.run_directory import RunDirectory
from .estimates import Folded
from .findings import Findings
from .promises import Opened

SUCCESS = "_SUCCESS"


def files(opened: Opened, found: Findings) -> None:
    """Every file is one that a run has; those of others are named, and refused among its own.

    Files of scores are held against the plan by `Scores`.
    """
    plan = opened.plan
    waited = {audit.preparation.id for audit in plan.audits if audit.preparation}
    contents = Contents([audit.id for audit in plan.audits], waited)
    for name in opened.run.files(DEPTH):
        kind = contents.kind(name)
        if kind is Kind.CODE:
            _check_code(opened.run, name, found)
        elif kind is Kind.FOREIGN:
            found.differs(name, "", "a file", "one that this run has written")
        elif kind is Kind.LEFT:
            found.told.append(f"{name}: left by a process that was killed, or set aside as damaged")
        elif kind is Kind.DRAWN:
            found.cannot("report.html and figures", "`dpaudit report` draws them anew")
        elif kind is Kind.TOLD:
            found.cannot("missed/", "what trials printed while they ran")
        elif kind is Kind.OTHER:
            found.told.append(f"{name}: no file of a run, and not looked at")
    if opened.run.read_text(OWNER) is not None:
        found.told.append(
            f"{OWNER}: a driver is at work, or was killed; its changes meanwhile may be told here"
        )


def _check_code(run: RunDirectory, name: str, found: Findings) -> None:
    try:
        text = run.read_text(name) or ""
    except RunDirectoryError as error:
        found.differs(name, "", _why(error), "")
        return
    stated, content = digest(name), hashlib.sha256(text.encode()).hexdigest()
    if content != stated:
        found.differs(name, "", f"SHA-256 {content[:16]}...", f"{stated[:16]}...")
    found.derived["modules"] += 1


def failed(opened: Opened, found: Findings) -> list[Failure] | None:
    """Packs that count as misses; None where a record is damaged that estimates rest on."""
    before, packs = found.different, list[Failure]()
    try:
        packs = failures.read(opened.run, opened.plan)
    except RunDirectoryError as error:
        found.differs(failures.FILE, "", _why(error), "")
    try:
        decisions.decided(opened.run, opened.sweep)
    except RunDirectoryError as error:
        found.differs(decisions.FILE, "", _why(error), "")
    whole = found.different == before
    try:
        preparing.read(opened.run, opened.plan)
    except RunDirectoryError as error:
        found.differs(preparing.FILE, "", _why(error), "")
    return packs if whole else None


def prepared(opened: Opened, found: Findings) -> set[int]:
    """Reads every part of every preparation; returns the audits that wait for one that is none."""
    wrong: set[int] = set()
    plan = opened.plan
    for part in preparing.all_parts(plan, range(len(plan.audits))):
        name = preparing.name(plan, part)
        if part.first not in opened.run.parts(name):
            continue
        try:
            opened.run.read_part(name, part.first)
        except DamagedArraysError as error:
            why = first_line(error.__cause__ or error)
            found.differs(f"preparations/{name}/{part.first}.parquet", "", why, "")
            wrong |= {*part.waiting}
        else:
            found.derived["prepared parts"] += 1
    if found.derived["prepared parts"]:
        found.cannot("what preparations hold", "it was trained; its files are whole")
    return wrong


def outcome(opened: Opened, folded: Mapping[int, Folded], found: Findings) -> None:
    """The records of missed trials and of decisions, against what was folded."""
    if any(each.behind for each in folded.values()):
        return  # written together, and before the last scores
    _missed(opened, folded, found)
    recorded = decisions.decided(opened.run, opened.sweep)
    for index, each in folded.items():
        there, derived = recorded.get(index), each.taken.decided
        if there != derived:
            label = opened.plan.audits[index].label
            found.differs(decisions.FILE, "trials that were enough", _or_none(there),
                          _or_none(derived), label)  # fmt: skip
        found.derived["decisions"] += derived is not None


def _missed(opened: Opened, folded: Mapping[int, Folded], found: Findings) -> None:
    try:
        kinds = missed.read(opened.run, opened.plan)
    except RunDirectoryError as error:
        found.differs(missed.FILE, "", _why(error), "")
        return
    for index, each in folded.items():
        audit = opened.plan.audits[index]
        there = {kind.kind: kind for kind in kinds if kind.audit == audit.id}
        derived = {kind.kind: kind for kind in each.taken.kinds}
        for name in sorted(there.keys() | derived.keys()):
            one, other = there.get(name), derived.get(name)
            if (
                one is None
                or other is None
                or (one.trials, one.first) != (other.trials, other.first)
            ):
                found.differs(missed.FILE, f"trials missed by {name}", _count(one), _count(other),
                              audit.label)  # fmt: skip
        found.derived["missed trials"] += sum(kind.trials for kind in each.taken.kinds)


def success(opened: Opened, unfinished: Iterable[str], found: Findings) -> None:
    """_SUCCESS, against the audits that have trials or parts left to do."""
    left = list(unfinished)
    if opened.run.complete and left:
        more = f" and {len(left) - 1} more" * (len(left) > 1)
        found.differs(SUCCESS, "", "complete", f"while {left[0]}{more} is not")
    if not opened.run.complete and not left and not found.different:
        found.told.append("all trials are there, and no _SUCCESS: `dpaudit run` ends it")


def unprepared(opened: Opened, index: int) -> bool:
    """Whether an audit without trials waits for a part that is not done."""
    audit = opened.plan.audits[index]
    if audit.trials or audit.preparation is None:
        return False
    return preparing.done(opened.run, audit) < audit.preparation.parts


def _why(error: RunDirectoryError) -> str:
    if isinstance(error.__cause__, OSError):
        raise error
    return first_line(error.__cause__ or error)


def _or_none(trials: int | None) -> str:
    return "none" if trials is None else f"{trials}"


def _count(kind: missed.Kind | None) -> str:
    return "none" if kind is None else f"{kind.trials} from trial {kind.first} on"
