"""Score files held against their plan: names, schema, trials, steps, secret bits and digests.

Files are read by several threads, each of which keeps what it finds and nothing of what it read.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from ... import seeds
from ...errors import DamagedScoresError, first_line
from ...plan import gathering
from ...plan.gathering import Bounds, Stretch
from ...plan.model import Plan, PlannedAudit
from ...storage.run_directory import RunDirectory
from ...storage.scores import PackScores
from .findings import Difference, Findings

_READERS = 8  # of files that may hold 2**20 scores each
_NAMED = 20  # trials of one file


@dataclasses.dataclass(frozen=True)
class _Read:
    """Of one file: what differs, its packs and trials, and whether it states a digest.

    That is None for a file that cannot be read.
    """

    file: Bounds
    differences: list[Difference]
    packs: int
    trials: int
    digest: bool | None


class Scores:
    """The score files of a run."""

    def __init__(self, run: RunDirectory, plan: Plan, found: Findings) -> None:
        self._run, self._plan, self._found = run, plan, found
        self._digested = self._undigested = 0
        self._without: list[Difference] = []  # a digest; the first of them

    def check(self, index: int) -> bool:
        """Reads all files of an audit; whether they are what its estimates may rest on."""
        audit = self._plan.audits[index]
        files = self._run.score_files(audit.id)
        chosen = gathering.resolved(audit.packs, files)
        starts, ends = ({pack[end] for pack in audit.packs} for end in (0, 1))
        foreign = {file for file in files if file[0] not in starts or file[1] not in ends}
        for file in sorted(foreign):
            self._found.differs(self._name(audit, file), "", "a file", "of any pack of its plan",
                                audit.label)  # fmt: skip
        wrong = len(foreign)
        for read in self._each(index, chosen):
            wrong += self._found.add(read.differences)
            self._found.derived["packs"] += read.packs
            self._found.derived["trials"] += read.trials
            self._count(index, read)
        twice = sorted(files - foreign - {each.file for each in chosen})
        wrong += self._found.add(each for file in twice for each in self._twin(audit, file, chosen))
        return wrong == 0

    def end(self) -> None:
        """Says what could not be told of all of them; of some, that is a difference."""
        if self._digested:
            self._found.add(self._without)
        elif self._undigested:
            self._found.cannot(
                f"that {self._undigested:,} score files are as they were written",
                "they were written before they had a digest, and are known by what they give only",
            )

    def _count(self, index: int, read: _Read) -> None:
        if read.digest is None:
            return
        self._digested += read.digest
        self._undigested += not read.digest
        if not read.digest and len(self._without) < _NAMED:
            audit = self._plan.audits[index]
            self._without.append(
                self._differs(audit, read.file, "", "no SHA-256", "one as other files have")
            )

    def _each(self, index: int, chosen: Iterable[Stretch]) -> Iterator[_Read]:
        with ThreadPoolExecutor(_READERS, thread_name_prefix="check") as readers:
            waiting: collections.deque[Future[_Read]] = collections.deque()
            for each in chosen:
                waiting.append(readers.submit(self._file, index, each))
                if len(waiting) > 4 * _READERS:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def _file(self, index: int, packs: Stretch) -> _Read:
        audit = self._plan.audits[index]
        assert packs.file is not None
        differences, scores = self._opened(audit, packs.file)
        if scores is None:
            return _Read(packs.file, differences, 0, 0, None)
        trials = audit.packs[packs.stop - 1][1] - audit.packs[packs.start][0] + 1
        differences += self._apart(audit, packs.file, scores)
        return _Read(packs.file, differences, packs.stop - packs.start, trials, bool(scores.stated))

    def _opened(
        self, audit: PlannedAudit, file: Bounds
    ) -> tuple[list[Difference], PackScores | None]:
        try:
            return [], self._run.read_scores(audit.id, *file, len(audit.horizons))
        except DamagedScoresError as error:
            return [self._differs(audit, file, "", first_line(error.__cause__ or error))], None

    def _apart(self, audit: PlannedAudit, file: Bounds, scores: PackScores) -> list[Difference]:
        """Where the content of a file is not what the plan commits to, or what was written."""
        found: list[Difference] = []
        if scores.steps != audit.horizons:
            found.append(
                self._differs(audit, file, "steps", repr(scores.steps), repr(audit.horizons))
            )
        bits = seeds.bits(self._plan.seed, audit.fingerprint, *file)
        wrong = np.flatnonzero(scores.members != bits)
        for row in wrong[:_NAMED].tolist():
            there = f"member {bool(scores.members[row])}"
            found.append(
                self._differs(audit, file, f"trial {file[0] + row}", there, str(bits[row]))
            )
        if len(wrong) > _NAMED:
            found.append(self._differs(audit, file, "", f"{len(wrong) - _NAMED} more other bits"))
        if scores.stated and scores.stated != (digest := scores.digest(audit.id)):
            what = f"scores of SHA-256 {digest[:16]}..."
            found.append(
                self._differs(audit, file, "", what, f"{scores.stated[:16]}..., as written")
            )
        return found

    def _twin(
        self, audit: PlannedAudit, file: Bounds, chosen: Iterable[Stretch]
    ) -> list[Difference]:
        """How a file differs from those that hold its packs too, as a crash may leave them."""
        found, scores = self._opened(audit, file)
        for each in chosen:
            first, last = (audit.packs[number] for number in (each.start, each.stop - 1))
            low, high = max(first[0], file[0]), min(last[1], file[1])
            if scores is None or low > high or each.file is None:
                continue
            _, other = self._opened(audit, each.file)
            if other is None:
                continue
            if difference := other.part(low, high).difference(scores.part(low, high)):
                what = f"trials {low}-{high} twice: this one {difference}"
                found.append(self._differs(audit, file, "", what))
        return found

    def _differs(
        self, audit: PlannedAudit, file: Bounds, place: str, stored: str, derived: str = ""
    ) -> Difference:
        return Difference(self._name(audit, file), audit.label, place, stored, derived)

    @staticmethod
    def _name(audit: PlannedAudit, file: Bounds) -> str:
        return f"scores/{audit.id}/{file[0]}-{file[1]}.parquet"
