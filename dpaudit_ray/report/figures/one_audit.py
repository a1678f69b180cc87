"""The figure of one audit: its bounds over steps, its scores, and their trade-off curve."""

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

_BINS = 40  # of a histogram
_WORLDS = {False: "canary out", True: "canary in"}


def audit_figure(
    title: str, estimates: pd.DataFrame, trials: Trials, curves: Profile | None
) -> bytes:
    """Draws bounds over steps and, if there are any, last scores and their trade-off curve.

    Args:
        title: the audit's label.
        estimates: its rows of `Run.table`.
        trials: its trials that have a score.
        curves: the curves of its scores; None if they are not independent.

    Returns:
        A PNG file's content.
    """
    panels: list[tuple[Callable[..., None], Any]] = [(_bounds, estimates)]
    if len(trials.members):
        panels.append((_last_scores, trials))
    if curves is not None:
        panels.append((_trade_off, curves))
    width = max(9, 4 * len(panels))
    with canvas(width, 3.4, 1, len(panels), layout=None) as (figure, row):
        figure.suptitle(title, fontsize=10)
        for axes, (draw, content) in zip(row, panels, strict=True):
            draw(axes, content)
        # A layout engine takes most of a page's time; these margins, in inches, have room for
        # labels of six characters, and for legends above the panels, away from the curves.
        legend_rows = math.ceil(len(row[0].get_legend().texts) / 2)
        height = 3.4 + 0.16 * legend_rows
        figure.set_figheight(height)
        sides = 0.6 / width, 0.49 / height, 1 - 0.15 / width, 3.06 / height
        figure.subplots_adjust(*sides, wspace=0.24)
        return png(figure)


def _bounds(axes: Any, estimates: pd.DataFrame) -> None:
    """Draws the bounds of all estimators over steps, and the claims of all accountants."""
    estimates = estimates.rename(columns={"step": "x"})
    claims = estimates.drop_duplicates(["accountant", "x"])
    claims = claims.assign(series="claim: " + claims["accountant"], y=claims["epsilon_upper"])
    names = claims["series"].unique()
    styles = {name: {"ls": DASHES[n % len(DASHES)]} for n, name in enumerate(names)}
    lines(axes, claims, styles, color="black")
    bounds = estimates.drop_duplicates(["estimator", "x"])
    bounds["y"] = bounds["epsilon_lower_together"].fillna(bounds["epsilon_lower"])
    labels = {}
    for row in bounds.drop_duplicates("estimator").to_dict("records"):
        mark = OTHER_CURVE_MARK if row["assumes_other_curve"] else ""
        assumes = Status(row["status"]).assumes(row["mu_lower"])
        labels[row["estimator"]] = f"{row['estimator']}{mark} ({assumes})"
    bounds["series"] = bounds["estimator"].map(labels)
    lines(axes, bounds, marker="o", ms=3, lw=1.5)
    above = bounds[bounds["above_claim"]]
    axes.plot(
        above["x"],
        above["y"],
        "X",
        color=ALARM,
        ms=9,
        zorder=3,
    )
    xlabel = "step"
    if bounds["assumes_other_curve"].any():
        xlabel += f"  ({OTHER_CURVE_MARK}: another curve than the claim's)"
    axes.set(xlabel=xlabel, ylabel=epsilon_at(estimates["delta"]))
    axes.set_ylim(bottom=0)
    legend(axes, above=True)


def _last_scores(axes: Any, trials: Trials) -> None:
    """Draws histograms over the central 99.8 %, so that an outlier does not hide other scores."""
    values, members = trials.scores[:, -1], trials.members
    finite = np.isfinite(values)
    if finite.any():
        low, high = np.quantile(values[finite], [0.001, 0.999])
        margin = 0.0 if high > low else 0.5
        edges = np.linspace(low - margin, high + margin, _BINS + 1)
        for world, name in _WORLDS.items():
            counted = values[finite & (members == world)]
            axes.hist(
                counted,
                edges,
                color=COLOURS[world],
                label=name,
                alpha=0.55,
            )
        legend(axes, above=True)
    diverged = int((~finite).sum())
    absent = f" ({diverged} diverged trials not drawn)" if diverged else ""
    axes.set_xlabel(f"score{absent}")
    axes.set_ylabel("trials")


def _trade_off(axes: Any, curves: Profile) -> None:
    """Draws the observed trade-off curve, its fit, and the least one that the claim allows."""
    observed = curves.tradeoff
    rates = np.linspace(0.0, 1.0, 400)
    fitted = gaussian_trade_off(rates, observed.mu)
    claimed = 1 - curves.claim.true_positive_rate(rates)
    fit = f"Gaussian, μ = {observed.mu:.2f}"
    axes.step(
        observed.alpha,
        observed.beta,
        where="post",
        color=COLOURS[0],
        lw=1.2,
        label="observed",
    )
    axes.plot(
        rates,
        fitted,
        color=COLOURS[1],
        ls="--",
        lw=1.2,
        label=fit,
    )
    axes.plot(rates, claimed, color="black", lw=1.2, label="claim")
    # A steep curve lies in the corner: draw up to eight times the rates of its middle.
    middle = float(special.ndtr(-observed.mu / 2))
    reach = min(max(8 * middle, 0.02), 1.0)
    limits = (-0.02 * reach, reach)
    axes.set(xlim=limits, ylim=limits, aspect="equal")
    axes.set(xlabel="false-positive rate α", ylabel="false-negative rate β")
    legend(axes, above=True)
