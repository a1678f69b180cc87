"""Sets damaged files aside: their content is computed again, since bits and seeds are known."""

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from ..errors import DamagedFileError, MissingFileError
from ..storage.run_directory import RunDirectory, part_file
from . import preparing
from .finished_trials import READERS
from .model import Plan

NAMED = 5  # damaged files that are reported on separate lines
Read = Callable[[], object]


def set_aside(
    run: RunDirectory,
    plan: Plan,
    report: Callable[[str], None],
) -> int:
    """Renames damaged files of scores and preparations.

    Args:
        run: the run directory.
        plan: plan of the sweep.
        report: called with a line for each of the first files, and one for the others.

    Returns:
        The number of damaged files.
    """
    files = dict(_files(run, plan))
    with ThreadPoolExecutor(READERS, thread_name_prefix="quarantine") as readers:
        flags = readers.map(_is_damaged, files.values())
        damaged = list(itertools.compress(files, flags))
    if damaged:
        run.set_complete(False)
    for number, name in enumerate(damaged):
        aside = run.set_aside(name).rpartition("/")[2]
        if number < NAMED:
            report(f"{run.location}/{name} is damaged: set aside as {aside}, and made again")
    if len(damaged) > NAMED:
        report(f"{len(damaged) - NAMED} more files are damaged: set aside, and made again")
    return len(damaged)


def _files(
    run: RunDirectory,
    plan: Plan,
) -> Iterator[tuple[str, Read]]:
    """Yields the name of each file of scores or of a preparation, and a function that reads it."""
    for audit in plan.audits:
        steps = len(audit.horizons)
        for file in sorted(run.score_files(audit.id)):
            read = partial(run.read_scores, audit.id, *file, steps)
            yield run.score_file(audit.id, *file), read
    for part in preparing.all_parts(plan):
        if part.first in run.parts(part.preparation):
            key = part.preparation, part.first
            yield part_file(*key), partial(run.read_part, *key)


def _is_damaged(read: Read) -> bool:
    """Returns whether a file cannot be read, although it is stored."""
    try:
        read()
    except MissingFileError:
        return False  # no file that could be set aside
    except DamagedFileError:
        return True
    return False
