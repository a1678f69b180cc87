"""Whose fault a failed pack is: real trainers, one or some of which always fail."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dpaudit_ray as da
from dpaudit_ray.orchestration import deadlines, ray_executor
from jobs.scale import measure
from tests.command import write_sweep
from tests.head import head
from tests.long import long
from tests.orchestration.broken import NODE, TRAINER
from tests.orchestration.nodes import driver, nodes
from tests.orchestration.test_faults import assert_same

pytestmark = pytest.mark.slow
HERE = Path(__file__).resolve().parent


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers import the training from here."""
    monkeypatch.setenv("PYTHONPATH", str(HERE))


def sweep(trials: int) -> dict:
    return {
        "name": "tiny",
        "seed": 8,
        "mechanism": {
            "name": "function", "path": "broken:train", "steps": 4, "noise_multiplier": 1.0,
        },
        "adversary": "own",
        "audit": {"trials": trials, "delta": 1e-5},
        "resources": {"pack_size": 10},
    }  # fmt: skip


@pytest.mark.parametrize("trainers", [3, pytest.param(8, marks=long("eight trainers start"))])
def test_one_trainer_that_always_fails(
    trainers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything is done in the end; the trainer is named, and no failure is left behind."""
    file = write_sweep(tmp_path, sweep(trials := 400 * trainers))
    quiet = da.run(sweep(trials), storage_path=str(tmp_path / "quiet"), executor="inline")
    monkeypatch.setenv(TRAINER, str(tmp_path / "broken"))
    with (
        head(cpus=trainers, dashboard=False) as center,
        driver(center, file, tmp_path / "runs") as run,
    ):
        assert run.ends() == 0, run.output
    assert "Traceback" not in run.output
    named = re.findall(r"tiny-trainer-(\d+) on node \S+ failed \(RuntimeError: CUDA", run.output)
    assert len(named) == 1, run.output
    assert "it is replaced" in run.output
    assert_same(tmp_path / "runs/tiny", quiet.location)


def test_a_node_whose_trainers_always_fail(tmp_path: Path) -> None:
    file = write_sweep(tmp_path, sweep(1000))
    quiet = da.run(sweep(1000), storage_path=str(tmp_path / "quiet"), executor="inline")
    with head(cpus=1, dashboard=False) as center, nodes(center) as around:
        bad = around.joined(cpus=2, inside=["env", f"{NODE}=1"])
        with driver(center, file, tmp_path / "runs") as run:
            run.wait_for(lambda: f"node {bad.address} is left out" in run.output)
            run.wait_for(lambda: not bad.actors("Trainer"))
            assert run.ends() == 0, run.output
    assert "Traceback" not in run.output
    assert_same(tmp_path / "runs/tiny", quiet.location)


def test_a_failure_that_follows_the_audit_ends_it(tmp_path: Path, monkeypatch) -> None:
    """Every trainer fails: the audit is stopped, and no trainer is named."""
    monkeypatch.setenv(NODE, "1")
    file = write_sweep(tmp_path, sweep(400))
    with head(cpus=2, dashboard=False) as center, driver(center, file, tmp_path / "runs") as run:
        assert run.ends() == 3, run.output
    assert "stopped, 3 packs in a row failed the same way (RuntimeError: CUDA" in run.output
    assert "it is replaced" not in run.output
    assert "left out" not in run.output


def test_a_hang_in_the_first_pack_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of an audit's packs then, so the limit is a long one: here, seconds."""
    hanging = sweep(40) | {"resources": {"pack_size": 10, "max_concurrent_trainers": 1}}
    hanging["mechanism"]["path"] = "broken:hang"
    quiet = da.run(hanging, storage_path=str(tmp_path / "quiet"), executor="inline")
    monkeypatch.setenv(TRAINER, str(tmp_path / "broken"))
    monkeypatch.setattr(deadlines, "FIRST", 6.0)
    monkeypatch.setattr(ray_executor, "SHORTEST", 3.0)
    told: list[str] = []
    result = da.run(hanging, storage_path=str(tmp_path / "runs"), tell=told.append)
    assert result.complete
    slow, lost = told
    assert "tiny-trainer-0 has worked for 3 s on its first pack and counts as hung after 6" in slow
    assert lost.startswith("worker lost (1 of at most 100) with 2 packs: tiny-trainer-0 on node ")
    assert lost.endswith("was silent for 6 s")
    assert_same(result.location, quiet.location)


def test_a_pack_that_waits_goes_to_an_idle_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four packs a slow trainer holds two, for eight seconds each; it ends one of them."""
    slow = sweep(40) | {"resources": {"pack_size": 10, "max_concurrent_trainers": 2}}
    slow["mechanism"]["path"] = "broken:slow"
    quiet = da.run(slow, storage_path=str(tmp_path / "quiet"), executor="inline")
    monkeypatch.setenv(TRAINER, str(tmp_path / "broken"))
    told: list[str] = []
    result = da.run(slow, storage_path=str(tmp_path / "runs"), tell=told.append)
    ends = measure.stored(result.location)
    assert result.complete
    assert told == []
    assert ends[2] - ends[0] < 4 < ends[3] - ends[0]
    assert_same(result.location, quiet.location)
