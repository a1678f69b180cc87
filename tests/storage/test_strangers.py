"""Values of a stranger's files, and homes that are none: none of them ends a command."""

import json
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import dpaudit_ray as da
from dpaudit_ray import __version__
from dpaudit_ray.plan import record
from dpaudit_ray.storage import files, lease, strangers
from dpaudit_ray.storage.files import Folder
from dpaudit_ray.storage.place import LOCK
from dpaudit_ray.storage.run_directory import RunDirectory
from tests.command import changed, dpaudit, inline, refused, write_sweep


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
    assert not strangers.is_sealed("x", "")


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


@pytest.fixture
def readable_folder() -> Iterator[Path]:
    """A folder that every user of the machine can list; those of pytest are root's alone."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


# Argument: a run directory. Prints which ways to lock its driver out have worked.
LOCKING_STRANGER = """
import fcntl, json, os, sys

os.setgroups([])
os.setgid(65534)
os.setuid(65534)
lock, readable = f"{sys.argv[1]}/.driver.lock", f"{sys.argv[1]}/sweep.yaml"
open(readable).close()

def flock(flags):
    fcntl.flock(os.open(lock, flags), fcntl.LOCK_EX | fcntl.LOCK_NB)

attempts = {
    "reads": lambda: flock(os.O_RDONLY),
    "writes": lambda: flock(os.O_RDWR),
    "opens its mode": lambda: os.chmod(lock, 0o666),
    "replaces": lambda: os.rename(readable, lock),
    "deletes": lambda: os.unlink(lock),
}
worked = []
for name, attempt in attempts.items():
    try:
        attempt()
        worked.append(name)
    except PermissionError:
        pass
print(json.dumps(worked))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize("folder_mode", [0o755, 0o775])
@pytest.mark.parametrize("lock_mode", [None, 0o644])
def test_another_user_cannot_lock_a_run_that_they_can_read(
    folder_mode, lock_mode, light, readable_folder
):
    file = write_sweep(readable_folder, changed(light, "audit.trials", 20))
    location = readable_folder / "tiny"
    location.mkdir()
    location.chmod(folder_mode)
    if lock_mode is not None:  # a lock of an earlier version
        (location / LOCK).touch(lock_mode)
    assert inline(file, readable_folder).code == 0
    command = [sys.executable, "-c", LOCKING_STRANGER, str(location)]
    stranger = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(stranger.stdout) == []
    extended = inline(file, readable_folder, "--set", "audit.trials=30")
    assert extended.code == 0, extended.err
    assert dpaudit("check", location).code == 0


NEWER = "was written by dpaudit 9.0.0, newer than"


def test_only_a_newer_version_of_the_file_itself_is_named(tmp_path):
    run = RunDirectory(str(tmp_path))
    others = ("0.9.0", "odd", None, {"version": "9.0.0"})
    for version, warns in (("9.0.0", True), *((other, False) for other in others)):
        run.write_json(record.FILE, {"version": version})
        assert bool(record.newer_version(run)) == warns
    run.write_text(record.SWEEP_FILE, "name: x\nversion: 9.0.0\n")
    assert NEWER in str(record.newer_version(run))
    run.write_text(record.SWEEP_FILE, "name: x\nmechanism:\n  options:\n    version: 9.0.0\n")
    assert record.newer_version(run) is None


def by_newer(location: str | Path, name: str, more: str = "") -> None:
    """Changes the version in a file of a run, and adds a key."""
    file = Path(location) / name
    file.write_text(file.read_text().replace(__version__, "9.0.0") + more)


def test_every_verb_names_a_newer_version_and_goes_on(light, tmp_path):
    file = write_sweep(tmp_path, light)
    location = tmp_path / "tiny"
    assert inline(file, tmp_path).code == 0
    assert dpaudit("status", location).err == ""
    by_newer(location, record.FILE)
    with pytest.warns(UserWarning, match=NEWER):
        assert da.open(location).complete
    reading = [(verb, location) for verb in ("status", "report", "verify", "check")]
    starting = [(verb, file, "--storage-path", tmp_path) for verb in ("plan", "run")]
    for command in (*reading, ("compare", location, location), *starting):
        outcome = dpaudit(*command, *(["--executor", "inline"] if command[0] == "run" else []))
        assert outcome.code in (0, 5), outcome
        shown = " ".join((outcome.out + outcome.err).split())
        assert shown.count(NEWER) == (2 if command[0] == "compare" else 1), outcome


def test_a_format_of_a_newer_version_is_refused_with_its_name(light, tmp_path):
    location = da.run(light, str(tmp_path), executor="inline").location
    by_newer(location, record.SWEEP_FILE, "budgets: 3\n")
    line = refused("status", location)
    assert "sweep.yaml cannot be read (budgets: " in line
    assert "install dpaudit 9.0.0" in line
    assert "damaged" not in line
