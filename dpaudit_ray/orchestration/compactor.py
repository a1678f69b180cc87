"""Gathers finished packs into larger files, beside the folding; `plan.compaction` says why."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ..errors import RunDirectoryError, StorageError
from ..plan import compaction, score_stream
from ..plan.compaction import Bounds, Stretch
from ..plan.model import Plan
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
        self._recent = RecentPacks()
        self._seen = [0] * len(plan.audits)  # packs of each audit that were looked at
        self._ended = False

    def stored(self, index: int, scores: PackScores) -> None:
        """A pack of audit number `index` has a file of its own."""
        with self._turn:
            self._recent.put(index, scores)

    def work(self, folded: Sequence[int]) -> None:
        """Gathers the groups of which all packs were folded, as so many of each audit were."""
        if self._ended:
            return
        try:
            for index, audit in enumerate(self._plan.audits):
                start, stop, size = self._seen[index], folded[index], compaction.group_size(audit)
                if stop < len(audit.packs):
                    stop -= stop % max(size, 1)
                if size and start < stop:
                    files = self._run.score_files(audit.id)
                    for parts, inside in compaction.gatherings(audit, files, start, stop):
                        self._gather(index, parts, inside)
                    self._seen[index] = stop
        except (StorageError, RunDirectoryError):
            self._ended = True

    def _gather(self, index: int, parts: list[Stretch], files: list[Bounds]) -> None:
        """Writes them once under a new name, reads that back, and only then deletes the others."""
        audit = self._plan.audits[index]
        file = compaction.span(audit, parts)
        if file not in files:
            scores = PackScores.joined([self._part(index, part) for part in parts])
            self._run.write_scores(audit.id, scores)
        whole = Stretch(file, parts[0].start, parts[-1].stop)
        score_stream.read_stretch(self._run, self._plan, index, whole)
        for other in files:
            if other != file:
                self._run.delete_scores(audit.id, *other)

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
