"""`dpaudit compare`: two runs side by side: what was asked, what was found, and what differs.

A lower bound is no estimate: that one is larger says little. What has two ends is the rate of right
guesses, so audits are said to differ only where its intervals do not meet, or where what needs no
trials is another number.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from ..plan import resume
from ..plan.model import PlannedAudit
from ..plan.prefix import Trials
from ..plan.provenance import Code
from . import verdict
from .hit_rate import HitRate
from .tables import Run, overview
from .verdict import Verdict

_SAME = 1e-9  # relative: an exact ε of another machine is the same


@dataclasses.dataclass(frozen=True)
class Change:
    """Where two sweeps differ: a dotted key, and what it is in each, as in YAML; None: not set."""

    key: str
    old: Any
    new: Any


@dataclasses.dataclass(frozen=True)
class Side:
    """One audit of one run: its entry in `tables.overview`, its verdict, and its right guesses.

    `rate` with its interval, `low` to `high` at the audit's confidence, is NaN where trials are not
    independent, where there are none, or before the first guess.
    """

    entry: dict[str, Any]
    verdict: Verdict
    exact: bool
    rate: float = math.nan
    low: float = math.nan
    high: float = math.nan

    @property
    def label(self) -> str:
        """What the audit is called in its run."""
        return str(self.entry["label"])


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two audits that belong together, and what of them was asked otherwise."""

    one: Side
    other: Side
    changes: tuple[Change, ...]

    @property
    def differs(self) -> bool | None:
        """Whether what they found differs; None where nothing with two ends tells."""
        if self.one.exact and self.other.exact:
            first, second = (float(each.entry["epsilon_lower"]) for each in (self.one, self.other))
            if math.isnan(first) or math.isnan(second):
                return None
            return abs(first - second) > _SAME * max(abs(first), abs(second))
        if math.isnan(self.one.rate) or math.isnan(self.other.rate):
            return None
        return self.one.high < self.other.low or self.other.high < self.one.low


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two runs. `code` says in words what computed them; audits without a partner are by label."""

    locations: tuple[str, str]
    verdicts: tuple[Verdict, Verdict]
    changes: tuple[Change, ...]
    code: tuple[str, ...]
    pairs: tuple[Pair, ...]
    only: tuple[tuple[str, ...], tuple[str, ...]]


def of(one: Run, other: Run) -> Comparison:
    """Puts two runs side by side; `one` is what the other is held against."""
    left, right = _sides(one), _sides(other)
    matched = _matched(one, other)
    pairs = tuple(
        Pair(left[1][first], right[1][second], tuple(_changes_of_cells(one, other, first, second)))
        for first, second in sorted(matched.items())
    )
    rest = [side for index, side in enumerate(left[1]) if index not in matched]
    others = [side for index, side in enumerate(right[1]) if index not in matched.values()]
    return Comparison(
        (one.directory.location, other.directory.location),
        (left[0], right[0]),
        tuple(_changes(one.sweep.raw, other.sweep.raw)),
        tuple(_other_code(one, other)),
        pairs,
        (tuple(side.label for side in rest), tuple(side.label for side in others)),
    )


def _sides(run: Run) -> tuple[Verdict, list[Side]]:
    found = verdict.of(run)
    sampled, exact = iter(found.audits), iter(found.exact)
    sides = []
    for audit, cell, entry in zip(run.plan.audits, run.sweep.cells, overview(run), strict=True):
        judged = next(sampled) if cell.mechanism.sampled else next(exact)
        rate = _hits(run, audit) if cell.mechanism.sampled and audit.independent else None
        ends = (math.nan,) * 3 if rate is None else (rate.rate, rate.low, rate.high)
        sides.append(Side(entry, judged.verdict, not cell.mechanism.sampled, *ends))
    return found.verdict, sides


def _hits(run: Run, audit: PlannedAudit) -> HitRate | None:
    trials = Trials.of(audit, run.prefix(audit))
    return HitRate.of(trials, run.settings(audit).confidence, math.nan)


# What differs ------------------------------------------------------------------------------------


def _changes(old: Any, new: Any) -> Iterator[Change]:
    return (Change(*each) for each in resume.differences(old, new) if each[0] != "name")


def _changes_of_cells(one: Run, other: Run, first: int, second: int) -> Iterator[Change]:
    return _changes(*(
        run.sweep.cells[index].identity() for run, index in ((one, first), (other, second))
    ))  # fmt: skip


def _other_code(one: Run, other: Run) -> Iterator[str]:
    """What computed the last trials of each: versions, modules of the user's, machine, data."""
    codes = [run.plan.code[-1] if run.plan.code else None for run in (one, other)]
    if codes[0] is None or codes[1] is None:
        if codes[0] is not codes[1]:
            yield "it was not recorded by which code one of them was run"
    else:
        yield from _apart(codes[0], codes[1])
    digests = [{file.sha256 for file in run.plan.data or ()} for run in (one, other)]
    if digests[0] != digests[1]:
        yield "the files that they read have other contents"


def _apart(old: Code, new: Code) -> Iterator[str]:
    for name in sorted(old.versions.keys() | new.versions.keys()):
        before, now = (code.versions.get(name, "none") for code in (old, new))
        if before != now:
            yield f"{name} {before} -> {now}"
    for name in sorted(old.modules.keys() | new.modules.keys()):
        before, now = (code.modules.get(name, "none")[:12] for code in (old, new))
        if before != now:
            yield f"{name} (SHA-256) {before} -> {now}"
    if old.device != new.device:
        yield f"{old.device} -> {new.device}"


# What belongs together ---------------------------------------------------------------------------


def _matched(one: Run, other: Run) -> dict[int, int]:
    """Audits of the one by audits of the other: the same ones, else those that share most.

    Of the same label, if that is of one audit only; then of the same mechanism and adversary by
    name, those with the fewest differences first.
    """
    labels = [[audit.label for audit in run.plan.audits] for run in (one, other)]
    found = {
        index: labels[1].index(label)
        for index, label in enumerate(labels[0])
        if labels[0].count(label) == labels[1].count(label) == 1 and _alike(one, other, label)
    }
    apart = sorted(
        (sum(1 for _ in _changes_of_cells(one, other, first, second)), first, second)
        for first in range(len(labels[0]))
        for second in range(len(labels[1]))
        if _names(one, first) == _names(other, second)
    )
    for _, first, second in apart:
        if first not in found and second not in found.values():
            found[first] = second
    return found


def _alike(one: Run, other: Run, label: str) -> bool:
    """Whether the audits of this label are of the same kind."""
    places = [
        next(index for index, audit in enumerate(run.plan.audits) if audit.label == label)
        for run in (one, other)
    ]
    return _names(one, places[0]) == _names(other, places[1])


def _names(run: Run, index: int) -> tuple[str, str]:
    cell = run.sweep.cells[index]
    return cell.mechanism.name, cell.adversary.name
