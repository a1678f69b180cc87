"""Figures of a whole run: its audits side by side, over steps, and over what the sweep varies."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ...errors import SpecError
from ...plan.model import PlannedAudit
from ...plan.preparing import Prepared
from ...stats import Status
from ...sweep.grid import LABEL_SEPARATOR, shared_parts
from ..quote import PROVED
from ..tables import EXACT, Run, representative
from .primitives import (
    ALARM,
    CLAIM,
    COLOURS,
    DASHES,
    Floats,
    canvas,
    epsilon_at,
    legend,
    lines,
    logarithmic,
    png,
)

_COLUMNS = 4  # panels side by side
_ABOVE = "above its claim"
_FEWEST = 3  # values of a key that make a line
_WIDE = 100  # times the least value of a key: then its axis is logarithmic
_MOST = 2 * len(COLOURS)  # histograms in a figure
_BINS = 60


def all_figures(run: Run) -> Iterator[tuple[str, str, bytes]]:
    """Every figure of a run for which there is something to show: its name, caption, and PNG."""
    yield "overview", "Lower bound and claim of every audit", png(bars_figure(bounds_table(run)))
    others = dict[str, str]()  # beside what stands for audits without trials: by estimator
    if not any(cell.mechanism.sampled for cell in run.sweep.cells):
        for cell in run.sweep.cells:
            others |= {name: what for name, what in cell.mechanism.exact_estimators.items() if what}
    for estimator in (None, *(name for name in others if name in set(run.estimates["estimator"]))):
        what = f" {others[estimator]}" if estimator else ""
        suffix, small = f"-{estimator}" if estimator else "", estimator == "closed-form"
        for name, over, figure in (
            ("evolution", "steps", evolution_figure(bounds_table(run, estimator), small)),
            ("trend", "what the sweep varies", trend_figure(run, estimator)),
        ):
            if figure is not None:
                yield f"{name}{suffix}", f"Bounds and claims over {over}{what}", png(figure)
    yield from _distributions(run)


def roc_figure(curves: list[pd.DataFrame]) -> bytes:
    """A PNG of the first audits' ROC curves, `Reading.curves`, with bands and claims."""
    shown = curves[: len(COLOURS)]
    with canvas(7, 5) as (figure, (axes,)):
        for colour, table in zip(COLOURS, shown, strict=False):
            claim = table["series"].str.startswith("claim: ")
            band, plain = table[~claim], table[["series", "x", "y"]]
            lines(axes, plain[~claim], color=colour, ls="-", marker=".")
            lines(axes, plain[claim], color=colour, ls="--")
            ends = band["x"], band["low"], band["high"]
            axes.fill_between(*ends, step="post", color=colour, alpha=0.15, lw=0)
        least = min(float(table["x"].min()) for table in shown)
        axes.plot([least, 1], [least, 1], color="grey", lw=0.8, ls=":", label="by chance")
        logarithmic(axes, "x")
        logarithmic(axes, "y")
        axes.set(xlabel="false-positive rate", ylabel="true-positive rate", ylim=(least / 3, 1.1))
        legend(axes)
        return png(figure)


# Which audits stand together ---------------------------------------------------------------------


def bounds_table(run: Run, estimator: str | None = None) -> pd.DataFrame:
    """The bounds of a run beside their claims: a row for each audit and recorded step.

    Audits that differ in `mechanism.seed` only are one `line`, and lines that claim the same at the
    same steps one `panel`. Rows are sorted by these, which are numbered as in the sweep file.
    `title` is what the labels of a panel's lines share, `label` is without that. `bound` is by
    `estimator`, every audit's own for None, and NaN where there is none yet; `claim` is by the
    first accountant, `delta` of both. What the line's last bounds `assumes` is empty without any.
    Other columns: `audit`, `step`.
    """
    rows, panels = list[tuple[Any, ...]](), dict[Any, int]()
    labels, assumes = dict[str, str](), dict[str, str]()
    for audit, cell in zip(run.plan.audits, run.sweep.cells, strict=True):
        identity = cell.identity()
        seed = f"seed={identity['mechanism'].pop('seed', 0)}"
        line = json.dumps(identity, sort_keys=True)
        bounds = step_bounds(run, audit, estimator).sort_values("step").set_index("step")
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
    titles, short = dict[int, str](), dict[str, str]()
    for panel in panels.values():
        names = table.loc[table["panel"] == panel, "line"].unique()
        shared, without = shared_parts([labels[name] for name in names])
        titles[panel] = shared if len(names) > 1 else without[0]
        short |= dict(zip(names, without, strict=True))
    for name, values in (("title", titles), ("label", short), ("assumes", assumes)):
        table[name] = table["panel" if name == "title" else "line"].map(values)
    table["line"] = pd.factorize(table["line"])[0]
    return table.sort_values(["panel", "line"], kind="stable")


def last_bounds(table: pd.DataFrame) -> pd.DataFrame:
    """The lines of a `bounds_table` at their last step, with the `mean` over `repetitions`.

    `kind` is what the bounds assume, or that their mean is above its claim.
    """
    last = table[table["step"] == table.groupby("line")["step"].transform("max")]
    by_line = last.groupby("line")
    last = last.assign(
        mean=by_line["bound"].transform("mean").fillna(0.0),
        repetitions=by_line["audit"].transform("size"),
    )
    return last.assign(kind=last["assumes"].mask(last["mean"] > last["claim"], _ABOVE))


def step_bounds(run: Run, audit: PlannedAudit, estimator: str | None = None) -> pd.DataFrame:
    """The rows that stand for an audit, one a step, with what each `assumes` and the `bound`.

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
        axes.set_yticks(heights, [name for name, _ in names])
        axes.grid(axis="y", visible=False)
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
            axes.set(title=panel["title"].iloc[0], xlabel="step", ylabel=epsilon_at(panel["delta"]))
            axes.title.set_fontsize(8)
            if small:
                logarithmic(axes, "y")
            else:
                axes.set_ylim(bottom=0)
            legend(axes, size=6)
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
    means.loc[means["audits"] == 1, ["low", "high"]] = math.nan
    alone = panel["line"].nunique() == 1
    certain = means["assumes"].isin(("", *PROVED))
    names = pd.Series("lower bound", means.index) if alone else means["label"]
    return means.assign(series=names.where(certain, names + " (" + means["assumes"] + ")"))


def trend_figure(run: Run, estimator: str | None = None) -> Figure | None:
    """A line for each choice of the other keys; None unless one key alone has three numbers."""
    grid = {key: list(values) for key, values in dict(run.sweep.raw.get("grid") or {}).items()}
    many = [key for key, values in grid.items() if is_axis(key, values)]
    if len(many) != 1:
        return None
    (key,), name = many, many[0].rpartition(".")[2]
    rows = []
    for audit, values in zip(run.plan.audits, itertools.product(*grid.values()), strict=True):
        parts = audit.label.split(LABEL_SEPARATOR)
        others = LABEL_SEPARATOR.join(part for part in parts if part.partition("=")[0] != name)
        bounds = step_bounds(run, audit, estimator).set_index("step")["bound"]
        x, y = dict(zip(grid, values, strict=True))[key], bounds.get(audit.horizons[-1], math.nan)
        rows.append((others or "lower bound", float(x), y if y > 0 else math.nan, audit.claim))
    table = pd.DataFrame(rows, columns=["series", "x", "y", "claim"])
    table = table.sort_values("x", kind="stable")
    # One entry in the legend: claims are mostly one.
    styles = {series: {"label": "_claim"} for series in table["series"].unique()[1:]}
    with canvas(7.5, 3.6) as (figure, (axes,)):
        claims = table.assign(y=table["claim"])
        lines(axes, claims, styles, color="black", lw=1, ls="-", label="claim")
        lines(axes, table, marker="o", ms=3)
        logarithmic(axes, "y")
        if 0 < _WIDE * min(grid[key]) < max(grid[key]):
            logarithmic(axes, "x")
        axes.set_xlabel(name)
        axes.set_ylabel(epsilon_at([cell.audit.delta for cell in run.sweep.cells]))
        figure.legend(loc="outside right upper", frameon=False, fontsize=7)
        return figure


def is_axis(key: str, values: list[Any]) -> bool:
    """Whether the values of a key of the grid are numbers, and enough of them for a line."""
    plain = all(type(value) in (int, float) for value in values)
    return plain and len(values) >= _FEWEST and not key.endswith("seed")


def _distributions(run: Run) -> Iterator[tuple[str, str, bytes]]:
    """Histograms of what mechanisms tell of themselves, where their preparation is there."""
    prepared, quantities = Prepared(run.directory, run.plan), dict[str, dict[str, Floats]]()
    for index, (audit, cell) in enumerate(zip(run.plan.audits, run.sweep.cells, strict=True)):
        if cell.unimported or (not (parts := prepared.complete(index)) and audit.preparation):
            continue
        drawn = cell.mechanism.distributions(cell.adversary, cell.audit.delta, parts)
        for quantity, values in drawn.items():
            if len(finite := values[np.isfinite(values)]):
                quantities.setdefault(quantity, {})[audit.label] = finite
    for number, (quantity, by_label) in enumerate(quantities.items(), start=1):
        rest = f" ({len(by_label) - _MOST} audits more are left out)" * (len(by_label) > _MOST)
        shown = dict(itertools.islice(by_label.items(), _MOST))
        largest = max(float(numbers.max()) for numbers in shown.values())
        with canvas(9, 3.6) as (figure, (axes,)):
            edges = np.linspace(0.0, largest if largest > 0 else 1.0, _BINS + 1)
            for n, (label, numbers) in enumerate(shown.items()):
                style = {"color": COLOURS[n % len(COLOURS)], "ls": DASHES[n // len(COLOURS)]}
                weights = np.full(len(numbers), 1 / len(numbers))
                axes.hist(numbers, edges, weights=weights, histtype="step", label=label, **style)
            logarithmic(axes, "y")  # tails count
            axes.set_xlabel(quantity)
            axes.set_ylabel("share")
            figure.legend(loc="outside right upper", frameon=False, fontsize=7)
            content = png(figure)
        yield f"distribution-{number}", f"How often: {quantity}{rest}", content
