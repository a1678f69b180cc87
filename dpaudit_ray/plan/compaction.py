"""Gathers finished packs into larger files, until storage refuses it.

At first, each pack has its own file. A run of 50,000 packs takes half a minute to read from as
many files, and a second from a few hundred. So packs that were folded are gathered, GATHERED at a
time: written once under a new name, `<first>-<last>.parquet` as before, read back, and only then
are the old files deleted. A crash in between leaves a pack in two files, with the same content.
"""

import bisect
from collections.abc import Collection, Iterator, Sequence

from ..errors import RunDirectoryError, StorageError
from ..storage.run_directory import RunDirectory
from ..storage.scores import Bounds, PackScores
from . import finished_trials
from .finished_trials import FinishedTrials, PackRange
from .model import PlannedAudit

GATHERED = 256  # packs
MOST_ROWS = 2**20  # a file has at most: 8 MiB of scores
_WORTH_IT = 8  # packs; smaller groups stay as they are


class Compactor:
    """Gathers the packs of all audits of a run into larger files, until storage refuses it."""

    def __init__(self, run: RunDirectory, audits: int) -> None:
        self._run = run
        self._examined = [0] * audits  # by audit: number of packs that were gathered or need not be
        self._refused = False

    def gather_finished(self, audits: Sequence[FinishedTrials]) -> None:
        """Gathers each group of packs in which every pack was consumed.

        Args:
            audits: all audits of the run, in the order of the plan.
        """
        if self._refused:
            return
        try:
            for index, trials in enumerate(audits):
                audit = trials.audit
                start = self._examined[index]
                stop = trials.consumed
                size = group_size(audit)
                if stop < len(audit.packs):  # the last group may still grow
                    stop -= stop % max(size, 1)
                if size and start < stop:
                    files = self._run.score_files(audit.id)
                    for group, inside in gatherings(audit, files, start, stop):
                        self._gather(trials, group, inside)
                    self._examined[index] = stop
        except (StorageError, RunDirectoryError):
            self._refused = True

    def _gather(
        self,
        trials: FinishedTrials,
        group: list[PackRange],
        files: list[Bounds],
    ) -> None:
        """Writes a group once under a new name, reads that back, and then deletes the others.

        Args:
            trials: finished trials of the audit.
            group: packs that come into one file.
            files: bounds of the files that have them now.
        """
        audit = trials.audit
        joined = finished_trials.trials_of(audit, group)
        if joined not in files:
            packs = finished_trials.in_order(
                self._run, trials.read, group, most_packs=finished_trials.MOST_READS
            )
            # Every pack of a group is stored; those that failed have no file, and are in no group.
            scores = PackScores.joined([pack for pack in packs if isinstance(pack, PackScores)])
            self._run.write_scores(audit.id, scores)
        # Raises an error, before anything is deleted, if the new file is not as planned.
        trials.read(PackRange(joined, group[0].start, group[-1].stop))
        if joined not in self._run.score_files(audit.id):
            return  # lists lag behind, and a reader that does not find this file needs the others
        for file in files:
            if file != joined:
                self._run.delete_scores(audit.id, *file)


def group_size(audit: PlannedAudit) -> int:
    """Returns how many packs one file may hold; 0 where gathering them would not pay."""
    if not audit.packs:
        return 0
    pack_trials = audit.packs[0][1] + 1
    rows = len(audit.horizons) * pack_trials
    size = min(GATHERED, MOST_ROWS // rows)
    return size if size >= _WORTH_IT else 0


def gatherings(
    audit: PlannedAudit, files: Collection[Bounds], start: int, stop: int
) -> Iterator[tuple[list[PackRange], list[Bounds]]]:
    """Yields groups of packs that go into one file each, and the files that then can go.

    Args:
        audit: the audit with its packs.
        files: first and last trial of each file that there is.
        start: number of the first pack that may be gathered.
        stop: one more than the number of the last.
    """
    size = group_size(audit)
    groups: list[list[PackRange]] = []
    for packs in finished_trials.resolved(audit.packs, files):
        if packs.start < start or packs.stop > stop:
            continue
        follows = groups and groups[-1][-1].stop == packs.start
        if follows and packs.start % size:  # a group ends at each multiple of its size
            groups[-1].append(packs)
        else:
            groups.append([packs])
    by_first_trial = sorted(files)
    for group in groups:
        first, last = finished_trials.trials_of(audit, group)
        begin = bisect.bisect_left(by_first_trial, (first,))
        end = bisect.bisect(by_first_trial, (last + 1,))
        inside = [file for file in by_first_trial[begin:end] if file[1] <= last]
        count = group[-1].stop - group[0].start
        if count >= min(finished_trials.FEWEST, size) and len(inside) > 1:
            yield group, inside
