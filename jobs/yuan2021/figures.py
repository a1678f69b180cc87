"""Figures 1, 2 and 5 of Yuan, Xue, Wang, Shen (2021), drawn from runs, a panel for each data set.

python -m jobs.yuan2021.figures RUN... --out FOLDER
"""

from __future__ import annotations

from collections.abc import Sequence

import dpaudit_ray as da
from dpaudit_ray.report.figures.primitives import canvas, epsilon_at, legend, lines, logarithmic
from jobs.paper_figures import Drawings, Figures, bounds, claims, command, last, spread

LAYER, CLIPPING = "adversary.layer", "mechanism.clipping"
OPTIONS = {
    "figure1": ("mechanism.training.noise_multiplier", "noise multiplier"),
    "figure2": ("mechanism.training.clip_norm", "gradient norm bound"),
}


def over_option(figure_name: str, runs: Sequence[da.Result]) -> Figures:
    """Figures 1 and 2: the closed form of both layers and the claim, ε on a logarithmic axis."""
    option, name = OPTIONS[figure_name]
    with canvas(3.6 * len(runs), 3, 1, len(runs)) as (figure, grid):
        for axes, run in zip(grid, runs, strict=True):
            table = last(bounds(run, "closed-form"))
            lines(axes, claims(table, option), color="black", ls="--")
            named = table.assign(series="lower bound, " + table[LAYER])
            lines(axes, spread(named, option, "median"), marker="o", ms=3)
            logarithmic(axes, "y")
            axes.set(title=run.run.sweep.name, xlabel=name, ylabel=epsilon_at(table["delta"]))
            legend(axes)
    yield figure_name, figure


def over_batches(figure_name: str, runs: Sequence[da.Result]) -> Figures:
    """Figure 5: the largest bound so far over batches; dotted with attacked weights clipped."""
    with canvas(3.6 * len(runs), 3, 1, len(runs)) as (figure, grid):
        for axes, run in zip(grid, runs, strict=True):
            table = bounds(run, "closed-form")
            for clipping, rows in table.groupby(CLIPPING):
                named = rows.assign(series=rows[LAYER] + f", {clipping} clipped")
                style = ":" if clipping == "attacked" else "-"
                lines(axes, spread(named, "step", "median"), ls=style)
            axes.set(title=run.run.sweep.name, xlabel="batches", ylim=(0, None))
            axes.set_ylabel(epsilon_at(table["delta"]))
            legend(axes)
    yield figure_name, figure


FIGURES: Drawings = {
    f"yuan2021-{figure}-{what}-{data}": (figure, draw)
    for figure, what, draw in (
        ("figure1", "noise", over_option),
        ("figure2", "clipping", over_option),
        ("figure5", "batches", over_batches),
    )
    for data in ("cancer", "bank")
}


if __name__ == "__main__":
    command(FIGURES)
