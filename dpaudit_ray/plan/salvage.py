"""Score files that are damaged are set aside, and their trials run again: bits and seeds are known.

A run that is opened is looked over at the cost of one listing: a file that is too short to be one
is found by its size. What belongs to the prefix is read in full before anything is trained, so only
files beyond it are opened, for their first and last bytes. Where reading then meets a damaged file
all the same, every file is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from ..errors import DamagedScoresError
from ..storage.run_directory import RunDirectory
from . import gathering
from .gathering import Bounds
from .model import Plan, PlannedAudit

SHORTEST = 12  # bytes: twice the magic number, and the length of a footer
READERS = 32  # most of the time they wait for storage
NAMED = 5  # damaged files that are named, each on a line of its own


def set_aside(
    run: RunDirectory, plan: Plan, tell: Callable[[str], None], *, thorough: bool = False
) -> int:
    """Renames damaged score files of `plan`; returns how many. `tell` names them.

    Args:
        thorough: read every file, not only those that nobody else will read soon.

    Raises:
        StorageError, RunDirectoryError: a file cannot be read.
        LeaseLostError: another driver took over.
    """
    found = 0
    for audit in plan.audits:
        for first, last in _damaged(run, audit, thorough):
            if not found:
                run.set_complete(False)
            found += 1
            place = run.set_aside(audit.id, first, last)
            if found <= NAMED:
                tell(
                    f"{run.location}/scores/{audit.id}/{first}-{last}.parquet is damaged: set "
                    f"aside as {place.rpartition('/')[2]}, its trials are run again"
                )
    if found > NAMED:
        tell(f"{found - NAMED} more score files are damaged: set aside, and run again")
    return found


def _damaged(run: RunDirectory, audit: PlannedAudit, thorough: bool) -> Iterator[Bounds]:
    sizes = run.sizes(audit.id)
    small = {file for file, size in sizes.items() if size < SHORTEST}
    yield from sorted(small)
    there = gathering.resolved(audit.packs, sizes.keys() - small)
    read_soon = set() if thorough else {s.file for s in gathering.prefix(audit, there, ())}
    asked = [file for s in there if (file := s.file) is not None and file not in read_soon]
    is_good = _readable if thorough else RunDirectory.whole
    with ThreadPoolExecutor(READERS, thread_name_prefix="salvage") as readers:
        good = readers.map(lambda file: is_good(run, audit.id, *file), asked)
        yield from (file for file, fine in zip(asked, good, strict=True) if not fine)


def _readable(run: RunDirectory, audit: str, first: int, last: int) -> bool:
    try:
        run.read_scores(audit, first, last)
    except DamagedScoresError:
        return False
    return True
