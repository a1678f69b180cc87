"""Figures of a whole run: its audits side by side, over steps, and over what the sweep varies.

A new figure is a function here, marked with `@figure`: the page draws all that are.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ...plan.model import PlannedAudit
from ...stats import Status
from ...storage.arrays import Arrays
from ...sweep.grid import LABEL_SEPARATOR, shared_parts
from ..tables import Run, representative
from .primitives import (
    ALARM,
    CLAIM,
    COLOURS,
    Floats,
    canvas,
    heat_map,
    histograms,
    intervals,
    legend,
    lines,
    logarithmic,
    named_rows,
    png,
)

_COLUMNS = 4  # panels side by side
_ABOVE = "above its claim"
_FEWEST = 3  # values of a key that make a line
_HUGE = 1e300  # a whole number beyond is no float
_WIDE = 100  # times the least value of a key: then its axis is logarithmic
_MOST = 2 * len(COLOURS)  # histograms in a figure
_BINS = 60


# Which audits stand together ---------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Line:
    """Audits that differ in `mechanism.seed` only, and the bounds that stand for them.

    `bounds` is indexed by step, with one column per repetition; NaN where there is none yet.
    `status` is that of the bounds at the last step, empty without any.
    """

    label: str
    audits: tuple[PlannedAudit, ...]
    bounds: pd.DataFrame
    status: str = ""

    @property
    def last(self) -> list[float]:
        """The bound of every repetition at the last step, as far as there is one."""
        return [float(v) for v in self.bounds.iloc[-1] if not np.isnan(v)]

    @property
    def claim(self) -> float:
        """ε of the first accountant at the last step."""
        return self.audits[0].claim

    @property
    def mean(self) -> float:
        """Mean bound over repetitions at the last step, 0 where there is none."""
        return float(np.mean(self.last)) if self.last else 0.0

    @property
    def kind(self) -> str:
        """How its bar is drawn: the status of its bound, or that this is above its claim."""
        return _ABOVE if self.mean > self.claim else self.status

    @property
    def kept(self) -> float:
        """Mean bound at the last step over that at the first; NaN where the first is 0."""
        first, last = self.bounds.iloc[0].mean(), self.bounds.iloc[-1].mean()
        return float(last / first) if first > 0 else math.nan


@dataclasses.dataclass(frozen=True)
class Panel:
    """Lines whose mechanisms claim the same at the same steps; `title` is what all share."""

    title: str
    lines: tuple[Line, ...]

    @property
    def horizons(self) -> tuple[int, ...]:
        """Recorded steps."""
        return self.lines[0].audits[0].horizons

    @property
    def claims(self) -> tuple[float, ...]:
        """ε of the first accountant at each horizon."""
        return next(iter(self.lines[0].audits[0].claims.values()))


def panels_of_run(run: Run, estimator: str | None = None) -> list[Panel]:
    """All audits of a run, in the order of its sweep file; every one's own estimator for None."""
    together: dict[object, list[Line]] = {}
    for line in _lines_of_run(run, estimator):
        first = line.audits[0]
        claims = next(iter(first.claims.items()))
        together.setdefault((first.horizons, claims), []).append(line)
    return [_panel(group) for group in together.values()]


def _lines_of_run(run: Run, estimator: str | None) -> Iterable[Line]:
    groups: dict[str, list[tuple[PlannedAudit, str]]] = {}
    for audit, cell in zip(run.plan.audits, run.sweep.cells, strict=True):
        mechanism = dict(cell.mechanism.identity())
        seed = mechanism.pop("seed", 0)
        settings = cell.audit.model_dump(mode="json", exclude={"trials"})
        key = json.dumps([mechanism, cell.adversary.identity(), settings], sort_keys=True)
        parts = [part for part in audit.label.split(LABEL_SEPARATOR) if part != f"seed={seed}"]
        groups.setdefault(key, []).append((audit, LABEL_SEPARATOR.join(parts)))
    for repetitions in groups.values():
        audits = tuple(audit for audit, _ in repetitions)
        # A lone audit keeps its whole label.
        label = repetitions[0][1] if len(audits) > 1 else audits[0].label
        rows = {audit.id: _rows(run, audit, estimator) for audit in audits}
        bounds = {
            id: table.set_index("step")["epsilon_lower"].reindex(list(audits[0].horizons))
            for id, table in rows.items()
        }
        statuses = rows[audits[0].id].sort_values("step")["status"]
        status = str(statuses.iloc[-1]) if len(statuses) else ""
        yield Line(label, audits, pd.DataFrame(bounds), status)


def _rows(run: Run, audit: PlannedAudit, estimator: str | None) -> pd.DataFrame:
    """The rows that stand for an audit, one a step."""
    rows = run.estimates[run.estimates["audit"] == audit.id]
    name = estimator or representative(run, audit)
    return rows[rows["estimator"] == name].drop_duplicates("step")


def _panel(group: list[Line]) -> Panel:
    """Moves what all labels share into the title; a lone line is its title."""
    if len(group) == 1:
        return Panel(group[0].label, tuple(group))
    shared, labels = shared_parts([line.label for line in group])
    short = zip(group, labels, strict=True)
    return Panel(shared, tuple(dataclasses.replace(line, label=label) for line, label in short))


# All figures -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A figure of a run: the name of its file without `.png`, its caption, and its content."""

    name: str
    text: str
    content: bytes


Entries = Sequence[Mapping[str, Any]]  # of each audit, what its section of the page says
Draw = Callable[[Run, Entries], Iterable[Drawing]]
_FIGURES: list[Draw] = []


def figure(draw: Draw) -> Draw:
    """Marks a function that draws figures of a run, or none where there is nothing to show."""
    _FIGURES.append(draw)
    return draw


def all_figures(run: Run, entries: Entries) -> Iterator[Drawing]:
    """Every figure of a run, in the order of this file."""
    for draw in _FIGURES:
        yield from draw(run, entries)


@figure
def _bounds(run: Run, entries: Entries) -> Iterator[Drawing]:
    panels = panels_of_run(run)
    yield Drawing("overview", "Lower bound and claim of every audit", bars_figure(panels))
    yield from _of_estimator(run, None, "", ("Lower bounds and claims", "Last bound over first",
                                             "Last bounds and claims"))  # fmt: skip


@figure
def _exact(run: Run, entries: Entries) -> Iterator[Drawing]:
    """Beside what stands for audits without trials, other ways to read their curve."""
    if any(cell.mechanism.sampled for cell in run.sweep.cells):
        return
    stated = {k: v for cell in run.sweep.cells for k, v in cell.mechanism.exact_estimators.items()}
    for estimator, what in stated.items():
        if what and estimator in set(run.estimates["estimator"]):
            yield from _of_estimator(run, estimator, f" {what}", ("ε", "Last ε over first", "ε"))


def _of_estimator(
    run: Run, estimator: str | None, what: str, texts: tuple[str, str, str]
) -> Iterator[Drawing]:
    """Bounds over steps, kept over a grid, and over a key, by one estimator."""
    panels, suffix = panels_of_run(run, estimator), f"-{estimator}" if estimator else ""
    small = estimator == "closed-form"  # far below its claim
    over_steps, kept, over_key = texts
    for name, text, content in (
        ("evolution", f"{over_steps} over steps{what}", evolution_figure(panels, small)),
        ("amplification", f"{kept}{what}", amplification_figure(run, panels)),
        ("trend", f"{over_key} over what the sweep varies{what}", trend_figure(run, estimator)),
    ):
        if content is not None:
            yield Drawing(f"{name}{suffix}", text, content)


@figure
def _distributions(run: Run, entries: Entries) -> Iterator[Drawing]:
    """Histograms of what mechanisms tell of themselves, where their preparation is there."""
    quantities: dict[str, dict[str, Floats]] = {}
    for audit, cell in zip(run.plan.audits, run.sweep.cells, strict=True):
        prepared = None if cell.unread else _prepared(run, audit)
        if prepared is not None:
            drawn = cell.mechanism.distributions(cell.adversary, cell.audit.delta, prepared)
            for quantity, values in drawn.items():
                if np.isfinite(values).any():
                    finite = values[np.isfinite(values)]
                    quantities.setdefault(quantity, {})[audit.label] = finite
    for number, (quantity, by_label) in enumerate(quantities.items(), start=1):
        rest = f" ({len(by_label) - _MOST} audits more are left out)" * (len(by_label) > _MOST)
        shown = dict(itertools.islice(by_label.items(), _MOST))
        yield Drawing(f"distribution-{number}", f"How often: {quantity}{rest}",
                      shares_figure(quantity, shown))  # fmt: skip


def _prepared(run: Run, audit: PlannedAudit) -> tuple[Arrays, ...] | None:
    """The parts of an audit's preparation; None while one is missing."""
    preparation = audit.preparation
    if preparation is None:
        return ()
    if len(run.directory.parts(preparation.id)) < preparation.parts:
        return None
    return tuple(run.directory.read_part(preparation.id, i) for i in range(preparation.parts))


@figure
def _hit_rates(run: Run, entries: Entries) -> Iterator[Drawing]:
    """Rates of right guesses with their intervals, and the most that each claim allows."""
    shown = [entry for entry in entries if entry["hits"]]
    if len(shown) > 1:
        rows = [(rate.rate, rate.low, rate.high, rate.most) for rate in (e["hits"] for e in shown)]
        table = pd.DataFrame(rows, columns=["value", "low", "high", "most"])
        text = "How often the bit of a trial is guessed right, from the trials before it"
        labels = [entry["label"] for entry in shown]
        yield Drawing("hits", text, _intervals_figure(table, labels, "rate of right guesses"))


@figure
def _accuracies(run: Run, entries: Entries) -> Iterator[Drawing]:
    """Mean accuracy of every audit with two standard errors."""
    means = {
        entry["label"]: utility
        for entry in entries
        for utility in entry["utility"]
        if (utility.measure, utility.canary) == ("accuracy", "any") and np.isfinite(utility.mean)
    }
    if len(means) > 1:
        mean = np.array([utility.mean for utility in means.values()])
        spread = 2 * np.nan_to_num([utility.error for utility in means.values()])
        table = pd.DataFrame({"value": mean, "low": mean - spread, "high": mean + spread})
        text = "Accuracy of each audit's models, or of what is rebuilt from them"
        yield Drawing("accuracy", text, _intervals_figure(table, list(means), "accuracy"))


# What each figure looks like ---------------------------------------------------------------------


def bars_figure(panels: Sequence[Panel]) -> bytes:
    """A PNG with one bar per line: the mean lower bound, a dot per repetition, the claim as a mark.

    Bars of one panel stand together below its title; what is not certified is pale.
    """
    rows: list[tuple[str, Line | None]] = []
    for panel in panels:
        if len(panel.lines) > 1 and panel.title:
            rows.append((panel.title, None))
        rows += [(line.label, line) for line in panel.lines]
    heights = range(len(rows) - 1, -1, -1)
    shown = {y: line for y, (_, line) in zip(heights, rows, strict=True) if line is not None}
    with canvas(9, 0.9 + 0.34 * len(rows)) as (figure, (axes,)):
        _bars(axes, shown)
        claims = [line.claim for line in shown.values()]
        axes.plot(claims, list(shown), **CLAIM, label="claim")
        repeated = [(x, y) for y, line in shown.items() if len(line.audits) > 1 for x in line.last]
        if repeated:
            axes.plot(*zip(*repeated, strict=True), "o", color=COLOURS[1], ms=3,
                      label="repetitions")  # fmt: skip
        named_rows(axes, dict(zip(heights, (label for label, _ in rows), strict=True)))
        for tick, (_, line) in zip(axes.get_yticklabels(), rows, strict=True):
            tick.set_fontweight("bold" if line is None else "normal")
        axes.set_xlabel("ε")
        figure.legend(loc="outside upper right", ncols=4, frameon=False)
        return png(figure)


def _bars(axes: Any, shown: Mapping[int, Line]) -> None:
    for kind in dict.fromkeys(line.kind for line in shown.values()):
        bars = {y: line.mean for y, line in shown.items() if line.kind == kind}
        axes.barh(
            list(bars),
            list(bars.values()),
            color=ALARM if kind == _ABOVE else COLOURS[0],
            hatch="//" if kind == _ABOVE else None,
            alpha=1.0 if kind in (Status.CERTIFIED, _ABOVE) else 0.45,
            height=0.6,
            label=f"lower bound ({kind})" if kind else "no bound yet",
        )


def evolution_figure(panels: Sequence[Panel], small: bool = False) -> bytes | None:
    """A PNG with the bounds over steps, one panel per claim; None when one step alone is recorded.

    A line is the mean over repetitions, with the range of them shaded. `small`: bounds are far
    below their claims, so that only a logarithmic axis shows both.
    """
    shown = [panel for panel in panels if len(panel.horizons) > 1]
    if not shown:
        return None
    columns = min(_COLUMNS, len(shown))
    rows = math.ceil(len(shown) / columns)
    with canvas(max(2.7 * columns, 6.0), 2.9 * rows, rows, columns) as (figure, grid):
        for axes, panel in zip(grid, shown, strict=False):
            claim = {"series": "claim", "x": panel.horizons, "y": panel.claims}
            lines(axes, pd.DataFrame(claim), color="black")
            lines(axes, _evolution(panel), marker="o", ms=2.5)
            axes.set_title(panel.title, fontsize=8)
            axes.set_xlabel("step")
            axes.set_ylabel("ε")
            if small:
                logarithmic(axes, "y")
            else:
                axes.set_ylim(bottom=0)
        _legends(figure, grid[: len(shown)])
        for axes in grid[len(shown) :]:
            axes.set_visible(False)
        return png(figure)


def _evolution(panel: Panel) -> pd.DataFrame:
    tables = []
    for line in panel.lines:
        name = line.label if len(panel.lines) > 1 else "lower bound"
        if line.status not in ("", Status.CERTIFIED):
            name = f"{name} ({line.status})"
        y, spread = line.bounds.mean(axis=1), line.bounds if len(line.audits) > 1 else None
        low, high = (math.nan,) * 2 if spread is None else (spread.min(axis=1), spread.max(axis=1))
        table = {"series": name, "x": line.bounds.index, "y": y, "low": low, "high": high}
        tables.append(pd.DataFrame(table))
    return pd.concat(tables)


def _legends(figure: Any, grid: Sequence[Any]) -> None:
    """One legend below where it fits all panels, else one in each."""
    handles = [axes.get_legend_handles_labels() for axes in grid]
    if len({tuple(labels) for _, labels in handles}) == 1 and len(grid) > 1:
        columns = min(len(handles[0][1]), 6)
        figure.legend(
            *handles[0], loc="outside lower center", ncols=columns, frameon=False, fontsize=7
        )
        return
    for axes in grid:
        legend(axes, size=6)


def amplification_figure(run: Run, panels: Sequence[Panel]) -> bytes | None:
    """A PNG with the bound at the last step over that at the first, on a grid of two numbers.

    None unless the canary is inserted in the first step only (the claim stays what it is), which
    is where 1 says that hiding the steps amplified nothing, and two keys of numbers make the grid;
    repetitions are averaged.
    """
    grid = dict(run.sweep.raw.get("grid") or {})
    keys = {k: v for k, v in grid.items() if len(v) > 1 and k != "mechanism.seed"}
    numbers = all(type(x) in (int, float) for values in keys.values() for x in values)
    once = all(len(p.claims) > 1 and max(p.claims) <= min(p.claims) * (1 + 1e-9) for p in panels)
    firsts = {line.audits[0].id: line for panel in panels for line in panel.lines}
    cells = math.prod(len(values) for values in keys.values())
    if len(keys) != 2 or not numbers or not once or len(firsts) != cells:
        return None
    (upper, ups), (side, sides) = keys.items()
    ratios = [firsts[audit.id].kept for audit in run.plan.audits if audit.id in firsts]
    table = pd.DataFrame(np.reshape(ratios, (len(ups), len(sides))).T, index=sides, columns=ups)
    with canvas(1.6 + 0.7 * len(ups), 1.3 + 0.5 * len(sides)) as (figure, (axes,)):
        heat_map(axes, table)
        axes.set_xlabel(upper.rpartition(".")[2])
        axes.set_ylabel(side.rpartition(".")[2])
        steps = panels[0].horizons
        axes.set_title(f"ε at step {steps[-1]} over ε at step {steps[0]}", fontsize=9)
        return png(figure)


def trend_figure(run: Run, estimator: str | None = None) -> bytes | None:
    """A PNG with a line for each choice of the other keys; every audit's own estimator for None.

    None unless one key of the grid alone has three numbers or more, beside seeds.
    """
    grid = {key: list(values) for key, values in dict(run.sweep.raw.get("grid") or {}).items()}
    many = [key for key, values in grid.items() if is_axis(key, values)]
    cells = math.prod(len(values) for values in grid.values())
    if len(many) != 1 or cells != len(run.plan.audits):
        return None
    (key,), name = many, many[0].rpartition(".")[2]
    groups: dict[str, list[tuple[float, float, float]]] = {}
    for audit, values in zip(run.plan.audits, itertools.product(*grid.values()), strict=True):
        others = [
            part for part in audit.label.split(LABEL_SEPARATOR) if part.partition("=")[0] != name
        ]
        bounds = _rows(run, audit, estimator).set_index("step")["epsilon_lower"]
        x, y = dict(zip(grid, values, strict=True))[key], bounds.get(audit.horizons[-1], math.nan)
        groups.setdefault(LABEL_SEPARATOR.join(others) or "lower bound", []).append(
            (float(x), float(y), audit.claim)
        )
    rows = [(series, *point) for series, points in groups.items() for point in sorted(points)]
    table = pd.DataFrame(rows, columns=["series", "x", "y", "claim"])
    # One entry in the legend: claims are mostly one.
    styles = {series: {"label": "_claim" if n else "claim"} for n, series in enumerate(groups)}
    with canvas(7.5, 3.6) as (figure, (axes,)):
        lines(axes, table.assign(y=table["claim"]), styles, color="black", lw=1, ls="-")
        lines(axes, table.assign(y=table["y"].where(table["y"] > 0)), marker="o", ms=3)
        logarithmic(axes, "y")
        if 0 < _WIDE * min(grid[key]) < max(grid[key]):
            logarithmic(axes, "x")
        axes.set_xlabel(name)
        axes.set_ylabel("ε")
        figure.legend(loc="outside right upper", frameon=False, fontsize=7)
        return png(figure)


def is_axis(key: str, values: list[Any]) -> bool:
    """Whether the values of a key of the grid are numbers, and enough of them for a line."""
    plain = all(type(value) in (int, float) and abs(value) < _HUGE for value in values)
    return plain and len(values) >= _FEWEST and not key.endswith("seed")


def shares_figure(quantity: str, values: Mapping[str, Floats]) -> bytes:
    """A PNG: shares of numbers in bins that all audits share; logarithmic, since tails count.

    `values` are finite, float64 [n], by label.
    """
    largest = max(float(numbers.max(initial=0.0)) for numbers in values.values())
    with canvas(9, 3.6) as (figure, (axes,)):
        histograms(axes, values, np.linspace(0.0, largest or 1.0, _BINS + 1), shares=True)
        logarithmic(axes, "y")
        axes.set_xlabel(quantity)
        axes.set_ylabel("share")
        figure.legend(loc="outside right upper", frameon=False, fontsize=7)
        return png(figure)


def _intervals_figure(table: pd.DataFrame, labels: Sequence[str], what: str) -> bytes:
    """A PNG with a row for each label; `most`, where the table has it, is marked as the limit."""
    table = table.assign(y=range(len(table) - 1, -1, -1))
    with canvas(9, 0.9 + 0.34 * len(table)) as (figure, (axes,)):
        intervals(axes, table, label="right guesses" if "most" in table else None)
        if "most" in table:
            axes.plot(table["most"], table["y"], **CLAIM, label="the most that the claim allows")
            axes.axvline(0.5, color="grey", lw=0.8, ls=":")
            axes.set_ylim(-0.5, len(table) - 0.5)
            figure.legend(loc="outside upper right", ncols=2, frameon=False)
        named_rows(axes, dict(zip(table["y"], labels, strict=True)))
        axes.set_xlabel(what)
        return png(figure)
