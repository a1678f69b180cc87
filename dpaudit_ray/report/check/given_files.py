"""What all else follows from: sweep.yaml, plan.json, and the files of scores and preparations.

The plan is what follows from the sweep, and scores are of the plan's trials, steps and bits.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ... import seeds
from ...errors import DamagedFileError, DpauditError, first_line, printable
from ...imports import is_data
from ...mechanisms.base import Recorded
from ...plan import (
    claims,
    compaction,
    plan_consistency,
    planner,
    preparing,
    provenance,
    record,
)
from ...plan.compaction import Bounds, Stretch
from ...plan.model import Plan, PlannedAudit
from ...plugins import Unread
from ...storage.run_directory import RunDirectory
from ...sweep.cell import Cell
from ...sweep.spec import Sweep
from ...version import __version__
from .findings import Checked

PLAN, SWEEP = record.FILE, record.SWEEP_FILE
# What a claim of another version of dpaudit may differ by, as where a run is read.
_AGAIN, _NUMERIC = 1e-3, 0.02
_READERS = 4
Fault = tuple[str, str, str]  # place, what is stored, what was derived


@dataclasses.dataclass(frozen=True)
class Given:
    """Sweep, with what the plan recorded of what is not here, and plan.

    `good` are the audits of which plan, preparation and scores are in order.
    """

    run: RunDirectory
    sweep: Sweep
    plan: Plan
    good: set[int]


def read(run: RunDirectory, checked: Checked) -> Given | None:
    """Reads and checks sweep, plan, preparations and scores; None where there is no plan to go by.

    Raises:
        RunDirectoryError: there is no run, it cannot be read, or another version computed it.
    """
    if run.read_text(PLAN) is None and run.read_text(SWEEP) is None:
        record.require(run)
    plan = sweep = None
    with checked.reading(PLAN):
        if (plan := record.load(run)) is None:
            checked.differs(PLAN, "", "no such file", "a plan")
    with checked.reading(SWEEP):
        if (sweep := record.recorded(run)) is None:
            checked.differs(SWEEP, "", "no such file", "a sweep")
    if plan is not None and sweep is not None:
        before = checked.different
        stored = {"fingerprint": plan.fingerprint, "seed": plan.seed, "audits": len(plan.audits)}
        derived = {"fingerprint": sweep.fingerprint, "seed": sweep.seed, "audits": len(sweep.cells)}
        checked.compare(PLAN, stored, derived)
        if checked.different == before:
            return _check_all(run, sweep, plan, checked)
    checked.cannot("claims, bits, scores, estimates and verdict", "they rest on these files")
    return None


def _check_all(run: RunDirectory, sweep: Sweep, plan: Plan, checked: Checked) -> Given:
    """Checks every audit by itself: its plan, its preparation and its scores."""
    if any(cell.unimported for cell in sweep.cells):
        checked.cannot(f"the fingerprint of {SWEEP}", "takes code of its author's to tell")
    given = Given(run, plan_consistency.filled(sweep, plan, run), plan, set())
    wrong = _wrong_preparations(given, checked)
    for index, audit in enumerate(plan.audits):
        before = checked.different
        _check_planned(index, sweep.cells[index], given, checked)
        _check_claims(index, given, checked)
        _check_scores(run, plan.seed, audit, checked)
        if checked.different == before and index not in wrong:
            given.good.add(index)
    _tell_provenance(sweep, plan, checked)
    return given


# The plan ----------------------------------------------------------------------------------------


def _check_planned(index: int, cell: Cell, given: Given, checked: Checked) -> None:
    """Compares what follows from the sweep, as far as that can be told."""
    audit, place = given.plan.audits[index], f"audits.{index}."
    checked.count("audits")
    checked.count("bits", audit.trials)
    recorded = isinstance(given.sweep.cells[index].mechanism, Recorded)
    if recorded:
        why = "takes code or data that is not here; it is as plan.json has it"
        checked.cannot("what accountants are asked", why, audit.label)
    if cell.unimported:
        checked.cannot("its fingerprint", "takes code of its author's", audit.label)
    try:
        derived = _planned(index, cell, given, recorded)
    except DpauditError as error:
        checked.cannot("its entry in plan.json", first_line(error), audit.label)
        return
    checked.compare(
        PLAN,
        {place + name: getattr(audit, name) for name in derived},
        {place + name: value for name, value in derived.items()},
        audit.label,
    )


def _planned(index: int, cell: Cell, given: Given, recorded: bool) -> dict[str, Any]:
    """What follows from the sweep alone, by the names of `PlannedAudit`."""
    audit, sweep, plan = given.plan.audits[index], given.sweep, given.plan
    sampled = cell.mechanism.sampled
    untold = not audit.trials and isinstance(cell.mechanism, Unread)  # whether it is sampled
    fields: dict[str, Any] = {
        "label": printable(cell.label),
        "trials": cell.audit.trials if sampled and not untold else 0,
        "up_to": cell.audit.up_to if sampled and not untold else None,
    }
    if not cell.unimported:
        fields |= {
            "fingerprint": cell.fingerprint,
            "id": planner.identifier(index, cell),
            "horizons": cell.horizons,
            "canaries": cell.canaries if sampled else 1,
        }
        fields["preparation"] = preparing.planned(cell, sweep.seed, plan.data)
    if not cell.unimported or sweep.resources.pack_size != "auto":
        fields["packs"] = _packs(audit, cell, sweep)
    if not recorded:
        reads = cell.foreign or cell.mechanism.claim_reads_data
        fields["claimed"] = claims.asked(cell) if reads else None
    return fields


def _packs(audit: PlannedAudit, cell: Cell, sweep: Sweep) -> tuple[Bounds, ...]:
    """Cuts trials anew for every number of them that was declared, as it was.

    A number that was raised before a trial was seen has left a short pack and no other trace.
    """
    size = planner.pack_size(cell, sweep)
    short = [last + 1 for first, last in audit.packs[:-1] if last - first + 1 < size]
    raised = short if len(short) == len(audit.declared) == 1 else ()
    packs: list[Bounds] = []
    for trials in sorted({*audit.declared, *raised}):
        start = packs[-1][1] + 1 if packs else 0
        packs += planner.cut(start, trials, size)
    return tuple(packs)


def _check_claims(index: int, given: Given, checked: Checked) -> None:
    """Compares ε of every accountant at every recorded step."""
    audit, cell = given.plan.audits[index], given.sweep.cells[index]
    names, place = cell.audit.accountants, f"audits.{index}.claims"
    checked.compare(PLAN, ", ".join(audit.claims), ", ".join(names), audit.label, place)
    other_version = given.plan.code[-1].versions.get("dpaudit", __version__) != __version__
    for name in names:
        if ":" in name and is_data(name):
            checked.cannot(f"claims by {name}", "they take code of its author's to tell")
            continue
        try:
            values = claims.by(claims.asked(cell), cell.audit.delta, name)
        except DpauditError as error:
            checked.cannot(f"its claims by {name}", first_line(error), audit.label)
            continue
        checked.count("claims", len(values))
        there = audit.claims.get(name, values)
        if len(there) != len(values):
            continue  # of other steps, which is said of those
        if other_version and there != values and np.allclose(there, values, _AGAIN, _NUMERIC):
            why = "another version of dpaudit computed them"
            checked.cannot("claims to the last digit", why)
            continue
        places = [f"claim after step {step} by {name}" for step in audit.horizons]
        stored, derived = (dict(zip(places, ends, strict=True)) for ends in (there, values))
        checked.compare(PLAN, stored, derived, audit.label)


def _tell_provenance(sweep: Sweep, plan: Plan, checked: Checked) -> None:
    """Tells what ran, beside what is here; that is no difference."""
    grave, harmless = provenance.changes(plan.code[-1], provenance.sweep_code(sweep))
    if grave or harmless:
        checked.notes.append(f"other code or machine here: {'; '.join((*grave, *harmless))}")
    try:
        here = {file.sha256 for file in provenance.input_files(sweep)}
    except DpauditError as error:
        checked.cannot("the data", first_line(error))
        return
    if names := [file.file for file in plan.data if file.sha256 not in here]:
        checked.cannot("the data", f"{', '.join(names)} not here, or with another content")
    checked.count("data files", len({file.sha256 for file in plan.data} & here))


# Preparations and scores -------------------------------------------------------------------------


def _wrong_preparations(given: Given, checked: Checked) -> set[int]:
    """Reads every part of every preparation; returns the audits that wait for a damaged one."""
    run, plan, wrong = given.run, given.plan, set[int]()
    for part in preparing.all_parts(plan, range(len(plan.audits))):
        name = part.preparation
        if part.first not in run.parts(name):
            continue
        try:
            run.read_part(name, part.first)
        except DamagedFileError as error:
            why = first_line(error.__cause__ or error)
            checked.differs(f"preparations/{name}/{part.first}.parquet", "", why)
            wrong |= {*part.waiting}
        else:
            checked.count("prepared parts")
    if "prepared parts" in checked.derived:
        checked.cannot("what preparations hold", "it was trained; its files are whole")
    return wrong


def _check_scores(run: RunDirectory, seed: int, audit: PlannedAudit, checked: Checked) -> None:
    """Reads all files of scores of an audit, several at once."""
    files = run.score_files(audit.id)
    chosen = compaction.resolved(audit.packs, files)
    packs = {segment.file: audit.packs[segment.start : segment.stop] for segment in chosen}
    starts, ends = ({pack[end] for pack in audit.packs} for end in (0, 1))
    named = sorted(file for file in files if file[0] in starts and file[1] in ends)

    def faults(file: Bounds) -> list[Fault]:
        return list(_faults(run, seed, audit, file, () if file in packs else chosen))

    for file in sorted(files - {*named}):
        place = score_file(audit, file)
        checked.differs(place, "", "a file", "of any pack of its plan", audit.label)
    with ThreadPoolExecutor(_READERS, thread_name_prefix="check") as readers:
        for file, wrong in zip(named, readers.map(faults, named), strict=True):
            for fault in wrong:
                checked.differs(score_file(audit, file), *fault, audit=audit.label)
            if file in packs and not wrong:
                checked.count("packs", len(packs[file]))
                checked.count("trials", packs[file][-1][1] - packs[file][0][0] + 1)


def score_file(audit: PlannedAudit, file: Bounds) -> str:
    """Where a file of scores lies, from the run directory on."""
    return f"scores/{audit.id}/{file[0]}-{file[1]}.parquet"


def _faults(
    run: RunDirectory, seed: int, audit: PlannedAudit, file: Bounds, others: Collection[Stretch]
) -> Iterator[Fault]:
    """Where a file is not what the plan commits to, what was written, or what `others` hold too.

    A crash may leave the packs of a file in another one, with the same content.
    """
    read = functools.partial(run.read_scores, audit.id, steps=len(audit.horizons))
    try:
        scores = read(*file)
        if scores.steps != audit.horizons:
            yield "steps", repr(scores.steps), repr(audit.horizons)
        bits = seeds.bits(seed, audit.fingerprint, *file)
        wrong = np.flatnonzero(scores.members != bits)
        if len(wrong):
            place = f"trial {file[0] + int(wrong[0])}"
            yield place, f"the first of {len(wrong)} other bits", f"{bits[wrong[0]]}"
        if scores.stated != (digest := scores.digest(audit.id)):
            stated = f"{scores.stated[:16] or 'none'}..."
            yield "", f"scores of SHA-256 {digest[:16]}...", f"{stated}, as written"
        for segment in others:
            low = max(audit.packs[segment.start][0], file[0])
            high = min(audit.packs[segment.stop - 1][1], file[1])
            if low <= high and segment.file is not None:
                other = read(*segment.file).part(low, high)
                if difference := other.difference(scores.part(low, high)):
                    yield "", f"trials {low}-{high} twice: this one {difference}", ""
    except DamagedFileError as error:
        yield "", first_line(error.__cause__ or error), ""
