"""Preparations: what the packs of an audit wait for, and which parts of them are done."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterable
from typing import Any

from ..errors import SpecError
from ..storage.arrays import Arrays
from ..storage.run_directory import RunDirectory
from ..sweep.cell import Cell
from . import inputs
from .inputs import InputFile
from .model import MAX_PARTS, Pack, Part, Plan, PlannedAudit, PlannedPreparation


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


def set_aside(run: RunDirectory, plan: Plan, part: Part) -> str:
    """Renames a damaged part, so that it is made again; returns its new name."""
    return run.set_part_aside(name(plan, part), part.first)


class Prepared:
    """Preparations while a sweep runs: parts are stored, counted, and handed to who opens an audit.

    Any thread may call it.
    """

    def __init__(self, run: RunDirectory, plan: Plan) -> None:
        self._run, self._plan = run, plan
        self._turn = threading.Lock()
        self._done = {entry["id"]: entry["done"] for entry in entries(run, plan)}

    def keep(self, part: Part, arrays: Arrays) -> None:
        """Stores a part; storing it again changes nothing.

        Raises:
            StorageError: it could not be written, or is stored with other arrays.
        """
        preparation = name(self._plan, part)
        self._run.write_part(preparation, part.first, arrays)
        with self._turn:
            self._done[preparation] = done(self._run, self._plan.audits[part.audit])

    def parts(self, audit: int) -> tuple[Arrays, ...]:
        """All parts that an audit waits for; none where it waits for none.

        Raises:
            DamagedArraysError: one is not what was written, or gone.
        """
        awaited = self._plan.audits[audit].preparation
        if awaited is None:
            return ()
        return tuple(self._run.read_part(awaited.id, part) for part in range(awaited.parts))

    def complete(self, audit: int) -> tuple[Arrays, ...]:
        """All parts, or none while one is not done. Raises DamagedArraysError."""
        finished, parts = self.progress(audit)
        return self.parts(audit) if finished == parts else ()

    def suffices(self, audit: int) -> bool:
        """Whether nothing but packs is left to do: an audit without packs is its preparation."""
        finished, parts = self.progress(audit)
        return finished == parts or self._plan.audits[audit].trials > 0

    def progress(self, audit: int) -> tuple[int, int]:
        """Parts of an audit's preparation that are done, and all of them."""
        awaited = self._plan.audits[audit].preparation
        return (0, 0) if awaited is None else (self._done[awaited.id], awaited.parts)
