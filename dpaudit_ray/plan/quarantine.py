"""Files that are damaged are set aside, and computed again: bits and seeds are known.

A run that is opened is looked over at the cost of one listing: a file that is too short to be one
is found by its size. What belongs to the prefix is read in full before anything is trained, so only
files beyond it are opened, for their first and last bytes. Where reading then meets a damaged file
all the same, every file is read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from ..errors import DamagedArraysError, DamagedScoresError
from ..storage.run_directory import RunDirectory
from . import compaction, preparing
from .compaction import Bounds
from .model import Part, Plan, PlannedAudit

SHORTEST = 12  # bytes: twice the magic number, and the length of a footer
READERS = 32  # most of the time they wait for storage
NAMED = 5  # damaged files that are named, each on a line of its own


def set_aside(
    run: RunDirectory, plan: Plan, tell: Callable[[str], None], *, thorough: bool = False
) -> int:
    """Renames damaged scores and preparations of `plan`; returns how many. `tell` names them.

    Args:
        thorough: read every file, not only those that nobody else will read soon.

    Raises:
        StorageError, RunDirectoryError: a file cannot be read.
        LeaseLostError: another driver took over.
    """
    damaged = aside = 0
    for audit in plan.audits:
        for first, last in _damaged(run, audit, thorough):
            if not damaged:
                run.set_complete(False)
            damaged += 1
            place = run.set_aside(audit.id, first, last)
            if damaged <= NAMED:
                tell(
                    f"{run.location}/scores/{audit.id}/{first}-{last}.parquet is damaged: set "
                    f"aside as {place.rpartition('/')[2]}, its trials are run again"
                )
    for part in _damaged_parts(run, plan, thorough):
        aside += 1
        place = preparing.set_aside(run, plan, part)
        tell(
            f"{plan.audits[part.audit].label}: {part.what} is damaged: set aside as "
            f"{place.rpartition('/')[2]}, and made again"
        )
    if damaged > NAMED:
        tell(f"{damaged - NAMED} more score files are damaged: set aside, and run again")
    return damaged + aside


def _damaged_parts(run: RunDirectory, plan: Plan, thorough: bool) -> Iterator[Part]:
    sizes: dict[str, dict[int, int]] = {}
    is_good = _part_is_readable if thorough else RunDirectory.whole_part
    for part in preparing.all_parts(plan, range(len(plan.audits))):
        name = preparing.name(plan, part)
        if name not in sizes:
            sizes[name] = run.parts(name)
        size = sizes[name].get(part.first)
        if size is not None and (size < SHORTEST or not is_good(run, name, part.first)):
            yield part


def _part_is_readable(run: RunDirectory, preparation: str, part: int) -> bool:
    try:
        run.read_part(preparation, part)
    except DamagedArraysError:
        return False
    return True


def _damaged(run: RunDirectory, audit: PlannedAudit, thorough: bool) -> Iterator[Bounds]:
    sizes = run.sizes(audit.id)
    small = {file for file, size in sizes.items() if size < SHORTEST}
    yield from sorted(small)
    there = compaction.resolved(audit.packs, sizes.keys() - small)
    read_soon = set() if thorough else {s.file for s in compaction.prefix(audit, there, ())}
    unread = [file for s in there if (file := s.file) is not None and file not in read_soon]
    is_good = (
        functools.partial(_readable, steps=len(audit.horizons)) if thorough else RunDirectory.whole
    )
    with ThreadPoolExecutor(READERS, thread_name_prefix="quarantine") as readers:
        good = readers.map(lambda file: is_good(run, audit.id, *file), unread)
        yield from (file for file, fine in zip(unread, good, strict=True) if not fine)


def _readable(run: RunDirectory, audit: str, first: int, last: int, steps: int) -> bool:
    try:
        run.read_scores(audit, first, last, steps)
    except DamagedScoresError:
        return False
    return True
