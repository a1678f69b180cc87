"""Failed packs on a real cluster: misses that outlive the aggregator, retries that are checked."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pandas as pd
import psutil
import pytest

import dpaudit_ray as da
from dpaudit_ray import plan as planning
from dpaudit_ray.plan import outcomes
from dpaudit_ray.storage.run_directory import RunDirectory
from tests.command import Outcome, dpaudit, inline, write_sweep
from tests.head import actors
from tests.orchestration.test_faults import start
from tests.plan.failing import FLAG, SECONDS, sweep

pytestmark = pytest.mark.cluster


def retried(sweep: dict, folder: Path) -> Outcome:
    file = write_sweep(folder, sweep)
    done = dpaudit("run", file, "--storage-path", folder, "--retry-failed")
    assert "Traceback" not in done.err
    return done


def estimates(location: Path) -> pd.DataFrame:
    return RunDirectory(str(location)).estimates()


def recorded(location: Path) -> int:
    run = RunDirectory(str(location))
    return (
        len(outcomes.failed(run, planning.require(run))) if (location / "plan.json").exists() else 0
    )


def test_misses_outlive_the_aggregator_and_are_those_of_any_executor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The aggregator is killed once a failure is on record and while packs are still running."""
    monkeypatch.setenv(FLAG, "1")
    # Packs 2, 9, 32 and 50 fail: never three in a row, whatever order they end in.
    slow = sweep("steady", 300) | {"seed": 1236}
    monkeypatch.setenv(SECONDS, "0.05")
    process = start(slow, tmp_path / "ray")
    monkeypatch.delenv(SECONDS)
    deadline = time.monotonic() + 300
    while recorded(tmp_path / "ray/failing") == 0:
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (aggregator,) = actors(process.pid, "Aggregator")
    _kill(aggregator)
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 3, output
    assert "count as misses, until run --retry-failed" in output
    assert inline(write_sweep(tmp_path, slow), tmp_path / "inline").code == 3
    found = [estimates(tmp_path / place / "failing") for place in ("ray", "inline")]
    pd.testing.assert_frame_equal(*found, check_exact=True)
    assert set(found[0]["trials"]) == {300}
    monkeypatch.delenv(FLAG)
    request.getfixturevalue("shared_head")  # one whose processes never had the flag
    done = retried(slow, tmp_path / "ray")
    assert done.code == 0, done.err
    quiet = da.run(slow, storage_path=str(tmp_path / "quiet"), executor="inline")
    pd.testing.assert_frame_equal(
        estimates(tmp_path / "ray/failing"), quiet.estimates, check_exact=True
    )


def _kill(process: psutil.Process) -> None:
    process.kill()
    process.wait(200)


@pytest.mark.usefixtures("shared_head")
def test_scores_that_differ_the_second_time_keep_the_misses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FLAG, "1")
    clocked = sweep("clocked", 300) | {"seed": 1236}  # packs 6, 19, 20, 23 and 49 fail
    assert inline(write_sweep(tmp_path, clocked), tmp_path).code == 3
    before = (tmp_path / "failing/outcomes.json").read_text()
    assert len(json.loads(before)["failed_packs"]) > 0
    table = estimates(tmp_path / "failing")
    monkeypatch.delenv(FLAG)
    done = retried(clocked, tmp_path)
    assert done.code == 3, done.err
    assert "run again, gave " in done.err
    assert (tmp_path / "failing/outcomes.json").read_text() == before
    pd.testing.assert_frame_equal(estimates(tmp_path / "failing"), table, check_exact=True)
