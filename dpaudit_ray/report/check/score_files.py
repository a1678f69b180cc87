"""Score files held against their plan: names, schema, trials, steps, secret bits and digests.

Files are read by several threads, each of which keeps what it finds and nothing of what it read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

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


def check_scores(run: RunDirectory, plan: Plan, findings: Findings) -> list[int]:
    """Reads all files of scores; returns the audits whose files estimates may rest on."""
    good: list[int] = []
    undigested: list[Difference] = []
    digested = False
    for index, audit in enumerate(plan.audits):
        before, scores = findings.different, _AuditScores(run, plan.seed, audit)
        files = run.score_files(audit.id)
        chosen = compaction.resolved(audit.packs, files)
        starts, ends = ({pack[end] for pack in audit.packs} for end in (0, 1))
        foreign = {file for file in files if file[0] not in starts or file[1] not in ends}
        for file in sorted(foreign):
            findings.add([scores.difference(file, "", "a file", "of any pack of its plan")])
        with ThreadPoolExecutor(_READERS, thread_name_prefix="check") as readers:
            for read in readers.map(scores.read, chosen):
                findings.add(read.differences)
                findings.derived["packs"] += read.packs
                findings.derived["trials"] += read.trials
                digested |= read.digest is True
                if read.digest is False:
                    missing = "no SHA-256", "one as other files have"
                    undigested.append(scores.difference(read.file, "", *missing))
        for file in sorted(files - foreign - {segment.file for segment in chosen}):
            findings.add(scores.compared_twice(file, chosen))
        if findings.different == before:
            good.append(index)
    if digested:
        findings.add(undigested)
    elif undigested:
        findings.cannot(
            f"that {len(undigested):,} score files are as they were written",
            "they were written before they had a digest, and are known by what they give only",
        )
    return good


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


@dataclasses.dataclass(frozen=True)
class _AuditScores:
    """The score files of one audit."""

    run: RunDirectory
    seed: int
    audit: PlannedAudit

    def difference(self, file: Bounds, place: str, stored: str, derived: str = "") -> Difference:
        name = f"scores/{self.audit.id}/{file[0]}-{file[1]}.parquet"
        return Difference(name, self.audit.label, place, stored, derived)

    def read(self, segment: Stretch) -> _Read:
        assert segment.file is not None
        scores = self._scores(segment.file)
        if isinstance(scores, Difference):
            return _Read(segment.file, [scores])
        packs = self.audit.packs[segment.start : segment.stop]
        trials = packs[-1][1] - packs[0][0] + 1
        differences = list(self._differences(segment.file, scores))
        return _Read(segment.file, differences, len(packs), trials, bool(scores.stated))

    def _scores(self, file: Bounds) -> PackScores | Difference:
        """The content of a file, or why it cannot be read."""
        try:
            return self.run.read_scores(self.audit.id, *file, len(self.audit.horizons))
        except DamagedScoresError as error:
            return self.difference(file, "", first_line(error.__cause__ or error))

    def _differences(self, file: Bounds, scores: PackScores) -> Iterator[Difference]:
        """Where the content of a file is not what the plan commits to, or what was written."""
        steps = self.audit.horizons
        if scores.steps != steps:
            yield self.difference(file, "steps", repr(scores.steps), repr(steps))
        bits = seeds.bits(self.seed, self.audit.fingerprint, *file)
        wrong = np.flatnonzero(scores.members != bits)
        for row in wrong[:_NAMED].tolist():
            stored = f"member {bool(scores.members[row])}"
            yield self.difference(file, f"trial {file[0] + row}", stored, str(bits[row]))
        if len(wrong) > _NAMED:
            yield self.difference(file, "", f"{len(wrong) - _NAMED} more other bits")
        if scores.stated and scores.stated != (digest := scores.digest(self.audit.id)):
            stored = f"scores of SHA-256 {digest[:16]}..."
            yield self.difference(file, "", stored, f"{scores.stated[:16]}..., as written")

    def compared_twice(self, file: Bounds, chosen: Iterable[Stretch]) -> Iterator[Difference]:
        """How a file differs from those that hold its packs too, as a crash may leave them."""
        scores = self._scores(file)
        if isinstance(scores, Difference):
            yield scores
            return
        for segment in chosen:
            low = max(self.audit.packs[segment.start][0], file[0])
            high = min(self.audit.packs[segment.stop - 1][1], file[1])
            if low > high or segment.file is None:
                continue
            other = self._scores(segment.file)
            if isinstance(other, Difference):
                continue
            if difference := other.part(low, high).difference(scores.part(low, high)):
                yield self.difference(file, "", f"trials {low}-{high} twice: this one {difference}")
