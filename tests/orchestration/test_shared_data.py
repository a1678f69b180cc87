"""A data set travels to a node once; its trainers map one copy."""

import os
from pathlib import Path

import numpy as np
import pytest

import dpaudit_ray as da
from dpaudit_ray.data import base
from dpaudit_ray.data.base import Data, Dataset
from tests.command import changed, write_sweep


class Counted(Data):
    """Leaves a line with its process for every time it is read."""

    name: str = "tests.orchestration.test_shared_data:Counted"
    log: str

    def read(self) -> Dataset:
        with Path(self.log).open("a") as file:
            file.write(f"{os.getpid()}\n")
        rng = np.random.default_rng(0)
        return Dataset(rng.normal(size=(200, 5)).astype(np.float32), np.arange(200) % 2)


def test_what_was_provided_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(base, "_PROVIDED", {})
    data = Counted(log=str(tmp_path / "log"))
    given = data.load()
    base.provide({data.key: given})
    before = (tmp_path / "log").read_text()
    assert data.load() is given
    assert (tmp_path / "log").read_text() == before
    assert Counted(log=str(tmp_path / "other")).load() is not given


@pytest.mark.cluster
@pytest.mark.usefixtures("shared_head")
def test_trainers_read_nothing(tiny, tmp_path):
    log = tmp_path / "log"
    changed(
        tiny,
        "mechanism.data",
        {"name": "tests.orchestration.test_shared_data:Counted", "log": str(log)},
    )
    changed(tiny, "mechanism.batch_size", 50)
    result = da.run(write_sweep(tmp_path, tiny), storage_path=str(tmp_path / "ray"))
    assert result.complete
    assert set(log.read_text().split()) == {str(os.getpid())}
