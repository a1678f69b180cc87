"""Figures 3 to 8 of Steinke, Nasr, Jagielski (2023), drawn from runs; `curves.py` has the others.

python -m jobs.steinke2023.figures RUN... --out FOLDER
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

import dpaudit_ray as da
from dpaudit_ray.report.figures.primitives import canvas, epsilon_at, legend, lines
from jobs.paper_figures import Drawings, Figures, bounds, claims, command, last, spread, varied

# What a line of a figure is called by the options in which its audits differ.
NAMES = {
    "adversary.canaries": "m = {}",
    "mechanism.data.records": "{} records",
    "mechanism.steps": "{} steps",
    "adversary.kind": "{}",
}


def over_claims(figure_name: str, runs: Sequence[da.Result]) -> Figures:
    """Measured ε over the claim: the median of trainings, and their range.

    The first panel is Theorem 3.1, as the paper has it, at a number of guesses chosen before; the
    second the bound of Mahloujifar et al. of the same trainings.
    """
    with canvas(7, 3, 1, 2) as (figure, grid):
        panels = {"Theorem 3.1": "one-run", "f-DP": "one-run-fdp"}
        for axes, (title, estimator) in zip(grid, panels.items(), strict=True):
            table = pd.concat([with_lines(run, estimator) for run in runs])
            lines(axes, claims(table, "epsilon_upper"), color="black", ls="--")
            lines(axes, spread(table, "epsilon_upper", "median"), marker="o", ms=3)
            axes.set(title=title, xlabel="claimed ε", ylim=(0, None))
            axes.set_ylabel(epsilon_at(table["delta"]))
            legend(axes)
    yield figure_name, figure


def with_lines(run: da.Result, estimator: str) -> pd.DataFrame:
    """Bounds at the last step, with the name of their `series`."""
    table = last(bounds(run, estimator))
    named = [option for option in varied(table) if option in NAMES]
    parts = [table[option].map(NAMES[option].format) for option in named]
    series = parts[0].str.cat(parts[1:], sep=", ") if parts else "measured"
    return table.assign(series=series)


FIGURES: Drawings = {
    "steinke2023-canaries": ("figure3", over_claims),
    "steinke2023-other-data": ("figure4", over_claims),
    "steinke2023-steps": ("figure5", over_claims),
    "steinke2023-utility": ("figure6", over_claims),
    "steinke2023-black-box": ("figure7", over_claims),
    "steinke2023-black-box-data": ("figure8", over_claims),
}


if __name__ == "__main__":
    command(FIGURES)
