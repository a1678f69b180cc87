"""Tests that take minutes and repeat at length what a shorter one shows: `make long` has them."""

from __future__ import annotations

import os

import pytest


def long(why: str) -> pytest.MarkDecorator:
    """Skips unless DPAUDIT_LONG is set, for the reason that is given."""
    return pytest.mark.skipif("DPAUDIT_LONG" not in os.environ, reason=f"{why}; set DPAUDIT_LONG=1")
