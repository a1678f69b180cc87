"""Figures of a whole run: its audits side by side, over steps, and over a key of the grid."""

import collections
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ...errors import SpecError
from ...plan.model import PlannedAudit
from ...plan.preparing import Prepared
from ...stats import Status
from ...sweep.grid import LABEL_SEPARATOR, shared_parts
from ..measures import Floats
from ..quote import PROVED
from ..tables import EXACT, Run, representative
from .primitives import (
    ALARM,
    CLAIM,
    COLOURS,
    DASHES,
    canvas,
    epsilon_at,
    legend,
    lines,
    logarithmic,
    png,
)

_COLUMNS = 4  # panels side by side
_ABOVE = "above its claim"
_FEWEST = 3  # values of a key from which on they make a line
_WIDE = 100  # ratio of a key's values from which on its axis is logarithmic
_MOST = 2 * len(COLOURS)  # histograms in a figure
_BINS = 60  # bins of a histogram


def captions(run: Run) -> dict[str | None, str]:
    """Returns the estimators whose bounds are drawn, with the words that they add to captions.

    None stands for each audit's first estimator.
    """
    by_estimator = dict[str | None, str]({None: ""})
    if not any(cell.sampled for cell in run.sweep.cells):
        estimated = set(run.estimates["estimator"])
        for cell in run.sweep.cells:
            for name, what in cell.mechanism.exact_estimators.items():
                if what and name in estimated:
                    by_estimator[name] = f" {what}"
    return by_estimator


def roc_figure(curves: list[pd.DataFrame]) -> bytes:
    """Draws the ROC curves of the first audits with bands and claims; returns a PNG.

    Args:
        curves: `Reading.curves` of each audit.
    """
    curves = curves[: len(COLOURS)]
    with canvas(7, 5) as (figure, (axes,)):
        for colour, table in zip(COLOURS, curves, strict=False):
            # `Reading.curves` puts the rows of the claim behind those of the observed rates.
            claim = table["series"].iloc[-1]
            points = table[["series", "x", "y"]]  # without `low` and `high`: the band is drawn here
            styles = {claim: {"ls": "--", "marker": ""}}
            lines(axes, points, styles, color=colour, ls="-", marker=".")
            axes.fill_between(
                table["x"],
                table["low"],  # like `high`, NaN in the rows of the claim, which has no band
                table["high"],
                step="post",
                color=colour,
                alpha=0.15,
                lw=0,
            )
        least = min(float(table["x"].min()) for table in curves)
        diagonal = [least, 1]
        axes.plot(
            diagonal,
            diagonal,
            color="grey",
            lw=0.8,
            ls=":",
            label="by chance",
        )
        logarithmic(axes, "x")
        logarithmic(axes, "y")
        axes.set(
            xlabel="false-positive rate",
            ylabel="true-positive rate",
            ylim=(least / 3, 1.1),
        )
        legend(axes)
        return png(figure)


# Tables of bounds --------------------------------------------------------------------------------


def bounds_table(run: Run, estimator: str | None = None) -> pd.DataFrame:
    """Returns the bounds of a run with their claims: a row for each audit and recorded step.

    Audits that differ in `mechanism.seed` only are one `line`, and lines that claim the same at the
    same steps one `panel`. Rows are sorted by these, which are numbered as in the sweep file.
    `title` is what the labels of a panel's lines share, `label` is without that. `bound` is NaN
    without trials; `claim` is by the first accountant, `delta` of both. The assumption of the
    line's last bound, `assumes`, is empty without any. Other columns: `audit`, `step`.

    Args:
        run: the run.
        estimator: the estimator of the bounds; None for every audit's own.
    """
    tables = []
    panels = dict[Any, int]()
    labels, assumes = dict[str, str](), dict[str, str]()
    for audit, cell in run.pairs:
        identity = cell.identity()
        seed = f"seed={identity['mechanism'].pop('seed', 0)}"
        line = json.dumps(identity, sort_keys=True)
        bounds = step_bounds(run, audit, estimator).set_index("step").sort_index()
        if line in labels:  # a repetition with another seed
            labels[line] = _label_without(audit, seed)
        else:
            labels[line] = audit.label
            assumes[line] = str(bounds["assumes"].iloc[-1]) if len(bounds) else ""
        claims = audit.claims[audit.accountant]
        panel = panels.setdefault((audit.horizons, audit.accountant, claims), len(panels))
        rows = {
            "step": audit.horizons,
            "claim": claims,
            "panel": panel,
            "line": line,
            "audit": audit.id,
            "delta": cell.audit.delta,
        }
        table = pd.DataFrame(rows)
        table["bound"] = table["step"].map(bounds["bound"]).astype(float)
        tables.append(table)
    table = pd.concat(tables)
    titles = {}
    for number, names in table.groupby("panel")["line"].unique().items():
        shared, short = shared_parts([labels[name] for name in names])
        titles[number] = shared if len(names) > 1 else short[0]
        labels |= dict(zip(names, short, strict=True))
    table["title"] = table["panel"].map(titles)
    table["label"] = table["line"].map(labels)
    table["assumes"] = table["line"].map(assumes)
    table["line"] = pd.factorize(table["line"])[0]
    return table.sort_values(["panel", "line"], kind="stable")


def _label_without(audit: PlannedAudit, option: str) -> str:
    """Returns the audit's label without its parts that are, or set, an `option`."""
    remaining = [
        part
        for part in audit.label.split(LABEL_SEPARATOR)
        if option not in (part, part.partition("=")[0])
    ]
    return LABEL_SEPARATOR.join(remaining)


def last_bounds(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the lines of a `bounds_table` at their last step, with their mean over repetitions.

    The column `kind` has the assumption of the bounds, or that their mean is above its claim.
    """
    last_steps = table.groupby("line")["step"].transform("max")
    last = table[table["step"] == last_steps]
    by_line = last.groupby("line")
    last = last.assign(
        mean=by_line["bound"].transform("mean").fillna(0.0),
        repetitions=by_line["audit"].transform("size"),
    )
    above = last["mean"] > last["claim"]
    return last.assign(kind=last["assumes"].mask(above, _ABOVE))


def step_bounds(
    run: Run,
    audit: PlannedAudit,
    estimator: str | None = None,
) -> pd.DataFrame:
    """Returns an audit's rows by one estimator, one for each step, with assumption and `bound`.

    The bound is the ε to quote. It is NaN if it assumes something unproved and exceeds its claim.

    Args:
        run: the run.
        audit: the audit.
        estimator: the estimator; None for the one that is quoted.
    """
    name = estimator or representative(run, audit)
    rows = run.rows(audit)
    rows = rows[rows["estimator"] == name].drop_duplicates("step")
    assumes = [EXACT] * len(rows)
    if name != EXACT:
        pairs = zip(rows["status"], rows["mu_lower"], strict=True)
        assumes = [Status(status).assumes(mu) for status, mu in pairs]
    bound = rows["epsilon_lower_together"].fillna(rows["epsilon_lower"])
    proved = rows["above_claim"] | (rows["status"] == Status.CERTIFIED)
    bound = bound.where(proved | (bound <= rows["epsilon_upper"]))
    return rows.assign(bound=bound, assumes=assumes)


# Figures -----------------------------------------------------------------------------------------


def bars_figure(bounds: pd.DataFrame, **options: Any) -> Figure:
    """Draws a bar for each line: the mean lower bound, a dot per repetition, the claim as a mark.

    Bars of one panel are together below its title; bounds that are not certified are pale.

    Args:
        bounds: a `bounds_table`.
        **options: options of `canvas`.
    """
    last = last_bounds(bounds)
    names = []  # label and font weight of each row, from above
    rows = {}  # number of the row of each line
    for _, panel in last.groupby("panel"):
        title = panel["title"].iloc[0]
        if panel["line"].nunique() > 1 and title:
            names.append((title, "bold"))
        for line in panel.drop_duplicates("line").to_dict("records"):
            rows[line["line"]] = len(names)
            names.append((line["label"], "normal"))
    from_below = len(names) - 1 - last["line"].map(rows)
    last = last.assign(y=from_below)
    lines = last.drop_duplicates("line")
    height = 0.9 + 0.34 * len(names)
    with canvas(9, height, **options) as (figure, (axes,)):
        for kind in lines["kind"].unique():
            bars = lines[lines["kind"] == kind]
            above = kind == _ABOVE
            axes.barh(
                bars["y"],
                bars["mean"],
                color=ALARM if above else COLOURS[0],
                hatch="//" if above else None,
                alpha=1.0 if above or kind in PROVED else 0.45,
                height=0.6,
                label=f"lower bound ({kind})" if kind else "no bound yet",
            )
        axes.plot(
            lines["claim"],
            lines["y"],
            **CLAIM,
            label="claim",
        )
        repeated = last[(last["repetitions"] > 1) & last["bound"].notna()]
        if len(repeated):
            dots = {"color": COLOURS[1], "ms": 3, "label": "repetitions"}
            axes.plot(repeated["bound"], repeated["y"], "o", **dots)
        labels = [name for name, _ in reversed(names)]
        axes.set_yticks(range(len(names)), labels)
        axes.grid(axis="y", visible=False)
        ticks = axes.get_yticklabels()
        for tick, (_, weight) in zip(ticks, reversed(names), strict=True):
            tick.set_fontweight(weight)
        axes.set_xlabel(epsilon_at(last["delta"]))
        axes.legend(
            loc="lower right",
            bbox_to_anchor=(1, 1),
            ncols=4,
            frameon=False,
        )
        return figure


def evolution_figure(
    bounds: pd.DataFrame,
    small: bool = False,
    ax: Any = None,
    **options: Any,
) -> Figure | None:
    """Draws the bounds over steps, a panel for each claim; None if only one step is recorded.

    A line is the mean over repetitions, with their range shaded.

    Args:
        bounds: a `bounds_table`.
        small: bounds are far below their claims, so that only a logarithmic axis shows both.
        ax: axes to draw on, instead of a new figure.
        **options: further options of `canvas`.

    Raises:
        SpecError: `ax` has fewer axes than there are panels.
    """
    panels = [panel for _, panel in bounds.groupby("panel") if panel["step"].nunique() > 1]
    if not panels:
        return None
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    width = max(2.7 * columns, 6.0)
    with canvas(width, 2.9 * rows, rows, columns, ax=ax, **options) as (figure, grid):
        if len(grid) < len(panels):
            raise SpecError("ax", f"must be {len(panels)} axes, one for each claim: {len(grid)}")
        for axes, panel in zip(grid, panels, strict=False):
            claim = panel.drop_duplicates("step").rename(columns={"step": "x", "claim": "y"})
            lines(axes, claim.assign(series="claim"), color="black")
            lines(axes, evolution(panel), marker="o", ms=2.5)
            axes.set(xlabel="step", ylabel=epsilon_at(panel["delta"]))
            axes.set_title(panel["title"].iloc[0], fontsize=8)
            if small:
                logarithmic(axes, "y")
            else:
                axes.set_ylim(bottom=0)
            legend(axes, size=6)
        if ax is None:
            for axes in grid[len(panels) :]:
                axes.remove()
        return figure


def evolution(panel: pd.DataFrame) -> pd.DataFrame:
    """Returns mean and range over repetitions at each step of each line, for `lines`."""
    by_step = panel.groupby(["line", "step"], as_index=False)
    means = by_step.agg(
        label=("label", "first"),
        assumes=("assumes", "first"),
        x=("step", "first"),
        y=("bound", "mean"),
        low=("bound", "min"),
        high=("bound", "max"),
        audits=("audit", "size"),
    )
    means.loc[means["audits"] == 1, ["low", "high"]] = math.nan
    names = means["label"]
    if panel["line"].nunique() == 1:
        names = pd.Series("lower bound", means.index)
    proved = means["assumes"].isin(("", *PROVED))
    assuming = names + " (" + means["assumes"] + ")"
    return means.assign(series=names.where(proved, assuming))


@dataclass(frozen=True)
class Trend:
    """Bounds over a key of the grid: `table` has columns `series`, `x`, `y` and `claim`.

    `wide`: only a logarithmic axis shows all values of the key.
    """

    key: str
    table: pd.DataFrame
    wide: bool
    deltas: tuple[float, ...]

    @property
    def claims(self) -> pd.DataFrame:
        """The claims as the table's `y`."""
        return self.table.assign(y=self.table["claim"])


def trend(run: Run, estimator: str | None) -> Trend | None:
    """Returns bounds over a key of the grid, a series for each choice of the other keys.

    None unless exactly one key has three or more numbers.

    Args:
        run: the run.
        estimator: the estimator of the bounds; None for every audit's own.
    """
    grid = dict(run.sweep.raw.get("grid") or {})
    axis_keys = [key for key, values in grid.items() if is_axis(key, values)]
    if len(axis_keys) != 1:
        return None
    (key,) = axis_keys
    position = list(grid).index(key)
    name = key.rpartition(".")[2]
    rows = []
    choices = itertools.product(*grid.values())
    for audit, values in zip(run.plan.audits, choices, strict=True):
        series = _label_without(audit, name) or "lower bound"
        bounds = step_bounds(run, audit, estimator).set_index("step")["bound"]
        bound = bounds.get(audit.horizons[-1], math.nan)
        positive = bound if bound > 0 else math.nan  # the axis is logarithmic
        rows.append((series, float(values[position]), positive, audit.claim))
    table = pd.DataFrame(rows, columns=["series", "x", "y", "claim"])
    return Trend(
        key=name,
        table=table.sort_values("x", kind="stable"),
        wide=0 < _WIDE * min(grid[key]) < max(grid[key]),
        deltas=tuple(cell.audit.delta for cell in run.sweep.cells),
    )


def trend_figure(bounds: Trend) -> Figure:
    """Draws bounds over a key of the grid, a line for each choice of the other keys."""
    # Only the first claim is in the legend: mostly all series have the same.
    later = bounds.table["series"].unique()[1:]
    styles = {series: {"label": "_claim"} for series in later}
    with canvas(7.5, 3.6) as (figure, (axes,)):
        lines(
            axes,
            bounds.claims,
            styles,
            color="black",
            lw=1,
            ls="-",
            label="claim",
        )
        lines(axes, bounds.table, marker="o", ms=3)
        logarithmic(axes, "y")
        if bounds.wide:
            logarithmic(axes, "x")
        axes.set_xlabel(bounds.key)
        axes.set_ylabel(epsilon_at(bounds.deltas))
        _legend_outside(figure)
        return figure


def is_axis(key: str, values: Sequence[Any]) -> bool:
    """Returns whether the values of a key of the grid are numbers, and enough for a line."""
    numbers = all(type(value) in (int, float) for value in values)
    return numbers and len(values) >= _FEWEST and not key.endswith("seed")


@dataclass(frozen=True)
class Distribution:
    """Shares of a quantity that mechanisms compute, in bins between `edges`, by audit label."""

    quantity: str
    caption: str
    edges: Floats
    shares: dict[str, Floats]


def distributions(run: Run) -> Iterator[Distribution]:
    """Yields histograms of the quantities that mechanisms compute from finished preparations."""
    prepared = Prepared(run.directory, run.plan)
    quantities = collections.defaultdict[str, dict[str, Floats]](dict)
    for index, (audit, cell) in enumerate(run.pairs):
        if cell.unimported:
            continue
        parts = prepared.complete(index)
        if audit.preparation and not parts:  # not all of them are stored yet
            continue
        by_quantity = cell.mechanism.distributions(cell.adversary, cell.audit.delta, parts)
        for quantity, values in by_quantity.items():
            finite = values[np.isfinite(values)]
            if len(finite):
                quantities[quantity][audit.label] = finite
    for quantity, by_label in quantities.items():
        caption = f"How often: {quantity}"
        if len(by_label) > _MOST:
            caption += f" ({len(by_label) - _MOST} audits more are left out)"
        visible = dict(list(by_label.items())[:_MOST])
        largest = max(float(values.max()) for values in visible.values())
        edges = np.linspace(0.0, largest if largest > 0 else 1.0, _BINS + 1)
        shares = {}
        for label, values in visible.items():
            counts, _ = np.histogram(values, edges)
            shares[label] = counts / len(values)
        yield Distribution(quantity, caption, edges, shares)


def distribution_figure(distribution: Distribution) -> Figure:
    """Draws the outlines of histograms."""
    with canvas(9, 3.6) as (figure, (axes,)):
        for number, (label, shares) in enumerate(distribution.shares.items()):
            dash, colour = divmod(number, len(COLOURS))
            style = {"color": COLOURS[colour], "ls": DASHES[dash]}
            axes.stairs(shares, distribution.edges, label=label, **style)
        logarithmic(axes, "y")  # shows the tails
        axes.set_xlabel(distribution.quantity)
        axes.set_ylabel("share")
        _legend_outside(figure)
        return figure


def _legend_outside(figure: Figure) -> None:
    figure.legend(loc="outside right upper", frameon=False, fontsize=7)
