"""Preparations, which the packs of an audit wait for, and the parts that are stored."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import SpecError
from ..storage.arrays import Arrays
from ..storage.run_directory import RunDirectory, part_file
from ..sweep.cell import Cell, digest
from . import provenance
from .model import MAX_PARTS, Pack, Part, Plan, PlannedPreparation
from .provenance import InputFile


def planned(
    cell: Cell,
    seed: int,
    files: tuple[InputFile, ...],
) -> PlannedPreparation | None:
    """Plans the preparation that packs of an audit wait for; None without one.

    Args:
        cell: the audit.
        seed: seed of the sweep.
        files: data files of the sweep.

    Raises:
        SpecError: the mechanism prepares no part, or too many.
    """
    preparation = cell.mechanism.preparation(cell.adversary)
    if preparation is None:
        return None
    if not 1 <= preparation.parts <= MAX_PARTS:
        raise SpecError(
            "mechanism.name",
            f"{cell.mechanism.name} has a preparation of {preparation.parts} parts; "
            f"it must have 1 to {MAX_PARTS}",
        )
    file_digests = provenance.digests_of_cell(cell, files)
    identity = digest([preparation.identity, preparation.parts, seed, file_digests])
    return PlannedPreparation(identity, preparation.parts)


def all_parts(
    plan: Plan,
    audits: Iterable[int] | None = None,
) -> list[Part]:
    """Returns the parts that audits wait for, each once, even if several audits share it.

    Args:
        plan: the plan.
        audits: indices of the audits; None for all.
    """
    parts = []
    for preparation, waiting in _waiting(plan, audits).items():
        for number in range(preparation.parts):
            parts.append(Part(waiting[0], number, number, tuple(waiting), preparation.id))
    return parts


def _waiting(
    plan: Plan,
    audits: Iterable[int] | None = None,
) -> dict[PlannedPreparation, list[int]]:
    """Returns the numbers of the audits that wait for each preparation.

    Args:
        plan: the plan.
        audits: numbers of the audits that count; None for all.
    """
    waiting: dict[PlannedPreparation, list[int]] = {}
    for index in range(len(plan.audits)) if audits is None else audits:
        if (preparation := plan.audits[index].preparation) is not None:
            waiting.setdefault(preparation, []).append(index)
    return waiting


def missing_parts(
    run: RunDirectory,
    plan: Plan,
    packs: Iterable[Pack],
) -> list[Part]:
    """Returns parts that are not stored, but needed: by a pack, or by an audit without packs.

    Args:
        run: the run directory.
        plan: plan of the sweep.
        packs: packs that are still to be run.
    """
    waiting = [pack.audit for pack in packs]
    waiting += _without_packs(plan)
    stored = {}  # numbers of the stored parts, by id of the preparation
    remaining = []
    for part in all_parts(plan, dict.fromkeys(waiting)):  # each audit once, in order
        if part.preparation not in stored:
            stored[part.preparation] = run.parts(part.preparation)
        if part.first not in stored[part.preparation]:
            remaining.append(part)
    return remaining


def _without_packs(plan: Plan) -> list[int]:
    """Returns the numbers of the audits that have no trials."""
    return [index for index, audit in enumerate(plan.audits) if not audit.packs]


@dataclass(frozen=True)
class PreparationState:
    """A preparation of a run.

    Attributes:
        id: id of the preparation.
        audits: labels of the audits that wait for it.
        parts: number of its parts.
        done: number of its parts that are stored.
    """

    id: str
    audits: list[str]
    parts: int
    done: int


def states(run: RunDirectory, plan: Plan) -> list[PreparationState]:
    """Returns the state of each preparation."""
    listed = []
    for preparation, waiting in _waiting(plan).items():
        labels = [plan.audits[index].label for index in waiting]
        done = run.parts(preparation.id).intersection(range(preparation.parts))
        listed.append(PreparationState(preparation.id, labels, preparation.parts, len(done)))
    return listed


class Prepared:
    """Stores, counts and reads the parts of a sweep's preparations, in any thread."""

    def __init__(self, run: RunDirectory, plan: Plan) -> None:
        """Looks up which parts the run directory has."""
        self._run = run
        self._plan = plan
        self._lock = threading.Lock()  # one thread at a time reads `_stored`, or adds to it
        # Numbers of the stored parts, by id of the preparation.
        self._stored = {preparation.id: run.parts(preparation.id) for preparation in _waiting(plan)}

    def keep(self, part: Part, arrays: Arrays) -> None:
        """Stores a part, or raises StorageError; storing it again changes nothing."""
        self._run.write_part(part.preparation, part.first, arrays)
        with self._lock:
            self._stored[part.preparation].add(part.first)

    def parts(self, audit: int) -> tuple[Arrays, ...]:
        """Reads all parts that an audit waits for. Raises DamagedFileError if one is damaged."""
        return tuple(
            self._run.read_part(part.preparation, part.first)
            for part in all_parts(self._plan, [audit])
        )

    def complete(self, audit: int) -> tuple[Arrays, ...]:
        """Reads all parts of an audit's preparation; returns () while one is not stored.

        Raises:
            DamagedFileError: a part is damaged.
        """
        stored, parts = self.progress(audit)
        return self.parts(audit) if stored == parts else ()

    def suffices(self, audit: int) -> bool:
        """Returns whether an audit needs no further part once its packs are complete.

        An audit without trials has no packs: its result needs all parts.
        """
        stored, parts = self.progress(audit)
        return stored == parts or self._plan.audits[audit].trials > 0

    def lost(self) -> list[str]:
        """Returns the files of parts that audits without packs need, and that are missing."""
        parts = all_parts(self._plan, _without_packs(self._plan))
        files = [part_file(part.preparation, part.first) for part in parts]
        return [file for file in files if not self._run.exists(file)]

    def progress(self, audit: int) -> tuple[int, int]:
        """Returns how many parts of an audit's preparation are stored, and how many it has."""
        preparation = self._plan.audits[audit].preparation
        if preparation is None:
            return 0, 0
        numbers = range(preparation.parts)
        with self._lock:
            return len(self._stored[preparation.id].intersection(numbers)), preparation.parts
