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
from ...plan import compaction
from ...plan.compaction import Bounds, Stretch
from ...plan.model import Plan, PlannedAudit
from ...storage.run_directory import RunDirectory
from ...storage.scores import PackScores
from .findings import Difference, Findings

_READERS = 8  # of files that may hold 2**20 scores each
_NAMED = 20  # trials of one file


@dataclasses.dataclass(frozen=True)
class _Read:
    """What one file has: differences, packs and trials, and whether it states a digest.

    That is None for a file that cannot be read.
    """

    file: Bounds
    differences: list[Difference]
    packs: int = 0
    trials: int = 0
    digest: bool | None = None


class ScoreFiles:
    """The score files of a run."""

    def __init__(self, run: RunDirectory, plan: Plan, findings: Findings) -> None:
        self._run, self._plan, self._findings = run, plan, findings
        self._digested = self._undigested = 0
        self._without: list[Difference] = []  # a digest; the first of them

    def check(self, index: int) -> bool:
        """Reads all files of an audit; whether they are what its estimates may rest on."""
        audit, before = self._plan.audits[index], self._findings.different
        files = self._run.score_files(audit.id)
        chosen = compaction.resolved(audit.packs, files)
        starts, ends = ({pack[end] for pack in audit.packs} for end in (0, 1))
        foreign = {file for file in files if file[0] not in starts or file[1] not in ends}
        for file in sorted(foreign):
            self._findings.differs(_name(audit, file), "", "a file", "of any pack of its plan",
                                   audit.label)  # fmt: skip
        for read in self._read_all(audit, chosen):
            self._findings.add(read.differences)
            self._findings.derived["packs"] += read.packs
            self._findings.derived["trials"] += read.trials
            self._digested += read.digest is True
            self._undigested += read.digest is False
            if read.digest is False and len(self._without) < _NAMED:
                self._without.append(
                    _difference(audit, read.file, "", "no SHA-256", "one as other files have")
                )
        for file in sorted(files - foreign - {segment.file for segment in chosen}):
            self._findings.add(self._compared_twice(audit, file, chosen))
        return self._findings.different == before

    def end(self) -> None:
        """Says where digests are missing; that is no difference where no file has one."""
        if self._digested:
            self._findings.add(self._without)
        elif self._undigested:
            self._findings.cannot(
                f"that {self._undigested:,} score files are as they were written",
                "they were written before they had a digest, and are known by what they give only",
            )

    def _read_all(self, audit: PlannedAudit, chosen: Iterable[Stretch]) -> Iterator[_Read]:
        with ThreadPoolExecutor(_READERS, thread_name_prefix="check") as readers:
            waiting: collections.deque[Future[_Read]] = collections.deque()
            for segment in chosen:
                waiting.append(readers.submit(self._read, audit, segment))
                if len(waiting) > 4 * _READERS:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def _read(self, audit: PlannedAudit, segment: Stretch) -> _Read:
        assert segment.file is not None
        scores = self._scores(audit, segment.file)
        if isinstance(scores, Difference):
            return _Read(segment.file, [scores])
        trials = audit.packs[segment.stop - 1][1] - audit.packs[segment.start][0] + 1
        differences = list(self._differences(audit, segment.file, scores))
        packs = segment.stop - segment.start
        return _Read(segment.file, differences, packs, trials, bool(scores.stated))

    def _scores(self, audit: PlannedAudit, file: Bounds) -> PackScores | Difference:
        """The content of a file, or why it cannot be read."""
        try:
            return self._run.read_scores(audit.id, *file, len(audit.horizons))
        except DamagedScoresError as error:
            return _difference(audit, file, "", first_line(error.__cause__ or error))

    def _differences(
        self, audit: PlannedAudit, file: Bounds, scores: PackScores
    ) -> Iterator[Difference]:
        """Where the content of a file is not what the plan commits to, or what was written."""
        if scores.steps != audit.horizons:
            yield _difference(audit, file, "steps", repr(scores.steps), repr(audit.horizons))
        bits = seeds.bits(self._plan.seed, audit.fingerprint, *file)
        wrong = np.flatnonzero(scores.members != bits)
        for row in wrong[:_NAMED].tolist():
            stored = f"member {bool(scores.members[row])}"
            yield _difference(audit, file, f"trial {file[0] + row}", stored, str(bits[row]))
        if len(wrong) > _NAMED:
            yield _difference(audit, file, "", f"{len(wrong) - _NAMED} more other bits")
        if scores.stated and scores.stated != (digest := scores.digest(audit.id)):
            stored = f"scores of SHA-256 {digest[:16]}..."
            yield _difference(audit, file, "", stored, f"{scores.stated[:16]}..., as written")

    def _compared_twice(
        self, audit: PlannedAudit, file: Bounds, chosen: Iterable[Stretch]
    ) -> Iterator[Difference]:
        """How a file differs from those that hold its packs too, as a crash may leave them."""
        scores = self._scores(audit, file)
        if isinstance(scores, Difference):
            yield scores
            return
        for segment in chosen:
            low = max(audit.packs[segment.start][0], file[0])
            high = min(audit.packs[segment.stop - 1][1], file[1])
            if low > high or segment.file is None:
                continue
            other = self._scores(audit, segment.file)
            if isinstance(other, Difference):
                continue
            if difference := other.part(low, high).difference(scores.part(low, high)):
                stored = f"trials {low}-{high} twice: this one {difference}"
                yield _difference(audit, file, "", stored)


def _difference(
    audit: PlannedAudit, file: Bounds, place: str, stored: str, derived: str = ""
) -> Difference:
    return Difference(_name(audit, file), audit.label, place, stored, derived)


def _name(audit: PlannedAudit, file: Bounds) -> str:
    return f"scores/{audit.id}/{file[0]}-{file[1]}.parquet"
