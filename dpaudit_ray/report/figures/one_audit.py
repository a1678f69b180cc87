"""Figures of one audit: its bounds and scores over steps, and the curve that its scores trace."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from ...plan.score_stream import Trials
from ...stats import Status
from ..measures import ObservedTradeOff, Profile, gaussian_trade_off
from .primitives import (
    ALARM,
    COLOURS,
    Floats,
    epsilon_at,
    histograms,
    legend,
    lines,
    logarithmic,
    png,
    sentence,
    strip,
)

_WORLDS = {False: "canary out", True: "canary in"}
_BY_STATUS = dict(zip(Status, itertools.cycle(("-", (0, (7, 1.5)), "--", "-.", ":")), strict=False))
_BY_ACCOUNTANT = ("-", "--", "-.", ":")


def bounds_figure(title: str, estimates: pd.DataFrame, trials: Trials) -> bytes:
    """A PNG: bounds over steps, and, where there are trials, their scores at the last step.

    Where several steps are recorded, more panels have the scores over steps, and the accuracy.

    Args:
        title: printed above.
        estimates: this audit's rows of `all_estimates`.
        trials: this audit's trials that gave an output.
    """
    panels: list[Callable[[Any], None]] = [functools.partial(_bounds, estimates=estimates)]
    if len(trials.members):
        panels.append(functools.partial(_last_scores, trials=trials))
        if len(trials.steps) > 1:
            panels.append(functools.partial(_over_steps, trials=trials, what="score"))
            if "accuracy" in trials.utility:
                panels.append(functools.partial(_over_steps, trials=trials, what="accuracy"))
    with strip(len(panels)) as (figure, row):
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
    values, members = trials.scores[:, -1], trials.members
    finite = np.isfinite(values)
    if finite.any():
        worlds = {name: values[finite & (members == world)] for world, name in _WORLDS.items()}
        histograms(axes, worlds, _edges(values[finite]), shares=False)
        legend(axes, "upper right")
    diverged = int((~finite).sum())
    axes.set_xlabel("score" + (f" ({diverged} diverged trials not drawn)" if diverged else ""))
    axes.set_ylabel("trials")


def _edges(values: Floats) -> Floats:
    """40 bins over the central 99.8 %, so that one wild score does not hide all others."""
    low, high = np.quantile(values, [0.001, 0.999])
    return np.linspace(low, high, 41) if high > low else np.linspace(low - 0.5, high + 0.5, 41)


def _over_steps(axes: Any, trials: Trials, what: str) -> None:
    """Mean ± 2 standard deviations over the trials of each world, at every step."""
    table = pd.DataFrame(_means(trials, trials.scores if what == "score" else trials.utility[what]),
                         columns=["series", "x", "y", "low", "high"])  # fmt: skip
    lines(axes, table)
    axes.set_xlabel("step")
    axes.set_ylabel(what)
    legend(axes)


def _means(trials: Trials, values: Floats) -> Iterator[tuple[str, int, float, float, float]]:
    for world, name in _WORLDS.items():
        for step, column in zip(trials.steps, values.T, strict=True):
            finite = column[(trials.members == world) & np.isfinite(column)]
            if len(finite):
                mean, spread = float(finite.mean()), 2 * float(finite.std())
                yield f"{name}, ± 2 deviations", step, mean, mean - spread, mean + spread


def profile_figure(curves: Profile) -> bytes:
    """A PNG: the trade-off curve with its fit, μ along it with its band, and ε at every δ."""
    with strip(3) as (figure, (left, middle, right)):
        _trade_off(left, curves)
        _mu_along(middle, curves)
        _epsilon_over_delta(right, curves)
        return png(figure)


def _trade_off(axes: Any, curves: Profile) -> None:
    """The observed curve, its fit, and the curve below which the claim lets no test come."""
    observed, claim = curves.tradeoff, curves.claim
    rates = np.linspace(0.0, 1.0, 400)
    least = 1 - claim.true_positive_rate(rates)
    fit = f"Gaussian, μ = {observed.mu:.2f}"
    table = [
        pd.DataFrame({"series": name, "x": alpha, "y": beta})
        for name, alpha, beta in (
            ("observed", observed.alpha, observed.beta),
            (fit, rates, gaussian_trade_off(rates, observed.mu)),
            ("claim", rates, least),
        )
    ]
    lines(axes, pd.concat(table), {
        "observed": {"drawstyle": "steps-post", "lw": 1.6}, fit: {"ls": "--"},
        "claim": {"color": "black", "lw": 1},
    })  # fmt: skip
    axes.set_xlabel("false-positive rate α")
    axes.set_ylabel("false-negative rate β")
    reach = _reach(observed)
    axes.set_xlim(-0.02 * reach, reach)
    axes.set_ylim(-0.02 * reach, reach)
    axes.set_aspect("equal")
    legend(axes, "upper right")


def _reach(observed: ObservedTradeOff) -> float:
    """Largest rate that is drawn: up to eight times that of the middle.

    All of a steep curve is a corner, in which nothing could be seen.
    """
    return min(max(8 * float(special.ndtr(-observed.mu / 2)), 0.02), 1.0)


def _mu_along(axes: Any, curves: Profile) -> None:
    if curves.tradeoff.saturated:
        sentence(axes, "Both worlds are told apart without an error.\nHow far they are apart, more "
                       "trials would show.")  # fmt: skip
        return
    rates, mu = curves.mu.fpr, curves.mu.mu
    inside = (rates > 0) & (rates < 1) & np.isfinite(mu)
    low = np.maximum(curves.mu.lower[inside], 0)
    high = np.minimum(curves.mu.upper[inside], 2 * np.max(mu[inside], initial=1.0))
    places = -special.ndtri(rates[inside])
    table = pd.DataFrame({"x": places, "y": mu[inside], "low": low, "high": high})
    lines(axes, table.assign(series="observed, with a band for all points together"), lw=1)
    axes.set_xlabel("threshold, as the z-score of its false-positive rate")
    axes.set_ylabel("μ")
    axes.set_ylim(bottom=0)
    legend(axes, "lower left")


def _epsilon_over_delta(axes: Any, curves: Profile) -> None:
    deltas, epsilons = curves.claim.deltas, curves.claim.epsilons
    positive = deltas > 0
    claim = pd.DataFrame({"series": "claim", "x": deltas[positive], "y": epsilons[positive]})
    bound = pd.DataFrame(
        {"series": "lower bound, no assumption", "x": curves.deltas, "y": curves.epsilons}
    )
    lines(axes, claim, color="black", marker="", lw=1.5)
    lines(axes, bound, color=COLOURS[2], lw=1.5)
    logarithmic(axes, "x")
    tallest = float(np.max(epsilons[deltas >= curves.deltas[0]], initial=0.0))
    axes.set_xlim(curves.deltas[0], curves.deltas[-1])
    axes.set_xticks([1e-8, 1e-6, 1e-4, 1e-2], ["1e-8", "1e-6", "1e-4", "1e-2"])
    axes.minorticks_off()
    axes.set_xlabel("δ")
    axes.set_ylabel("ε at this δ")
    axes.set_ylim(0, 1.05 * max(tallest, float(np.max(curves.epsilons)), 0.1))
    legend(axes)
