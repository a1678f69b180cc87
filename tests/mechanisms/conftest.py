"""What tests of mechanisms share."""

from __future__ import annotations

import pytest

from dpaudit_ray.mechanisms.base import Mechanism
from dpaudit_ray.mechanisms.dp_sgd.options import DpSgd
from dpaudit_ray.plugins import parse


@pytest.fixture
def options(tiny: dict) -> DpSgd:
    """The mechanism of the tiny sweep."""
    mechanism = parse(Mechanism, tiny["mechanism"], "mechanism")
    assert isinstance(mechanism, DpSgd)
    return mechanism
