"""File systems that fail, and links that lead nowhere: a run ends clearly and loses nothing."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dpaudit_ray as da
from dpaudit_ray.errors import StorageError
from dpaudit_ray.storage import lease, place
from dpaudit_ray.storage.place import Patience
from dpaudit_ray.storage.run_directory import RunDirectory
from tests.command import changed, dpaudit, inline, refused, write_sweep
from tests.orchestration.test_faults import assert_same


@pytest.fixture
def light(light: dict) -> dict:
    """The light sweep with eight packs."""
    return changed(light, "audit.trials", 40)


@pytest.fixture
def quiet(light: dict, tmp_path: Path) -> Path:
    """Where an undisturbed run of it is, to compare with."""
    return Path(da.run(light, str(tmp_path / "quiet"), executor="inline").location)


class Failing:
    """A system call that fails `times` times after some that succeed, after it was carried out."""

    def __init__(self, call: Callable[..., Any], error: int, after: int, times: int) -> None:
        self._call, self._error = call, error
        self.after, self.times = after, times

    def __call__(self, *arguments: Any) -> Any:
        result = self._call(*arguments)
        self.after -= 1
        if self.after < 0 <= self.after + self.times - 1:
            raise OSError(self._error, os.strerror(self._error))
        return result


@pytest.mark.parametrize("call", ["fsync", "link"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE])
def test_what_passes_changes_no_bit(call, error, light, quiet, tmp_path, monkeypatch):
    failing = Failing(getattr(os, call), error, after=5, times=3)
    monkeypatch.setattr(os, call, failing)
    run = da.run(light, str(tmp_path), executor="inline")
    assert failing.after < 0
    assert run.complete
    assert_same(quiet, run.location)


@pytest.mark.parametrize("call", ["fsync", "link"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_ends_a_run_at_once_and_loses_nothing(
    call, error, light, quiet, tmp_path, monkeypatch
):
    monkeypatch.setattr(place, "RUNNING", Patience(seconds=60, sleep=pytest.fail))
    monkeypatch.setattr(lease, "STALE_SECONDS", 0.1)
    file = write_sweep(tmp_path, light)
    after = {"fsync": 25, "link": 5}[call]  # while scores are stored
    with monkeypatch.context() as patch:
        patch.setattr(os, call, Failing(getattr(os, call), error, after, times=10**9))
        outcome = inline(file, tmp_path)
    assert outcome.code == 4, outcome
    assert outcome.err.count("\n") == 1
    assert os.strerror(error) in outcome.err
    assert not list((tmp_path / "tiny").rglob("*.tmp"))
    assert inline(file, tmp_path).code == 0
    assert_same(quiet, tmp_path / "tiny")


def loop(path: Path) -> None:
    """Puts a link in place of a file or folder that leads to itself."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.symlink_to(path.name)


@pytest.mark.parametrize("name", ["scores/000*/20-29.parquet", "scores/000*", "scores"])
def test_a_loop_of_links_holds_no_scores(name, light, quiet):
    loop(next(quiet.glob(name)))
    assert "not complete" in dpaudit("status", quiet).out
    assert dpaudit("check", quiet).code == 2
    stopped = inline(write_sweep(quiet.parent, light), quiet.parent)
    assert stopped.code == 4
    line = stopped.err.splitlines()[-1]
    assert "cannot write" in line
    assert "(Too many levels of symbolic links); free or repair the storage" in line


def test_a_loop_of_links_is_named_at_once(light, quiet):
    loop(quiet / "plan.json")
    assert "plan.json (Too many levels of symbolic links); make it" in refused("status", quiet)


def test_a_lock_that_is_no_file_is_not_called_another_driver(light, quiet):
    loop(quiet / place.LOCK)
    file = write_sweep(quiet.parent, light)
    line = refused("run", file, "--storage-path", quiet.parent, "--executor", "inline")
    assert "cannot lock" in line
    assert "remove the file" in line


def test_a_figure_into_a_loop_of_links_is_an_error_of_storage(tmp_path):
    loop(tmp_path / "figures")
    with pytest.raises(StorageError, match=r"cannot write .*figures/a\.png"):
        RunDirectory(str(tmp_path)).write_figure("a.png", b"")
