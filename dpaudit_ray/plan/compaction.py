"""Which files hold which packs: one each at first, then many packs that follow each other in one.

A run of 50,000 packs takes half a minute to read from as many files, and a second from a few
hundred. So finished packs are gathered, GATHERED at a time by their numbers: they are written once
under a new name, `<first>-<last>.parquet` as before, read back, and only then are the old files
deleted. A crash in between leaves a pack in two files. It has the same content in both, and is
taken from one: every file that does not begin and end where packs do is left alone, and of those
that overlap the longer one counts.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..storage.run_directory import RunDirectory
from ..storage.scores import Bounds as Bounds

if TYPE_CHECKING:
    from .model import PlannedAudit  # which asks which of its packs are finished

GATHERED = 256  # packs
FEWEST = 64  # of the last packs of an audit, or between two that failed
MOST_ROWS = 2**20  # of a file: 8 MiB of scores
_WORTH_IT = 8  # packs that this leaves, or they stay as they are


@dataclasses.dataclass(frozen=True)
class Stretch:
    """Packs number `start` to `stop` - 1, which one file holds; None for packs that failed."""

    file: Bounds | None
    start: int
    stop: int


def stored(run: RunDirectory, audit: PlannedAudit) -> list[Stretch]:
    """The finished packs of an audit in their order, each once."""
    return resolved(audit.packs, run.score_files(audit.id))


def finished(run: RunDirectory, audit: PlannedAudit) -> set[Bounds]:
    """Bounds of the finished packs of an audit."""
    return packs_of(audit, stored(run, audit))


def packs_of(audit: PlannedAudit, stretches: Iterable[Stretch]) -> set[Bounds]:
    """The bounds of all packs of these stretches."""
    return {pack for stretch in stretches for pack in audit.packs[stretch.start : stretch.stop]}


def resolved(packs: Sequence[Bounds], files: Iterable[Bounds]) -> list[Stretch]:
    """What to take from which file, so that no pack is taken twice."""
    starts = {first: place for place, (first, _) in enumerate(packs)}
    stops = {last: place + 1 for place, (_, last) in enumerate(packs)}
    candidates = [
        Stretch(file, starts[file[0]], stops[file[1]])
        for file in files
        if file[0] in starts and file[1] in stops
    ]
    chosen, reached = [], 0
    for stretch in sorted(candidates, key=lambda part: (part.start, -part.stop)):
        if stretch.stop > reached:
            chosen.append(dataclasses.replace(stretch, start=max(stretch.start, reached)))
            reached = stretch.stop
    return chosen


def prefix(
    audit: PlannedAudit,
    there: Iterable[Stretch],
    missed: Collection[Bounds],
    start: int = 0,
    end: int | None = None,
) -> Iterator[Stretch]:
    """Packs from number `start` to the first that is neither stored nor missed.

    And no pack of which all trials are `end` or later.
    """
    stop = len(audit.packs) if end is None else bisect.bisect_left(audit.packs, (end,))
    for stretch in there:
        if stretch.stop <= start:
            continue
        for place in range(start, min(stretch.start, stop)):
            if audit.packs[place] not in missed:
                return
            yield Stretch(None, place, place + 1)
        if stretch.start >= stop:
            return
        yield Stretch(stretch.file, max(stretch.start, start), min(stretch.stop, stop))
        start = stretch.stop
    for place in range(start, stop):
        if audit.packs[place] not in missed:
            return
        yield Stretch(None, place, place + 1)


def number(audit: PlannedAudit, trial: int) -> int:
    """The number of the pack that a trial is in."""
    return bisect.bisect_right(audit.packs, trial, key=lambda pack: pack[0]) - 1


@dataclasses.dataclass(frozen=True)
class Gathering:
    """Packs to be put into one file: the stretches that make it up, and all files inside it."""

    parts: tuple[Stretch, ...]
    files: frozenset[Bounds]

    def bounds(self, audit: PlannedAudit) -> Bounds:
        """First and last trial."""
        return audit.packs[self.parts[0].start][0], audit.packs[self.parts[-1].stop - 1][1]


class Groups:
    """The packs of one audit by GATHERED, and which groups are due to be gathered.

    A group is due when none of its packs is awaited any more, and again when one that had failed
    is done after all.
    """

    def __init__(
        self, audit: PlannedAudit, files: Iterable[Bounds], missed: Collection[Bounds]
    ) -> None:
        self._audit, self._missed = audit, set(missed)
        rows = len(audit.horizons) * (audit.packs[0][1] + 1 if audit.packs else MOST_ROWS)
        size = min(GATHERED, MOST_ROWS // rows)
        self._size = size if size >= _WORTH_IT else 0
        self._files: dict[int, set[Bounds]] = collections.defaultdict(set)
        for file in files if self._size else ():
            self._files[self._group(file)].add(file)
        self._changed = set(self._files)  # groups, since they were looked at

    def arrived(self, pack: Bounds, missed: bool = False) -> None:
        """A pack is there: in a file of its own, or `missed`."""
        if self._size:
            group = self._group(pack)
            if missed:
                self._missed.add(pack)
            else:
                self._missed.discard(pack)
                self._files[group].add(pack)
            self._changed.add(group)

    def due(self) -> list[Gathering]:
        """What is to be gathered now; told once."""
        groups, self._changed = sorted(self._changed), set()
        return [gathering for group in groups for gathering in self._gatherings(group)]

    def gathered(self, done: Gathering) -> None:
        """These packs are in one file."""
        files = self._files[done.parts[0].start // self._size]
        files -= done.files
        files.add(done.bounds(self._audit))

    def _group(self, file: Bounds) -> int:
        return number(self._audit, file[0]) // self._size

    def _gatherings(self, group: int) -> Iterator[Gathering]:
        """Packs of a group that follow each other and lie in several files."""
        start, files = group * self._size, self._files[group]
        packs = self._audit.packs[start : start + self._size]
        runs: list[list[Stretch]] = []
        reached = 0
        for part in resolved(packs, files):
            if not self._missed.issuperset(packs[reached : part.start]):
                return
            if not runs or part.start > reached:
                runs.append([])
            runs[-1].append(Stretch(part.file, part.start + start, part.stop + start))
            reached = part.stop
        if not self._missed.issuperset(packs[reached:]):
            return
        for run in runs:
            whole = Gathering(tuple(run), frozenset(files))
            first, last = whole.bounds(self._audit)
            inside = frozenset(f for f in files if first <= f[0] and f[1] <= last)
            if run[-1].stop - run[0].start >= min(FEWEST, self._size) and len(inside) > 1:
                yield Gathering(whole.parts, inside)
