"""Preparations in the run directory: parts are stored, counted and handed to who opens an audit."""

from __future__ import annotations

import threading

from ..plan import preparing
from ..plan.model import Part, Plan, PlannedPreparation
from ..storage.arrays import Arrays
from ..storage.run_directory import RunDirectory


class Prepared:
    """Any thread may call it."""

    def __init__(self, run: RunDirectory, plan: Plan) -> None:
        self._run, self._plan = run, plan
        self._turn = threading.Lock()
        self._done = {entry["id"]: entry["done"] for entry in preparing.entries(run, plan)}

    def keep(self, part: Part, arrays: Arrays) -> None:
        """Stores a part; storing it again changes nothing.

        Raises:
            StorageError: it could not be written, or is stored with other arrays.
        """
        name = self._named(part.audit).id
        self._run.write_part(name, part.first, arrays)
        with self._turn:
            self._done[name] = preparing.done(self._run, self._plan.audits[part.audit])

    def parts(self, audit: int) -> tuple[Arrays, ...]:
        """All parts that an audit waits for, checked.

        Raises:
            DamagedArraysError: one is not what was written, or gone.
        """
        named = self._named(audit)
        return tuple(self._run.read_part(named.id, part) for part in range(named.parts))

    def complete(self, audit: int) -> tuple[Arrays, ...]:
        """All parts, or none while one is not done. Raises DamagedArraysError."""
        done, parts = self.progress(audit)
        return self.parts(audit) if parts and done == parts else ()

    def suffices(self, audit: int) -> bool:
        """Whether nothing but packs is left to do: an audit without packs is its preparation."""
        done, parts = self.progress(audit)
        return done == parts or self._plan.audits[audit].trials > 0

    def progress(self, audit: int) -> tuple[int, int]:
        """Parts of an audit's preparation that are done, and all of them."""
        known = self._plan.audits[audit].preparation
        return (0, 0) if known is None else (self._done[known.id], known.parts)

    def _named(self, audit: int) -> PlannedPreparation:
        known = self._plan.audits[audit].preparation
        assert known is not None
        return known
