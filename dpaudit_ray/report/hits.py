"""A figure of how often bits are guessed right, beside what can be."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from .figures import COLOURS, STYLE, png
from .hit_rate import HitRate as HitRate


def figure(labels: Sequence[str], rates: Sequence[HitRate]) -> bytes:
    """A PNG: a rate with its interval for each audit, and the most that its claim allows."""
    places = np.arange(len(rates))[::-1]
    values = np.array([each.rate for each in rates])
    spread = np.array([[each.rate - each.low, each.high - each.rate] for each in rates]).T
    with mpl.rc_context(STYLE):
        drawn = Figure(figsize=(9, 0.9 + 0.34 * len(rates)), layout="constrained")
        axes = drawn.subplots()
        axes.errorbar(values, places, xerr=spread, fmt="o", color=COLOURS[0], ms=4, capsize=3,
                      label="right guesses")  # fmt: skip
        axes.plot([each.most for each in rates], places, "|", color="black", ms=18, mew=2,
                  label="the most that the claim allows")  # fmt: skip
        axes.axvline(0.5, color="grey", lw=0.8, ls=":")
        axes.set_yticks(places, labels)
        axes.set_ylim(-0.5, len(rates) - 0.5)
        axes.set_xlabel("rate of right guesses")
        axes.grid(axis="y", visible=False)
        drawn.legend(loc="outside upper right", ncols=2, frameon=False)
        return png(drawn)
