"""The prefix of an audit: its trials, in order, that all that is said of it rests on.

A pack belongs to it once its scores are stored, or its training has raised: bits are committed
before training, so a trial that failed, alone or with its pack, counts as a miss and is not left
out. The prefix ends at the first pack that is neither, or with the trials that were enough by
`stop_when`. Packs of one file come together: who looks at bounds in between uses `up_to_looks`.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from ..errors import RunDirectoryError
from ..stats.base import Estimator, alike_in_a_row
from ..stats.claim_verdict import ClaimTest, DeclaredTest, RunTest
from ..stats.growth import Growing
from ..stats.guess_count_bound import GuessCounter
from ..storage.run_directory import RunDirectory
from ..storage.scores import PackScores, score_frame
from ..sweep.spec import Sweep
from . import compaction, outcomes
from .compaction import Stretch
from .model import Plan, PlannedAudit

READERS = 32  # an object store takes tens of milliseconds to answer, whoever asks
_NEAR = 3  # of a local folder: more would take the processor from the one that comes first
UNDERWAY = 2 * READERS
_VALUES = 2**21  # scores that are read ahead; a file of them takes ten times their bytes to read


@dataclasses.dataclass(frozen=True)
class MissedPack:
    """Trials first..first+n-1, all of which failed: `members` bool [n], and no scores."""

    first: int
    members: npt.NDArray[np.bool_]

    @property
    def last(self) -> int:
        return self.first + len(self.members) - 1

    @property
    def lost(self) -> npt.NDArray[np.bool_]:
        """Which trials were missed, bool [n]: all."""
        return np.ones(len(self.members), dtype=np.bool_)

    def part(self, first: int, last: int) -> MissedPack:
        return MissedPack(first, self.members[first - self.first : last - self.first + 1])


ConsumedPack = PackScores | MissedPack


def prefix(run: RunDirectory, sweep: Sweep, plan: Plan, index: int) -> Iterator[ConsumedPack]:
    """The prefix of an audit, several packs at once. Raises RunDirectoryError for damage."""
    audit = plan.audits[index]
    recorded = (failure.pack for failure in outcomes.recorded(run, plan))
    given_up = {(pack.first, pack.last) for pack in recorded if pack.audit == index}
    end = outcomes.decided(run, sweep, plan).get(index, audit.trials)
    there = compaction.prefix(audit, compaction.stored(run, audit), given_up, end=end)
    read = functools.partial(read_stretch, run, plan, index)
    return in_order(run, read, there, read_ahead(audit))


def read_stretch(run: RunDirectory, plan: Plan, index: int, packs: Stretch) -> ConsumedPack:
    """Packs that follow each other, whose bits are those that the plan commits to."""
    audit = plan.audits[index]
    first, last = compaction.span(audit, [packs])
    bits = audit.bits(plan.seed, first, last)
    if packs.file is None:
        return MissedPack(first, bits)
    try:
        scores = run.read_scores(audit.id, *packs.file, len(audit.horizons))
    except RunDirectoryError:
        files = run.score_files(audit.id)  # somebody may gather packs meanwhile
        moved = next((file for file in files if file[0] <= first and last <= file[1]), None)
        if moved is None or packs.file in files:
            raise
        scores = run.read_scores(audit.id, *moved, len(audit.horizons))
    scores = scores.part(first, last)
    if scores.steps != audit.horizons or not np.array_equal(scores.members, bits):
        raise RunDirectoryError(
            f"{run.location}/scores/{audit.id}/{packs.file[0]}-{packs.file[1]}.parquet does not "
            "have the bits or steps of this plan; delete it to have its trials run again"
        )
    return scores


def stored_scores(run: RunDirectory, plan: Plan, index: int) -> pd.DataFrame:
    """All finished trials of an audit, those behind a gap too, as the columns of a score file."""
    audit = plan.audits[index]
    read = functools.partial(read_stretch, run, plan, index)
    packs = in_order(run, read, compaction.stored(run, audit), read_ahead(audit))
    return score_frame(audit.id, (pack for pack in packs if isinstance(pack, PackScores)))


def in_order(
    run: RunDirectory,
    read: Callable[[Stretch], ConsumedPack],
    packs: Iterable[Stretch],
    most: int,
    kept: Callable[[Stretch], ConsumedPack | None] = lambda stretch: None,
) -> Iterator[ConsumedPack]:
    """What `kept` or else `read` gives for each, in order; threads read `most` packs ahead."""
    waiting = collections.deque[tuple[int, Future[ConsumedPack]]]()
    readers, ahead = _readers(_NEAR if run.local else READERS), 0
    for stretch in packs:
        size = stretch.stop - stretch.start
        if (pack := kept(stretch)) is None:
            waiting.append((size, readers.submit(read, stretch)))
        else:
            waiting.append((size, Future()))
            waiting[-1][1].set_result(pack)
        ahead += size
        while waiting and (len(waiting) >= UNDERWAY or ahead > most):
            size, coming = waiting.popleft()
            ahead -= size
            yield coming.result()
    for _, coming in waiting:
        yield coming.result()
    pa.default_memory_pool().release_unused()  # which may be half a gigabyte


class RecentPacks:
    """The latest `limit` bytes of packs in memory, by `owner`; all are in the run directory."""

    def __init__(self, limit: int = 2**24) -> None:
        self._limit, self._bytes = limit, 0
        self._packs = collections.OrderedDict[tuple[object, int], PackScores]()

    def put(self, owner: object, pack: PackScores) -> None:
        """Keeps a pack, and drops the oldest ones if that is too much."""
        self._packs[owner, pack.first] = pack
        self._bytes += pack.nbytes
        while self._bytes > self._limit:
            self._bytes -= self._packs.popitem(last=False)[1].nbytes

    def take(self, owner: object, first: int) -> PackScores | None:
        pack = self._packs.pop((owner, first), None)
        self._bytes -= 0 if pack is None else pack.nbytes
        return pack


@functools.cache
def _readers(number: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(number, thread_name_prefix="replay")


def read_ahead(audit: PlannedAudit) -> int:
    """How many packs to read ahead."""
    size = audit.packs[0][1] + 1 if audit.packs else 1
    return max(_VALUES // (size * len(audit.horizons)), READERS // 4)


def up_to_looks(
    audit: PlannedAudit, packs: Iterable[ConsumedPack], due: Callable[[], int]
) -> Iterator[ConsumedPack]:
    """The same trials, cut where a pack ends and `due()` trials, asked after each part, are in."""
    for pack in packs:
        first = pack.first
        while first <= pack.last:
            end = audit.packs[compaction.number(audit, max(due() - 1, first))][1]
            yield pack.part(first, min(end, pack.last))
            first = end + 1


def feed(
    state: Estimator | Growing | ClaimTest | RunTest | GuessCounter | DeclaredTest,
    pack: ConsumedPack,
    column: int = -1,
) -> None:
    """Folds a pack into `state`, in the order of its trials, by scores at step number `column`."""
    if isinstance(pack, MissedPack):
        state.miss(pack.members)
    elif not pack.missed:
        state.fold(pack.scores[:, column], pack.members)
    else:
        for rows, missed in alike_in_a_row(pack.lost):
            if missed:
                state.miss(pack.members[rows])
            else:
                state.fold(pack.scores[rows, column], pack.members[rows])


@dataclasses.dataclass(frozen=True)
class Trials:
    """A whole prefix: `members` bool [n], `scores` float64 [n, steps], `missed` bool [n]."""

    steps: tuple[int, ...]
    members: npt.NDArray[np.bool_]
    scores: npt.NDArray[np.float64]
    missed: npt.NDArray[np.bool_]  # these have NaN at every step
    utility: Mapping[str, npt.NDArray[np.float64]]  # what was measured beside, like `scores`

    @classmethod
    def joined(cls, audit: PlannedAudit, packs: Iterable[ConsumedPack]) -> Trials:
        """Puts the packs of a prefix together."""
        n = audit.packs[-1][1] + 1 if audit.packs else 0
        k, reached = len(audit.horizons), 0
        members, missed = np.zeros((2, n), dtype=np.bool_)
        scores = np.full((n, k), math.nan)
        utility: dict[str, npt.NDArray[np.float64]] = {}
        for pack in packs:
            here = slice(pack.first, pack.last + 1)
            members[here], missed[here] = pack.members, pack.lost
            if isinstance(pack, PackScores):
                scores[here] = pack.scores
                for name, values in pack.utility.items():
                    utility.setdefault(name, np.full((n, k), math.nan))[here] = values
            reached = pack.last + 1
        return cls(audit.horizons, members, scores, missed, utility)._of(slice(reached))

    @property
    def shown(self) -> Trials:
        """Without those that were missed."""
        return self._of(~self.missed) if self.missed.any() else self

    def first(self, number: int) -> Trials:
        return self._of(slice(number))

    def _of(self, rows: slice | npt.NDArray[np.bool_]) -> Trials:
        utility = {name: values[rows] for name, values in self.utility.items()}
        members, scores = self.members[rows], self.scores[rows]
        return Trials(self.steps, members, scores, self.missed[rows], utility)

    def with_errors(self) -> npt.NDArray[np.float64]:
        """Scores at the last step, float64 [n]; missed trials err: "out" highest, "in" lowest."""
        last = self.scores[:, -1].copy()
        if self.missed.any():
            finite = last[np.isfinite(last)]
            low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
            errors = np.nextafter(low, -np.inf), np.nextafter(high, np.inf)
            last[self.missed] = np.where(self.members[self.missed], *errors)
        return last
