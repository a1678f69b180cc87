"""Storage that fails under real Ray processes: one write in five, or all, on a full disk."""

import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import inline
from tests.long import long
from tests.orchestration.test_faults import assert_same

pytestmark = pytest.mark.cluster

FAULTS = """
import errno, os, random
sync, dice = os.fsync, random.Random(os.getpid())
rate = float(os.environ["FAULT_RATE"])

def fails_at_times(file):
    if dice.random() < rate:
        with open(os.environ["FAULTS"], "a") as record:
            record.write(f"{os.getpid()}\\n")
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    sync(file)

os.fsync = fails_at_times
"""


def faults(folder: Path, rate: float) -> dict[str, str]:
    """An environment in which this share of syncs fails; `folder`/faults has who met one."""
    (folder / "sitecustomize.py").write_text(FAULTS)
    record = str(folder / "faults")
    return {"PYTHONPATH": str(folder), "FAULTS": record, "FAULT_RATE": str(rate)}


def run(
    file: Path, storage: Path, *more: str, environment: dict[str, str] | None = None
) -> tuple[int, str]:
    """`dpaudit run` as a process of its own: its exit code and what it says on stderr."""
    command = [sys.executable, "-m", "dpaudit_ray", "run", file, "--storage-path", storage, *more]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


@long("storms have failing writes, and test_stopping the same without Ray")
def test_one_write_in_five_fails(sweep_of_400, quiet_400, tmp_path):
    """In every process of the run. A write syncs twice: 1 - (8/9)^2 = 0.21 of them fail."""
    record = tmp_path / "faults"
    environment = os.environ | faults(tmp_path, 1 / 9)
    code, told = run(sweep_of_400, tmp_path / "flaky", environment=environment)
    assert code == 0, told
    by_process = record.read_text().splitlines()
    assert max(map(by_process.count, by_process)) >= 5  # in the aggregator, which stores 80 packs
    assert_same(tmp_path / "flaky/tiny", quiet_400)


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
        code, told = run(sweep_of_400, place)
        assert code == 4, told
        assert told.count("\n") == 1
        assert os.strerror(errno.ENOSPC) in told
        assert "run the same command again" in told
        packs = len(list(place.glob("tiny/scores/*/*.parquet")))
        assert 5 < packs < 80
        assert mount("-o", "remount,size=20m", str(place)).returncode == 0
        done = inline(sweep_of_400, place)
        assert done.code == 0, done.err
        assert_same(place / "tiny", quiet_400)
