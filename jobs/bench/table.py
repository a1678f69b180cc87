"""Audits mechanisms of the bench, and writes what was found as a table."""

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

import dpaudit_ray as da
from jobs.audits import too_many

from .entry import VIOLATION, Entry

HEAD = (
    "| mechanism | source | claim | truth | certified | share | verdict | trials | seconds |",
    "| --- | --- | --- | ---: | ---: | ---: | --- | ---: | ---: |",
)


@dataclass(frozen=True)
class Row:
    """An audited mechanism.

    Attributes:
        name: of the mechanism.
        source: where it was published.
        claim: in words.
        truth: true ε; None if it is infinite.
        certified: lower bound on ε, at 95 %.
        share: certified of true ε, or of the bar where the truth is infinite; None without a bar.
        verdict: VIOLATION, CONSISTENT or INCONCLUSIVE.
        is_expected: whether the verdict is right.
        trials: number of trials.
        seconds: of the processor, learning and judging included.
    """

    name: str
    source: str
    claim: str
    truth: float | None
    certified: float
    share: float | None
    verdict: str
    is_expected: bool
    trials: int
    seconds: float

    @property
    def is_healthy(self) -> bool:
        """Whether the claim is true."""
        return self.is_expected == (self.verdict != VIOLATION)

    @property
    def line(self) -> str:
        """The row in Markdown."""
        truth = "∞" if self.truth is None else f"{self.truth:.4g}"
        share = "" if self.share is None else f"{self.share:.2f}"
        mark = "" if self.is_expected else " (wrong)"
        cells = (
            self.name,
            self.source,
            self.claim,
            truth,
            f"{self.certified:.3g}",
            share,
            self.verdict + mark,
            f"{self.trials:,}",
            f"{self.seconds:.0f}",
        )
        return f"| {' | '.join(cells)} |"


def audited(
    entry: Entry,
    trials: int | None = None,
    seed: int = 0,
) -> Row:
    """Audits a mechanism.

    Args:
        entry: the mechanism.
        trials: their number; None for that of the entry.
        seed: of secret bits and noise.
    """
    trials = trials or entry.trials
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        result = da.audit(
            entry.release,
            pairs=entry.pairs,
            claim=entry.claim,
            adversary={"name": "learned", **entry.options},
            trials=trials,
            delta=entry.delta,
            seed=seed,
            storage_path=folder,
        )
        verdict = str(result.verdict())
        certified = float(result.overview["quote"].item())
    is_infinite = math.isinf(entry.truth)
    return Row(
        name=entry.name,
        source=entry.source,
        claim=entry.claim.words,
        truth=None if is_infinite else entry.truth,
        certified=certified,
        share=None if math.isinf(entry.reachable) else certified / entry.reachable,
        verdict=verdict,
        is_expected=entry.is_expected(verdict),
        trials=trials,
        seconds=time.process_time() - began,
    )


def failures(rows: Sequence[Row]) -> list[str]:
    """Returns broken mechanisms without VIOLATION, and healthy ones with it if they are too many.

    Each healthy mechanism may be refuted in 5 % of audits. They are too many if that rate gave as
    many with a probability of less than 1 %.
    """
    wrong = [row for row in rows if not row.is_expected]
    missed = [row.name for row in wrong if row.verdict != VIOLATION]
    refuted = [row.name for row in wrong if row.verdict == VIOLATION]
    healthy = [row for row in rows if row.is_healthy]
    if too_many(len(refuted), len(healthy)):
        return missed + refuted
    return missed


def table(rows: Sequence[Row]) -> str:
    """Returns a table in Markdown: wrong verdicts first, then what is least reached."""

    def order(row: Row) -> tuple[bool, float]:
        return row.is_expected, math.inf if row.share is None else row.share

    lines = [row.line for row in sorted(rows, key=order)]
    return "\n".join([*HEAD, *lines])
