"""Two runs side by side, for `dpaudit compare`: their settings, results, and differences.

A larger lower bound alone means little. Audits differ if the intervals of their shares of correct
guesses do not overlap, or if an exact ε is another number.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ..plan.open_run import differences
from . import verdict
from .measures import HitRate
from .quote import Quote
from .tables import Run, overview
from .verdict import Verdict

_SAME = 1e-9  # relative: an exact ε of another machine is the same


@dataclass(frozen=True)
class Change:
    """A setting of two sweeps that differs: a dotted key, and its values as in YAML, or None."""

    key: str
    old: Any
    new: Any


Changes = tuple[Change, ...]


@dataclass(frozen=True)
class Side:
    """An audit of a run that is compared with one of another run.

    Attributes:
        entry: the audit's entry in `tables.overview`.
        verdict: the audit's verdict.
        quote: the audit's quote.
        rate: share of correct guesses; NaN, like `low` and `high`, if guesses are dependent.
        low: lower end of the rate's interval, at the audit's confidence.
        high: upper end of that interval.
    """

    entry: dict[str, Any]
    verdict: Verdict
    quote: Quote
    rate: float
    low: float
    high: float

    @property
    def label(self) -> str:
        """The audit's label."""
        return str(self.entry["label"])


@dataclass(frozen=True)
class Pair:
    """Two audits that are compared, and the settings that differ."""

    left: Side
    right: Side
    changes: Changes

    @property
    def sides(self) -> tuple[Side, Side]:
        """Both audits."""
        return self.left, self.right

    @property
    def differs(self) -> bool | None:
        """Whether their results differ; None without intervals or exact ε on both sides."""
        if self.left.quote.exact and self.right.quote.exact:
            left_epsilon = self.left.entry["epsilon_lower"]
            right_epsilon = self.right.entry["epsilon_lower"]
            return not math.isclose(left_epsilon, right_epsilon, rel_tol=_SAME)
        if math.isnan(self.left.rate) or math.isnan(self.right.rate):
            return None
        return self.left.high < self.right.low or self.right.high < self.left.low


@dataclass(frozen=True)
class Comparison:
    """Two runs, left and right.

    Attributes:
        locations: addresses of the run directories.
        verdicts: verdicts on the runs.
        changes: settings that differ.
        code: sentences on the code, machine and data that differ.
        pairs: audits that are compared.
        only: labels of audits that have no partner in the other run.
    """

    locations: tuple[str, str]
    verdicts: tuple[Verdict, Verdict]
    changes: Changes
    code: tuple[str, ...]
    pairs: tuple[Pair, ...]
    only: tuple[tuple[str, ...], tuple[str, ...]]


def compare(left: Run, right: Run) -> Comparison:
    """Compares two runs; the right one is the newer in the words of the result."""
    left_verdict, left_sides = _sides(left)
    right_verdict, right_sides = _sides(right)
    partners = _partners(left, right)
    pairs = tuple(Pair(left_sides[i], right_sides[j], changes) for i, j, changes in partners)
    return Comparison(
        locations=(left.directory.location, right.directory.location),
        verdicts=(left_verdict, right_verdict),
        changes=_changes(left.sweep.raw, right.sweep.raw),
        code=tuple(_changes_of_code(left, right)),
        pairs=pairs,
        only=(
            _labels_without(left_sides, [pair.left for pair in pairs]),
            _labels_without(right_sides, [pair.right for pair in pairs]),
        ),
    )


def _labels_without(
    sides: list[Side],
    paired: list[Side],
) -> tuple[str, ...]:
    """Returns the labels of audits that have no partner in the other run."""
    labels = {side.label for side in paired}
    return tuple(side.label for side in sides if side.label not in labels)


def _sides(run: Run) -> tuple[Verdict, list[Side]]:
    """Returns the verdict on a run, and its audits."""
    answer = verdict.current(run)
    sides = []
    audits = zip(run.pairs, answer.audits, overview(run), strict=True)
    for (audit, cell), answered, entry in audits:
        rates = (math.nan,) * 3
        if cell.sampled and audit.independent:
            hits = HitRate.from_trials(run.trials(audit), cell.audit.confidence)
            if hits is not None:
                rates = (hits.rate, hits.low, hits.high)
        sides.append(Side(entry, answered.verdict, answered.quote, *rates))
    return answer.verdict, sides


def _changes(old: Any, new: Any) -> Changes:
    """Returns the settings that differ, by dotted key, apart from names."""
    return tuple(Change(*change) for change in differences(old, new) if change[0] != "name")


def _changes_of_code(left: Run, right: Run) -> Iterator[str]:
    """Yields differences in versions, user's modules, machine and data of the last trials."""
    old = asdict(left.plan.code[-1])
    new = asdict(right.plan.code[-1])
    for key, before, now in differences(old, new):
        yield f"{key} {before or 'none'!s:.60} -> {now or 'none'!s:.60}"
    old_data = {file.sha256 for file in left.plan.data}
    if old_data != {file.sha256 for file in right.plan.data}:
        yield "the contents of their input files differ"


def _partners(
    left: Run,
    right: Run,
) -> list[tuple[int, int, Changes]]:
    """Pairs audits of one mechanism, the most alike first; prefers the same adversary.

    Returns:
        Numbers of both audits, and the settings that differ, in the order of the left run.
    """
    candidates = []
    for i, cell in enumerate(left.sweep.cells):
        for j, other in enumerate(right.sweep.cells):
            if cell.mechanism.name == other.mechanism.name:
                changes = _changes(cell.identity(), other.identity())
                attacks_differ = cell.adversary.name != other.adversary.name
                candidates.append((attacks_differ, len(changes), i, j, changes))
    pairs = {}
    matched = set()
    for *_, i, j, changes in sorted(candidates, key=lambda candidate: candidate[:4]):
        if i not in pairs and j not in matched:
            pairs[i] = i, j, changes
            matched.add(j)
    return [pairs[i] for i in sorted(pairs)]
