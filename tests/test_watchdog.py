"""However pytest ends, nothing that its tests have started stays behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import watchdog
from tests.conftest import ROOT
from tests.head import head, wait_for

FOLDER = "DPAUDIT_WATCHDOG_FOLDER"  # of the tests that the tests of this file run


def inner(kind: str) -> None:
    """Starts processes, says so, and waits for the end of pytest."""
    folder = Path(os.environ[FOLDER])
    mark = folder / "mark"
    if kind == "head":
        with head(cpus=1, dashboard=False):
            mark.write_text(os.environ[watchdog.MARK])
            time.sleep(300)
    for _ in range(2):
        subprocess.Popen(["sleep", "300"], start_new_session=True)
    mark.write_text(os.environ[watchdog.MARK])
    time.sleep(300)


@pytest.mark.skipif(FOLDER not in os.environ, reason="is run by the tests below")
@pytest.mark.parametrize("kind", ["sleep", "head"])
def test_inner(kind):
    inner(kind)


def ended(kind: str, number: signal.Signals, workers: int, folder: Path) -> None:
    """Runs pytest until its test has started processes, ends it, and waits for their end."""
    test = f"{__file__}::test_inner[{kind}]"
    command = [sys.executable, "-m", "pytest", test, "-n", str(workers)]
    environment = os.environ | {FOLDER: str(folder)}
    tests = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    mark = folder / "mark"
    try:
        wait_for(lambda: mark.exists() and mark.read_text(), 120)
        processes = watchdog.marked(mark.read_text())
        if kind == "head":
            assert {"raylet", "gcs_server"} <= {process.name() for process in processes}
        tests.send_signal(number)
        tests.wait(60)
    finally:
        tests.kill()
    assert len(processes) >= 2
    wait_for(lambda: not any(map(watchdog._is_alive, processes)), 60)
    wait_for(lambda: not watchdog.marked(mark.read_text()), 60)


def test_processes_of_an_xdist_worker_end_when_the_main_process_is_killed(tmp_path):
    ended("sleep", signal.SIGKILL, 1, tmp_path)


@pytest.mark.cluster
def test_a_ray_head_of_tests_ends_when_pytest_is_terminated(tmp_path):
    ended("head", signal.SIGTERM, 0, tmp_path)
