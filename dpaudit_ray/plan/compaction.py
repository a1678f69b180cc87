"""Which files hold which packs: one each at first, then many packs that follow each other in one.

A run of 50,000 packs takes half a minute to read from as many files, and a second from a few
hundred. So packs that were folded are gathered, GATHERED at a time: written once under a new name,
`<first>-<last>.parquet` as before, read back, and only then are the old files deleted. A crash in
between leaves a pack in two files, with the same content: a file that does not begin and end where
packs do is left alone, and of those that overlap the longer one counts.
"""

from __future__ import annotations

import bisect
import dataclasses
import operator
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Protocol

from ..storage.run_directory import RunDirectory
from ..storage.scores import Bounds as Bounds

GATHERED = 256  # packs
FEWEST = 64  # of the last packs of an audit, or between two that failed
MOST_ROWS = 2**20  # of a file: 8 MiB of scores
_ASKED_IN_VAIN = 8  # requests, each of about 10 ms
_WORTH_IT = 8  # packs that this leaves, or they stay as they are


class Packed(Protocol):
    """As much of a planned audit as its files know."""

    @property
    def id(self) -> str: ...
    @property
    def horizons(self) -> tuple[int, ...]: ...
    @property
    def packs(self) -> tuple[Bounds, ...]: ...


@dataclasses.dataclass(frozen=True)
class Stretch:
    """Packs number `start` to `stop` - 1, which one file holds; None for packs that failed."""

    file: Bounds | None
    start: int
    stop: int


def stored(run: RunDirectory, audit: Packed) -> list[Stretch]:
    """Returns the finished packs of an audit in their order, each once.

    If the run is marked as complete, packs that an object store does not list are asked for by
    name, since its lists may lag behind. Those after the end that `stop_when` chose are not there:
    after `_ASKED_IN_VAIN` no more are asked for.
    """
    files = run.score_files(audit.id)
    stretches = resolved(audit.packs, files)
    listed = packs_of(audit, stretches)
    if run.local or len(listed) == len(audit.packs) or not run.complete:
        return stretches
    unlisted = set()
    in_vain = 0
    for pack in audit.packs:
        if pack in listed:
            continue
        if run.has_scores_of(audit.id, pack):
            unlisted.add(pack)
        else:
            in_vain += 1
        if in_vain == _ASKED_IN_VAIN:
            break
    return resolved(audit.packs, files | unlisted)


def lost(run: RunDirectory, audit: Packed, end: int) -> list[Bounds]:
    """Returns the packs before trial `end` that storage has neither in its list nor by name."""
    listed = packs_of(audit, resolved(audit.packs, run.score_files(audit.id)))
    unlisted = [pack for pack in audit.packs if pack[0] < end and pack not in listed]
    return [pack for pack in unlisted if not run.has_scores_of(audit.id, pack)]


def finished(run: RunDirectory, audit: Packed) -> set[Bounds]:
    """Bounds of the finished packs of an audit."""
    return packs_of(audit, stored(run, audit))


def packs_of(audit: Packed, stretches: Iterable[Stretch]) -> set[Bounds]:
    """The bounds of all packs of these stretches."""
    return {pack for stretch in stretches for pack in audit.packs[stretch.start : stretch.stop]}


def resolved(packs: Sequence[Bounds], files: Iterable[Bounds]) -> list[Stretch]:
    """What to take from which file, so that no pack is taken twice."""
    candidates = []
    for first, last in files:
        start = bisect.bisect_left(packs, first, key=operator.itemgetter(0))
        end = bisect.bisect_left(packs, last, key=operator.itemgetter(1))
        if start <= end < len(packs) and (packs[start][0], packs[end][1]) == (first, last):
            candidates.append(Stretch((first, last), start, end + 1))
    chosen, reached = [], 0
    for stretch in sorted(candidates, key=lambda part: (part.start, -part.stop)):
        if stretch.stop > reached:
            chosen.append(dataclasses.replace(stretch, start=max(stretch.start, reached)))
            reached = stretch.stop
    return chosen


def prefix(
    audit: Packed,
    there: Iterable[Stretch],
    missed: Collection[Bounds],
    start: int = 0,
    end: int | None = None,
) -> Iterator[Stretch]:
    """Packs from number `start` to the first that is neither stored nor missed, or trial `end`."""
    stop = len(audit.packs) if end is None else bisect.bisect_left(audit.packs, (end,))
    for stretch in (*there, Stretch(None, stop, stop)):
        for place in range(start, min(stretch.start, stop)):
            if audit.packs[place] not in missed:
                return
            yield Stretch(None, place, place + 1)
        first, last = max(stretch.start, start), min(stretch.stop, stop)
        if first < last:
            yield Stretch(stretch.file, first, last)
        start = max(stretch.stop, start)


def number(audit: Packed, trial: int) -> int:
    """The number of the pack that a trial is in."""
    return bisect.bisect_right(audit.packs, trial, key=lambda pack: pack[0]) - 1


def group_size(audit: Packed) -> int:
    """How many packs one file may hold; 0 where gathering them would not pay."""
    rows = len(audit.horizons) * (audit.packs[0][1] + 1 if audit.packs else MOST_ROWS)
    size = min(GATHERED, MOST_ROWS // rows)
    return size if size >= _WORTH_IT else 0


def gatherings(
    audit: Packed, files: Collection[Bounds], start: int, stop: int
) -> Iterator[tuple[list[Stretch], list[Bounds]]]:
    """Packs `start` to `stop` - 1 that go into one file, as stretches, and the files in these."""
    size, ordered = group_size(audit), sorted(files)
    runs: list[list[Stretch]] = []
    for part in resolved(audit.packs, files):
        if start <= part.start and part.stop <= stop:
            if runs and runs[-1][-1].stop == part.start and part.start % size:
                runs[-1].append(part)
            else:
                runs.append([part])
    for run in runs:
        first, last = span(audit, run)
        below = ordered[bisect.bisect_left(ordered, (first,)) : bisect.bisect(ordered, (last + 1,))]
        inside = [file for file in below if file[1] <= last]
        if run[-1].stop - run[0].start >= min(FEWEST, size) and len(inside) > 1:
            yield run, inside


def span(audit: Packed, run: Sequence[Stretch]) -> Bounds:
    """First and last trial of stretches that follow each other."""
    return audit.packs[run[0].start][0], audit.packs[run[-1].stop - 1][1]
