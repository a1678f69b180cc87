"""Files that are damaged are set aside, and computed again: bits and seeds are known.

Nothing is looked for: what belongs to the prefix is read whenever a run is opened, the rest when
its turn comes. Where a damaged file is met, every file is read, so that it happens once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from ..errors import DamagedArraysError, DamagedScoresError
from ..storage.run_directory import RunDirectory
from . import preparing
from .compaction import Bounds
from .model import Part, Plan, PlannedAudit
from .score_stream import READERS

NAMED = 5  # damaged files that are named, each on a line of its own


def set_aside(run: RunDirectory, plan: Plan, tell: Callable[[str], None]) -> int:
    """Renames damaged scores and preparations of `plan`; returns how many. `tell` names them.

    Raises StorageError, RunDirectoryError where a file cannot be read, LeaseLostError where another
    driver took over.
    """
    lines: list[str] = []
    for audit in plan.audits:
        for first, last in _damaged_scores(run, audit):
            if not lines:
                run.set_complete(False)
            aside = run.set_aside(audit.id, first, last)
            lines.append(
                f"{run.location}/scores/{audit.id}/{first}-{last}.parquet is damaged: set aside as "
                f"{aside.rpartition('/')[2]}, its trials are run again"
            )
    for part in _damaged_parts(run, plan):
        aside = run.set_part_aside(part.preparation, part.first)
        lines.append(
            f"{plan.audits[part.audit].label}: {part.what} is damaged: set aside as "
            f"{aside.rpartition('/')[2]}, and made again"
        )
    for line in lines[:NAMED]:
        tell(line)
    if len(lines) > NAMED:
        tell(f"{len(lines) - NAMED} more files are damaged: set aside, and made again")
    return len(lines)


def _damaged_scores(run: RunDirectory, audit: PlannedAudit) -> Iterator[Bounds]:
    def is_readable(file: Bounds) -> bool:
        try:
            run.read_scores(audit.id, *file, len(audit.horizons))
        except DamagedScoresError:
            return False
        return True

    files = sorted(run.score_files(audit.id))
    with ThreadPoolExecutor(READERS, thread_name_prefix="quarantine") as readers:
        readable = readers.map(is_readable, files)
        yield from (file for file, good in zip(files, readable, strict=True) if not good)


def _damaged_parts(run: RunDirectory, plan: Plan) -> Iterator[Part]:
    for part in preparing.all_parts(plan, range(len(plan.audits))):
        if part.first in run.parts(part.preparation):
            try:
                run.read_part(part.preparation, part.first)
            except DamagedArraysError:
                yield part
