"""Numbers, times and marks as people read them, in tables and in the live view."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from rich.cells import cell_len, set_cell_size

from ..printable import printable

ALARM = "bold red"
_MORE = "…"


def number(value: Any) -> str:
    """A figure as people read it; NaN and None are no figure."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{value:,.3f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return printable(str(value))


def duration(seconds: float) -> str:
    """Seconds as 8s, 3m 20s or 5h 07m."""
    if not math.isfinite(seconds):
        return "?"
    if 0 < seconds < 1:
        return "<1s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"


def speed(rate: float) -> str:
    """Something per second, two digits where there are no more."""
    if math.isnan(rate):
        return "?"
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


@dataclasses.dataclass(frozen=True)
class Marked:
    """A bound above its claim: red, and told apart without colours, too."""

    figure: float

    def __str__(self) -> str:
        return marked(number(self.figure), True)


def marked(figure: str, above: bool) -> str:
    """The figure of a bound, which may be above its claim."""
    return f"! {figure}" if above else figure


def middle(text: str, width: int) -> str:
    """`text` in so many columns; what goes is in the middle, since ends tell labels apart."""
    if cell_len(text) <= width:
        return text
    head = max(0, width - 1) // 3
    tail = max(0, width - 1 - head)
    end = text
    while cell_len(end) > tail:
        end = end[1:]
    return (set_cell_size(text, head) + _MORE + end)[: max(width, 0)]
