"""A network of one's own by import path, and one line for what cannot be one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dpaudit_ray import plugins
from dpaudit_ray.errors import SpecError
from dpaudit_ray.models.base import Model

SOURCE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, inputs=8, width=4, outputs=1):
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.last = nn.Linear(width, outputs)

    def forward(self, x):
        return self.last(torch.relu(self.first(x.flatten(1))))


class Nested:
    Net = Net


def make(**options):
    return nn.Sequential(nn.Flatten(), Net(**options))


def nothing():
    return None


def silent():
    raise ValueError


number, made = 3, Net()
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_network.py").write_text(SOURCE)
    (tmp_path / "own_broken.py").write_text("import torch\n1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)


def build(path: str, shape: tuple[int, ...] = (8,), classes: int = 2, **options: Any) -> nn.Module:
    raw = {"name": "module", "path": path, "options": options}
    return plugins.parse(Model, raw, "mechanism.model").build(shape, classes)


@pytest.mark.parametrize("name", ["Net", "Nested.Net", "make"])
def test_classes_and_functions_do(name):
    network = build(f"own_network:{name}", width=5)
    assert sum(p.numel() for p in network.parameters()) == 8 * 5 + 5 + 5 + 1
    assert network(torch.zeros(3, 8)).shape == (3, 1)


def test_path_and_options_are_its_identity():
    raw = {"name": "module", "path": "own_network:Net", "options": {"width": 5}}
    assert plugins.parse(Model, raw, "model").identity() == raw | {"revision": 3}


@pytest.mark.parametrize(
    ("path", "options", "problem"),
    [
        ("own_network", {}, "path: must be package.module:name, got 'own_network'"),
        ("own_network.py:Net:", {}, "path: must be package.module:name"),
        (
            "own_missing:Net",
            {},
            "path: cannot import 'own_missing:Net' (No module named 'own_missing'); is it on "
            "PYTHONPATH?",
        ),
        ("own_network.py:Net", {}, "path: 'own_network.py:Net' names a file; name the module"),
        ("own_network:made", {}, "path: own_network:made is a module that is made already; name"),
        ("own_network:Nat", {}, "path: cannot import 'own_network:Nat' (module 'own_network' has"),
        ("own_broken:Net", {}, "path: cannot import 'own_broken:Net' (division by zero); is it"),
        ("own_network:number", {}, "path: 'own_network:number' cannot be called, got 3"),
        ("own_network:nothing", {}, "path: own_network:nothing gives a NoneType, no torch.nn.Mod"),
        ("own_network:silent", {}, "options: own_network:silent does not take them (ValueError)"),
        ("own_network:Net", {"widht": 2}, "options: own_network:Net does not take them (Net.__in"),
    ],
)
def test_what_cannot_be_used_is_told(path, options, problem):
    with pytest.raises(SpecError) as error:
        build(path, **options)
    assert str(error.value).startswith(f"mechanism.model.{problem}")
    assert "\n" not in str(error.value)
