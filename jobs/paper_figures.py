"""Parts that the figures of all papers share: bounds of runs, their spread, and the command."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from matplotlib.figure import Figure

import dpaudit_ray as da
from dpaudit_ray.report.figures import primitives

Figures = Iterator[tuple[str, Figure]]
# Draws the figure of this name from its runs; it may be several figures.
Draw = Callable[[str, Sequence[da.Result]], Figures]
Drawings = Mapping[str, tuple[str, Draw]]  # by the names of sweeps


def bounds(run: da.Result, *estimators: str) -> pd.DataFrame:
    """The rows of `run.estimates` by the first of these estimators that the run has.

    Raises typer.BadParameter where it has none of them.
    """
    table = run.estimates
    for name in estimators:
        if len(rows := table[table["estimator"] == name]):
            return rows
    wanted = " or ".join(estimators)
    raise typer.BadParameter(f"{run.location} has no bound by {wanted}: add it to audit.estimators")


def last(table: pd.DataFrame) -> pd.DataFrame:
    """The rows at the last step of each audit."""
    return table[table["step"] == table.groupby("audit")["step"].transform("max")]


def varied(table: pd.DataFrame) -> list[str]:
    """The options in which audits differ, but for seeds, which make repetitions."""
    columns = list(table.columns)
    options = columns[2 : columns.index("step")]  # behind `audit` and `label`
    return [
        name
        for name in options
        if not name.endswith(".seed") and table[name].astype(str).nunique() > 1
    ]


def spread(table: pd.DataFrame, x: str, middle: str = "mean") -> pd.DataFrame:
    """`epsilon_lower` of each `series` at each `x`: columns series, x, y, low and high.

    `y` is the `middle` over repetitions, `low` and `high` the least and the largest.
    """
    ends = table.groupby(["series", x], sort=False)["epsilon_lower"]
    rows = ends.agg(y=middle, low="min", high="max").reset_index()
    return rows.rename(columns={x: "x"}).sort_values("x", kind="stable")


def claims(table: pd.DataFrame, x: str) -> pd.DataFrame:
    """The claim at each `x`, a line of its own: columns series, x and y."""
    rows = table.drop_duplicates(x).sort_values(x)[[x, "epsilon_upper"]]
    return rows.set_axis(["x", "y"], axis=1).assign(series="claim")


def drawn(figures: Drawings, runs: Sequence[da.Result]) -> Figures:
    """Every figure of these runs, with its name; runs of one figure are drawn together.

    Raises typer.BadParameter for a run of a sweep that is not among the keys of `figures`.
    """
    groups = dict[tuple[str, Draw], list[da.Result]]()
    for run in runs:
        name = run.run.sweep.name
        if name not in figures:
            known = ", ".join(figures)
            raise typer.BadParameter(f"{run.location} is of the sweep {name}; drawn are: {known}")
        groups.setdefault(figures[name], []).append(run)
    for (name, draw), members in groups.items():
        yield from draw(name, members)


def command(figures: Drawings, more: Iterable[tuple[str, Figure]] = ()) -> None:
    """The command line `RUN... --out FOLDER`: a PNG for each figure, and for `more` of no run."""

    def main(
        out: Annotated[Path, typer.Option(help="where pictures are written")],
        runs: Annotated[list[str] | None, typer.Argument(help="run directories")] = None,
    ) -> None:
        try:
            opened = [da.open(run) for run in runs or []]
        except da.DpauditError as error:
            raise typer.BadParameter(str(error)) from error
        out.mkdir(parents=True, exist_ok=True)
        for name, figure in itertools.chain(drawn(figures, opened), more):
            (out / f"{name}.png").write_bytes(primitives.png(figure))

    typer.run(main)
