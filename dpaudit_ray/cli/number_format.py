"""Numbers, times and marks as people read them, in tables and in the live view."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from ..printable import printable

ALARM = "bold red"  # style of a bound above its claim


class Figure(str):
    """A number that is text already, such as 40/90 or 3m 20s: tables align it as a number."""


@dataclasses.dataclass(frozen=True)
class Bound:
    """A lower bound; one above its claim is red, and marked where there are no colours."""

    value: float
    above_claim: bool

    def __str__(self) -> str:
        return marked(number(self.value), self.above_claim)


def marked(bound: str, above_claim: bool) -> str:
    """The text of a bound, with a mark where it is above its claim."""
    return f"! {bound}" if above_claim else bound


def number(value: Any) -> str:
    """A value as people read it: 1,234 or 0.500; – for NaN and None; text as it is."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{value:,.3f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return printable(str(value))


def duration(seconds: float) -> Figure:
    """Seconds as 8s, 3m 20s or 5h 07m; ? where they are not known."""
    if not math.isfinite(seconds):
        return Figure("?")
    if 0 < seconds < 1:
        return Figure("<1s")
    whole = round(seconds)
    if whole < 60:
        return Figure(f"{whole}s")
    if whole < 3600:
        return Figure(f"{whole // 60}m {whole % 60:02d}s")
    return Figure(f"{whole // 3600}h {whole % 3600 // 60:02d}m")


def speed(per_second: float) -> str:
    """A rate with two digits, or with all that are before the point; ? where it is not known."""
    if math.isnan(per_second):
        return "?"
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.2g}"


def plural(count: int, noun: str) -> str:
    """`1 audit`, `2,000 audits`."""
    return f"{count:,} {noun}" + "s" * (count != 1)
