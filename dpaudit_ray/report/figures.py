"""Figures of one audit: bounds against claims over steps, and the scores of both worlds."""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure
from PIL import Image

from ..plan.prefix import Trials
from ..stats import Status

# Okabe and Ito's palette: told apart by colour-blind readers too.
ALARM = "#C2255C"  # of what contradicts a claim, and never alone: a mark or a word is beside it
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_LINES = dict(zip(Status, itertools.cycle(("-", (0, (7, 1.5)), "--", "-.", ":")), strict=False))
_CLAIM_LINES = ("-", "--", "-.", ":")
_SHADES = 64
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "figure.dpi": 130,
    "text.parse_math": False,  # labels are the user's text, and none of ours is TeX
    "text.usetex": False,
}


@dataclasses.dataclass(frozen=True)
class Picture:
    """A PNG file's content, which notebooks show."""

    content: bytes

    def save(self, path: str | Path) -> None:
        """Writes it to a file."""
        Path(path).write_bytes(self.content)

    def _repr_png_(self) -> bytes:
        return self.content


def audit_figure(title: str, estimates: pd.DataFrame, trials: Trials) -> bytes:
    """A PNG: bounds over steps, and, where there are trials, their scores at the last step.

    Where several steps are recorded, more panels have the scores over steps, and the accuracy.

    Args:
        title: printed above.
        estimates: this audit's rows of estimates.parquet.
        trials: this audit's trials that gave an output.
    """
    panels: list[Callable[[Any], None]] = [functools.partial(_bounds, estimates=estimates)]
    if len(trials.members):
        panels.append(functools.partial(_histogram, trials=trials))
        if len(trials.steps) > 1:
            panels.append(functools.partial(_path, trials=trials, what="score"))
            if "accuracy" in trials.utility:
                panels.append(functools.partial(_path, trials=trials, what="accuracy"))
    with mpl.rc_context(STYLE):
        figure, row = side_by_side(len(panels))
        figure.suptitle(title, fontsize=10)
        for axes, draw in zip(row, panels, strict=True):
            draw(axes)
        return png(figure)


def side_by_side(panels: int) -> tuple[Figure, list[Any]]:
    """A figure with its axes, at fixed margins.

    They hold tick labels of up to six characters. A layout engine would measure them, and take
    most of a report's time: it draws everything three times more.
    """
    width = max(9, 4 * panels)
    figure = Figure(figsize=(width, 3.4))
    row = figure.subplots(1, panels, squeeze=False)[0]
    figure.subplots_adjust(left=0.6 / width, right=1 - 0.15 / width, bottom=0.145, top=0.9)
    figure.subplots_adjust(wspace=0.24)
    return figure, list(row)


def _bounds(axes: Any, estimates: pd.DataFrame) -> None:
    claims = estimates.groupby("accountant", sort=False)
    steps = np.sort(estimates["step"].unique())
    for dashes, (accountant, rows) in zip(itertools.cycle(_CLAIM_LINES), claims):
        claim = rows.drop_duplicates("step")
        style: Any = {"color": "black", "lw": 1.2, "ls": dashes, "label": f"claim: {accountant}"}
        if len(steps) == 1:  # a line through one point is none
            axes.axhline(claim["epsilon_upper"].iloc[0], **style)
        else:
            axes.plot(claim["step"], claim["epsilon_upper"], **style)
    first = next(iter(claims))[1].drop_duplicates("step").set_index("step")["epsilon_upper"]
    for colour, (name, rows) in zip(
        COLOURS, estimates.groupby("estimator", sort=False), strict=False
    ):
        line = rows.drop_duplicates("step")
        status = Status(line["status"].iloc[0])
        axes.plot(line["step"], line["epsilon_lower"], color=colour, ls=_LINES[status],
                  marker="o", ms=3, label=f"{name} ({status})")  # fmt: skip
        beyond = line[line["above_claim"]]
        axes.plot(beyond["step"], beyond["epsilon_lower"], "X", color=ALARM, ms=9, zorder=3)
    _shade_beyond(axes, first)
    axes.set_xlabel("step")
    axes.set_ylabel("ε")
    if len(steps) == 1:
        axes.set_xticks(steps)
    axes.legend(frameon=False, fontsize=7)


def _shade_beyond(axes: Any, claim: pd.Series[float]) -> None:
    """Where no bound may lie if the claim is true."""
    top = max(axes.get_ylim()[1], 1.1 * float(claim.max()))
    if not np.isfinite(top):
        axes.set_ylim(bottom=0)
        return
    if len(claim) == 1:
        axes.axhspan(float(claim.iloc[0]), top, color=ALARM, alpha=0.07, lw=0)
    else:
        axes.fill_between(claim.index, claim, top, color=ALARM, alpha=0.07, lw=0)
    axes.set_ylim(0, top)


def say(axes: Any, text: str) -> None:
    """A sentence where nothing can be drawn."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", fontsize=8)
    axes.set_xticks([])
    axes.set_yticks([])


def _histogram(axes: Any, trials: Trials) -> None:
    values, members = trials.scores[:, -1], trials.members
    finite = np.isfinite(values)
    if finite.any():
        bins = _bins(values[finite])
        for world, colour, name in ((False, COLOURS[0], "out"), (True, COLOURS[1], "in")):
            inside = values[finite & (members == world)]
            axes.hist(inside, bins, color=colour, alpha=0.55, label=f"canary {name}")
        axes.legend(loc="upper right", frameon=False, fontsize=7)
    diverged = int((~finite).sum())
    axes.set_xlabel("score" + (f" ({diverged} diverged trials not drawn)" if diverged else ""))
    axes.set_ylabel("trials")


def _path(axes: Any, trials: Trials, what: str) -> None:
    """Mean ± 2 standard deviations over the trials of each world, at every step."""
    values = trials.scores if what == "score" else trials.utility[what]
    for world, colour, name in ((False, COLOURS[0], "out"), (True, COLOURS[1], "in")):
        steps, mean, spread = [], np.empty(0), np.empty(0)
        for step, column in zip(trials.steps, values.T, strict=True):
            inside = column[(trials.members == world) & np.isfinite(column)]
            if len(inside):
                steps.append(step)
                mean, spread = np.append(mean, inside.mean()), np.append(spread, 2 * inside.std())
        axes.plot(steps, mean, color=colour, lw=1.2, label=f"canary {name}, ± 2 deviations")
        axes.fill_between(steps, mean - spread, mean + spread, color=colour, alpha=0.2, lw=0)
    axes.set_xlabel("step")
    axes.set_ylabel(what)
    axes.legend(frameon=False, fontsize=7)


def _bins(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """40 bins over the central 99.8 %, so that one wild score does not hide all others."""
    low, high = np.quantile(values, [0.001, 0.999])
    return np.linspace(low, high, 41) if high > low else np.linspace(low - 0.5, high + 0.5, 41)


def png(figure: Figure) -> bytes:
    """The figure as a PNG file's content, in 64 colours: a third of the size."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    buffer = io.BytesIO()
    picture = Image.open(drawn).convert("RGB")
    picture.quantize(_SHADES, method=Image.Quantize.FASTOCTREE).save(buffer, "png")
    return buffer.getvalue()
