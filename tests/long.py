"""Tests that take minutes and repeat at length what a shorter one shows: `make long` has them."""

import os
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

LONG = "DPAUDIT_LONG" in os.environ


def long(why: str) -> pytest.MarkDecorator:
    """Skips unless DPAUDIT_LONG is set, for the reason that is given."""
    return pytest.mark.skipif(not LONG, reason=f"{why}; set DPAUDIT_LONG=1")


def paired(first: Iterable[Any], second: Sequence[Any], why: str) -> list[Any]:
    """Values of two parameters: each of the first with one of the second, in turn.

    The other pairs are skipped unless DPAUDIT_LONG is set, for the reason that is given.
    """
    return [
        pytest.param(one, other, marks=() if number % len(second) == place else long(why))
        for number, one in enumerate(first)
        for place, other in enumerate(second)
    ]
