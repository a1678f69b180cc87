"""What a model cannot be trained for is said in one line before anything runs."""

import pytest
from torch import Tensor, nn

from tests.command import changed, refused, write_sweep


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(30, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def narrow() -> nn.Module:
    return nn.Sequential(nn.Linear(31, 2))


def one_of_two() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(30, 1), nn.Unflatten(1, (1, 1)))


class Mixing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(30, 5)
        self.out = nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.out(h - h.mean(0))


@pytest.mark.parametrize(
    ("network", "said"),
    [
        ("normalised", "mechanism.model: 1 is a BatchNorm1d"),
        ("narrow", "fails on examples of shape [30]"),
        ("one_of_two", "must be [2, 1]"),
        ("Mixing", "mechanism.model: the model itself (Mixing) gives an example another output"),
    ],
)
def test_a_network_of_ones_own(network, said, tiny, tmp_path):
    model = {"name": "module", "path": f"{__name__}:{network}"}
    sweep = write_sweep(tmp_path, changed(tiny, "mechanism.model", model))
    for verb in ("plan", "run"):
        assert said in refused(verb, sweep, "--storage-path", tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
