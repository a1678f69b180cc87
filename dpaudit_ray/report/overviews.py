"""Figures of a whole run: bars with their claims, bounds over steps, and what hiding amplifies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from ..stats import Status
from .figures import ALARM, COLOURS, STYLE, png
from .groups import Line, Panel
from .tables import Run

_COLUMNS = 4  # panels side by side
_DASHES = ("-", "--", ":", "-.")
_ABOVE = "above its claim"


def bars_figure(panels: Sequence[Panel]) -> bytes:
    """A PNG with one bar per line: the mean lower bound, a dot per repetition, the claim as a mark.

    Bars of one panel stand together below its title; what is not certified is pale.
    """
    rows: list[tuple[str, Line | None]] = []
    for panel in panels:
        if len(panel.lines) > 1 and panel.title:
            rows.append((panel.title, None))
        rows += [(line.label, line) for line in panel.lines]
    places = np.arange(len(rows))[::-1]
    drawn = [(p, line) for p, (_, line) in zip(places, rows, strict=True) if line is not None]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 0.9 + 0.34 * len(rows)), layout="constrained")
        axes = figure.subplots()
        means = [float(np.mean(line.last)) if line.last else 0.0 for _, line in drawn]
        ys = [place for place, _ in drawn]
        kinds = [
            _ABOVE if mean > line.claim else line.status
            for mean, (_, line) in zip(means, drawn, strict=True)
        ]
        _bars(axes, ys, means, kinds)
        axes.plot([line.claim for _, line in drawn], ys, "|", color="black", ms=18, mew=2,
                  label="claim")  # fmt: skip
        _dots(axes, drawn)
        axes.set_yticks(places, [label for label, _ in rows])
        for tick, (_, line) in zip(axes.get_yticklabels(), rows, strict=True):
            tick.set_fontweight("bold" if line is None else "normal")
        axes.set_xlabel("ε")
        axes.grid(axis="y", visible=False)
        figure.legend(loc="outside upper right", ncols=4, frameon=False)
        return png(figure)


def _bars(axes: Any, ys: list[Any], means: list[float], kinds: list[str]) -> None:
    """A bar each; `kinds` are statuses, or that the bound is above its claim."""
    for kind in dict.fromkeys(kinds):
        mine = [i for i, other in enumerate(kinds) if other == kind]
        axes.barh(
            [ys[i] for i in mine],
            [means[i] for i in mine],
            color=ALARM if kind == _ABOVE else COLOURS[0],
            hatch="//" if kind == _ABOVE else None,
            alpha=1.0 if kind in (Status.CERTIFIED, _ABOVE) else 0.45,
            height=0.6,
            label=f"lower bound ({kind})" if kind else "no bound yet",
        )


def _dots(axes: Any, drawn: list[tuple[Any, Line]]) -> None:
    repeated = [(x, place) for place, line in drawn if len(line.audits) > 1 for x in line.last]
    if repeated:
        axes.plot(*zip(*repeated, strict=True), "o", color=COLOURS[1], ms=3, label="repetitions")


def evolution_figure(panels: Sequence[Panel], logarithmic: bool = False) -> bytes | None:
    """A PNG with the bounds over steps, one panel per claim; None when one step alone is recorded.

    A line is the mean over repetitions, with the range of them shaded. `logarithmic` for bounds
    that are far below their claims.
    """
    shown = [panel for panel in panels if len(panel.horizons) > 1]
    if not shown:
        return None
    columns = min(_COLUMNS, len(shown))
    rows = math.ceil(len(shown) / columns)
    width = max(2.7 * columns, 6.0)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, 2.9 * rows), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, panel in zip(grid, shown, strict=False):
            _evolution(axes, panel)
            if logarithmic:
                axes.set_ylim(auto=True)
                axes.set_yscale("log")
                axes.yaxis.set_major_formatter(lambda epsilon, _: f"{epsilon:g}")  # without TeX
        _legends(figure, list(grid[: len(shown)]))
        for axes in grid[len(shown) :]:
            axes.set_visible(False)
        return png(figure)


def _evolution(axes: Any, panel: Panel) -> None:
    axes.plot(panel.horizons, panel.claims, color="black", lw=1.2, label="claim")
    for i, line in enumerate(panel.lines):
        colour = COLOURS[i % len(COLOURS)]
        steps = line.bounds.index.to_numpy()
        axes.plot(steps, line.bounds.mean(axis=1), color=colour, marker="o", ms=2.5, lw=1.2,
                  ls=_DASHES[i // len(COLOURS) % len(_DASHES)],
                  label=_named(line, len(panel.lines)))  # fmt: skip
        if len(line.audits) > 1:
            low, high = line.bounds.min(axis=1), line.bounds.max(axis=1)
            axes.fill_between(steps, low, high, color=colour, alpha=0.15, lw=0)
    axes.set_title(panel.title, fontsize=8)
    axes.set_xlabel("step")
    axes.set_ylabel("ε")
    axes.set_ylim(bottom=0)


def _named(line: Line, lines: int) -> str:
    name = line.label if lines > 1 else "lower bound"
    return f"{name} ({line.status})" if line.status not in ("", Status.CERTIFIED) else name


def _legends(figure: Figure, grid: Sequence[Any]) -> None:
    """One legend below where it fits all panels, else one in each."""
    handles = [axes.get_legend_handles_labels() for axes in grid]
    if len({tuple(labels) for _, labels in handles}) == 1 and len(grid) > 1:
        columns = min(len(handles[0][1]), 6)
        figure.legend(
            *handles[0], loc="outside lower center", ncols=columns, frameon=False, fontsize=7
        )
        return
    for axes in grid:
        axes.legend(frameon=False, fontsize=6)


def amplification_figure(run: Run, panels: Sequence[Panel]) -> bytes | None:
    """A PNG with the bound at the last step over that at the first, on a grid of two numbers.

    None unless the canary is inserted in the first step only (the claim stays what it is), which
    is where 1 says that hiding the steps amplified nothing, and two keys of numbers make the grid;
    repetitions are averaged.
    """
    grid = dict(run.sweep.raw.get("grid") or {})
    keys = {k: v for k, v in grid.items() if len(v) > 1 and k != "mechanism.seed"}
    numbers = all(type(x) in (int, float) for values in keys.values() for x in values)
    once = all(len(p.claims) > 1 and max(p.claims) <= min(p.claims) * (1 + 1e-9) for p in panels)
    lines = {line.audits[0].id: line for panel in panels for line in panel.lines}
    cells = math.prod(len(values) for values in keys.values())
    if len(keys) != 2 or not numbers or not once or len(lines) != cells:
        return None
    (upper, ups), (side, sides) = keys.items()
    ratios = [_kept(lines[audit.id]) for audit in run.plan.audits if audit.id in lines]
    table = np.array(ratios).reshape(len(ups), len(sides))
    with mpl.rc_context(STYLE | {"axes.grid": False}):
        size = (1.6 + 0.7 * len(ups), 1.3 + 0.5 * len(sides))
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        axes.imshow(table.T, vmin=0, vmax=1, cmap="viridis", aspect="auto", origin="lower")
        for (i, j), value in np.ndenumerate(table):
            colour = "white" if value < 0.6 else "black"
            axes.text(i, j, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=8)
        axes.set_xticks(range(len(ups)), [f"{x:g}" for x in ups])
        axes.set_yticks(range(len(sides)), [f"{x:g}" for x in sides])
        axes.set_xlabel(upper.rpartition(".")[2])
        axes.set_ylabel(side.rpartition(".")[2])
        steps = panels[0].horizons
        axes.set_title(f"ε at step {steps[-1]} over ε at step {steps[0]}", fontsize=9)
        return png(figure)


def _kept(line: Line) -> float:
    first, last = line.bounds.iloc[0].mean(), line.bounds.iloc[-1].mean()
    return float(last / first) if first > 0 else math.nan
