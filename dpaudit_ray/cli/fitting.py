"""A table in the columns of a terminal: what is left out, and what gets a line of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len

from ..sweep.labels import briefly

_APART = 2  # columns between columns


@dataclasses.dataclass(frozen=True)
class Fitted:
    """What is shown of a table.

    `legend` says what labels of audits are without, and stands above. `leads` are first cells that
    have lines of their own, each above its row.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    left_out: tuple[str, ...] = ()
    legend: str = ""
    leads: tuple[str, ...] = ()


def fitted(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], width: float, spare: Sequence[str]
) -> Fitted:
    """`rows` of text in `width` columns.

    First labels of audits lose what all of them say. Then columns of `spare` go, the first ones
    first. Where that does not do, the first cell of each row goes above it, and of the spare
    columns as many come back as there is room for.
    """
    whole = _without(columns, rows, ())
    if _fits(whole, width):
        return whole
    legend, brief = briefly([str(row[0]) for row in rows]) if columns[0] == "audit" else ("", [])
    if legend:
        shorter = [(label, *row[1:]) for label, row in zip(brief, rows, strict=True)]
        if (shown := _cut(columns, shorter, width, spare)) is not None:
            return dataclasses.replace(shown, legend=legend)
    elif (shown := _cut(columns, rows, width, spare)) is not None:
        return shown
    blank = [("", *row[1:]) for row in rows]
    shown = _cut(columns, blank, width, spare) or _without(columns, blank, spare)
    return dataclasses.replace(shown, leads=tuple(str(row[0]) for row in rows))


def _cut(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], width: float, spare: Sequence[str]
) -> Fitted | None:
    """Without as few columns as possible; None where it does not fit without all of them."""
    waiting = [name for name in spare if name in columns]
    cuts = (_without(columns, rows, waiting[:count]) for count in range(len(waiting) + 1))
    return next((cut for cut in cuts if _fits(cut, width)), None)


def _fits(table: Fitted, width: float) -> bool:
    cells = [table.columns, *table.rows]
    widths = [max(cell_len(str(cell)) for cell in column) for column in zip(*cells, strict=True)]
    return sum(widths) + _APART * (len(widths) - 1) <= width


def _without(columns: Sequence[str], rows: Sequence[Sequence[Any]], out: Sequence[str]) -> Fitted:
    kept = [place for place, column in enumerate(columns) if column not in out]
    return Fitted(
        tuple(columns[place] for place in kept),
        tuple(tuple(row[place] for place in kept) for row in rows),
        tuple(column for column in columns if column in out),
    )
