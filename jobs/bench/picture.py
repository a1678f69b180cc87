"""Draws a bench's results: `python -m jobs.bench.picture bench.json bench.svg`.

Each mechanism is a point, certified ε over true ε. A valid bound is on the diagonal or below it,
but for 5 % of the audits.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from .table import Row

INCHES = (7.0, 4.6)
SMALLEST = 0.009  # ε at the lower edge, where bounds of 0 are drawn, too
INFINITE = 25.0  # where truths of ∞ are drawn
NAMED_SHARE = 0.5  # a broken mechanism of which less is certified has its name beside it
HEALTHY = {"color": "#1f77b4", "marker": "o", "label": "keeps its claim"}
BROKEN = {"color": "#d62728", "marker": "^", "label": "broken"}


def read_rows(path: Path) -> list[Row]:
    """Returns the rows that `python -m jobs.bench --json` wrote to a file."""
    return [Row(**fields) for fields in json.loads(path.read_text())]


def picture(rows: Sequence[Row]) -> Figure:
    """Draws certified ε over true ε, both on logarithmic axes.

    Args:
        rows: at least one.
    """
    figure = Figure(figsize=INCHES, layout="constrained")
    axes = figure.subplots()
    axes.plot([SMALLEST, INFINITE], [SMALLEST, INFINITE], color="0.6", linewidth=1, zorder=0)
    axes.text(0.1, 0.135, "certified = true", rotation=34, color="0.4", fontsize="small")
    for style, is_healthy in ((HEALTHY, True), (BROKEN, False)):
        chosen = [row for row in rows if row.is_healthy == is_healthy]
        truths = [_drawn_truth(row) for row in chosen]
        certified = [max(row.certified, SMALLEST) for row in chosen]
        axes.scatter(truths, certified, s=26, alpha=0.75, linewidths=0, **style)
    for row in rows:
        if row.share is not None and row.share < NAMED_SHARE and not row.is_healthy:
            place = (_drawn_truth(row), row.certified)
            axes.annotate(row.name, place, (5, -3), textcoords="offset points", fontsize="small")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(0.03, 1.4 * INFINITE)
    axes.set_ylim(0.9 * SMALLEST, INFINITE)
    axes.set_xticks([0.1, 1, 10, INFINITE], ["0.1", "1", "10", "∞"])
    axes.set_yticks([0.01, 0.1, 1, 10], ["≤ 0.01", "0.1", "1", "10"])
    axes.minorticks_off()
    axes.set_xlabel("true ε")
    axes.set_ylabel("certified ε (95 %)")
    axes.legend(loc="upper left", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _drawn_truth(row: Row) -> float:
    """Returns a row's true ε, or where an infinite one is drawn."""
    return INFINITE if row.truth is None else row.truth


def main(arguments: Sequence[str] | None = None) -> None:
    """Draws a file of rows; both paths are arguments of the command line."""
    source, target = sys.argv[1:] if arguments is None else arguments
    picture(read_rows(Path(source))).savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main()
