"""Figures and tables for papers: a heat map over two keys, the width of a column, LaTeX."""

import math

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.text import Text

from ...errors import SpecError
from .. import many_audits, verdict
from ..tables import Run
from .primitives import canvas, epsilon_at

_INCHES = {1: 3.35, 2: 6.9}  # the width of columns of a page, by their number
_POINTS = 8  # size of the type
_LEAST_SCALE = 0.55  # the height shrinks no further: lines of type need it
_MOST_LABELLED = 120  # cells that have their number, too


def heat_map(run: Run) -> Figure:
    """Draws the ε to quote of each audit over the two keys of the grid with the most values.

    Further keys make panels. A cell without an ε to quote is blank.

    Raises:
        SpecError: fewer than two keys vary.
    """
    keys = many_audits.varied_keys(run)
    if len(keys) < 2:
        raise SpecError("kind", "is heatmap, but fewer than two keys of the grid vary; use bars")
    quotes = verdict.quotes(run, verdict.current_or_stored(run))
    quoted = [quote.epsilon for quote in quotes]
    epsilons = np.array(quoted, float)  # None becomes NaN
    by_key = many_audits.audit_map(keys, len(quotes))
    measured = epsilons[~np.isnan(epsilons)]
    largest = float(measured.max(initial=0.0))
    panels = by_key.panels
    # Inches of margins, and of each cell.
    width = 1.6 + 0.42 * len(by_key.columns) * len(panels)
    height = 1.2 + 0.36 * len(by_key.rows)
    with canvas(width, height, 1, len(panels)) as (figure, grid):
        for axes, (title, cells) in zip(grid, panels, strict=True):
            shape = len(by_key.rows), len(by_key.columns)
            values = np.full(shape, math.nan)
            for audit, column, row in cells:
                values[row, column] = epsilons[audit]
            ends = {"vmin": 0.0, "vmax": largest or 1.0}
            picture = axes.imshow(values, **ends, cmap="cividis", aspect="auto")
            axes.grid(visible=False)
            axes.set_xticks(range(len(by_key.columns)), by_key.columns)
            axes.set_yticks(range(len(by_key.rows)), by_key.rows)
            axes.set(xlabel=by_key.across, ylabel=by_key.down, title=title)
            for row, column in np.argwhere(~np.isnan(values)):
                value = values[row, column]
                if values.size <= _MOST_LABELLED:
                    colour = "black" if value > largest / 2 else "white"  # large values are light
                    centred = {"ha": "center", "va": "center"}
                    axes.text(column, row, f"{value:.2g}", **centred, color=colour)
        deltas = [cell.audit.delta for cell in run.sweep.cells]
        figure.colorbar(picture, ax=grid, label=f"lower bound, {epsilon_at(deltas)}")
        return figure


def fit_columns(figure: Figure, columns: int) -> None:
    """Gives a figure the width of one or two columns of a page, and type of one size.

    Raises:
        SpecError: `columns` is another number.
    """
    if columns not in _INCHES:
        raise SpecError("columns", f"is {columns!r}; give 1 or 2")
    width, height = figure.get_size_inches()
    scale = _INCHES[columns] / width
    height *= min(1.0, max(scale, _LEAST_SCALE))
    figure.set_size_inches(_INCHES[columns], height)
    handles = {}  # handles by label: one legend above all panels has room for their words
    for axes in figure.axes:
        by_label = zip(*axes.get_legend_handles_labels(), strict=True)
        handles.update({label: handle for handle, label in by_label})
        if (legend := axes.get_legend()) is not None:
            legend.remove()
    if handles:
        labels = list(handles)
        figure.legend(handles.values(), labels, loc="outside upper center", ncols=columns)
    for text in figure.findobj(Text):
        text.set_fontsize(_POINTS)


def latex(run: Run) -> str:
    """Returns a table of LaTeX (booktabs) with the grid, the ε to quote and the claim."""
    quotes = verdict.quotes(run, verdict.current_or_stored(run))
    columns = {}
    for key in many_audits.varied_keys(run):
        columns[many_audits.short(key.name)] = list(key.values)
    columns["epsilon at least"] = [quote.text for quote in quotes]
    columns["assumes"] = [quote.assumes or "none yet" for quote in quotes]
    columns["claim"] = [f"{quote.claim:.4g}" for quote in quotes]
    columns["trials"] = [f"{audit.trials}" for audit in run.plan.audits]
    table = pd.DataFrame(columns)
    return str(table.to_latex(index=False, escape=True))
