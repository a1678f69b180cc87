"""Trainers: failures are data, and long trainings go on after any number of kills."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dpaudit_ray as da
import tests.long
from dpaudit_ray import plan as planning
from dpaudit_ray.adversaries.biased_dimension import BiasedDimension
from dpaudit_ray.data import base
from dpaudit_ray.data.base import Data, Dataset
from dpaudit_ray.errors import LeaseLostError
from dpaudit_ray.orchestration.aggregation import Aggregation
from dpaudit_ray.orchestration.checkpoints import Checkpoints, PackCheckpoints
from dpaudit_ray.orchestration.trainer import Brief, PackTrainer
from dpaudit_ray.plan.model import Pack, Plan
from dpaudit_ray.plan.outcomes import Failure
from dpaudit_ray.storage.arrays import same
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.sweep import spec
from tests.command import changed, write_sweep
from tests.head import wait_for
from tests.orchestration.test_aggregation import scores_of
from tests.orchestration.test_faults import assert_same, start


class Failing(BiasedDimension):
    name: str = "test_trainer:Failing"
    error: str

    def score(self, *_: Any) -> Any:
        raise eval(self.error)


class Diverging(BiasedDimension):
    name: str = "test_trainer:Diverging"

    def score(self, *observed: Any) -> Any:
        scores = super().score(*observed)
        scores[::5] = torch.nan
        return scores


@pytest.mark.parametrize(
    ("error", "count", "message"),
    [
        ("RuntimeError('alloc_cpu.cpp:127] . can\\'t allocate memory: you tried')", 1, 2),
        ("torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2 GiB')", 1, 2),
        ("MemoryError()", 1, 2),
        ("MemoryError()", 5, 5),
        ("MemoryError()", 10, "run fewer trainers on a node, or give them a larger resources."),
        ("MemoryError('one model is too large; lower mechanism.batch_size')", 1, None),
        ("ValueError('the cat ran out of memory')", 1, None),
    ],
)
def test_memory_that_runs_out_is_told_with_a_smaller_pack(error, count, message, tiny):
    """A quarter of the pack's 10 trials, in whole trainings."""
    failing = {"name": "test_trainer:Failing", "error": error, "count": count}
    tiny |= {"grid": {}, "adversary": failing}
    tiny["audit"]["estimators"] = ["eps-delta" if count == 1 else "several-canaries"]
    sweep = spec.from_raw(tiny)
    plan = planning.make(sweep)
    trainer = PackTrainer(sweep.raw, Brief.from_plan(plan, sweep))
    failure = trainer.attempt(next(planning.remaining(RunDirectory("nowhere"), plan)))
    assert isinstance(failure, Failure)
    if message is None:
        assert failure.kind == error.partition("(")[0]
    else:
        size = isinstance(message, int)
        remedy = f"set resources.pack_size: {message}" if size else message
        assert failure.message.startswith(f"out of memory; {remedy}")
        assert failure.kind == "OutOfMemory"
        assert "in score" in failure.traceback


def test_diverged_trials_are_kept_and_count_against_the_adversary(tiny, tmp_path):
    tiny["grid"]["adversary"] = ["test_trainer:Diverging", "biased-dimension"]
    result = da.run(tiny, storage_path=str(tmp_path), executor="inline")
    assert result.complete
    scores = result.scores
    first, second = scores["audit"].unique()
    assert np.isnan(scores.loc[scores["audit"] == first, "score"]).mean() == pytest.approx(0.2)
    assert set(result.estimates["trials"]) == {90}
    table = result.estimates.set_index(["audit", "estimator", "step"])["epsilon_lower"]
    assert (table[first] <= table[second]).all()


class Counted(Data):
    """Leaves a line with its process for every time it is read."""

    name: str = "tests.orchestration.test_trainer:Counted"
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
    data = {"name": "tests.orchestration.test_trainer:Counted", "log": str(log)}
    tiny["mechanism"] |= {"data": data, "batch_size": 50}
    result = da.run(write_sweep(tmp_path, tiny), storage_path=str(tmp_path / "ray"))
    assert result.complete
    assert set(log.read_text().split()) == {str(os.getpid())}


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
    tiny["mechanism"]["steps"] = STEPS
    tiny["audit"] |= {"record_every": 500, "trials": 20}
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


AGAIN = pytest.param(MANY, 1, marks=tests.long.long("as a canary alone, in seven seconds"))


@pytest.mark.parametrize(("adversary", "kills"), [("watched-dimension", 2), AGAIN])
def test_killed_again_and_again_a_training_of_2000_steps_is_the_same(
    adversary, kills, tiny, tmp_path
):
    quiet = da.run(
        long(tiny, None, adversary), storage_path=str(tmp_path / "quiet"), executor="inline"
    )
    assert not files(Path(quiet.location))
    file = write_sweep(tmp_path, long(tiny, 0.0005, adversary))
    arguments = [str(file), str(tmp_path / "killed"), str(kills)]
    done = subprocess.run(
        [sys.executable, "-c", FORKS, *arguments], capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
    reached = [int(line) for line in done.stdout.split()]
    assert sorted(set(reached)) == reached, "every one goes on where the one before was"
    assert (len(reached), reached[-1] < STEPS) == (kills, True)
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
    there = wait_for(lambda: files(location) or process.poll() is not None)
    for trainer in shared_head.processes("Trainer.run_pack"):
        trainer.kill()
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output
    assert "worker lost" in output
    assert there is not True
    assert not files(location)
    assert_same(location, quiet.location)
