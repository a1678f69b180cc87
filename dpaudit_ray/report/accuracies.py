"""What models are worth, audit beside audit; apart from `utility`, which draws nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from .figures import COLOURS, STYLE, png
from .utility import Worth


def figure(audits: Mapping[str, Sequence[Worth]]) -> bytes | None:
    """A PNG: mean accuracy of every audit with two standard errors; None for less than two."""
    known = {
        label: each
        for label, worths in audits.items()
        for each in worths
        if each.measure == "accuracy" and each.canary == "any" and each.mean == each.mean
    }
    if len(known) < 2:
        return None
    places = np.arange(len(known))[::-1]
    means = [each.mean for each in known.values()]
    errors = np.nan_to_num([2 * each.error for each in known.values()])
    with mpl.rc_context(STYLE):
        drawn = Figure(figsize=(9, 0.9 + 0.34 * len(known)), layout="constrained")
        axes = drawn.subplots()
        axes.errorbar(means, places, xerr=errors, fmt="o", color=COLOURS[0], ms=4, capsize=3)
        axes.set_yticks(places, list(known))
        axes.set_xlabel("accuracy")
        axes.grid(axis="y", visible=False)
        return png(drawn)
