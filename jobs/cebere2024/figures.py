"""Figures 1 to 5, 7 and 11 to 14 of Cebere, Bellet, Papernot (2024), drawn from runs.

Numbers are those of the arXiv text; runs of one figure are its panels.

python -m jobs.cebere2024.figures RUN... --out FOLDER
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import dpaudit_ray as da
from dpaudit_ray.report.figures.primitives import canvas, epsilon_at, legend, lines
from dpaudit_ray.stats import gdp
from jobs.paper_figures import Drawings, Figures, bounds, claims, command, last, spread, varied

ADVERSARIES = {
    "biased-dimension simulated": "A_GC-S",
    "biased-dimension random": "A_GC-R",
    "biased-dimension unnamed": "A_GC",
    "cosine": "A_CotS",
    "loss": "A_L",
}
SIGMA, BATCH = "mechanism.noise_multiplier", "mechanism.batch_size"


def with_series(run: da.Result) -> pd.DataFrame:
    """Bounds as the paper converts them, `series` named by adversary and whatever else varies."""
    table = bounds(run, "accuracy", "exact-gdp")
    choice = table.get("adversary.choice", pd.Series("unnamed", table.index)).fillna("unnamed")
    name = table["adversary.name"].mask(
        table["adversary.name"] == "biased-dimension", "biased-dimension " + choice
    )
    series = name.replace(ADVERSARIES)
    unnamed = ("adversary.choice", "adversary.name", "adversary.period", "mechanism.steps")
    for option in varied(table):
        if option not in unnamed:
            value = table[option].fillna("-").astype(str)
            series += ", " + option.rpartition(".")[2] + "=" + value
    unproved = series + " (assumes Gaussian)"
    return table.assign(series=series.mask(table["status"] == "if-gaussian", unproved))


def evolution(figure_name: str, runs: Sequence[da.Result]) -> Figures:
    """ε over steps, a panel for each run and period; the mean of repetitions and their range."""
    panels = list[tuple[str, pd.DataFrame]]()
    for run in runs:
        table, period = with_series(run), "adversary.period"
        parts = table.groupby(period) if period in table else [("", table)]
        panels += [(f"k = {k:g}" if k else run.run.sweep.name, part) for k, part in parts]
    with canvas(3.4 * len(panels), 3, 1, len(panels)) as (figure, grid):
        for axes, (title, table) in zip(grid, panels, strict=True):
            lines(axes, claims(table, "step"), color="black", ls="--")
            lines(axes, spread(table, "step"), marker="o", ms=2.5)
            axes.set(title=title, xlabel="step", ylabel=epsilon_at(table["delta"]), ylim=(0, None))
            legend(axes)
    yield figure_name, figure


def profiles(runs: Sequence[da.Result]) -> Figures:
    """Figure 11: δ over ε by the certified μ of each period, at the last step.

    A panel has one run; of repetitions, the mean μ.
    """
    with canvas(3.8 * len(runs), 3, 1, len(runs)) as (figure, grid):
        for axes, run in zip(grid, runs, strict=True):
            table = last(with_series(run))
            table = table[table["series"].str.startswith("A_GC")]
            epsilon, delta = table[["epsilon_upper", "delta"]].iloc[0]
            means = table.groupby("adversary.period")["mu_lower"].mean()
            mus = {f"k = {k:g}": mu for k, mu in means.items()} | {"claim": gdp.mu(epsilon, delta)}
            x = np.linspace(0, 1.2 * epsilon, 121)
            curves = [pd.DataFrame({"series": k, "x": x, "y": gdp.delta(x, mus[k])}) for k in mus]
            lines(axes, pd.concat(curves), {"claim": {"color": "black", "ls": "--"}})
            axes.set(title=run.run.sweep.name, xlabel="ε", ylabel="δ(ε)", yscale="log")
            axes.set_ylim(1e-9, 1.5)
            legend(axes)
    yield "figure11", figure


def periods(figure_name: str, runs: Sequence[da.Result]) -> Figures:
    """Figure 2, a panel for each period, and the profiles of Figure 11."""
    yield from evolution(figure_name, runs)
    yield from profiles(runs)


def landscape(prefix: str, runs: Sequence[da.Result]) -> Figures:
    """Figures 3a and 14, ε over steps for each batch size, and 3b, what of it is kept.

    Several runs are repetitions.
    """
    table = pd.concat([bounds(run, "accuracy", "exact-gdp") for run in runs])
    table = table.assign(series="B = " + table[BATCH].astype(str))
    noises = sorted(table[SIGMA].unique())
    ends = list(dict.fromkeys((noises[0], noises[-1])))
    for name, shown, columns in (("figure3a", ends, 2), ("figure14", noises, 4)):
        rows, columns = -(-len(shown) // columns), min(columns, len(shown))
        with canvas(2.6 * columns, 2.3 * rows, rows, columns) as (figure, grid):
            for axes, sigma in zip(grid, shown, strict=False):
                panel = table[table[SIGMA] == sigma]
                lines(axes, claims(panel, "step"), color="black", ls="--")
                lines(axes, spread(panel, "step"))
                axes.set(title=f"σ = {sigma:g}", xlabel="T", ylim=(0, None))
                axes.set_ylabel(epsilon_at(panel["delta"]))
            legend(grid[0], size=6)
        yield prefix + name, figure
    yield f"{prefix}figure3b", kept(table)


def kept(table: pd.DataFrame) -> Figure:
    """Figure 3b: mean ε at the last step over that after the first, over σ and batch size."""
    means = table.groupby([SIGMA, BATCH, "step"])["epsilon_lower"].mean().unstack()
    share = (means.iloc[:, -1] / means.iloc[:, 0]).unstack()
    with canvas(3.6, 3.2) as (figure, (axes,)):
        axes.imshow(share, vmin=0, vmax=1, cmap="viridis", aspect="auto")
        axes.set_xticks(range(share.shape[1]), share.columns)
        axes.set_yticks(range(share.shape[0]), share.index)
        for (row, column), value in np.ndenumerate(share.to_numpy()):
            colour = "black" if value > 0.6 else "white"
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour, size=7)
        axes.set(xlabel="B", ylabel="σ", title=f"ε at T = {means.columns[-1]} / ε at T = 1")
        axes.grid(visible=False)
    return figure


FIGURES: Drawings = {
    f"cebere2024-{name}": drawn
    for name, drawn in {
        "convnet": ("figure1", evolution),
        "resnet": ("figure1", evolution),
        "housing": ("figure1", evolution),
        "housing-repetitions": ("figure1", evolution),
        "convnet-periods": ("figure2", periods),
        "resnet-periods": ("figure2", periods),
        "housing-periods": ("figure2", periods),
        "landscape": ("once-", landscape),
        "landscape-repetitions": ("", landscape),
        "landscape-exact": ("exact-", landscape),
        "housing-strategies": ("figure4", evolution),
        "convnet-simulated": ("figure5", evolution),
        "housing-cosine": ("figure7", evolution),
        "convnet-initialization": ("figure12", evolution),
        "housing-initialization": ("figure12", evolution),
        "alexnet": ("figure13", evolution),
    }.items()
}


if __name__ == "__main__":
    command(FIGURES)
