"""Labels in few columns: what all say is said once."""

from __future__ import annotations

import pytest

from dpaudit_ray.sweep.labels import briefly


@pytest.mark.parametrize(
    ("labels", "legend", "brief"),
    [
        (["loss"], "", ["loss"]),
        (["loss", "cosine"], "", ["loss", "cosine"]),
        (["steps=5, loss", "steps=5, cosine"], "all: steps=5", ["loss", "cosine"]),
        (["a=1, b=2", "a=3, b=4"], "audit: a, b", ["1, 2", "3, 4"]),
        (["a=1, c=0, b=2", "a=3, c=0, b=2"], "audit: a; all: c=0, b=2", ["1", "3"]),
        (["loss period=5, a=1", "loss, a=2"], "audit: name, a", ["loss period=5, 1", "loss, 2"]),
        (["a=1, b=2", "b=4, a=3"], "", ["a=1, b=2", "b=4, a=3"]),
        (["a=1", "a=1, b=2"], "", ["a=1", "a=1, b=2"]),
    ],
)
def test_labels(labels: list[str], legend: str, brief: list[str]) -> None:
    assert briefly(labels) == (legend, brief)
