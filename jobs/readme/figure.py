"""Draws the bounds of the first sweep over its steps, as one panel for the README."""

from __future__ import annotations

import io

import matplotlib as mpl
from matplotlib.figure import Figure

import dpaudit_ray as da

_WIDTH, _HEIGHT = 9.0, 3.6  # inches: 864 pixels, nearly the width of a page of code hosts
_TEXT = 12  # points: 16 pixels
_ADVERSARIES = {
    "biased-dimension": ("a planted gradient", "#1f5fbf", "o"),
    "loss": ("a mislabelled example", "#c2571a", "s"),
}


def drawn(run: da.Result) -> str:
    """Returns the SVG of claims and lower bounds of a run with these two adversaries."""
    table = run.estimates
    table = table[table["estimator"] == "accuracy"]
    style = {"font.size": _TEXT, "svg.hashsalt": "readme", "font.family": "DejaVu Sans"}
    with mpl.rc_context(style):
        figure = Figure((_WIDTH, _HEIGHT), layout="constrained")
        axes = figure.subplots()
        steps = None
        for name, (words, colour, marker) in _ADVERSARIES.items():
            rows = table[table["label"].str.startswith(name)]
            steps = rows["step"]
            claimed = rows["epsilon_upper"]
            lower = rows["epsilon_lower"]
            axes.plot(steps, lower, color=colour, marker=marker, linewidth=2)
            place = (steps.iloc[-1], lower.iloc[-1])
            axes.annotate(
                f"measured with\n{words}", place, (12, 0),
                textcoords="offset points", color=colour, va="center",
            )  # fmt: skip
        axes.plot(steps, claimed, color="black", linewidth=2)
        place = (steps.iloc[-1], claimed.iloc[-1])
        axes.annotate("claimed", place, (12, 8), textcoords="offset points", va="center")
        axes.set_xlabel("steps of DP-SGD")
        axes.set_ylabel("privacy loss ε (δ = 1e-5)")
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None})
    return written.getvalue()
