"""Compacts finished packs into larger files, until storage refuses to write them.

At first, each pack has its own file. A run of 50,000 packs takes half a minute to read from as
many files, and a second from a few hundred. So folded packs are compacted, PACKS_PER_FILE at a
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

PACKS_PER_FILE = 256
MOST_ROWS = 2**20  # rows of a file: 8 MiB of scores
_FEWEST_IN_GROUP = 8  # packs; smaller groups stay in their files


class Compactor:
    """Compacts the packs of all audits of a run into larger files, until storage refuses it."""

    def __init__(self, run: RunDirectory, audits: int) -> None:
        """Begins before the first pack.

        Args:
            run: the run directory.
            audits: number of audits.
        """
        self._run = run
        # By audit: number of packs, from the first, that were compacted or need not be.
        self._examined = [0] * audits
        self._refused = False  # whether storage has refused to write or delete a file

    def compact_finished(self, audits: Sequence[FinishedTrials]) -> None:
        """Compacts each group of packs in which every pack was consumed.

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
                size = group_size(audit)  # 0: no packs are compacted
                if stop < len(audit.packs):  # the last group may still grow
                    stop -= stop % max(size, 1)
                if size and start < stop:
                    files = self._run.score_files(audit.id)
                    for group, inside in groups_to_compact(audit, files, start, stop):
                        self._compact(trials, group, inside)
                    self._examined[index] = stop
        except (StorageError, RunDirectoryError):
            self._refused = True

    def _compact(
        self,
        trials: FinishedTrials,
        group: list[PackRange],
        files: list[Bounds],
    ) -> None:
        """Writes a group of packs as one file, reads it back, and then deletes the other files.

        Args:
            trials: finished trials of the audit.
            group: packs that come into one file.
            files: bounds of the files that have these packs now.
        """
        audit = trials.audit
        joined = finished_trials.trials_of(audit, group)
        if joined not in files:
            packs = finished_trials.read_in_order(
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
    """Returns how many packs a file may have; 0 if compaction would not pay."""
    if not audit.packs:
        return 0
    pack_trials = audit.packs[0][1] + 1
    rows = len(audit.horizons) * pack_trials
    size = min(PACKS_PER_FILE, MOST_ROWS // rows)
    return size if size >= _FEWEST_IN_GROUP else 0


def groups_to_compact(
    audit: PlannedAudit, files: Collection[Bounds], start: int, stop: int
) -> Iterator[tuple[list[PackRange], list[Bounds]]]:
    """Yields groups of packs that go into one file each, and the files that then can be deleted.

    Args:
        audit: the audit with its packs.
        files: first and last trial of each stored file.
        start: number of the first pack that may be compacted.
        stop: number after that of the last such pack.
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
        if count >= min(finished_trials.FEWEST_PACKS, size) and len(inside) > 1:
            yield group, inside
