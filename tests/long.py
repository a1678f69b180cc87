"""Tests that take minutes and repeat at length what a shorter one shows: `make long` has them."""

from __future__ import annotations

import os

import pytest

LONG = "DPAUDIT_LONG" in os.environ


def long(why: str) -> pytest.MarkDecorator:
    """Skips unless DPAUDIT_LONG is set, for the reason that is given."""
    return pytest.mark.skipif(not LONG, reason=f"{why}; set DPAUDIT_LONG=1")
