"""Damaged scores, a killed aggregator, a full disk: nothing lost, estimates bit for bit the same.

`tests/chaos` kills trainers, drivers, aggregators and nodes, `test_dispatcher` plays their faults.
"""

import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

import dpaudit_ray as da
from dpaudit_ray import plan as planning
from dpaudit_ray.plan import outcomes
from dpaudit_ray.storage.run_directory import RunDirectory
from tests.command import inline, write_sweep
from tests.head import actors, wait_for
from tests.plan import failing

pytestmark = pytest.mark.cluster


def assert_same(left: str | Path, right: str | Path) -> None:
    """Bit for bit: scores and estimates of two runs."""
    a, b = (da.Result(str(location), complete=True) for location in (left, right))
    scores = (result.scores.reset_index(drop=True) for result in (a, b))
    pd.testing.assert_frame_equal(*scores, check_exact=True)
    pd.testing.assert_frame_equal(a.estimates, b.estimates, check_exact=True)


def start(sweep: dict, folder: Path, *more: str) -> subprocess.Popen:
    folder.mkdir(parents=True, exist_ok=True)
    file = write_sweep(folder, sweep)
    command = [sys.executable, "-m", "dpaudit_ray", "run", file, "--storage-path", folder, *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_packs(folder: Path, count: int, process: subprocess.Popen) -> None:
    def done() -> bool:
        assert process.poll() is None, process.stdout.read()
        return len(list(folder.glob("tiny/scores/*/*.parquet"))) >= count

    wait_for(done)


def test_damaged_scores_are_set_aside_and_run_again(light, tmp_path, monkeypatch):
    """One that the aggregator comes upon, and one that a listing shows.

    Nothing of Ray's is written into the home, but for the key that answers are sealed with.
    """
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    result = da.run(light, storage_path=str(tmp_path), executor="inline")
    da.run(light, storage_path=str(tmp_path / "quiet"), executor="inline")
    audit = planning.require(RunDirectory(result.location)).audits[0].id
    scores = tmp_path / "tiny/scores" / audit
    (scores / "0-9.parquet").write_bytes(b"PAR1 cut off in transfer PAR1")
    (scores / "30-39.parquet").write_bytes(b"")
    (scores / "50-59.parquet").unlink()
    process = start(light, tmp_path)
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output
    for name in ("0-9", "30-39"):
        assert f"{name}.parquet is damaged: set aside as {name}.parquet.damaged-" in output
    assert "Traceback" not in output
    assert [path.name for path in home.rglob("*") if path.is_file()] == ["key"]
    assert_same(tmp_path / "tiny", tmp_path / "quiet/tiny")


def misses(location: Path) -> int:
    """Failed packs on record."""
    run = RunDirectory(str(location))
    there = (location / "plan.json").exists()
    return len(outcomes.failed(run, planning.require(run))) if there else 0


def test_misses_outlive_the_aggregator_and_are_those_of_any_executor(tmp_path, monkeypatch):
    """The aggregator is killed once a failure is on record and while packs are still running."""
    # Packs 2, 9, 32 and 50 fail: never three in a row, whatever order they end in.
    slow = failing.sweep("steady", 300) | {"seed": 1236}
    monkeypatch.setenv(failing.FLAG, "1")
    monkeypatch.setenv(failing.SECONDS, "0.05")
    process = start(slow, tmp_path)
    monkeypatch.delenv(failing.SECONDS)
    wait_for(lambda: misses(tmp_path / "failing") or process.poll() is not None)
    (aggregator,) = actors(process.pid, "Aggregator")
    aggregator.kill()
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 3, output
    assert "count as misses, until run --retry-failed" in output
    other = da.run(slow, storage_path=str(tmp_path / "inline"), executor="inline")
    assert set(other.estimates["trials"]) == {300}
    assert_same(tmp_path / "failing", other.location)
    monkeypatch.delenv(failing.FLAG)
    again = da.run(slow, storage_path=str(tmp_path), executor="inline", retry_failed=True)
    quiet = da.run(slow, storage_path=str(tmp_path / "quiet"), executor="inline")
    assert_same(again.location, quiet.location)


@contextlib.contextmanager
def disk(place: Path, size: str) -> Iterator[None]:
    """A disk of its own at `place`; skips the test where nobody may mount one."""
    place.mkdir()
    mounted = mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place))
    if mounted.returncode != 0:
        pytest.skip(f"a disk cannot be mounted here ({mounted.stderr.strip()})")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def mount(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["mount", *arguments], capture_output=True, text=True)


def test_a_full_disk_stops_the_sweep_and_a_larger_one_ends_it(sweep_of_400, quiet_400, tmp_path):
    place = tmp_path / "disk"
    with disk(place, "200k"):
        command = [sys.executable, "-m", "dpaudit_ray", "run", sweep_of_400]
        full = subprocess.run(
            [*command, "--storage-path", place], capture_output=True, text=True, timeout=400
        )
        told = full.stderr
        assert full.returncode == 4, told
        assert told.count("\n") == 1
        assert os.strerror(errno.ENOSPC) in told
        assert "run the same command again" in told
        packs = len(list(place.glob("tiny/scores/*/*.parquet")))
        assert 5 < packs < 80
        assert mount("-o", "remount,size=20m", str(place)).returncode == 0
        done = inline(sweep_of_400, place)
        assert done.code == 0, done.err
        assert_same(place / "tiny", quiet_400)
