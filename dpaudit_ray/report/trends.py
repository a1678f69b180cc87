"""Bounds and claims over a number that a sweep varies, such as the noise."""

from __future__ import annotations

import itertools
import math
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from ..plan.model import PlannedAudit
from .figures import COLOURS, STYLE, png
from .tables import Run, representative

_FEWEST = 3  # values that make a line
_HUGE = 1e300  # beyond, a whole number is no float
_WIDE = 100  # times the least: then its axis is logarithmic


def figure(run: Run, estimator: str | None = None) -> bytes | None:
    """A PNG with a line for each choice of the other keys; every audit's own estimator for None.

    None unless one key of the grid alone has three numbers or more, beside seeds.
    """
    grid = {key: list(values) for key, values in dict(run.sweep.raw.get("grid") or {}).items()}
    many = [key for key, values in grid.items() if _numbers(key, values)]
    cells = math.prod(len(values) for values in grid.values())
    if len(many) != 1 or cells != len(run.plan.audits):
        return None
    lines: dict[tuple[str, ...], list[tuple[float, float, float]]] = {}
    for audit, values in zip(run.plan.audits, itertools.product(*grid.values()), strict=True):
        chosen = dict(zip(grid, values, strict=True))
        bound = _last(run, audit, estimator)
        where = tuple(
            part for part in audit.label.split(", ") if part.partition("=")[0] != _short(many[0])
        )
        lines.setdefault(where, []).append((float(chosen[many[0]]), bound, audit.claim))
    with mpl.rc_context(STYLE):
        drawn = Figure(figsize=(7.5, 3.6), layout="constrained")
        axes = drawn.subplots()
        for i, (where, points) in enumerate(lines.items()):
            _line(axes, COLOURS[i % len(COLOURS)], ", ".join(where) or "lower bound", points)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda epsilon, _: f"{epsilon:g}")  # without TeX
        if 0 < _WIDE * min(grid[many[0]]) < max(grid[many[0]]):
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlabel(_short(many[0]))
        axes.set_ylabel("ε")
        drawn.legend(loc="outside right upper", frameon=False, fontsize=7)
        return png(drawn)


def _line(axes: Any, colour: str, label: str, points: list[tuple[float, float, float]]) -> None:
    places, bounds, claims = zip(*sorted(points), strict=True)
    known = "_claim" if axes.lines else "claim"  # one entry in the legend; claims are mostly one
    axes.plot(places, claims, color="black", lw=1, label=known)
    axes.plot(places, [b if b > 0 else math.nan for b in bounds], "o-", color=colour, ms=3, lw=1.2,
              label=label)  # fmt: skip


def _last(run: Run, audit: PlannedAudit, estimator: str | None) -> float:
    rows = run.estimates[run.estimates["audit"] == audit.id]
    mine = rows[rows["estimator"] == (estimator or representative(run, audit))]
    last = mine[mine["step"] == audit.horizons[-1]]["epsilon_lower"]
    return float(last.iloc[0]) if len(last) else math.nan


def _short(key: str) -> str:
    return key.rpartition(".")[2]


def _numbers(key: str, values: list[Any]) -> bool:
    plain = all(type(value) in (int, float) and abs(value) < _HUGE for value in values)
    return plain and len(values) >= _FEWEST and not key.endswith("seed")
