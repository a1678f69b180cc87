"""Trainers that hang or die, and damaged scores: nothing lost, estimates bit for bit the same.

`tests/chaos` kills drivers, aggregators and nodes as well.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pytest
import yaml

import dpaudit_ray as da
from dpaudit_ray import plan as planning
from dpaudit_ray.storage.run_directory import RunDirectory
from tests.command import changed, dpaudit, write_sweep
from tests.head import Head, wait_for
from tests.pace import Pace

pytestmark = pytest.mark.slow


@pytest.fixture
def lasting(light: dict, pace: Pace) -> dict:
    """A light sweep of 120 packs, so that there is time to kill something where it is slow."""
    return pace.of(changed(light, "audit.trials", 600))


def contents(location: str | Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    result = da.Result(str(location), complete=True)
    return result.scores.reset_index(drop=True), result.estimates


def assert_same(left: str | Path, right: str | Path) -> None:
    for a, b in zip(contents(left), contents(right), strict=True):
        pd.testing.assert_frame_equal(a, b, check_exact=True)


def start(sweep: dict, folder: Path, *more: str) -> subprocess.Popen:
    file = folder / "sweep.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(sweep))
    command = [sys.executable, "-m", "dpaudit_ray", "run", str(file), "--storage-path", str(folder)]
    command += more
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def packs_done(folder: Path) -> int:
    return len(list(folder.glob("tiny/scores/*/*.parquet")))


@contextlib.contextmanager
def once_packs_are_done(folder: Path, count: int, act: Callable[[], None]) -> Iterator[None]:
    """Has `act` called while the block runs a sweep in `folder`, once it has so many packs."""

    def wait_and_act() -> None:
        wait_for(lambda: packs_done(folder) >= count)
        act()

    with ThreadPoolExecutor(1) as pool:
        acted = pool.submit(wait_and_act)
        yield
        acted.result()


def wait_for_packs(folder: Path, count: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 300
    while packs_done(folder) < count:
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline, f"only {packs_done(folder)} packs"
        time.sleep(0.02)


@pytest.fixture
def quiet(lasting: dict, tmp_path: Path) -> Path:
    """An undisturbed run to compare with."""
    folder = tmp_path / "quiet"
    return Path(da.run(lasting, storage_path=str(folder), executor="inline").location)


def test_a_hung_trainer_is_replaced(
    lasting: dict, tmp_path: Path, pace: Pace, quiet: Path, shared_head: Head
) -> None:
    """Stopped by SIGSTOP it lives, holds its packs and says nothing."""
    lasting["resources"]["pack_deadline"] = 8.0
    pace.slow(0.5)

    def strike() -> None:
        shared_head.processes("Trainer")[0].suspend()
        pace.hurry()

    with once_packs_are_done(tmp_path, 2, strike):
        done = dpaudit("run", write_sweep(tmp_path, lasting), "--storage-path", tmp_path)
    assert done.code == 0, done.err
    assert "worker lost (1 of at most 100) with" in done.err
    assert "was silent for 8 s" in done.err
    assert_same(tmp_path / "tiny", quiet)


def test_damaged_scores_are_set_aside_and_run_again(
    light: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
