"""What a model cannot be trained for is said in one line before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from tests.command import changed, refused, write_sweep


class Normalised(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(30, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


class Narrow(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(31, 2))


class OneOfTwo(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(30, 1), nn.Unflatten(1, (1, 1)))


class Mixing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(30, 5)
        self.out = nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.out(h - h.mean(0))


class OneScore(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(446, 1))


@pytest.mark.parametrize(
    ("network", "said"),
    [
        ("Normalised", "mechanism.model: 1 is a BatchNorm1d"),
        ("Narrow", "fails on examples of shape [30]"),
        ("OneOfTwo", "must be [2, 1]"),
        ("Mixing", "mechanism.model: the model itself (Mixing) gives an example another output"),
    ],
)
def test_a_network_of_ones_own(
    network: str, said: str, tiny: dict[str, Any], tmp_path: Path
) -> None:
    model = {"name": "module", "path": f"{__name__}:{network}"}
    sweep = write_sweep(tmp_path, changed(tiny, "mechanism.model", model))
    for verb in ("plan", "run"):
        assert said in refused(verb, sweep, "--storage-path", tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
