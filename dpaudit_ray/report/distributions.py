"""Histograms of what a mechanism tells of itself without trials, of all audits side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from ..storage.arrays import Arrays
from .figures import COLOURS, STYLE, png
from .tables import Run

Floats = npt.NDArray[np.float64]
_MOST = 2 * len(COLOURS)  # lines in a figure
_BINS = 60


def figures(run: Run) -> Iterator[tuple[str, bytes]]:
    """A PNG for each quantity, with what it is; of audits whose preparation is there."""
    found: dict[str, dict[str, Floats]] = {}
    for audit, cell in zip(run.plan.audits, run.sweep.cells, strict=True):
        if cell.unread:
            continue
        known = audit.preparation
        prepared: tuple[Arrays, ...] = ()
        if known is not None:
            done = run.directory.parts(known.id)
            if len(done) < known.parts:
                continue
            prepared = tuple(run.directory.read_part(known.id, i) for i in range(known.parts))
        told = cell.mechanism.distributions(cell.adversary, cell.audit.delta, prepared)
        for what, values in told.items():
            found.setdefault(what, {})[audit.label] = values
    for what, by_audit in found.items():
        drawn = {label: each for label, each in by_audit.items() if np.isfinite(each).any()}
        rest = f" ({len(drawn) - _MOST} audits more are left out)" * (len(drawn) > _MOST)
        if drawn:
            yield f"{what}{rest}", _figure(what, dict(list(drawn.items())[:_MOST]))


def _figure(what: str, values: Mapping[str, Floats]) -> bytes:
    """Shares of numbers in bins that all audits share; logarithmic, since tails are what counts."""
    finite = {label: each[np.isfinite(each)] for label, each in values.items()}
    largest = max((float(each.max(initial=0.0)) for each in finite.values()), default=0.0)
    edges = np.linspace(0.0, largest or 1.0, _BINS + 1).tolist()
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        axes = figure.subplots()
        for i, (label, each) in enumerate(finite.items()):
            if len(each):
                axes.hist(each, edges, weights=np.full(len(each), 1 / len(each)), histtype="step",
                          color=COLOURS[i % len(COLOURS)], ls=("-", "--")[i // len(COLOURS)],
                          label=label)  # fmt: skip
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda share, _: f"{share:g}")  # without TeX
        axes.set_xlabel(what)
        axes.set_ylabel("share")
        figure.legend(loc="outside right upper", frameon=False, fontsize=7)
        return png(figure)
