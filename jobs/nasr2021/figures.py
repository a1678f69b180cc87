"""Figures 1 and 3 to 10 of Nasr et al. (2021), drawn from runs; Figure 10 needs none.

python -m jobs.nasr2021.figures RUN... --out FOLDER
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import dpaudit_ray as da
from dpaudit_ray import accounting
from dpaudit_ray.report.figures.primitives import COLOURS, canvas, epsilon_at, legend, lines
from jobs.paper_figures import Drawings, Figures, bounds, command, last

DELTA = 1e-5
RATE, EPOCHS = 256 / 60000, 60  # of the paper's MNIST
STEPS = round(EPOCHS / RATE)
NOISES = np.linspace(0.6, 2.0, 15)  # along Figure 10
PUBLISHED = "paper-eps-delta"


def with_data(run: da.Result, estimator: str) -> pd.DataFrame:
    """Bounds at the last step, `series` named by the data set; of a file, by the file."""
    sets = [cell.mechanism.data for cell in run.run.sweep.cells]
    names = [Path(getattr(data, "path", "") or data.name).stem for data in sets]
    table = last(bounds(run, estimator))
    ids = [audit.id for audit in run.run.plan.audits]
    return table.assign(series=table["audit"].map(dict(zip(ids, names, strict=True))))


def measured_over_claimed(axes: Any, runs: Sequence[da.Result], adversary: str = "") -> None:
    """Measured ε over the claim, each data set a line; dotted as published."""
    for estimator, style in (("accuracy", "-"), (PUBLISHED, ":")):
        table = pd.concat([with_data(run, estimator) for run in runs])
        rows = table.rename(columns={"epsilon_upper": "x", "epsilon_lower": "y"})
        if adversary:
            rows = rows[rows["adversary.name"] == adversary]
        if estimator == PUBLISHED:
            rows["series"] += ", as published"
        lines(axes, rows.sort_values("x")[["series", "x", "y"]], marker="o", ms=3, ls=style)
    claims = sorted({0.0, *rows["x"]})
    claim = pd.DataFrame({"series": "claim", "x": claims, "y": claims})
    lines(axes, claim, color="black", ls="--")
    axes.set(
        xlabel="claimed ε", ylabel=epsilon_at(rows["delta"]), xticks=claims[1:], title=adversary
    )
    axes.set_xticklabels([f"{value:.3g}" for value in claims[1:]])


def practical(figure_name: str, runs: Sequence[da.Result]) -> Figures:
    """Figures 3 to 8, of one attack."""
    with canvas(4, 3.2) as (figure, (axes,)):
        measured_over_claimed(axes, runs)
        legend(axes)
    yield figure_name, figure


def attacks(figure_name: str, runs: Sequence[da.Result]) -> Figures:
    """Figures 1 and 9: a bar for each attack and data set at the claim next to 2; then 3 to 8."""
    table = pd.concat([with_data(run, "accuracy") for run in runs])
    claims = table["epsilon_upper"]
    table = table[claims == claims.iloc[(claims - 2).abs().argmin()]]
    bars = table.pivot_table(
        index="adversary.name", columns="series", values="epsilon_lower", sort=False
    )
    with canvas(6, 3) as (figure, (axes,)):
        places, width = np.arange(len(bars)), 0.8 / bars.shape[1]
        for number, name in enumerate(bars):
            shift = (number - (bars.shape[1] - 1) / 2) * width
            axes.bar(places + shift, bars[name], width, color=COLOURS[number], label=name)
        axes.axhline(table["epsilon_upper"].iloc[0], color="red", ls="--", label="claim")
        axes.set_xticks(places, bars.index, rotation=20)
        axes.set_ylabel(epsilon_at(table["delta"]))
        legend(axes)
    yield figure_name, figure
    with canvas(9, 5.4, 2, 3) as (figure, panels):
        for axes, adversary in zip(panels, bars.index, strict=False):
            measured_over_claimed(axes, runs, adversary)
        legend(panels[0])
    yield "figures3to8", figure


def noises() -> pd.DataFrame:
    """Figure 10: claims over σ at the paper's rate and epochs: columns series, x and y.

    `GDP` is the limit theorem's ε, which is no upper bound.
    """
    by_name = {
        "RDP": lambda sigma: accounting.epsilon(sigma, STEPS, DELTA, RATE, "rdp"),
        "GDP": lambda sigma: accounting.clt_epsilon(sigma, STEPS, DELTA, RATE),
    }
    rows = [(name, sigma, claim(sigma)) for name, claim in by_name.items() for sigma in NOISES]
    return pd.DataFrame(rows, columns=["series", "x", "y"])


def without_runs() -> Figures:
    """Figure 10: two accountants over σ."""
    with canvas(4, 3) as (figure, (axes,)):
        lines(axes, noises())
        axes.set(xlabel="σ", ylabel=epsilon_at([DELTA]), ylim=(0, None))
        legend(axes)
    yield "figure10", figure


FIGURES: Drawings = {
    "nasr2021-attacks": ("figure9", attacks),
    "nasr2021-api-access": ("figure3", practical),
    "nasr2021-static-poison": ("figure4", practical),
    "nasr2021-intermediate-poison": ("figure5", practical),
    "nasr2021-adaptive-poison": ("figure6", practical),
    "nasr2021-gradient": ("figure7", practical),
    "nasr2021-malicious-dataset": ("figure8", practical),
}


if __name__ == "__main__":
    command(FIGURES, without_runs())
