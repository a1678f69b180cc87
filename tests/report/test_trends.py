"""Which key of a grid makes the axis of a trend."""

from __future__ import annotations

from typing import Any

import pytest

from dpaudit_ray.report import trends


@pytest.mark.parametrize(
    ("key", "values", "drawn"),
    [
        ("mechanism.noise_multiplier", [0.5, 1, 2.0], True),
        ("mechanism.noise_multiplier", [0.5, 1.0], False),
        ("mechanism.steps", [1, True, 3], False),
        ("mechanism.seed", [0, 1, 2], False),
        ("mechanism.training.seed", [0, 1, 2, 3], False),
        ("mechanism.steps", [0, 1, 10**400], False),
        ("adversary.layer", ["last", "second-last", "input"], False),
    ],
)
def test_numbers_make_an_axis(key: str, values: list[Any], drawn: bool) -> None:
    assert trends._numbers(key, values) == drawn
