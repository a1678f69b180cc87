"""The figure of one audit: its bounds over steps, its scores, and the curve that these trace."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from ...plan.score_stream import Trials
from ...stats import Status
from ..measures import Profile, gaussian_trade_off
from .primitives import ALARM, canvas, epsilon_at, histograms, legend, lines, png

_WORLDS = {False: "canary out", True: "canary in"}
_BY_STATUS = dict(zip(Status, itertools.cycle(("-", (0, (7, 1.5)), "--", "-.", ":")), strict=False))
_BY_ACCOUNTANT = ("-", "--", "-.", ":")


def audit_figure(
    title: str, estimates: pd.DataFrame, trials: Trials, curves: Profile | None
) -> bytes:
    """A PNG: bounds over steps and, where there are any, last scores and their trade-off curve.

    Args:
        title: printed above.
        estimates: this audit's rows of `Run.table`.
        trials: this audit's trials that gave an output.
        curves: what their scores trace, where trials are independent.
    """
    panels: list[Callable[[Any], None]] = [functools.partial(_bounds, estimates=estimates)]
    if len(trials.members):
        panels.append(functools.partial(_last_scores, trials=trials))
    if curves is not None:
        panels.append(functools.partial(_trade_off, curves=curves))
    width = max(9, 4 * len(panels))
    # A layout engine takes most of a page's time; these margins hold labels of six characters.
    with canvas(width, 3.4, 1, len(panels), layout=None) as (figure, row):
        figure.subplots_adjust(0.6 / width, 0.145, 1 - 0.15 / width, 0.9, wspace=0.24)
        figure.suptitle(title, fontsize=10)
        for axes, draw in zip(row, panels, strict=True):
            draw(axes)
        return png(figure)


def _bounds(axes: Any, estimates: pd.DataFrame) -> None:
    estimates = estimates.rename(columns={"step": "x"})
    claims = estimates.drop_duplicates(["accountant", "x"])
    claims = claims.assign(series="claim: " + claims["accountant"], y=claims["epsilon_upper"])
    dashes = zip(claims["series"].unique(), itertools.cycle(_BY_ACCOUNTANT), strict=False)
    lines(axes, claims, {name: {"ls": dash} for name, dash in dashes}, color="black")
    bounds = estimates.drop_duplicates(["estimator", "x"]).assign(y=lambda e: e["epsilon_lower"])
    statuses = bounds.groupby("estimator", sort=False)["status"].first()
    names = {name: f"{name} ({status})" for name, status in statuses.items()}
    styles = {names[name]: {"ls": _BY_STATUS[Status(status)]} for name, status in statuses.items()}
    bounds["series"] = bounds["estimator"].map(names)
    lines(axes, bounds, styles, marker="o", ms=3, lw=1.5)
    above = bounds[bounds["above_claim"]]
    axes.plot(above["x"], above["y"], "X", color=ALARM, ms=9, zorder=3)
    first = claims[claims["accountant"] == claims["accountant"].iloc[0]]
    _shade_above(axes, first.set_index("x")["y"])
    axes.set_xlabel("step")
    axes.set_ylabel(epsilon_at(estimates["delta"]))
    if len(first) == 1:
        axes.set_xticks(first["x"])
    legend(axes)


def _shade_above(axes: Any, claim: pd.Series[float]) -> None:
    """Colours where no bound may lie if the claim, ε by step, is true."""
    top = max(axes.get_ylim()[1], 1.1 * float(claim.max()))
    if not np.isfinite(top):
        axes.set_ylim(bottom=0)
        return
    if len(claim) == 1:
        axes.axhspan(float(claim.iloc[0]), top, color=ALARM, alpha=0.07, lw=0)
    else:
        axes.fill_between(claim.index, claim, top, color=ALARM, alpha=0.07, lw=0)
    axes.set_ylim(0, top)


def _last_scores(axes: Any, trials: Trials) -> None:
    """40 bins over the central 99.8 %, so that one wild score does not hide all others."""
    values, members = trials.scores[:, -1], trials.members
    finite = np.isfinite(values)
    if finite.any():
        low, high = np.quantile(values[finite], [0.001, 0.999])
        margin = 0.0 if high > low else 0.5
        worlds = {name: values[finite & (members == world)] for world, name in _WORLDS.items()}
        histograms(axes, worlds, np.linspace(low - margin, high + margin, 41), shares=False)
        legend(axes, "upper right")
    diverged = int((~finite).sum())
    axes.set_xlabel("score" + f" ({diverged} diverged trials not drawn)" * (diverged > 0))
    axes.set_ylabel("trials")


def _trade_off(axes: Any, curves: Profile) -> None:
    """The observed curve, its fit, and the curve below which the claim lets no test come."""
    observed, claim = curves.tradeoff, curves.claim
    rates = np.linspace(0.0, 1.0, 400)
    fit = f"Gaussian, μ = {observed.mu:.2f}"
    table = [
        pd.DataFrame({"series": name, "x": alpha, "y": beta})
        for name, alpha, beta in (
            ("observed", observed.alpha, observed.beta),
            (fit, rates, gaussian_trade_off(rates, observed.mu)),
            ("claim", rates, 1 - claim.true_positive_rate(rates)),
        )
    ]
    lines(axes, pd.concat(table), {
        "observed": {"drawstyle": "steps-post", "lw": 1.6}, fit: {"ls": "--"},
        "claim": {"color": "black", "lw": 1},
    })  # fmt: skip
    # Of a steep curve, all is in a corner: rates of up to eight times that of the middle.
    reach = min(max(8 * float(special.ndtr(-observed.mu / 2)), 0.02), 1.0)
    axes.set(xlim=(-0.02 * reach, reach), ylim=(-0.02 * reach, reach), aspect="equal",
             xlabel="false-positive rate α", ylabel="false-negative rate β")  # fmt: skip
    legend(axes, "upper right")
