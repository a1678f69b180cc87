"""Shapes of all figures: lines from a tidy table, and the canvas under them."""

import contextlib
import io
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from ...errors import plain

# Okabe and Ito's palette: colour-blind readers distinguish its colours, too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
ALARM = "#C2255C"  # colour of a bound above its claim; always with a mark or a word
DASHES = ("-", "--", ":", "-.")  # distinguish more lines than there are colours
CLAIM: Any = {
    "color": "black",
    "marker": "|",
    "ls": "",
    "ms": 18,
    "mew": 2,
}
_SHADES = 64  # colours of a PNG file: with all colours, it would be three times as large
# Labels may be the user's text, which is not TeX.
_PLAIN_TEXT: Any = {"text.parse_math": False, "text.usetex": False}
_STYLE: Any = _PLAIN_TEXT | {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "figure.dpi": 130,
}


@contextlib.contextmanager
def canvas(
    width: float,
    height: float,
    rows: int = 1,
    columns: int = 1,
    new: Callable[..., Figure] = Figure,
    ax: Any = None,
    layout: str | None = "constrained",
) -> Iterator[tuple[Figure, list[Any]]]:
    """Yields an empty figure with its panels, row by row.

    Args:
        width: width of the figure, in inches.
        height: height of the figure, in inches.
        rows: number of rows of panels.
        columns: number of panels in a row.
        new: creates the figure.
        ax: axes, or an array of them, that are the panels instead of those of a new figure.
        layout: matplotlib's layout engine.
    """
    with mpl.rc_context(_STYLE if ax is None else _PLAIN_TEXT):
        if ax is None:
            figure = new(figsize=(width, height), layout=layout)
            panels = list(figure.subplots(rows, columns, squeeze=False).ravel())
            # Ticks are created when the figure is drawn, outside of this context.
            ticks = {"labelsize": _STYLE["font.size"], "grid_alpha": _STYLE["grid.alpha"]}
            for axes in panels:
                axes.tick_params(which="both", **ticks)
        else:
            panels = list(np.ravel(np.asarray(ax, object)))
            figure = panels[0].figure
        yield figure, panels


def png(figure: Figure) -> bytes:
    """Returns the figure as a PNG file's content."""
    canvas_agg: Any = FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    canvas_agg.draw()  # once: `savefig` draws it a second time to lay it out
    picture = Image.fromarray(np.asarray(canvas_agg.buffer_rgba())).convert("RGB")
    picture.quantize(_SHADES, method=Image.Quantize.FASTOCTREE).save(buffer, "png")
    return buffer.getvalue()


def lines(
    axes: Any,
    table: pd.DataFrame,
    styles: Mapping[str, dict[str, Any]] | None = None,
    **style: Any,
) -> None:
    """Draws a line for each series of a table, in their order, and names it in the legend.

    A series of a single point without a marker is a level across the panel.

    Args:
        axes: the panel.
        table: has columns `series`, `x`, `y`, and `low` and `high` if a band is shaded.
        styles: options of matplotlib, by series.
        **style: options for all series, instead of colours and dashes that follow the order.
    """
    for number, (name, rows) in enumerate(table.groupby("series", sort=False)):
        usual = {
            "color": COLOURS[number % len(COLOURS)],
            "ls": DASHES[number // len(COLOURS) % len(DASHES)],
            "lw": 1.2,
            "label": name,
        }
        options = usual | style | (styles or {}).get(str(name), {})
        if len(rows) == 1 and "marker" not in options:
            axes.axhline(rows["y"].iloc[0], **options)
        else:
            axes.plot(rows["x"], rows["y"], **options)
        if "low" in rows and rows["low"].notna().any():
            axes.fill_between(
                rows["x"],
                rows["low"],
                rows["high"],
                color=options["color"],
                alpha=0.2,
                lw=0,
            )


def epsilon_at(deltas: Collection[float]) -> str:
    """Returns the label of an axis of ε, with δ if it is the same for all bounds."""
    distinct = {*deltas}
    return f"ε at δ = {plain(distinct.pop())}" if len(distinct) == 1 else "ε at the δ of each audit"


def logarithmic(axes: Any, which: Literal["x", "y"]) -> None:
    """Makes the x or the y axis logarithmic, with plain numbers instead of TeX."""
    getattr(axes, f"set_{which}scale")("log")
    getattr(axes, f"{which}axis").set_major_formatter(lambda number, _: plain(number))


def legend(
    axes: Any,
    size: float = 7,
    above: bool = False,
) -> None:
    """Adds a legend to a panel.

    Args:
        axes: the panel.
        size: font size, in points.
        above: places it in two columns above the panel, not where it hides least.
    """
    layout = {}
    if above:
        layout = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 2}
    axes.legend(frameon=False, fontsize=size, **layout)
