"""Reads the finished trials of an audit: which are stored, which failed, which remain to be run.

A pack is finished once its scores are stored, or its training run has raised. Bits are committed
before training, so a trial that failed, alone or with its pack, counts as a miss and is not left
out. All statements about an audit rest on its *prefix*: its finished packs in order, up to the
first pack that is neither stored nor failed, or up to the trials that were enough by `stop_when`.

A file holds one pack, or many that follow each other (`compaction`), and a crash may leave a pack
in two files. Packs of one file come together: for bounds in between, use `parts_between_looks`.
"""

import bisect
import collections
import functools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pyarrow as pa

from ..errors import RunDirectoryError
from ..storage.run_directory import RunDirectory
from ..storage.scores import Bounds, PackScores, score_frame
from .model import Pack, Plan, PlannedAudit
from .score_stream import ConsumedPack, MissedPack, parts_between_looks

FEWEST_PACKS = 64  # in a compacted file, unless a group has fewer
READERS = 32  # an object store takes tens of milliseconds to answer each request
_LOCAL_READERS = 3  # more would slow down the thread that reads the next pack
MOST_READS = 2 * READERS  # reads under way, and results that wait to be yielded
_SCORES_AHEAD = 2**21  # scores that are read ahead; reading a file takes ten times their bytes
_UNLISTED = 8  # requests in vain for packs that are not listed, about 10 ms each


@dataclass(frozen=True)
class PackRange:
    """Packs number `start` to `stop` - 1 of an audit, all in `file`; None for failed packs."""

    file: Bounds | None
    start: int
    stop: int


class FinishedTrials:
    """Finished packs of one audit; while the sweep runs, `add` and `failed` take new ones.

    Attributes:
        audit: the audit as planned.
        stored: bounds of the packs whose scores are stored.
        stored_trials: the number of trials in these packs.
        failed: bounds of packs that failed and are not stored; their trials are misses.
        end: the trials that were enough by `stop_when`; all trials without a decision.
        consumed: packs of the prefix that `packs` has yielded so far.
    """

    def __init__(
        self,
        run: RunDirectory,
        plan: Plan,
        index: int,
        failed: Collection[Bounds] = (),
        end: int | None = None,
        recent: "RecentPacks | None" = None,
    ) -> None:
        """Lists the packs that are stored.

        Args:
            run: the run directory.
            plan: plan of the sweep.
            index: number of the audit in the plan.
            failed: bounds of packs that failed, whether or not they were stored afterwards.
            end: the trials that were enough, None without a decision.
            recent: packs in memory, which need not be read.
        """
        self.audit = plan.audits[index]
        self._run = run
        self._seed = plan.seed
        self._index = index
        self._recent = recent or RecentPacks()
        ranges = stored_ranges(run, self.audit)
        self._listed: list[PackRange] | None = ranges  # None as soon as packs are added or read
        self.stored = packs_of(self.audit, ranges)
        self.stored_trials = sum(last - first + 1 for first, last in self.stored)
        self.failed = set(failed) - self.stored
        self.end = self.audit.trials if end is None else end
        self.consumed = 0

    @property
    def complete(self) -> bool:
        """Whether all packs before `end` were consumed, and none of them failed."""
        if any(first < self.end for first, _ in self.failed):
            return False
        return self.consumed == bisect.bisect_left(self.audit.packs, (self.end,))

    def remaining(self) -> Iterator[Pack]:
        """Yields the packs before `end` whose scores are not stored, failed packs among them."""
        for first, last in self.audit.packs:
            if first < self.end and (first, last) not in self.stored:
                yield Pack(self._index, first, last)

    def lost(self) -> list[Bounds]:
        """Returns the packs before `end` that storage neither lists nor finds by name."""
        listed = stored_packs(self._run, self.audit)
        return [
            pack
            for pack in self.audit.packs
            if pack[0] < self.end
            and pack not in listed
            and not self._run.has_scores_of(self.audit.id, pack)
        ]

    def add(self, scores: PackScores) -> None:
        """Adds a pack whose scores are stored; adding it again changes nothing."""
        bounds = scores.first, scores.last
        if bounds in self.stored:
            return
        self._listed = None
        self.stored.add(bounds)
        self.stored_trials += len(scores.members)
        if scores.first < self.end:
            self._recent.put(self, scores)

    def packs(self, one_by_one: bool = False) -> Iterator[ConsumedPack]:
        """Yields the packs of the prefix that were not yielded before, in order.

        Args:
            one_by_one: each pack separately, instead of all packs of a file together.

        Raises:
            RunDirectoryError: a file is damaged or has the bits of another plan.
        """
        most_packs = read_ahead(self.audit)
        for pack in read_in_order(
            self._run, self.read, self._ready(), most_packs, self._from_memory
        ):
            parts = parts_between_looks(self.audit, pack, lambda: 0) if one_by_one else (pack,)
            for part in parts:
                self.consumed = self.audit.pack_number(part.last) + 1
                yield part

    def _ready(self) -> Iterable[PackRange]:
        """Returns ranges of packs that can be consumed now.

        If only a few packs are ready, each is a separate range, and no files are listed.
        """
        ranges = self._listed
        self._listed = None
        if ranges is None:
            few = []
            start = self.consumed
            for number, pack in enumerate(self.audit.packs[start : start + FEWEST_PACKS], start):
                if pack in self.stored:
                    few.append(PackRange(pack, number, number + 1))
                elif pack in self.failed:
                    few.append(PackRange(None, number, number + 1))
                else:
                    break
            if len(few) < FEWEST_PACKS:
                return few
            # Many packs were waiting for a late one. Some may have been compacted meanwhile.
            ranges = stored_ranges(self._run, self.audit)
        return prefix_ranges(self.audit, ranges, self.failed, self.consumed, self.end)

    def _from_memory(self, packs: PackRange) -> PackScores | None:
        """Takes a pack out of memory; returns None if the packs are to be read."""
        pack = self.audit.packs[packs.start]
        return self._recent.take(self, pack[0]) if packs.file == pack else None

    def read(self, packs: PackRange) -> ConsumedPack:
        """Reads packs that follow each other, and checks that their bits are the planned ones.

        Args:
            packs: a range of one file, or a failed pack.

        Raises:
            RunDirectoryError: the file is damaged, or has the bits of another plan.
        """
        audit = self.audit
        first, last = trials_of(audit, [packs])
        bits = audit.bits(self._seed, first, last)
        if packs.file is None:
            return MissedPack(first, bits)
        steps = len(audit.horizons)
        try:
            scores = self._run.read_scores(audit.id, *packs.file, steps)
        except RunDirectoryError:
            # The file may have been compacted into a larger one meanwhile.
            files = self._run.score_files(audit.id)
            larger = [file for file in files if file[0] <= first and last <= file[1]]
            if not larger or packs.file in files:
                raise
            scores = self._run.read_scores(audit.id, *larger[0], steps)
        scores = scores.part(first, last)
        if scores.steps != audit.horizons or not np.array_equal(scores.members, bits):
            file = self._run.score_file(audit.id, *packs.file)
            raise RunDirectoryError(
                f"{self._run.location}/{file} does not have the bits or steps of this plan; delete "
                "it to have its trials run again"
            )
        return scores

    def frame(self) -> pd.DataFrame:
        """Returns all stored trials, even behind a gap, with the columns of a score file."""
        ranges = stored_ranges(self._run, self.audit)
        packs = read_in_order(self._run, self.read, ranges, read_ahead(self.audit))
        return score_frame(self.audit.id, (pack for pack in packs if isinstance(pack, PackScores)))


def remaining(
    run: RunDirectory, plan: Plan, enough: Mapping[int, int] | None = None
) -> Iterator[Pack]:
    """Yields the packs of all audits whose scores are not stored, in order.

    Args:
        run: the run directory.
        plan: plan of the sweep.
        enough: the trials that were enough, by index of each audit that `stop_when` has ended.
    """
    ends = enough or {}
    for index in range(len(plan.audits)):
        trials = FinishedTrials(run, plan, index, end=ends.get(index))
        yield from trials.remaining()


def stored_packs(run: RunDirectory, audit: PlannedAudit) -> set[Bounds]:
    """Returns the bounds of the packs of an audit whose scores are stored."""
    return packs_of(audit, stored_ranges(run, audit))


def stored_ranges(run: RunDirectory, audit: PlannedAudit) -> list[PackRange]:
    """Returns the stored packs of an audit in their order, each once.

    If the run is marked as complete, packs that an object store does not list are looked up by
    name, since its lists may lag behind. Packs after the end that `stop_when` chose do not exist:
    after `_UNLISTED` requests in vain, no more packs are looked up.
    """
    files = run.score_files(audit.id)
    ranges = resolved(audit.packs, files)
    listed = packs_of(audit, ranges)
    if run.local or len(listed) == len(audit.packs) or not run.complete:
        return ranges
    unlisted = set()
    absent = 0
    for pack in audit.packs:
        if pack in listed:
            continue
        if run.has_scores_of(audit.id, pack):
            unlisted.add(pack)
        else:
            absent += 1
        if absent == _UNLISTED:
            break
    return resolved(audit.packs, files | unlisted)


def packs_of(audit: PlannedAudit, ranges: Iterable[PackRange]) -> set[Bounds]:
    """Returns the bounds of all packs in these ranges."""
    packs = set[Bounds]()
    for packs_range in ranges:
        packs.update(audit.packs[packs_range.start : packs_range.stop])
    return packs


def trials_of(audit: PlannedAudit, ranges: Sequence[PackRange]) -> Bounds:
    """Returns the first and last trial of ranges that follow each other."""
    first, _ = audit.packs[ranges[0].start]
    _, last = audit.packs[ranges[-1].stop - 1]
    return first, last


def resolved(
    packs: Sequence[Bounds],
    files: Iterable[Bounds],
) -> list[PackRange]:
    """Chooses the packs to take from each file, so that no pack is taken twice.

    A file that does not begin and end where packs do is ignored. Of overlapping files, the longer
    one counts.
    """
    candidates = []
    for first, last in files:
        start = bisect.bisect_left(packs, first, key=operator.itemgetter(0))
        end = bisect.bisect_left(packs, last, key=operator.itemgetter(1))
        if not start <= end < len(packs):
            continue
        if packs[start][0] == first and packs[end][1] == last:
            candidates.append(PackRange((first, last), start, end + 1))
    chosen = []
    stop = 0
    for candidate in sorted(candidates, key=lambda ranges: (ranges.start, -ranges.stop)):
        if candidate.stop > stop:
            chosen.append(replace(candidate, start=max(candidate.start, stop)))
            stop = candidate.stop
    return chosen


def prefix_ranges(
    audit: PlannedAudit,
    stored: Iterable[PackRange],
    failed: Collection[Bounds],
    start: int = 0,
    end: int | None = None,
) -> Iterator[PackRange]:
    """Yields packs from number `start` to the first that is neither stored nor failed.

    A failed pack comes alone, with None for its file.

    Args:
        audit: the audit as planned.
        stored: the stored packs, in order.
        failed: bounds of the packs that failed.
        start: number of the first pack.
        end: the first trial that is not needed, None for all.
    """
    stop = len(audit.packs) if end is None else bisect.bisect_left(audit.packs, (end,))
    # The empty range at the end is for packs that failed after the last stored one.
    for packs in (*stored, PackRange(None, stop, stop)):
        for number in range(start, min(packs.start, stop)):
            if audit.packs[number] not in failed:
                return
            yield PackRange(None, number, number + 1)
        first = max(packs.start, start)
        last = min(packs.stop, stop)
        if first < last:
            yield PackRange(packs.file, first, last)
        start = max(packs.stop, start)


def read_ahead(audit: PlannedAudit) -> int:
    """Returns how many packs to read ahead."""
    pack_trials = audit.packs[0][1] + 1 if audit.packs else 1
    return max(_SCORES_AHEAD // (pack_trials * len(audit.horizons)), READERS // 4)


def read_in_order(
    run: RunDirectory,
    read: Callable[[PackRange], ConsumedPack],
    ranges: Iterable[PackRange],
    most_packs: int,
    recent: Callable[[PackRange], ConsumedPack | None] = lambda packs: None,
) -> Iterator[ConsumedPack]:
    """Yields the packs of each range, in order, while threads read the next ones.

    Args:
        run: the run directory; few threads are enough if it is local.
        read: reads a range, in any thread.
        ranges: the ranges to read.
        most_packs: number of packs to read ahead.
        recent: returns packs that are in memory; None for packs to be read.
    """
    readers = _readers(_LOCAL_READERS if run.local else READERS)
    waiting = collections.deque[tuple[int, Future[ConsumedPack]]]()
    packs_ahead = 0
    for packs in ranges:
        size = packs.stop - packs.start
        in_memory = recent(packs)
        if in_memory is None:
            coming = readers.submit(read, packs)
        else:
            coming = Future()
            coming.set_result(in_memory)
        waiting.append((size, coming))
        packs_ahead += size
        while waiting and (len(waiting) >= MOST_READS or packs_ahead > most_packs):
            size, coming = waiting.popleft()
            packs_ahead -= size
            yield coming.result()
    for _, coming in waiting:
        yield coming.result()
    pa.default_memory_pool().release_unused()  # which may be half a gigabyte


@functools.cache
def _readers(number: int) -> ThreadPoolExecutor:
    """Returns the process's `number` threads for reading; they are started on first use."""
    return ThreadPoolExecutor(number, thread_name_prefix="replay")


class RecentPacks:
    """The latest packs in memory, `limit` bytes at most; the run directory has all of them, too."""

    def __init__(self, limit: int = 2**24) -> None:
        """Has no packs yet. `limit` is in bytes."""
        self._limit = limit
        self._bytes = 0
        # Packs by owner and first trial, the oldest pack first.
        self._packs = collections.OrderedDict[tuple[object, int], PackScores]()

    def put(self, owner: object, pack: PackScores) -> None:
        """Keeps a pack, and drops the oldest packs if memory exceeds the limit.

        Args:
            owner: the trials that the pack belongs to.
            pack: the scores of the pack.
        """
        self._packs[owner, pack.first] = pack
        self._bytes += pack.nbytes
        while self._bytes > self._limit:
            _, oldest = self._packs.popitem(last=False)
            self._bytes -= oldest.nbytes

    def take(self, owner: object, first: int) -> PackScores | None:
        """Removes and returns the pack that begins with trial `first`; None if it was dropped."""
        pack = self._packs.pop((owner, first), None)
        if pack is not None:
            self._bytes -= pack.nbytes
        return pack
