"""Counts the work of a call, so that tests of cost need no clock and pass on a busy machine."""

import dataclasses
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType


@dataclasses.dataclass(frozen=True)
class Cost:
    """Work of one call in its own thread.

    Attributes:
        calls: Python functions and built-in functions that were called.
        peak_bytes: the most that Python and numpy had allocated at one moment.
    """

    calls: int
    peak_bytes: int


def calls_of(action: Callable[[], object]) -> int:
    """Returns the number of functions, Python's and built-in ones, that `action` calls."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        if event in ("call", "c_call"):
            calls += 1

    previous = sys.getprofile()
    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(previous)
    return calls


def peak_bytes_of(action: Callable[[], object]) -> int:
    """Returns the most bytes that `action` has allocated through Python at one moment."""
    assert not tracemalloc.is_tracing(), "measurements do not nest"
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def cost_of(action: Callable[[], object]) -> Cost:
    """Runs `action` twice: once to count its calls, once to measure its memory."""
    return Cost(calls_of(action), peak_bytes_of(action))
