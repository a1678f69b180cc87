"""Figures 1, 2, 9, 10 and 11 of Steinke, Nasr, Jagielski (2023), computed: no training is needed.

python -m jobs.steinke2023.curves FOLDER
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import typer
from matplotlib.figure import Figure
from scipy import special

from dpaudit_ray.stats import gdp
from dpaudit_ray.stats.one_run import epsilon_lower

CANARIES, GUESSES, RIGHT = 100_000, 1500, 1429  # of Figure 11, at N(±1, 4)
SIGMA = 2.0  # the deviation of a score around ±1


@dataclasses.dataclass(frozen=True)
class Curves:
    """One figure: a table with its first column along the axis, and all others drawn."""

    table: pd.DataFrame
    logarithmic: bool = False


def right_of(epsilon: float, guesses: int) -> float:
    """Returns the mean number of correct guesses of randomised response."""
    return guesses * float(special.expit(epsilon))


def figure_1() -> Curves:
    """100 canaries, all guessed: the bound by the number of right guesses, for three δ."""
    right = np.arange(50, 101)
    columns = {
        f"delta = {delta:g}": [epsilon_lower(int(v), 100, 100, delta, 0.95) for v in right]
        for delta in (0.0, 1e-3, 1e-2)
    }
    ideal = special.logit(right / 100)  # of 100, infinite
    return Curves(pd.DataFrame({"right guesses": right} | columns | {"ideal": ideal}))


def figure_2() -> Curves:
    """1000 canaries, all guessed: the bound by the ε that would be right so often."""
    ideal = np.linspace(0, 7, 71)
    right = [math.floor(right_of(epsilon, 1000)) for epsilon in ideal]
    bound = [epsilon_lower(v, 1000, 1000, 0.0, 0.95) for v in right]
    return Curves(pd.DataFrame({"ideal": ideal, "95 % lower bound": bound}))


def figure_9(epsilon: float = 4.0) -> Curves:
    """Randomised response: the bound by the number of canaries; right guesses are rounded down."""
    guesses = _steps(10, 10_000)
    bound = [
        epsilon_lower(math.floor(right_of(epsilon, r)), r, r, 0.0, 0.95) for r in guesses.tolist()
    ]
    table = {"guesses": guesses, "95 % lower bound": bound, "upper bound": epsilon}
    return Curves(pd.DataFrame(table), logarithmic=True)


def figure_10(delta: float = 1e-5) -> Curves:
    """Scores from N(±1, 4), the surest guessed; right guesses are rounded up."""
    guesses = _steps(10, CANARIES)
    bound = [
        epsilon_lower(ideal_right(r, CANARIES), r, CANARIES, delta, 0.95) for r in guesses.tolist()
    ]
    table = {"guesses": guesses, "95 % lower bound": bound, "upper bound": gaussian_epsilon(delta)}
    return Curves(pd.DataFrame(table), logarithmic=True)


def figure_11() -> Curves:
    """The same with 1429 of 1500 right, for any δ and three confidences."""
    deltas = np.geomspace(1e-8, 1e-3, 51)
    columns = {
        f"{100 * level:g} % lower bound": [
            epsilon_lower(RIGHT, GUESSES, CANARIES, delta, level) for delta in deltas
        ]
        for level in (0.75, 0.95, 0.99)
    }
    upper = {"upper bound": [gaussian_epsilon(delta) for delta in deltas]}
    return Curves(pd.DataFrame({"delta": deltas} | columns | upper), logarithmic=True)


def ideal_right(guesses: int, canaries: int) -> int:
    """Right guesses on average if the surest half of them say "in" and the others "out".

    A guess is "in" beyond the quantile of the mixture of both worlds that leaves half of the
    guesses there.
    """
    share = guesses / canaries / 2
    low, high = -1 - 12 * SIGMA, 1 + 12 * SIGMA
    for _ in range(100):
        cut = (low + high) / 2
        beyond = (special.ndtr((1 - cut) / SIGMA) + special.ndtr((-1 - cut) / SIGMA)) / 2
        low, high = (cut, high) if beyond > share else (low, cut)
    return min(guesses, math.ceil(guesses * special.ndtr((1 - cut) / SIGMA) / (2 * share)))


def gaussian_epsilon(delta: float) -> float:
    """ε of telling N(-1, 4) from N(1, 4)."""
    return float(gdp.epsilon(2 / SIGMA, delta))


def _steps(first: int, last: int) -> npt.NDArray[np.int64]:
    return np.unique(np.geomspace(first, last, 61).round().astype(np.int64))


FIGURES = {1: figure_1, 2: figure_2, 9: figure_9, 10: figure_10, 11: figure_11}


def drawn(curves: Curves) -> Figure:
    """All columns against the first."""
    figure = Figure(figsize=(5, 3.4), layout="constrained")
    axes = figure.subplots()
    along, *others = curves.table.columns
    for name in others:
        dashed = name in ("ideal", "upper bound")
        axes.plot(curves.table[along], curves.table[name], "--" if dashed else "-", label=name)
    if curves.logarithmic:
        axes.set_xscale("log")
    axes.set_xlabel(str(along))
    axes.set_ylabel("epsilon")
    axes.legend(frameon=False)
    return figure


def main(folder: Path) -> None:
    """Writes a table and a picture of each into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, computed in FIGURES.items():
        curves = computed()
        curves.table.to_csv(folder / f"figure{number}.csv", index=False, float_format="%.6g")
        drawn(curves).savefig(folder / f"figure{number}.png", dpi=110)


if __name__ == "__main__":
    typer.run(main)
