"""Values of a stranger's files, and homes that are none: none of them ends a command."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dpaudit_ray.plan import record
from dpaudit_ray.storage import files, lease, strangers
from dpaudit_ray.storage.files import Folder
from dpaudit_ray.storage.place import LOCK
from dpaudit_ray.storage.run_directory import RunDirectory


@pytest.mark.parametrize("pid", [10**30, 2**31, -1, 0, True, 1.5, "12", None])
def test_no_process_id_of_a_file_reaches_a_system_call(pid, tmp_path):
    run = RunDirectory(str(tmp_path))
    run.write_json(lease.DRIVER, {"owner": "ab", **lease._where(), "pid": pid, "started": "1"})
    holder = lease.holder(run, wait=0.01)
    assert holder is not None
    assert holder.pid is None


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_key_and_its_folder_are_the_users_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert strangers.seal("x")
    assert mode(tmp_path / "dpaudit") == 0o700
    assert mode(tmp_path / "dpaudit/key") == 0o600


def test_without_a_home_nothing_is_sealed(monkeypatch):
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    assert strangers.seal("x") == ""
    assert not strangers.sealed("x", "")


@pytest.mark.parametrize(("folder_mode", "lock_mode"), [(0o755, 0o600), (0o775, 0o660)])
def test_only_who_may_write_a_run_can_lock_it(folder_mode, lock_mode, tmp_path):
    tmp_path.chmod(folder_mode)
    (tmp_path / LOCK).touch(0o644)  # as earlier versions have made it
    with Folder(str(tmp_path)).locked(LOCK, alone=True) as locked:
        assert locked
    assert mode(tmp_path / LOCK) == lock_mode


def test_a_lock_that_cannot_be_had_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.05)
    folder = Folder(str(tmp_path))
    (tmp_path / LOCK).touch()
    steps = ("import fcntl, sys", "file = open(sys.argv[1])", "fcntl.flock(file, fcntl.LOCK_EX)")
    holds = "; ".join([*steps, "print(1, flush=True)", "input()"])
    command = [sys.executable, "-c", holds, str(tmp_path / LOCK)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(OSError, match=r"another process locks \.driver\.lock"):
            folder.locked(LOCK, alone=False).__enter__()
        other.communicate(b"\n")


def test_a_newer_version_is_named(tmp_path):
    run = RunDirectory(str(tmp_path))
    for version, warns in (("9.0.0", True), ("0.9.0", False), ("odd", False), (3, False)):
        run.write_json(record.FILE, {"version": version})
        assert bool(record.newer_version(run)) == warns
