"""Who drives a run, as `status` tells it on any machine."""

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

import dpaudit_ray as da
from dpaudit_ray import api
from dpaudit_ray import plan as planning
from dpaudit_ray.errors import RunDirectoryError
from dpaudit_ray.orchestration.trainer import PackTrainer
from dpaudit_ray.storage import lease
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.storage.scores import PackScores
from tests.command import dpaudit, inline, write_sweep


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(str(tmp_path))


def elsewhere(run: RunDirectory, beat: int) -> None:
    """What a driver on another machine writes."""
    entry = {"owner": "ab", "host": "node-7", "pid": 12, "started": "34", "beat": beat}
    run.write_json(lease.DRIVER, entry)


class TestHolder:
    def test_a_process_of_this_machine_is_known_at_once(self, run, monkeypatch):
        with lease.held(run, watch=0.1), monkeypatch.context() as patch:
            patch.setattr(time, "sleep", lambda _: pytest.fail("it waits for a sign of life"))
            holder = lease.holder(run)
        assert holder is not None
        assert holder.host == socket.gethostname()
        assert holder.silent == 0

    def test_one_on_another_machine_is_seen_by_its_renewals(self, run, monkeypatch):
        elsewhere(run, 0)
        monkeypatch.setattr(time, "sleep", lambda _: elsewhere(run, 1))
        assert lease.holder(run) == lease.Holder("node-7", 12)

    def test_one_on_another_machine_that_renews_nothing_is_told_as_silent(self, run):
        elsewhere(run, 3)
        holder = lease.holder(run, wait=1.2)
        assert holder is not None
        assert holder.silent >= 1.2
        assert "process 12 on node-7, has given no sign for 1 s" in str(holder)

    def test_nobody_and_one_that_was_killed_whose_number_another_process_has(self, run):
        assert lease.holder(run) is None
        with lease.held(run, watch=0.1):
            entry = run.read_json(lease.DRIVER)
        run.write_json(lease.DRIVER, entry | {"started": "1"})
        assert lease.holder(run, wait=0.2) is None

    @pytest.mark.parametrize("damage", ["[]", "{", '{"host": 3, "pid": "x"}', '"a"'])
    def test_damage_is_a_driver_that_nobody_knows(self, run, damage):
        run.write_text(lease.DRIVER, damage)
        holder = lease.holder(run, wait=0.2)
        assert holder is not None
        assert holder.silent


@pytest.fixture
def sweep(light: dict, tmp_path: Path) -> Path:
    return write_sweep(tmp_path, light)


def test_status_knows_the_driver_and_the_failures_while_the_sweep_runs(
    sweep, tmp_path, monkeypatch
):
    """Asked from within the last pack, when an earlier one has failed."""
    train = PackTrainer.train
    seen: list[str] = []
    raw: list[Any] = []

    def looking(self: PackTrainer, pack: Any, *how: Any) -> PackScores:
        if (pack.audit, pack.first) == (0, 40):
            raise ValueError("boom")
        if (pack.audit, pack.first) == (1, 80):
            seen.append(dpaudit("status", tmp_path / "tiny").out)
            raw.append(json.loads(dpaudit("status", tmp_path / "tiny", "--json").out))
        return train(self, pack, *how)

    monkeypatch.setattr(PackTrainer, "train", looking)
    assert inline(sweep, tmp_path).code == 3
    assert "trials 40-49 failed: ValueError: boom" in seen[0]
    assert seen[0].splitlines()[-1].startswith("not complete; a driver is at work: process ")
    assert raw[0]["driver"]["host"] == socket.gethostname()
    after = dpaudit("status", tmp_path / "tiny").out
    assert after.splitlines()[-1].startswith("not complete: all remaining work has failed; ")
    assert json.loads(dpaudit("status", tmp_path / "tiny", "--json").out)["driver"] is None


class Looks:
    """Counts the looks at a lease, before each of which its driver elsewhere may renew it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, run: RunDirectory, alive: bool) -> None:
        self.count = 0
        self._run, self._alive, self._sleep = run, alive, time.sleep
        monkeypatch.setattr(lease.time, "sleep", self)

    def __call__(self, seconds: float) -> None:
        if seconds != lease.LOOK_SECONDS:
            self._sleep(seconds)
            return
        self.count += 1
        if self._alive:
            elsewhere(self._run, self.count)


def test_a_second_driver_is_refused_before_data_and_plan(light, tmp_path, monkeypatch):
    run = RunDirectory.under(str(tmp_path), "tiny")
    elsewhere(run, 0)
    Looks(monkeypatch, run, alive=True)
    for module, name in ((planning, "preview"), (planning, "open_run"), (api, "check_inputs")):
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("it loads data and plans"))
    with pytest.raises(RunDirectoryError, match=r"another driver .*process 12 on node-7"):
        da.run(light, str(tmp_path), executor="inline")


def test_a_lease_that_was_left_behind_is_watched_once(light, tmp_path, monkeypatch):
    run = RunDirectory.under(str(tmp_path), "tiny")
    elsewhere(run, 0)
    looks = Looks(monkeypatch, run, alive=False)
    monkeypatch.setattr(lease, "LOOK_SECONDS", 0.001)
    assert da.run(light, str(tmp_path), executor="inline").complete
    assert looks.count == lease.STALE_SECONDS / lease.LOOK_SECONDS


def test_a_driver_that_wakes_up_while_another_plans_is_not_replaced(light, tmp_path, monkeypatch):
    run = RunDirectory.under(str(tmp_path), "tiny")
    elsewhere(run, 0)
    looks = Looks(monkeypatch, run, alive=False)
    monkeypatch.setattr(lease, "LOOK_SECONDS", 0.01)
    check_inputs = api.check_inputs

    def wakes(*arguments: Any) -> None:
        looks._alive = True
        elsewhere(run, -1)
        check_inputs(*arguments)

    monkeypatch.setattr(api, "check_inputs", wakes)
    with pytest.raises(RunDirectoryError, match="another driver works on"):
        da.run(light, str(tmp_path), executor="inline")
    assert run.read_json(lease.DRIVER)["owner"] == "ab"
