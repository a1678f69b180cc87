"""Charts of the page: numbers, from which the browser draws, and which it saves as SVG, PNG or CSV.

A chart is a mapping with the keys that `templates/charts.js` reads.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..errors import lines
from ..plan.score_stream import Trials
from ..stats import Status
from .figures import whole_run
from .figures.primitives import epsilon_at
from .measures import Profile, gaussian_trade_off
from .words import OTHER_CURVE_MARK

Chart = dict[str, Any]
_BINS = 40  # bins of a histogram
_CURVE_POINTS = 120  # points of a trade-off curve
_WORLDS = {False: "without the canary", True: "with the canary"}


def chart(
    title: str,
    table: pd.DataFrame,
    x: str,
    y: str,
    kinds: Mapping[str, str] | None = None,
    logarithmic: str = "",
) -> Chart:
    """Returns a chart with a line for each series of a table, in their order.

    Args:
        title: what the chart shows.
        table: has columns `series`, `x`, `y`, and `low` and `high` if a band is shaded.
        x: label of the horizontal axis.
        y: label of the vertical axis.
        kinds: "claim", "step", "dots" or "alarm" by series; others are lines with points.
        logarithmic: axes that are logarithmic: "", "x", "y" or "xy".
    """
    series = []
    for name, rows in table.groupby("series", sort=False):
        entry: Chart = {
            "name": lines(str(name)),
            "kind": (kinds or {}).get(str(name), "line"),
            "x": numbers(rows["x"]),
            "y": numbers(rows["y"]),
        }
        for column in ("low", "high"):
            if column in rows and rows[column].notna().any():
                entry[column] = numbers(rows[column])
        series.append(entry)
    return {
        "title": lines(title),
        "x": x,
        "y": y,
        "log": logarithmic,
        "series": series,
    }


def numbers(values: Iterable[float]) -> list[float | None]:
    """Returns numbers with five digits, more than a chart shows; None if one is not finite."""
    return [rounded(value) for value in values]


def rounded(value: float) -> float | None:
    """Returns five digits of a number; None if it is not finite."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def spaced(count: int, most: int) -> NDArray[np.int64]:
    """Returns at most `most` numbers below `count`, evenly spaced, with the first and the last."""
    return np.unique(np.linspace(0, count - 1, most).round().astype(int))


def of_bounds(bounds: pd.DataFrame) -> Chart:
    """Returns a bar for each line of a `bounds_table`, with its claim and its repetitions."""
    last = whole_run.last_bounds(bounds)
    rows = []
    for _, line in last.groupby("line", sort=False):
        first = line.iloc[0]
        label = " ".join(filter(None, (first["title"], first["label"])))
        if first["title"] == first["label"]:
            label = first["label"]
        repetitions = []  # bounds of audits that differ in their randomness only
        if len(line) > 1:
            repetitions = numbers(line["bound"].dropna())
        mean = rounded(first["mean"])
        claim = rounded(first["claim"])
        rows.append([lines(label), mean, claim, first["kind"], repetitions])
    return {"title": "", "x": epsilon_at(last["delta"]), "rows": rows}


def of_evolution(bounds: pd.DataFrame, small: bool) -> list[Chart]:
    """Returns the bounds of a `bounds_table` over steps, a chart for each claim.

    Args:
        bounds: the table.
        small: bounds are far below their claims, so that only a logarithmic axis shows both.
    """
    charts = []
    for _, panel in bounds.groupby("panel"):
        if panel["step"].nunique() > 1:
            claim = panel.drop_duplicates("step").rename(columns={"step": "x", "claim": "y"})
            claim = claim[["x", "y"]].assign(series="claim")
            columns = ["series", "x", "y", "low", "high"]
            table = pd.concat([claim, whole_run.evolution(panel)[columns]])
            title = panel["title"].iloc[0]
            axes = "step", epsilon_at(panel["delta"])
            logarithmic = "y" if small else ""
            charts.append(chart(title, table, *axes, {"claim": "claim"}, logarithmic))
    return charts


def of_audit(
    estimates: pd.DataFrame,
    trials: Trials,
    curves: Profile | None,
) -> list[Chart]:
    """Returns bounds over steps and, if there are any, last scores and their trade-off curve.

    Args:
        estimates: an audit's rows of `Run.table`.
        trials: the audit's trials that have a score.
        curves: trade-off curves of these scores; None if trials are not independent.
    """
    charts = [_bounds(estimates)]
    if len(trials.members):
        charts.append(_last_scores(trials))
    if curves is not None:
        charts.append(_trade_off(curves))
    return charts


def _bounds(estimates: pd.DataFrame) -> Chart:
    """Returns the bounds of all estimators over steps, and the claims of all accountants."""
    estimates = estimates.rename(columns={"step": "x"})
    claims = estimates.drop_duplicates(["accountant", "x"])
    claims = claims.assign(series="claim: " + claims["accountant"], y=claims["epsilon_upper"])
    kinds = dict.fromkeys(claims["series"], "claim")
    bounds = estimates.drop_duplicates(["estimator", "x"])
    # A bound that does not hold simultaneously with all others is drawn as it holds alone.
    bounds["y"] = bounds["epsilon_lower_together"].fillna(bounds["epsilon_lower"])
    labels = {}
    for row in bounds.drop_duplicates("estimator").to_dict("records"):
        mark = OTHER_CURVE_MARK if row["assumes_other_curve"] else ""
        assumes = Status(row["status"]).assumes(row["mu_lower"])
        labels[row["estimator"]] = f"{row['estimator']}{mark} ({assumes})"
    bounds["series"] = bounds["estimator"].map(labels)
    # Bounds above their claim are drawn once more, as marks.
    above = bounds[bounds["above_claim"]].assign(series="above its claim")
    columns = ["series", "x", "y"]
    table = pd.concat([claims[columns], bounds[columns], above[columns]])
    title = "Bounds by step"
    if bounds["assumes_other_curve"].any():
        title += f" ({OTHER_CURVE_MARK}: not the claim's curve)"
    kinds["above its claim"] = "alarm"
    return chart(title, table, "step", epsilon_at(estimates["delta"]), kinds)


def _last_scores(trials: Trials) -> Chart:
    """Returns histograms over the central 99.8 %, so that an outlier does not hide other scores."""
    values, members = trials.scores[:, -1], trials.members
    finite = np.isfinite(values)
    tables = [pd.DataFrame(columns=["series", "x", "y"])]  # empty, if no score is finite
    if finite.any():
        low, high = np.quantile(values[finite], [0.001, 0.999])
        margin = 0.0 if high > low else 0.5
        edges = np.linspace(low - margin, high + margin, _BINS + 1)
        for world, name in _WORLDS.items():
            of_world = finite & (members == world)
            counted, _ = np.histogram(values[of_world], edges)
            tables.append(outline(name, edges, counted))
    diverged = int((~finite).sum())
    title = "Scores at the last step"
    if diverged:
        title += f" ({diverged} diverged trials not drawn)"
    kinds = dict.fromkeys(_WORLDS.values(), "step")
    # One table for each world, without the empty one if there are any.
    return chart(title, pd.concat(tables[-2:]), "score", "trials", kinds)


def outline(name: str, edges: Any, counts: Any) -> pd.DataFrame:
    """Returns the outline of a histogram as a series: two corners for each bin.

    Args:
        name: name of the series.
        edges: edges of the bins, [bins + 1].
        counts: heights of the bins, [bins].
    """
    corners = np.repeat(edges, 2)[1:-1]
    return pd.DataFrame({"series": name, "x": corners, "y": np.repeat(counts, 2)})


def _trade_off(curves: Profile) -> Chart:
    """Returns the observed trade-off curve, its fit, and the least one that the claim allows."""
    observed = curves.tradeoff
    chosen = spaced(len(observed.alpha), _CURVE_POINTS)
    rates = np.linspace(0.0, 1.0, _CURVE_POINTS // 2)
    series = {
        "claim": (rates, 1 - curves.claim.true_positive_rate(rates)),
        "observed": (observed.alpha[chosen], observed.beta[chosen]),
        f"Gaussian, μ = {observed.mu:.2f}": (rates, gaussian_trade_off(rates, observed.mu)),
    }
    tables = []
    for name, (x, y) in series.items():
        tables.append(pd.DataFrame({"series": name, "x": x, "y": y}))
    names = "false-positive rate α", "false-negative rate β"
    kinds = dict.fromkeys(series, "curve") | {"claim": "claim"}
    return chart("Trade-off of error rates", pd.concat(tables), *names, kinds)
