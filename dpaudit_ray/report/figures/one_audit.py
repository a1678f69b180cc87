"""The figure of one audit: its bounds over steps, its scores, and the curve that these trace."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from ...plan.score_stream import Trials
from ...stats import Status
from ..measures import Profile, gaussian_trade_off
from ..words import OTHER_CURVE_MARK
from .primitives import ALARM, COLOURS, DASHES, canvas, epsilon_at, legend, lines, png

_WORLDS = {False: "canary out", True: "canary in"}


def audit_figure(
    title: str, estimates: pd.DataFrame, trials: Trials, curves: Profile | None
) -> bytes:
    """A PNG: bounds over steps and, where there are any, last scores and their trade-off curve.

    `estimates` are the audit's rows of `Run.table`, `trials` those that gave an output.
    """
    panels: list[tuple[Callable[[Any, Any], None], Any]] = [(_bounds, estimates)]
    panels += [(_last_scores, trials)] * bool(len(trials.members))
    panels += [(_trade_off, curves)] * (curves is not None)
    width = max(9, 4 * len(panels))
    with canvas(width, 3.4, 1, len(panels), layout=None) as (figure, row):
        figure.suptitle(title, fontsize=10)
        for axes, (draw, content) in zip(row, panels, strict=True):
            draw(axes, content)
        # A layout engine takes most of a page's time; these margins hold labels of six characters,
        # and legends above the panels, where they lie on no curve.
        height = 3.4 + 0.16 * math.ceil(len(row[0].get_legend().texts) / 2)
        figure.set_figheight(height)
        sides = 0.6 / width, 0.49 / height, 1 - 0.15 / width, 3.06 / height
        figure.subplots_adjust(*sides, wspace=0.24)
        return png(figure)


def _bounds(axes: Any, estimates: pd.DataFrame) -> None:
    estimates = estimates.rename(columns={"step": "x"})
    claims = estimates.drop_duplicates(["accountant", "x"])
    claims = claims.assign(series="claim: " + claims["accountant"], y=claims["epsilon_upper"])
    dashes = dict(zip(claims["series"].unique(), itertools.cycle(DASHES), strict=False))
    lines(axes, claims, {name: {"ls": dash} for name, dash in dashes.items()}, color="black")
    bounds = estimates.drop_duplicates(["estimator", "x"])
    bounds["y"] = bounds["epsilon_lower_together"].fillna(bounds["epsilon_lower"])
    names = {}
    for row in bounds.drop_duplicates("estimator").to_dict("records"):
        mark = OTHER_CURVE_MARK if row["assumes_other_curve"] else ""
        assumes = Status(row["status"]).assumes(row["mu_lower"])
        names[row["estimator"]] = f"{row['estimator']}{mark} ({assumes})"
    lines(axes, bounds.assign(series=bounds["estimator"].map(names)), marker="o", ms=3, lw=1.5)
    above = bounds[bounds["above_claim"]]
    axes.plot(above["x"], above["y"], "X", color=ALARM, ms=9, zorder=3)
    other_curve = bounds["assumes_other_curve"].any()
    note = f"  ({OTHER_CURVE_MARK}: another curve than the claim's)" if other_curve else ""
    axes.set(xlabel=f"step{note}", ylabel=epsilon_at(estimates["delta"]))
    axes.set_ylim(bottom=0)
    legend(axes, above=True)


def _last_scores(axes: Any, trials: Trials) -> None:
    """40 bins over the central 99.8 %, so that one wild score does not hide all others."""
    values, members = trials.scores[:, -1], trials.members
    finite = np.isfinite(values)
    if finite.any():
        low, high = np.quantile(values[finite], [0.001, 0.999])
        margin = 0.0 if high > low else 0.5
        edges = np.linspace(low - margin, high + margin, 41)
        for world, name in _WORLDS.items():
            shown = values[finite & (members == world)]
            axes.hist(shown, edges, color=COLOURS[world], label=name, alpha=0.55)
        legend(axes, above=True)
    diverged = int((~finite).sum())
    axes.set_xlabel("score" + f" ({diverged} diverged trials not drawn)" * (diverged > 0))
    axes.set_ylabel("trials")


def _trade_off(axes: Any, curves: Profile) -> None:
    """The observed curve, its fit, and the curve below which the claim lets no test come."""
    observed, rates = curves.tradeoff, np.linspace(0.0, 1.0, 400)
    fit = f"Gaussian, μ = {observed.mu:.2f}"
    ends = {
        "observed": (observed.alpha, observed.beta),
        fit: (rates, gaussian_trade_off(rates, observed.mu)),
        "claim": (rates, 1 - curves.claim.true_positive_rate(rates)),
    }
    table = [pd.DataFrame({"series": name, "x": x, "y": y}) for name, (x, y) in ends.items()]
    styles = {"observed": {"drawstyle": "steps-post"}, fit: {"ls": "--"}}
    lines(axes, pd.concat(table), styles | {"claim": {"color": "black"}})
    # Of a steep curve, all is in a corner: rates of up to eight times that of the middle.
    reach = min(max(8 * float(special.ndtr(-observed.mu / 2)), 0.02), 1.0)
    axes.set(xlim=(-0.02 * reach, reach), ylim=(-0.02 * reach, reach), aspect="equal",
             xlabel="false-positive rate α", ylabel="false-negative rate β")  # fmt: skip
    legend(axes, above=True)
