"""Preparations in the run directory: parts are stored, counted and handed to who opens an audit."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from ..plan import preparing
from ..plan.failures import Failure
from ..plan.model import Part, Plan, PlannedPreparation
from ..storage.arrays import Arrays
from ..storage.run_directory import RunDirectory


class Prepared:
    """Any thread may call it."""

    def __init__(self, run: RunDirectory, plan: Plan) -> None:
        self._run, self._plan = run, plan
        self._turn = threading.Lock()
        self._done = {index: preparing.done(run, audit) for index, audit in enumerate(plan.audits)}

    def keep(self, part: Part, arrays: Arrays) -> None:
        """Stores a part; storing it again changes nothing.

        Raises:
            StorageError: it could not be written, or is stored with other arrays.
        """
        self._run.write_part(self._named(part.audit).id, part.first, arrays)
        with self._turn:
            for index in part.waiting:
                self._done[index] = preparing.done(self._run, self._plan.audits[index])

    def parts(self, audit: int) -> tuple[Arrays, ...]:
        """All parts that an audit waits for, checked.

        Raises:
            DamagedArraysError: one is not what was written, or gone.
        """
        named = self._named(audit)
        return tuple(self._run.read_part(named.id, part) for part in range(named.parts))

    def give_up(self, failed: Iterable[Failure]) -> None:
        """Records parts that failed; telling it twice changes nothing. Raises StorageError."""
        with self._turn:
            known = {failure.pack: failure for failure in preparing.read(self._run, self._plan)}
            new = {(each.pack.audit, each.pack.first): each for each in known.values()}
            for failure in failed:
                new.setdefault((failure.pack.audit, failure.pack.first), failure)
            if len(new) > len(known):
                preparing.write(self._run, self._plan, new.values())

    def progress(self, audit: int) -> tuple[int, int]:
        """Parts of an audit's preparation that are done, and all of them."""
        known = self._plan.audits[audit].preparation
        return self._done[audit], 0 if known is None else known.parts

    def _named(self, audit: int) -> PlannedPreparation:
        known = self._plan.audits[audit].preparation
        assert known is not None
        return known
