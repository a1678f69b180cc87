"""Preparations: what the packs of an audit wait for, which parts are done, and which failed.

A part that failed is no miss: no trial was run, and no secret bit is known where it is prepared.
Its audits are not started, and it is made again by `--retry-failed`.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Iterable, Iterator
from typing import Any

from ..errors import RunDirectoryError, SpecError
from ..storage import strangers
from ..storage.run_directory import UNPREPARED, RunDirectory
from ..sweep.cell import Cell
from . import inputs
from .failures import Failure
from .inputs import InputFile
from .model import MAX_PARTS, Pack, Part, Plan, PlannedAudit, PlannedPreparation

FILE = UNPREPARED


def planned(cell: Cell, seed: int, files: tuple[InputFile, ...]) -> PlannedPreparation | None:
    """What the packs of an audit wait for; `files` are those that the sweep reads.

    Raises:
        SpecError: more parts than there may be, or none.
    """
    found = cell.mechanism.preparation(cell.adversary)
    if found is None:
        return None
    if not 1 <= found.parts <= MAX_PARTS:
        raise SpecError(
            "mechanism.name",
            f"{cell.mechanism.name} has a preparation of {found.parts} parts; "
            f"it must have 1 to {MAX_PARTS}",
        )
    known = [found.identity, found.parts, seed, inputs.of_cell(cell, files)]
    text = json.dumps(known, sort_keys=True, separators=(",", ":"))
    return PlannedPreparation(hashlib.sha256(text.encode()).hexdigest()[:32], found.parts)


def all_parts(plan: Plan, audits: Iterable[int]) -> list[Part]:
    """All parts that these audits wait for; those that several share, once."""
    waiting: dict[PlannedPreparation, list[int]] = {}
    for index in audits:
        if (found := plan.audits[index].preparation) is not None:
            waiting.setdefault(found, []).append(index)
    return [
        Part(those[0], part, part, tuple(those))
        for each, those in waiting.items()
        for part in range(each.parts)
    ]


def left(run: RunDirectory, plan: Plan, packs: Iterable[Pack]) -> list[Part]:
    """The parts that are not done, and that these packs wait for, or audits without any."""
    waiting = dict.fromkeys(pack.audit for pack in packs)
    waiting |= dict.fromkeys(i for i, audit in enumerate(plan.audits) if not audit.packs)
    found = all_parts(plan, waiting)
    done = {each: run.parts(each) for each in {name(plan, part) for part in found}}
    return [part for part in found if part.first not in done[name(plan, part)]]


def done(run: RunDirectory, audit: PlannedAudit) -> int:
    """How many parts of an audit's preparation are done."""
    known = audit.preparation
    return 0 if known is None else len(run.parts(known.id).keys() & range(known.parts))


def name(plan: Plan, part: Pack) -> str:
    """The id of the preparation that a part belongs to."""
    found = plan.audits[part.audit].preparation
    assert found is not None
    return found.id


def read(run: RunDirectory, plan: Plan) -> list[Failure]:
    """The recorded failures of parts that are still not done.

    Raises:
        RunDirectoryError: the record is damaged.
    """
    try:
        raw = run.read_json(FILE) or []
        known = {key(plan, part): part for part in all_parts(plan, range(len(plan.audits)))}
        read = [_failure(entry, known) for entry in raw]
    except (RunDirectoryError, AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error.__cause__, OSError):
            raise
        raise RunDirectoryError(
            f"{run.location}/{FILE} is damaged ({strangers.why(error)}); "
            "delete it: its parts are then made again"
        ) from error
    found = [each for each in read if each is not None]
    return [each for each in found if each.pack.first not in run.parts(name(plan, each.pack))]


def unprepared(run: RunDirectory, plan: Plan) -> set[int]:
    """Audits that are not started, since a part that they wait for has failed."""
    return {index for failure in read(run, plan) for index in _waiting(failure.pack)}


def lines(failed: Iterable[Failure], plan: Plan) -> Iterator[str]:
    """One line for each preparation that failed: which audits are not started, and why."""
    seen: set[int] = set()
    for failure in failed:
        new = [index for index in _waiting(failure.pack) if index not in seen]
        seen.update(new)
        if new:
            yield line([plan.audits[index].label for index in new], failure)


def line(labels: list[str], failure: Failure) -> str:
    """Says that audits are not started, and why."""
    others = f" and {len(labels) - 1} more" * (len(labels) > 1)
    return (
        f"{labels[0]}{others}: not started, {failure.pack.what} failed ({failure.message}); "
        f"run --retry-failed makes it again; traceback in {FILE}"
    )


def shown(run: RunDirectory, plan: Plan) -> Iterator[str]:
    """Lines for who asks how far a run is: of each preparation that is not complete."""
    yield from lines(read(run, plan), plan)
    for each in entries(run, plan):
        if each["done"] < each["parts"]:
            first, *more = each["audits"]
            others = f" and {len(more)} more" * bool(more)
            yield f"{first}{others}: {each['done']} of {each['parts']} parts prepared"


def entries(run: RunDirectory, plan: Plan) -> list[dict[str, Any]]:
    """Each preparation as plain JSON: its id, the labels of its audits, its parts, those done."""
    found: dict[str, dict[str, Any]] = {}
    for audit in plan.audits:
        if (known := audit.preparation) is not None:
            if known.id not in found:
                entry = {"id": known.id, "audits": [], "parts": known.parts}
                found[known.id] = entry | {"done": done(run, audit)}
            found[known.id]["audits"].append(audit.label)
    return list(found.values())


def write(run: RunDirectory, plan: Plan, failed: Iterable[Failure]) -> None:
    """Replaces the record, where there is one or something to record. Raises StorageError."""
    entries = []
    for failure in failed:
        preparation, part = key(plan, failure.pack)
        told = {"kind": failure.kind, "message": failure.message, "traceback": failure.traceback}
        entries.append({"preparation": preparation, "part": part} | told)
    if entries or run.read_text(FILE) is not None:
        run.write_json(FILE, entries)


def set_aside(run: RunDirectory, plan: Plan, part: Part) -> str:
    """Renames a damaged part, so that it is made again; returns its new name."""
    return run.set_part_aside(name(plan, part), part.first)


def _waiting(part: Pack) -> tuple[int, ...]:
    return part.waiting if isinstance(part, Part) else ()


def key(plan: Plan, part: Pack) -> tuple[str, int]:
    """What a part is known by, whoever waits for it."""
    return name(plan, part), part.first


def _failure(entry: Any, known: dict[tuple[str, int], Part]) -> Failure | None:
    """None for a part of what nobody waits for any more."""
    told = [str(entry[name]) for name in ("kind", "message", "traceback")]
    part = known.get((str(entry["preparation"]), operator.index(entry["part"])))
    return None if part is None else Failure(part, *told)
