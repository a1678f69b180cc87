"""Files that are damaged are set aside, and computed again: bits and seeds are known."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from ..errors import DamagedFileError, MissingFileError
from ..storage.run_directory import RunDirectory, part_file
from . import preparing
from .finished_trials import READERS
from .model import Plan

NAMED = 5  # damaged files that are named, each on a line of its own
Read = Callable[[], object]


def set_aside(run: RunDirectory, plan: Plan, tell: Callable[[str], None]) -> int:
    """Renames damaged scores and preparations, which `tell` names; returns how many."""
    files = dict(_files(run, plan))
    with ThreadPoolExecutor(READERS, thread_name_prefix="quarantine") as readers:
        fail = readers.map(_fails, files.values())
        damaged = [name for name, fails in zip(files, fail, strict=True) if fails]
    if damaged:
        run.set_complete(False)
    for number, name in enumerate(damaged):
        aside = run.set_aside(name).rpartition("/")[2]
        if number < NAMED:
            tell(f"{run.location}/{name} is damaged: set aside as {aside}, and made again")
    if len(damaged) > NAMED:
        tell(f"{len(damaged) - NAMED} more files are damaged: set aside, and made again")
    return len(damaged)


def _files(run: RunDirectory, plan: Plan) -> Iterator[tuple[str, Read]]:
    """The name of each file of scores or of a preparation, and what reads it."""
    for audit in plan.audits:
        for first, last in sorted(run.score_files(audit.id)):
            read = functools.partial(run.read_scores, audit.id, first, last, len(audit.horizons))
            yield run.score_file(audit.id, first, last), read
    for part in preparing.all_parts(plan, range(len(plan.audits))):
        if part.first in run.parts(part.preparation):
            place = part.preparation, part.first
            yield part_file(*place), functools.partial(run.read_part, *place)


def _fails(read: Read) -> bool:
    try:
        read()
    except MissingFileError:
        return False  # nothing is there to be set aside
    except DamagedFileError:
        return True
    return False
