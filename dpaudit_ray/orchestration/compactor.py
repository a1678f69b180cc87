"""Gathers finished packs into larger files, beside the folding; `plan.compaction` says why."""

from __future__ import annotations

import threading

from ..errors import RunDirectoryError, StorageError
from ..plan import score_stream
from ..plan.compaction import Bounds, Gathering, Groups, Stretch
from ..plan.model import Pack, Plan
from ..plan.score_stream import RecentPacks
from ..storage.run_directory import RunDirectory
from ..storage.scores import PackScores


class Compactor:
    """Is told of packs in any thread, and works in one at a time.

    Nothing rests on it: storage that will not have it ends it, and packs stay in their files.
    """

    def __init__(self, run: RunDirectory, plan: Plan) -> None:
        self._run, self._plan = run, plan
        self._turn = threading.Lock()
        self._groups: dict[int, Groups] = {}
        self._recent = RecentPacks()
        self._ended = False

    def opened(self, index: int, files: set[Bounds], missed: set[Bounds]) -> None:
        """Audit number `index` begins with these."""
        with self._turn:
            self._groups[index] = Groups(self._plan.audits[index], files, missed)

    def arrived(self, pack: Pack, scores: PackScores | None) -> None:
        """A pack has a file of its own, or was given up."""
        with self._turn:
            if scores is not None:
                self._recent.put(pack.audit, scores)
            self._groups[pack.audit].arrived((pack.first, pack.last), missed=scores is None)

    def work(self) -> None:
        """Gathers what is due."""
        if self._ended:
            return
        try:
            for index in range(len(self._plan.audits)):
                with self._turn:
                    due = self._groups[index].due()
                for gathering in due:
                    self._gather(index, gathering)
        except (StorageError, RunDirectoryError):
            self._ended = True

    def _gather(self, index: int, packs: Gathering) -> None:
        """Writes them once under a new name, reads that back, and only then deletes the others."""
        audit = self._plan.audits[index]
        file = packs.bounds(audit)
        if file not in packs.files:
            parts = [self._part(index, part) for part in packs.parts]
            self._run.write_scores(audit.id, PackScores.joined(parts))
        whole = Stretch(file, packs.parts[0].start, packs.parts[-1].stop)
        score_stream.read_stretch(self._run, self._plan, index, whole)
        for other in packs.files - {file}:
            self._run.delete_scores(audit.id, *other)
        with self._turn:
            self._groups[index].gathered(packs)

    def _part(self, index: int, part: Stretch) -> PackScores:
        """From memory where it is fresh."""
        if part.stop == part.start + 1:
            with self._turn:
                kept = self._recent.take(index, self._plan.audits[index].packs[part.start][0])
            if kept is not None:
                return kept
        read = score_stream.read_stretch(self._run, self._plan, index, part)
        assert isinstance(read, PackScores)
        return read
