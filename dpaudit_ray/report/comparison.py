"""Two runs side by side, for `dpaudit compare`: what was asked, what was found, what differs.

A larger lower bound says little: audits differ where the intervals of their rates of right guesses
do not meet, or where what needs no trials is another number.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

from ..plan.open_run import differences
from ..plan.score_stream import Trials
from . import verdict
from .measures import HitRate
from .quote import Quote
from .tables import Run, overview
from .verdict import Verdict

_SAME = 1e-9  # relative: an exact ε of another machine is the same


@dataclasses.dataclass(frozen=True)
class Change:
    """A place where two sweeps differ: a dotted key, and its values as in YAML; None: not set."""

    key: str
    old: Any
    new: Any


@dataclasses.dataclass(frozen=True)
class Side:
    """One audit of one run: its entry in `tables.overview`, verdict, quote, and right guesses."""

    entry: dict[str, Any]
    verdict: Verdict
    quote: Quote
    rate: float = math.nan  # NaN, like its ends at the audit's confidence, if guesses are dependent
    low: float = math.nan
    high: float = math.nan

    @property
    def label(self) -> str:
        return str(self.entry["label"])


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two audits that belong together, and what of them was asked otherwise."""

    left: Side
    right: Side
    changes: tuple[Change, ...]

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.left, self.right

    @property
    def differs(self) -> bool | None:
        """Whether what they found differs; None where nothing with two ends tells."""
        if self.left.quote.exact and self.right.quote.exact:
            first, second = (float(side.entry["epsilon_lower"]) for side in self.sides)
            return not math.isclose(first, second, rel_tol=_SAME)
        if math.isnan(self.left.rate) or math.isnan(self.right.rate):
            return None
        return self.left.high < self.right.low or self.right.high < self.left.low


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two runs. `code` says in words what computed them; audits without a partner are by label."""

    locations: tuple[str, str]
    verdicts: tuple[Verdict, Verdict]
    changes: tuple[Change, ...]
    code: tuple[str, ...]
    pairs: tuple[Pair, ...]
    only: tuple[tuple[str, ...], tuple[str, ...]]


def compare(left: Run, right: Run) -> Comparison:
    """Puts two runs side by side; the right one is held against the left one."""
    runs = left, right
    (first, sides), (second, others) = map(_sides, runs)
    partners = _partners(left, right)
    paired = list(zip(*partners, strict=True))[:2] or [(), ()]
    alone = [
        tuple(audit.label for i, audit in enumerate(run.plan.audits) if i not in numbers)
        for run, numbers in zip(runs, paired, strict=True)
    ]
    return Comparison(
        locations=(left.directory.location, right.directory.location),
        verdicts=(first, second),
        changes=_changes(left.sweep.raw, right.sweep.raw),
        code=tuple(_changes_of_code(left, right)),
        pairs=tuple(Pair(sides[i], others[j], changes) for i, j, changes in partners),
        only=(alone[0], alone[1]),
    )


def _sides(run: Run) -> tuple[Verdict, list[Side]]:
    answer, sides = verdict.derived(run), []
    cells = zip(run.plan.audits, run.sweep.cells, answer.audits, overview(run), strict=True)
    for audit, cell, answered, entry in cells:
        rate = None
        if cell.mechanism.sampled and audit.independent:
            trials = Trials.joined(audit, run.prefix(audit))
            rate = HitRate.from_trials(trials, cell.audit.confidence)
        ends = () if rate is None else (rate.rate, rate.low, rate.high)
        sides.append(Side(entry, answered.verdict, answered.quote, *ends))
    return answer.verdict, sides


def _changes(old: Any, new: Any) -> tuple[Change, ...]:
    return tuple(Change(*place) for place in differences(old, new) if place[0] != "name")


def _changes_of_code(left: Run, right: Run) -> Iterator[str]:
    """What computed the last trials of each: versions, modules of the user's, machine, data."""
    old, new = (dataclasses.asdict(run.plan.code[-1]) for run in (left, right))
    for key, before, now in differences(old, new):
        yield f"{key} {before or 'none'!s:.60} -> {now or 'none'!s:.60}"
    if {file.sha256 for file in left.plan.data} != {file.sha256 for file in right.plan.data}:
        yield "the files that they read have other contents"


def _partners(left: Run, right: Run) -> list[tuple[int, int, tuple[Change, ...]]]:
    """Numbers of audits most alike, of one mechanism, first of one adversary; and what differs."""
    ranked, pairs, taken = [], dict[int, tuple[int, int, tuple[Change, ...]]](), set[int]()
    cells = (enumerate(run.sweep.cells) for run in (left, right))
    for (i, cell), (j, other) in itertools.product(*cells):
        if cell.mechanism.name == other.mechanism.name:
            changes = _changes(cell.identity(), other.identity())
            unlike = cell.adversary.name != other.adversary.name, len(changes)
            ranked.append((*unlike, i, j, changes))
    for *_, i, j, changes in sorted(ranked, key=lambda pair: pair[:4]):
        if i not in pairs and j not in taken:
            pairs[i] = i, j, changes
            taken.add(j)
    return [pairs[i] for i in sorted(pairs)]
