"""A figure of two runs side by side: bounds beside claims, and rates of right guesses."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from .compare import Comparison, Pair, Side
from .figures import COLOURS, STYLE, png

_OFFSETS = (0.16, -0.16)  # of the two runs from the middle of their audit's line
_LONGEST = 40  # characters of a label


def figure(found: Comparison, names: tuple[str, str]) -> bytes:
    """A PNG: a line for each pair of audits, with the bounds, claims and rates of both.

    Args:
        found: with at least one pair.
        names: what the runs are called.
    """
    places = np.arange(len(found.pairs))[::-1].astype(np.float64)
    rated = any(not np.isnan(side.rate) for pair in found.pairs for side in (pair.one, pair.other))
    with mpl.rc_context(STYLE):
        size = (10 if rated else 7, 1.3 + 0.5 * len(found.pairs))
        drawn = Figure(figsize=size, layout="constrained")
        row = drawn.subplots(1, 2 if rated else 1, sharey=True, squeeze=False)[0]
        _bounds(row[0], found.pairs, places, names)
        if rated:
            _rates(row[1], found.pairs, places)
        row[0].set_yticks(places, [_label(pair) for pair in found.pairs])
        row[0].set_ylim(-0.6, len(found.pairs) - 0.4)
        for axes in row:
            axes.grid(axis="y", visible=False)
        drawn.legend(*row[0].get_legend_handles_labels(), loc="outside upper right", ncols=3,
                     frameon=False)  # fmt: skip
        return png(drawn)


def _bounds(
    axes: Any,
    pairs: tuple[Pair, ...],
    places: npt.NDArray[np.float64],
    names: tuple[str, str],
) -> None:
    for number, name in enumerate(names):
        lines = places + _OFFSETS[number]
        entries = [_sides(pair)[number].entry for pair in pairs]
        bounds = [_finite(entry["epsilon_lower"]) for entry in entries]
        claims = [_finite(entry["epsilon_upper"]) for entry in entries]
        axes.hlines(lines, bounds, claims, color=COLOURS[number], lw=1, alpha=0.4)
        axes.plot(bounds, lines, ">", color=COLOURS[number], ms=5, label=name)
        axes.plot(claims, lines, "|", color="black", ms=9, mew=1.6,
                  label="claim" if number else None)  # fmt: skip
    axes.set_xlim(left=0)
    axes.set_xlabel("ε: lower bound and claim")


def _rates(axes: Any, pairs: tuple[Pair, ...], places: npt.NDArray[np.float64]) -> None:
    for number in (0, 1):
        sides = [_sides(pair)[number] for pair in pairs]
        values = np.array([side.rate for side in sides])
        spread = np.array([[side.rate - side.low, side.high - side.rate] for side in sides]).T
        axes.errorbar(values, places + _OFFSETS[number], xerr=spread, fmt="o", ms=4, capsize=3,
                      color=COLOURS[number])  # fmt: skip
    axes.axvline(0.5, color="grey", lw=0.8, ls=":")
    axes.set_xlabel("rate of right guesses, with its interval")


def _sides(pair: Pair) -> tuple[Side, Side]:
    return pair.one, pair.other


def _label(pair: Pair) -> str:
    """Of both, where they have two; and whether they differ."""
    labels = dict.fromkeys((pair.one.label, pair.other.label))
    text = "\n".join(
        label if len(label) <= _LONGEST else f"{label[:_LONGEST]}…" for label in labels
    )
    return f"{text} (differs)" if pair.differs else text


def _finite(epsilon: float) -> float:
    return epsilon if np.isfinite(epsilon) else np.nan
