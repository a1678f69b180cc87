"""Whose fault a failed pack is: real trainers, one or some of which always fail."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dpaudit_ray as da
from dpaudit_ray.orchestration import faults
from jobs.scale import measure
from tests.command import changed, write_sweep
from tests.head import head
from tests.long import long
from tests.orchestration.broken import NODE, TRAINER
from tests.orchestration.nodes import driver, nodes
from tests.orchestration.test_faults import assert_same
from tests.pace import Pace

pytestmark = pytest.mark.slow


@pytest.fixture
def breaking(light: dict, pace: Pace) -> dict:
    """One audit of a mechanism that is broken somewhere."""
    del light["grid"]
    light["resources"] = {"pack_size": 10}
    return pace.of(light, "tests.orchestration.broken:Broken")


@pytest.mark.parametrize("trainers", [3, pytest.param(8, marks=long("eight trainers start"))])
def test_one_trainer_that_always_fails(
    trainers: int, breaking: dict, tmp_path: Path, pace: Pace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything is done in the end; the trainer is named, and no failure is left behind."""
    file = write_sweep(tmp_path, changed(breaking, "audit.trials", 400 * trainers))
    quiet = da.run(breaking, storage_path=str(tmp_path / "quiet"), executor="inline")
    monkeypatch.setenv(TRAINER, str(tmp_path / "broken"))
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


def test_a_node_whose_trainers_always_fail(breaking: dict, tmp_path: Path, pace: Pace) -> None:
    file = write_sweep(tmp_path, changed(breaking, "audit.trials", 2000))
    quiet = da.run(breaking, storage_path=str(tmp_path / "quiet"), executor="inline")
    pace.slow(0.5)
    with head(cpus=1, dashboard=False) as center, nodes(center) as around:
        bad = around.joined(cpus=2, inside=["env", f"{NODE}=1"])
        with driver(center, file, tmp_path / "runs") as run:
            run.wait_for(lambda: f"node {bad.address} is left out" in run.output)
            run.wait_for(lambda: not bad.actors("Trainer"))
            pace.hurry()
            assert run.ends() == 0, run.output
    assert "Traceback" not in run.output
    assert_same(tmp_path / "runs/tiny", quiet.location)


def test_a_failure_that_follows_the_audit_ends_it(
    breaking: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every trainer fails: the audit is stopped, and no trainer is named."""
    monkeypatch.setenv(NODE, "1")
    file = write_sweep(tmp_path, changed(breaking, "audit.trials", 400))
    with head(cpus=2, dashboard=False) as center, driver(center, file, tmp_path / "runs") as run:
        assert run.ends() == 3, run.output
    assert "stopped, 3 packs in a row failed the same way (RuntimeError: CUDA" in run.output
    assert "it is replaced" not in run.output
    assert "left out" not in run.output


def test_a_hang_in_the_first_pack_is_found(
    breaking: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is known of an audit's packs then, so the limit is a long one: here, seconds."""
    changed(breaking, "audit.trials", 40)
    changed(breaking, "resources.max_concurrent_trainers", 1)
    changed(breaking, "mechanism.there", "hangs")
    quiet = da.run(breaking, storage_path=str(tmp_path / "quiet"), executor="inline")
    monkeypatch.setenv(TRAINER, str(tmp_path / "broken"))
    monkeypatch.setattr(faults, "FIRST", 6.0)
    monkeypatch.setattr(faults, "SHORTEST", 3.0)
    told: list[str] = []
    result = da.run(breaking, storage_path=str(tmp_path / "runs"), tell=told.append)
    assert result.complete
    slow, lost = (line for line in told if "tiny-trainer-0" in line)
    assert "tiny-trainer-0 has worked for 3 s on its first pack and counts as hung after 6" in slow
    assert lost.startswith("worker lost (1 of at most 100) with 2 packs: tiny-trainer-0 on node ")
    assert lost.endswith("was silent for 6 s")
    others = [line for line in told if "tiny-trainer-0" not in line]
    assert all("has worked for 3 s on its first pack" in line for line in others), "slow machine"
    assert_same(result.location, quiet.location)


def test_a_pack_that_waits_goes_to_an_idle_trainer(
    breaking: dict, tmp_path: Path, pace: Pace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four packs a slow trainer holds two, for eight seconds each; it ends one of them."""
    changed(breaking, "audit.trials", 40)
    changed(breaking, "resources.max_concurrent_trainers", 2)
    changed(breaking, "mechanism.there", "dawdles")
    quiet = da.run(breaking, storage_path=str(tmp_path / "quiet"), executor="inline")
    monkeypatch.setenv(TRAINER, str(tmp_path / "broken"))
    pace.slow(0.2)
    told: list[str] = []
    result = da.run(breaking, storage_path=str(tmp_path / "runs"), tell=told.append)
    ends = measure.stored(result.location)
    assert result.complete
    assert told == []
    assert ends[2] - ends[0] < 4 < ends[3] - ends[0]
    assert_same(result.location, quiet.location)
