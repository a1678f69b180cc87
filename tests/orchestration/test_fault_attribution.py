"""Whose fault a failed pack is, among real trainers; `test_dispatcher` plays all other cases."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dpaudit_ray as da
from tests.command import changed, write_sweep
from tests.head import head
from tests.long import long
from tests.orchestration.nodes import driver
from tests.orchestration.test_faults import assert_same
from tests.pace import Pace


@pytest.fixture
def breaking(light: dict, pace: Pace, tmp_path: Path) -> dict:
    """One audit of a mechanism that is broken in a trainer, once there is a folder `marked`."""
    del light["grid"]
    light["resources"] = {"pack_size": 10}
    light["mechanism"]["broken"] = str(tmp_path / "marked" / "trainer")
    return pace.of(light, "tests.orchestration.broken:Broken")


@pytest.mark.cluster
@pytest.mark.parametrize("trainers", [3, pytest.param(8, marks=long("eight trainers start"))])
def test_one_trainer_that_always_fails(
    trainers: int, breaking: dict, tmp_path: Path, pace: Pace
) -> None:
    """Everything is done in the end; the trainer is named, and no failure is left behind."""
    file = write_sweep(tmp_path, changed(breaking, "audit.trials", 400 * trainers))
    quiet = da.run(breaking, storage_path=str(tmp_path / "quiet"), executor="inline")
    (tmp_path / "marked").mkdir()
    pace.slow(0.5)
    with (
        head(cpus=trainers, dashboard=False) as center,
        driver(center, file, tmp_path / "runs") as run,
    ):
        run.wait_for(lambda: "it is replaced" in run.output)
        pace.hurry()
        assert run.ends() == 0, run.output
    assert "Traceback" not in run.output
    named = re.findall(r"tiny-trainer-(\d+) on node \S+ failed \(RuntimeError: CUDA", run.output)
    assert len(named) == 1, run.output
    assert_same(tmp_path / "runs/tiny", quiet.location)
