"""Preparations: what the packs of an audit wait for, and which parts of them are done."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from ..errors import SpecError
from ..storage.arrays import Arrays
from ..storage.run_directory import RunDirectory, part_file
from ..sweep.cell import Cell, digest
from . import provenance
from .model import MAX_PARTS, Pack, Part, Plan, PlannedPreparation
from .provenance import InputFile


def planned(cell: Cell, seed: int, files: tuple[InputFile, ...]) -> PlannedPreparation | None:
    """What packs of an audit wait for, by the sweep's `files`. Raises SpecError for no parts."""
    preparation = cell.mechanism.preparation(cell.adversary)
    if preparation is None:
        return None
    if not 1 <= preparation.parts <= MAX_PARTS:
        problem = f"{cell.mechanism.name} has a preparation of {preparation.parts} parts"
        raise SpecError("mechanism.name", f"{problem}; it must have 1 to {MAX_PARTS}")
    read = provenance.files_of_cell(cell, files)
    identity = digest([preparation.identity, preparation.parts, seed, read])
    return PlannedPreparation(identity, preparation.parts)


def all_parts(plan: Plan, audits: Iterable[int]) -> list[Part]:
    """All parts that these audits wait for; those that several share, once."""
    return [
        Part(those[0], part, part, tuple(those), awaited.id)
        for awaited, those in _waiting(plan, audits).items()
        for part in range(awaited.parts)
    ]


def _waiting(plan: Plan, audits: Iterable[int]) -> dict[PlannedPreparation, list[int]]:
    waiting: dict[PlannedPreparation, list[int]] = {}
    for index in audits:
        if (preparation := plan.audits[index].preparation) is not None:
            waiting.setdefault(preparation, []).append(index)
    return waiting


def left(run: RunDirectory, plan: Plan, packs: Iterable[Pack]) -> list[Part]:
    """The parts that are not done, and that these packs wait for, or audits without any."""
    waiting = dict.fromkeys(pack.audit for pack in packs)
    waiting |= dict.fromkeys(i for i, audit in enumerate(plan.audits) if not audit.packs)
    parts = all_parts(plan, waiting)
    done = {name: run.parts(name) for name in {part.preparation for part in parts}}
    return [part for part in parts if part.first not in done[part.preparation]]


def entries(run: RunDirectory, plan: Plan) -> list[dict[str, Any]]:
    """Each preparation as plain JSON: its id, the labels of its audits, its parts, those done."""
    return [
        {
            "id": awaited.id,
            "audits": [plan.audits[index].label for index in those],
            "parts": awaited.parts,
            "done": len(run.parts(awaited.id).intersection(range(awaited.parts))),
        }
        for awaited, those in _waiting(plan, range(len(plan.audits))).items()
    ]


class Prepared:
    """Preparations of a sweep: parts are stored, counted, handed to audits; by any thread."""

    def __init__(self, run: RunDirectory, plan: Plan) -> None:
        self._run, self._plan = run, plan
        self._turn = threading.Lock()  # one thread at a time reads `_done`, or adds to it
        ids = {audit.preparation.id for audit in plan.audits if audit.preparation is not None}
        self._done = {name: run.parts(name) for name in ids}  # numbers of the parts

    def keep(self, part: Part, arrays: Arrays) -> None:
        """Stores a part, or raises StorageError; storing it again changes nothing."""
        self._run.write_part(part.preparation, part.first, arrays)
        with self._turn:
            self._done[part.preparation].add(part.first)

    def parts(self, audit: int) -> tuple[Arrays, ...]:
        """All parts that an audit waits for. Raises DamagedFileError where one is damaged."""
        awaited = self._plan.audits[audit].preparation
        if awaited is None:
            return ()
        return tuple(self._run.read_part(awaited.id, part) for part in range(awaited.parts))

    def complete(self, audit: int) -> tuple[Arrays, ...]:
        """All parts, or none while one is not done. Raises DamagedFileError."""
        finished, parts = self.progress(audit)
        return self.parts(audit) if finished == parts else ()

    def suffices(self, audit: int) -> bool:
        """Whether nothing but packs is left to do: an audit without packs is its preparation."""
        finished, parts = self.progress(audit)
        return finished == parts or self._plan.audits[audit].trials > 0

    def lost(self) -> list[str]:
        """Returns the files of audits without packs that were stored, and are gone."""
        audits = [i for i, audit in enumerate(self._plan.audits) if not audit.packs]
        files = [part_file(part.preparation, part.first) for part in all_parts(self._plan, audits)]
        return [file for file in files if not self._run.exists(file)]

    def progress(self, audit: int) -> tuple[int, int]:
        """Parts of an audit's preparation that are done, and all of them."""
        awaited = self._plan.audits[audit].preparation
        if awaited is None:
            return 0, 0
        with self._turn:
            return len(self._done[awaited.id].intersection(range(awaited.parts))), awaited.parts
