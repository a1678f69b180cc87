"""Long trainings: saved through the aggregator, gone on with after any number of kills."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import dpaudit_ray as da
from dpaudit_ray import plan as planning
from dpaudit_ray.errors import LeaseLostError
from dpaudit_ray.orchestration.aggregation import Aggregation
from dpaudit_ray.orchestration.checkpoints import Checkpoints, PackCheckpoints
from dpaudit_ray.orchestration.trainer import Brief, PackTrainer
from dpaudit_ray.plan.model import Pack, Plan
from dpaudit_ray.storage.arrays import same
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.sweep import spec
from tests.command import changed
from tests.orchestration.test_aggregation import scores_of
from tests.orchestration.test_faults import assert_same, start

STEPS = 2000


def files(location: Path) -> list[Path]:
    """Checkpoints, the oldest first."""
    found = location.glob("checkpoints/*/*.parquet")
    return sorted(found, key=lambda file: int(file.stem.rpartition("-")[2]))


@pytest.fixture
def planned(tiny: dict[str, Any], tmp_path: Path) -> tuple[Plan, RunDirectory]:
    run = RunDirectory(str(tmp_path / "run"))
    return planning.open_run(spec.from_raw(tiny), run), run


def saved(step: int) -> dict[str, Any]:
    return {"theta": np.full((2, 3), step, dtype=np.float32)}


def test_the_last_two_are_kept_and_the_one_before_is_used_where_one_is_damaged(planned):
    plan, run = planned
    pack, other = Pack(1, 10, 19), Pack(0, 0, 9)
    kept = Checkpoints(run, plan)
    assert kept.checkpoint(pack) is None
    for step in (90, 100, 1000):
        kept.save(pack, (step, saved(step)))
    kept.save(other, (5, saved(5)))
    here = files(Path(run.location))
    assert [file.stem for file in here] == ["0-9-5", "10-19-100", "10-19-1000"]
    again = Checkpoints(run, plan)
    step, found = again.checkpoint(pack)
    assert step == 1000
    assert same(found, saved(1000))
    content = bytearray(here[2].read_bytes())
    content[len(content) // 4] ^= 1
    here[2].write_bytes(content)
    assert again.checkpoint(pack)[0] == 100
    again.drop(pack)
    assert files(Path(run.location)) == here[:1]
    assert again.checkpoint(pack) is None


def test_scores_that_are_stored_need_no_checkpoint(tiny, planned):
    plan, run = planned
    aggregation, pack = Aggregation(spec.from_raw(tiny), plan, run), Pack(0, 0, 9)
    aggregation.save(pack, (3, saved(3)))
    assert aggregation.checkpoint(pack)[0] == 3
    assert aggregation.progress().saved == {pack: 3}
    aggregation.fold(pack, scores_of(plan, pack))
    assert aggregation.progress().saved == {}
    assert files(Path(run.location)) == []
    aggregation.save(pack, (4, saved(4)))  # of another trainer that was taken for lost
    assert files(Path(run.location)) == []


def test_a_pack_that_goes_on_tells_nothing_of_how_long_one_takes(tiny, planned):
    """Else one that was resumed at its last step would make all others count as hung."""
    plan, run = planned
    sweep, pack = spec.from_raw(tiny), Pack(0, 0, 9)
    brief = Brief.from_plan(plan, sweep)
    first = Aggregation(sweep, plan, run)

    def call(method: str, *arguments: Any) -> Any:
        return getattr(first, method)(*arguments)

    whole = PackTrainer(sweep.raw, brief, call=call)
    changed(sweep.raw, "resources.checkpoint_minutes", 1e-9)
    scores = whole.train(pack)
    assert not whole.resumed
    assert first.checkpoint(pack) is not None
    again = PackTrainer(sweep.raw, brief, call=call)
    assert again.train(pack).difference(scores) is None
    assert again.resumed
    again.train(Pack(0, 10, 19))
    assert not again.resumed


def test_who_lost_the_lease_saves_nothing(planned):
    plan, run = planned
    run.write_json("driver.json", {"owner": "another"})
    with pytest.raises(LeaseLostError):
        Checkpoints(run.owned_by("me"), plan).save(Pack(0, 0, 9), (3, saved(3)))
    assert files(Path(run.location)) == []


def test_what_goes_wrong_with_checkpoints_stops_no_training():
    def broken(method: str, *arguments: Any) -> Any:
        raise OSError("gone, or full")

    checkpoints = PackCheckpoints(broken, Pack(0, 0, 9), 1e-9)
    assert checkpoints.last() is None
    assert checkpoints.due
    checkpoints.save(3, saved(3))
    assert not PackCheckpoints(broken, Pack(0, 0, 9), 1.0).due


MANY = {"name": "one-run", "canaries": 20, "kind": "random"}  # all in one training


def long(
    tiny: dict[str, Any], minutes: float | None, adversary: Any = "watched-dimension"
) -> dict[str, Any]:
    """One pack of 2000 steps, watched by an adversary that remembers."""
    changed(tiny, "mechanism.steps", STEPS)
    changed(tiny, "audit.record_every", 500)
    changed(tiny, "audit.trials", 20)
    tiny["grid"] = {"adversary": [adversary]}
    if adversary == MANY:
        tiny["audit"]["estimators"] = ["one-run", "one-run-fdp"]
    tiny["resources"] |= {"pack_size": 20, "checkpoint_minutes": minutes}
    return tiny


FORKS = """
import os, signal, sys, time
from pathlib import Path
import torch, dpaudit_ray as da

sweep, storage, kills = sys.argv[1], sys.argv[2], int(sys.argv[3])
def steps():
    found = Path(storage).glob("*/checkpoints/*/*.parquet")
    return [int(file.stem.split("-")[2]) for file in found]

# What is compiled and loaded once is so in every child; nothing here may start a thread.
torch.set_num_threads(1)
short = {"name": "short", "mechanism.steps": 2, "audit.record_every": 2}
da.run(sweep, storage_path=storage, executor="inline", overrides=short)
for kill in range(kills):
    child = os.fork()
    if not child:
        da.run(sweep, storage_path=storage, executor="inline")
        os._exit(1)  # it was to be killed
    deadline = time.monotonic() + 300
    while len(steps()) < 2 or max(steps()) < 300 * (kill + 1):
        assert time.monotonic() < deadline and os.waitpid(child, os.WNOHANG)[0] == 0
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    print(max(steps()), flush=True)
"""


@pytest.mark.parametrize(("adversary", "kills"), [("watched-dimension", 3), (MANY, 1)])
def test_killed_again_and_again_a_training_of_2000_steps_is_the_same(
    adversary, kills, tiny, tmp_path
):
    whole = long(tiny, None, adversary)
    quiet = da.run(whole, storage_path=str(tmp_path / "quiet"), executor="inline")
    assert not files(Path(quiet.location))
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(long(tiny, 0.0005, adversary)))
    arguments = [str(tmp_path / "sweep.yaml"), str(tmp_path / "killed"), str(kills)]
    done = subprocess.run(
        [sys.executable, "-c", FORKS, *arguments], capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
    reached = [int(line) for line in done.stdout.split()]
    assert len(reached) == kills
    assert sorted(set(reached)) == reached, "every one goes on where the one before was"
    assert reached[-1] < STEPS
    location = tmp_path / "killed/tiny"
    assert 2 <= len(files(location)) <= 3, "two, and one that was to be deleted"
    assert not (location / "scores").exists()
    files(location)[-1].write_bytes(b"PAR1 damaged PAR1")
    result = da.run(arguments[0], storage_path=arguments[1], executor="inline")
    assert result.complete
    assert not files(location)
    assert_same(location, quiet.location)


@pytest.mark.cluster
def test_a_trainer_that_is_killed_is_followed_by_one_that_goes_on(tiny, tmp_path, shared_head):
    quiet = da.run(long(tiny, None), storage_path=str(tmp_path / "quiet"), executor="inline")
    process = start(long(tiny, 0.0005), tmp_path / "ray")
    location = tmp_path / "ray/tiny"
    deadline = time.monotonic() + 300
    while not (there := files(location)):
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for trainer in shared_head.processes("Trainer.run_pack"):
        trainer.kill()
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output
    assert "worker lost" in output
    assert there
    assert not files(location)
    assert_same(location, quiet.location)
