"""Pictures of a whole run: charts that the page's browser draws, and PNG files for `figures/`."""

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from . import charts
from .charts import Chart
from .figures import whole_run
from .figures.primitives import COLOURS, epsilon_at, png
from .tables import Run


@dataclass(frozen=True)
class Picture:
    """A figure of the whole run: its charts, and the PNG file that has the same content."""

    name: str
    caption: str
    charts: list[Chart]
    png: bytes


def of_run(run: Run, roc: list[pd.DataFrame]) -> Iterator[Picture]:
    """Yields all pictures of a run that have content.

    Args:
        run: the run.
        roc: `Reading.curves` of each audit that has them.
    """
    for estimator, caption in whole_run.captions(run).items():
        suffix = f"-{estimator}" if estimator else ""
        bounds = whole_run.bounds_table(run, estimator)
        if estimator is None:  # the bars show the quoted bounds
            bars = [charts.of_bounds(bounds)]
            file = png(whole_run.bars_figure(bounds))
            yield Picture("overview", "Lower bound and claim of every audit", bars, file)
        small = estimator == "closed-form"  # this bound is far below its claim
        evolution = whole_run.evolution_figure(bounds, small=small)
        if evolution is not None:
            panels = charts.of_evolution(bounds, small=small)
            text = f"Bounds and claims over steps{caption}"
            yield Picture(f"evolution{suffix}", text, panels, png(evolution))
        trend = whole_run.trend(run, estimator)
        if trend is not None:
            text = f"Bounds and claims over the key that the sweep varies{caption}"
            file = png(whole_run.trend_figure(trend))
            yield Picture(f"trend{suffix}", text, [_trend(trend)], file)
    for number, distribution in enumerate(whole_run.distributions(run), start=1):
        file = png(whole_run.distribution_figure(distribution))
        outlines = [_distribution(distribution)]
        yield Picture(f"distribution-{number}", distribution.caption, outlines, file)
    if roc:
        caption = "Members found by the scores of up to six audits, with bands and claims"
        yield Picture("membership", caption, [_roc(roc)], whole_run.roc_figure(roc))


def _trend(trend: whole_run.Trend) -> Chart:
    """Returns the chart of bounds and claims over a setting; logarithmic in it if it is wide."""
    claims = trend.claims.assign(series="claim: " + trend.claims["series"])
    table = pd.concat([claims, trend.table])
    logarithmic = "xy" if trend.wide else "y"
    kinds = dict.fromkeys(claims["series"], "claim")
    axes = trend.key, epsilon_at(trend.deltas)
    return charts.chart("", table[["series", "x", "y"]], *axes, kinds, logarithmic)


def _distribution(distribution: whole_run.Distribution) -> Chart:
    """Returns the chart of a quantity that mechanisms compute: a histogram for each audit.

    Histograms are outlines in steps, with a logarithmic axis of shares.
    """
    outlines = [
        charts.outline(label, distribution.edges, shares)
        for label, shares in distribution.shares.items()
    ]
    kinds = dict.fromkeys(distribution.shares, "step")
    axes = distribution.quantity, "share"
    return charts.chart("", pd.concat(outlines), *axes, kinds, "y")


def _roc(curves: list[pd.DataFrame]) -> Chart:
    """Returns the chart of ROC curves, one for each colour, with claims and guessing by chance."""
    table = pd.concat(curves[: len(COLOURS)])
    kinds = {name: "claim" for name in table["series"] if name.startswith("claim: ")}
    ends = [table["x"].min(), 1.0]
    by_chance = pd.DataFrame({"series": "by chance", "x": ends, "y": ends})
    table = pd.concat([table, by_chance])
    return charts.chart("", table, "false-positive rate", "true-positive rate", kinds, "xy")
