"""Two runs side by side, for `dpaudit compare`: what was asked, what was found, what differs.

A lower bound is no estimate: that one is larger says little. What has two ends is the rate of right
guesses, so audits are said to differ only where its intervals do not meet, or where what needs no
trials is another number.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..plan.open_run import differences
from ..plan.score_stream import Trials
from . import verdict
from .measures import HitRate
from .quote import Quote
from .tables import Run, overview
from .verdict import Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SAME = 1e-9  # relative: an exact ε of another machine is the same
_OFFSETS = (0.16, -0.16)  # of the two runs from the middle of their audit's line in a figure
_LONGEST = 40  # characters of a label there


@dataclasses.dataclass(frozen=True)
class Change:
    """A place where two sweeps differ: a dotted key, and its values as in YAML; None: not set."""

    key: str
    old: Any
    new: Any


@dataclasses.dataclass(frozen=True)
class Side:
    """One audit of one run: its entry in `tables.overview`, verdict, quote, and right guesses.

    `rate` with its interval, `low` to `high` at the audit's confidence, is NaN where trials are not
    independent, where there are none, or before the first guess.
    """

    entry: dict[str, Any]
    verdict: Verdict
    quote: Quote
    rate: float = math.nan
    low: float = math.nan
    high: float = math.nan

    @property
    def label(self) -> str:
        """The audit's label in its run."""
        return str(self.entry["label"])


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two audits that belong together, and what of them was asked otherwise."""

    left: Side
    right: Side
    changes: tuple[Change, ...]

    @property
    def sides(self) -> tuple[Side, Side]:
        """Both audits, in the order of their runs."""
        return self.left, self.right

    @property
    def differs(self) -> bool | None:
        """Whether what they found differs; None where nothing with two ends tells."""
        if self.left.quote.exact and self.right.quote.exact:
            first, second = (float(side.entry["epsilon_lower"]) for side in self.sides)
            if math.isnan(first) or math.isnan(second):
                return None
            return abs(first - second) > _SAME * max(abs(first), abs(second))
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
    (first_verdict, first_sides), (second_verdict, second_sides) = _sides(left), _sides(right)
    partners = _partners(left, right)
    pairs = tuple(
        Pair(first_sides[i], second_sides[j], tuple(_changes_of_cells(left, right, i, j)))
        for i, j in partners
    )
    paired_left, paired_right = {i for i, _ in partners}, {j for _, j in partners}
    alone = tuple(side.label for i, side in enumerate(first_sides) if i not in paired_left)
    alone_too = tuple(side.label for j, side in enumerate(second_sides) if j not in paired_right)
    return Comparison(
        (left.directory.location, right.directory.location),
        (first_verdict, second_verdict),
        tuple(_changes(left.sweep.raw, right.sweep.raw)),
        tuple(_changes_of_code(left, right)),
        pairs,
        (alone, alone_too),
    )


def _sides(run: Run) -> tuple[Verdict, list[Side]]:
    judged = verdict.judge(run)
    sampled, exact = iter(judged.audits), iter(judged.exact)
    sides = []
    for audit, cell, entry in zip(run.plan.audits, run.sweep.cells, overview(run), strict=True):
        alone = next(sampled) if cell.mechanism.sampled else next(exact)
        rate = None
        if cell.mechanism.sampled and audit.independent:
            trials = Trials.of(audit, run.prefix(audit))
            rate = HitRate.from_trials(trials, cell.audit.confidence, math.nan)
        ends = () if rate is None else (rate.rate, rate.low, rate.high)
        sides.append(Side(entry, alone.verdict, alone.quote, *ends))
    return judged.verdict, sides


# What differs ------------------------------------------------------------------------------------


def _changes(old: Any, new: Any) -> Iterator[Change]:
    return (Change(*place) for place in differences(old, new) if place[0] != "name")


def _changes_of_cells(left: Run, right: Run, i: int, j: int) -> Iterator[Change]:
    return _changes(left.sweep.cells[i].identity(), right.sweep.cells[j].identity())


def _changes_of_code(left: Run, right: Run) -> Iterator[str]:
    """What computed the last trials of each: versions, modules of the user's, machine, data."""
    old, new = (dataclasses.asdict(run.plan.code[-1]) for run in (left, right))
    for key, before, now in differences(old, new):
        yield f"{key} {before or 'none'!s:.60} -> {now or 'none'!s:.60}"
    digests = [{file.sha256 for file in run.plan.data} for run in (left, right)]
    if digests[0] != digests[1]:
        yield "the files that they read have other contents"


# What belongs together ---------------------------------------------------------------------------


def _partners(left: Run, right: Run) -> list[tuple[int, int]]:
    """Numbers of audits that belong together, of the left run and of the right one.

    Only audits of the same mechanism, by name: those of one label, where no other audit of its run
    has it, then those of the same adversary, then others, with the fewest differences first. One
    that is left over stands beside another of just its mechanism, which then stands there twice.
    """
    first, second = ([audit.label for audit in run.plan.audits] for run in (left, right))
    ranked = []
    for (i, cell), (j, partner) in itertools.product(
        enumerate(left.sweep.cells), enumerate(right.sweep.cells)
    ):
        if cell.mechanism.name == partner.mechanism.name:
            unlike = first[i] != second[j] or first.count(first[i]) * second.count(second[j]) > 1
            foreign = cell.adversary.name != partner.adversary.name
            keys = [change.key for change in _changes_of_cells(left, right, i, j)]
            trained_alike = not any(key.startswith("mechanism.") for key in keys)
            ranked.append((unlike, foreign, len(keys), i, j, trained_alike))
    ranked.sort()
    pairs, alone, alone_too = list[tuple[int, int]](), {*range(len(first))}, {*range(len(second))}
    for again in (False, True):
        for *_, i, j, trained_alike in ranked:
            if (i in alone and j in alone_too) or (
                again and trained_alike and (i in alone or j in alone_too)
            ):
                pairs.append((i, j))
                alone.discard(i)
                alone_too.discard(j)
    return sorted(pairs)


# Its figure --------------------------------------------------------------------------------------


def comparison_figure(comparison: Comparison, names: tuple[str, str]) -> Figure:
    """A line for each pair of audits, with the bounds, claims and rates of both.

    Args:
        comparison: with at least one pair.
        names: what the runs are called.
    """
    # matplotlib takes a while to load
    from .figures.primitives import CLAIM, COLOURS, canvas, epsilon_at, intervals, named_rows

    rows = [
        (run, place + _OFFSETS[run], side.quote.epsilon, side.quote.claim, side.quote.delta,
         side.rate, side.low, side.high)
        for place, pair in enumerate(reversed(comparison.pairs))
        for run, side in enumerate(pair.sides)
    ]  # fmt: skip
    columns = ["run", "y", "bound", "claim", "delta", "value", "low", "high"]
    table = pd.DataFrame(rows, columns=columns).replace([np.inf, -np.inf], np.nan)
    rated = bool(table["value"].notna().any())
    size = (10 if rated else 7, 1.3 + 0.5 * len(comparison.pairs))
    with canvas(*size, 1, 2 if rated else 1, sharey=True) as (figure, panels):
        bounds, rates = panels[0], panels[-1]
        for run, name in enumerate(names):
            side, colour = table[table["run"] == run], COLOURS[run]
            bounds.hlines(side["y"], side["bound"], side["claim"], color=colour, lw=1, alpha=0.4)
            bounds.plot(side["bound"], side["y"], ">", color=colour, ms=5, label=name)
            if rated:
                intervals(rates, side, color=colour)
        bounds.plot(table["claim"], table["y"], **CLAIM | {"ms": 9, "mew": 1.6}, label="claim")
        bounds.set_xlim(left=0)
        bounds.set_xlabel(epsilon_at(table["delta"]))
        if rated:
            rates.axvline(0.5, color="grey", lw=0.8, ls=":")
            rates.set_xlabel("rate of right guesses, with its interval")
        places = range(len(comparison.pairs) - 1, -1, -1)
        for axes in panels:
            named_rows(axes, dict(zip(places, map(_label, comparison.pairs), strict=True)))
        bounds.set_ylim(-0.6, len(comparison.pairs) - 0.4)
        entries = bounds.get_legend_handles_labels()
        figure.legend(*entries, loc="outside upper right", ncols=3, frameon=False)
        return figure


def _label(pair: Pair) -> str:
    """The label of both, or each where they have two; and whether they differ."""
    labels = dict.fromkeys(side.label for side in pair.sides)
    text = "\n".join(x if len(x) <= _LONGEST else f"{x[:_LONGEST]}…" for x in labels)
    return f"{text} (differs)" if pair.differs else text
