"""Figures of a whole run: its audits side by side, over steps, and over what the sweep varies.

A new figure is a function here, and its name in `all_figures`.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ...errors import SpecError
from ...plan.model import PlannedAudit
from ...stats import Status
from ...storage.arrays import Arrays
from ...sweep.grid import LABEL_SEPARATOR, shared_parts
from ..quote import PROVED
from ..tables import EXACT, Run, representative
from .primitives import (
    ALARM,
    CLAIM,
    COLOURS,
    Floats,
    canvas,
    epsilon_at,
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


def bounds_table(run: Run, estimator: str | None = None) -> pd.DataFrame:
    """The bounds of a run beside their claims: a row for each audit and recorded step.

    Audits that differ in `mechanism.seed` only are one line, and lines that claim the same at the
    same steps one panel. Rows are sorted by these, which are numbered as in the sweep file.

    Args:
        run: the run.
        estimator: whose bounds; every audit's own for None.

    Returns:
        Columns `panel`, `title` (what the labels of its lines share), `line`, `label` (without
        that), `audit`, `step`, `bound` (NaN where there is none yet), `claim` (by the first
        accountant), `delta` of both, and what the line's last bounds `assumes`, empty without
        any.
    """
    rows, lines, panels = list[tuple[Any, ...]](), dict[str, int](), dict[Any, int]()
    labels, assumes = dict[int, str](), dict[int, str]()
    for audit, cell in zip(run.plan.audits, run.sweep.cells, strict=True):
        mechanism = dict(cell.mechanism.identity())
        seed = f"seed={mechanism.pop('seed', 0)}"
        settings = cell.audit.model_dump(mode="json", exclude={"trials"})
        key = json.dumps([mechanism, cell.adversary.identity(), settings], sort_keys=True)
        line = lines.setdefault(key, len(lines))
        bounds = _rows(run, audit, estimator).sort_values("step").set_index("step")
        if line in labels:
            parts = audit.label.split(LABEL_SEPARATOR)
            labels[line] = LABEL_SEPARATOR.join(part for part in parts if part != seed)
        else:
            labels[line] = audit.label
            assumes[line] = str(bounds["assumes"].iloc[-1]) if len(bounds) else ""
        accountant, claims = next(iter(audit.claims.items()))
        panel = panels.setdefault((audit.horizons, accountant, claims), len(panels))
        rows += [
            (panel, line, audit.id, step, bounds["bound"].get(step, math.nan), claim,
             cell.audit.delta)
            for step, claim in zip(audit.horizons, claims, strict=True)
        ]  # fmt: skip
    columns = ["panel", "line", "audit", "step", "bound", "claim", "delta"]
    table = pd.DataFrame(rows, columns=columns)
    table = table.sort_values(["panel", "line"], kind="stable")
    titles = dict[int, str]()
    for panel in panels.values():
        numbers = table.loc[table["panel"] == panel, "line"].unique()
        titles[panel], short = shared_parts([labels[number] for number in numbers])
        titles[panel] = titles[panel] if len(numbers) > 1 else short[0]
        labels |= dict(zip(numbers, short, strict=True))
    named = {"title": table["panel"].map(titles), "label": table["line"].map(labels)}
    return table.assign(**named, assumes=table["line"].map(assumes))


def last_bounds(table: pd.DataFrame) -> pd.DataFrame:
    """The lines of a `bounds_table` at their last step.

    Adds `mean`, over repetitions, 0 where there is no bound; `repetitions`; and `kind`: what
    the bounds assume, or that their mean is above its claim.
    """
    last = table[table["step"] == table.groupby("line")["step"].transform("max")]
    by_line = last.groupby("line")
    last = last.assign(
        mean=by_line["bound"].transform("mean").fillna(0.0),
        repetitions=by_line["audit"].transform("size"),
    )
    return last.assign(kind=last["assumes"].mask(last["mean"] > last["claim"], _ABOVE))


def _rows(run: Run, audit: PlannedAudit, estimator: str | None) -> pd.DataFrame:
    """The rows that stand for an audit, one a step, with the `bound` and what it `assumes`.

    That is the one to quote; none where it rests on something unproved and is above its claim.
    """
    rows, name = run.rows(audit), estimator or representative(run, audit)
    rows = rows[rows["estimator"] == name].drop_duplicates("step")
    pairs = zip(rows["status"], rows["mu_lower"], strict=True)
    assumes = [EXACT if name == EXACT else Status(status).assumes(mu) for status, mu in pairs]
    bound = rows["epsilon_lower_together"].fillna(rows["epsilon_lower"])
    proved = rows["above_claim"] | (rows["status"] == Status.CERTIFIED)
    bound = bound.where(proved | (bound <= rows["epsilon_upper"]))
    return rows.assign(bound=bound, assumes=assumes)


# All figures -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A figure of a run: the name of its file without `.png`, its caption, and its content."""

    name: str
    text: str
    content: bytes


Entries = Sequence[Mapping[str, Any]]  # of each audit, what its section of the page says


def all_figures(run: Run, entries: Entries) -> Iterator[Drawing]:
    """Every figure of a run for which there is something to show."""
    for draw in (_bounds, _exact, _distributions, _hit_rates, _accuracies):
        yield from draw(run, entries)


def _bounds(run: Run, entries: Entries) -> Iterator[Drawing]:
    figure = bars_figure(bounds_table(run))
    yield Drawing("overview", "Lower bound and claim of every audit", png(figure))
    yield from _of_estimator(run, None, "", ("Lower bounds and claims", "Last bounds and claims"))


def _exact(run: Run, entries: Entries) -> Iterator[Drawing]:
    """Beside what stands for audits without trials, other ways to read their curve."""
    if any(cell.mechanism.sampled for cell in run.sweep.cells):
        return
    stated = {k: v for cell in run.sweep.cells for k, v in cell.mechanism.exact_estimators.items()}
    for estimator, what in stated.items():
        if what and estimator in set(run.estimates["estimator"]):
            yield from _of_estimator(run, estimator, f" {what}", ("ε", "ε"))


def _of_estimator(
    run: Run, estimator: str | None, what: str, texts: tuple[str, str]
) -> Iterator[Drawing]:
    """Bounds over steps, and over a key, by one estimator."""
    bounds, suffix = bounds_table(run, estimator), f"-{estimator}" if estimator else ""
    small = estimator == "closed-form"  # far below its claim
    over_steps, over_key = texts
    for name, text, figure in (
        ("evolution", f"{over_steps} over steps{what}", evolution_figure(bounds, small)),
        ("trend", f"{over_key} over what the sweep varies{what}", trend_figure(run, estimator)),
    ):
        if figure is not None:
            yield Drawing(f"{name}{suffix}", text, png(figure))


def _distributions(run: Run, entries: Entries) -> Iterator[Drawing]:
    """Histograms of what mechanisms tell of themselves, where their preparation is there."""
    quantities: dict[str, dict[str, Floats]] = {}
    for audit, cell in zip(run.plan.audits, run.sweep.cells, strict=True):
        prepared = None if cell.unimported else _prepared(run, audit)
        if prepared is not None:
            drawn = cell.mechanism.distributions(cell.adversary, cell.audit.delta, prepared)
            for quantity, values in drawn.items():
                if np.isfinite(values).any():
                    finite = values[np.isfinite(values)]
                    quantities.setdefault(quantity, {})[audit.label] = finite
    for number, (quantity, by_label) in enumerate(quantities.items(), start=1):
        rest = f" ({len(by_label) - _MOST} audits more are left out)" * (len(by_label) > _MOST)
        shown = dict(itertools.islice(by_label.items(), _MOST))
        largest = max(float(numbers.max(initial=0.0)) for numbers in shown.values())
        with canvas(9, 3.6) as (figure, (axes,)):
            histograms(axes, shown, np.linspace(0.0, largest or 1.0, _BINS + 1), shares=True)
            logarithmic(axes, "y")  # tails count
            axes.set_xlabel(quantity)
            axes.set_ylabel("share")
            figure.legend(loc="outside right upper", frameon=False, fontsize=7)
            content = png(figure)
        yield Drawing(f"distribution-{number}", f"How often: {quantity}{rest}", content)


def _prepared(run: Run, audit: PlannedAudit) -> tuple[Arrays, ...] | None:
    """The parts of an audit's preparation; None while one is missing."""
    preparation = audit.preparation
    if preparation is None:
        return ()
    if len(run.directory.parts(preparation.id)) < preparation.parts:
        return None
    return tuple(run.directory.read_part(preparation.id, i) for i in range(preparation.parts))


def _hit_rates(run: Run, entries: Entries) -> Iterator[Drawing]:
    """Rates of right guesses with their intervals, and the most that each claim allows."""
    shown = [entry for entry in entries if entry["hits"]]
    if len(shown) > 1:
        rows = [(rate.rate, rate.low, rate.high, rate.most) for rate in (e["hits"] for e in shown)]
        table = pd.DataFrame(rows, columns=["value", "low", "high", "most"])
        text = "How often the bit of a trial is guessed right, from the trials before it"
        labels = [entry["label"] for entry in shown]
        yield Drawing("hits", text, _intervals_figure(table, labels, "rate of right guesses"))


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


def bars_figure(bounds: pd.DataFrame, **options: Any) -> Figure:
    """One bar per line: the mean lower bound, a dot per repetition, the claim as a mark.

    Bars of one panel stand together below its title; what is not certified is pale. `bounds` is a
    `bounds_table`, `options` are of `canvas`.
    """
    last = last_bounds(bounds)
    names, places = list[tuple[str, str]](), dict[int, int]()  # with their weight, from above
    for _, panel in last.groupby("panel"):
        if panel["line"].nunique() > 1 and panel["title"].iloc[0]:
            names.append((panel["title"].iloc[0], "bold"))
        for line, label in dict(zip(panel["line"], panel["label"], strict=True)).items():
            places[line] = len(names)
            names.append((label, "normal"))
    last = last.assign(y=len(names) - 1 - last["line"].map(places))
    lines = last.drop_duplicates("line")
    with canvas(9, 0.9 + 0.34 * len(names), **options) as (figure, (axes,)):
        for kind in lines["kind"].unique():
            bars = lines[lines["kind"] == kind]
            axes.barh(
                bars["y"],
                bars["mean"],
                color=ALARM if kind == _ABOVE else COLOURS[0],
                hatch="//" if kind == _ABOVE else None,
                alpha=1.0 if kind in (*PROVED, _ABOVE) else 0.45,
                height=0.6,
                label=f"lower bound ({kind})" if kind else "no bound yet",
            )
        axes.plot(lines["claim"], lines["y"], **CLAIM, label="claim")
        repeated = last[(last["repetitions"] > 1) & last["bound"].notna()]
        if len(repeated):
            axes.plot(repeated["bound"], repeated["y"], "o", color=COLOURS[1], ms=3,
                      label="repetitions")  # fmt: skip
        heights = range(len(names) - 1, -1, -1)
        named_rows(axes, dict(zip(heights, (name for name, _ in names), strict=True)))
        for tick, (_, weight) in zip(axes.get_yticklabels(), names, strict=True):
            tick.set_fontweight(weight)
        axes.set_xlabel(epsilon_at(last["delta"]))
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=4, frameon=False)
        return figure


def evolution_figure(
    bounds: pd.DataFrame, small: bool = False, ax: Any = None, **options: Any
) -> Figure | None:
    """The bounds over steps, one panel per claim; None when one step alone is recorded.

    A line is the mean over repetitions, with the range of them shaded. `small`: bounds are far
    below their claims, so that only a logarithmic axis shows both. `ax` and `options` are of
    `canvas`. Raises SpecError where `ax` are fewer axes than panels.
    """
    panels = [panel for _, panel in bounds.groupby("panel") if panel["step"].nunique() > 1]
    if not panels:
        return None
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    size = max(2.7 * columns, 6.0), 2.9 * rows
    with canvas(*size, rows, columns, ax=ax, **options) as (figure, grid):
        if len(grid) < len(panels):
            raise SpecError("ax", f"must be {len(panels)} axes, one for each claim: {len(grid)}")
        for axes, panel in zip(grid, panels, strict=False):
            claim = panel.drop_duplicates("step").rename(columns={"step": "x", "claim": "y"})
            lines(axes, claim.assign(series="claim"), color="black")
            lines(axes, _evolution(panel), marker="o", ms=2.5)
            axes.set_title(panel["title"].iloc[0], fontsize=8)
            axes.set_xlabel("step")
            axes.set_ylabel(epsilon_at(panel["delta"]))
            if small:
                logarithmic(axes, "y")
            else:
                axes.set_ylim(bottom=0)
        _legends(figure, grid[: len(panels)], together=ax is None)
        for axes in grid[len(panels) :] if ax is None else ():
            axes.remove()
        return figure


def _evolution(panel: pd.DataFrame) -> pd.DataFrame:
    """Mean and range over repetitions at each step of each line, as `lines` draws them."""
    by_step = panel.groupby(["line", "step"], as_index=False)
    means = by_step.agg(
        label=("label", "first"), assumes=("assumes", "first"), x=("step", "first"),
        y=("bound", "mean"), low=("bound", "min"), high=("bound", "max"), audits=("audit", "size"),
    )  # fmt: skip
    several = means["audits"] > 1
    means = means.assign(low=means["low"].where(several), high=means["high"].where(several))
    alone = panel["line"].nunique() == 1
    certain = means["assumes"].isin(("", *PROVED))
    names = pd.Series("lower bound", means.index) if alone else means["label"]
    return means.assign(series=names.where(certain, names + " (" + means["assumes"] + ")"))


def _legends(figure: Any, grid: Sequence[Any], together: bool) -> None:
    """One legend below where it fits all panels, and they may have one, else one in each."""
    handles = [axes.get_legend_handles_labels() for axes in grid]
    if together and len({tuple(labels) for _, labels in handles}) == 1 and len(grid) > 1:
        columns = min(len(handles[0][1]), 6)
        figure.legend(
            *handles[0], loc="outside lower center", ncols=columns, frameon=False, fontsize=7
        )
        return
    for axes in grid:
        legend(axes, size=6)


def trend_figure(run: Run, estimator: str | None = None) -> Figure | None:
    """A line for each choice of the other keys; every audit's own estimator for None.

    None unless one key of the grid alone has three numbers or more, beside seeds.
    """
    grid = {key: list(values) for key, values in dict(run.sweep.raw.get("grid") or {}).items()}
    many = [key for key, values in grid.items() if is_axis(key, values)]
    if len(many) != 1:
        return None
    (key,), name = many, many[0].rpartition(".")[2]
    rows = []
    for audit, values in zip(run.plan.audits, itertools.product(*grid.values()), strict=True):
        parts = audit.label.split(LABEL_SEPARATOR)
        others = LABEL_SEPARATOR.join(part for part in parts if part.partition("=")[0] != name)
        bounds = _rows(run, audit, estimator).set_index("step")["bound"]
        x, y = dict(zip(grid, values, strict=True))[key], bounds.get(audit.horizons[-1], math.nan)
        rows.append((others or "lower bound", float(x), float(y), audit.claim))
    table = pd.DataFrame(rows, columns=["series", "x", "y", "claim"])
    table = table.sort_values("x", kind="stable")
    # One entry in the legend: claims are mostly one.
    styles = {
        series: {"label": "_claim" if n else "claim"}
        for n, series in enumerate(table["series"].unique())
    }
    with canvas(7.5, 3.6) as (figure, (axes,)):
        lines(axes, table.assign(y=table["claim"]), styles, color="black", lw=1, ls="-")
        lines(axes, table.assign(y=table["y"].where(table["y"] > 0)), marker="o", ms=3)
        logarithmic(axes, "y")
        if 0 < _WIDE * min(grid[key]) < max(grid[key]):
            logarithmic(axes, "x")
        axes.set_xlabel(name)
        axes.set_ylabel(epsilon_at([cell.audit.delta for cell in run.sweep.cells]))
        figure.legend(loc="outside right upper", frameon=False, fontsize=7)
        return figure


def is_axis(key: str, values: list[Any]) -> bool:
    """Whether the values of a key of the grid are numbers, and enough of them for a line."""
    plain = all(type(value) in (int, float) and abs(value) < _HUGE for value in values)
    return plain and len(values) >= _FEWEST and not key.endswith("seed")


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
