"""Real Ray processes that stand still while another driver takes their run over."""

import contextlib
import functools
import signal
import time

import psutil
import pytest

import dpaudit_ray as da
from dpaudit_ray.errors import RunDirectoryError
from dpaudit_ray.storage import files, lease
from dpaudit_ray.storage.run_directory import RunDirectory
from tests.command import changed
from tests.orchestration.test_faults import assert_same, start, wait_for_packs
from tests.storage.test_lease import snapshot

pytestmark = pytest.mark.cluster


def stop(run: RunDirectory, *processes: psutil.Process) -> None:
    """Pauses them, not in the tenth of a millisecond in which they keep others from taking over."""
    for _ in range(20):
        for process in processes:
            process.suspend()
        with contextlib.suppress(RunDirectoryError), run.locked():
            return
        for process in processes:
            process.resume()
    raise AssertionError("the lock was never free")


def test_a_paused_driver_that_was_overtaken_writes_nothing(
    light, pace, tmp_path, monkeypatch, shared_head
):
    """Driver and aggregator stop in the midst of work; another driver completes the run.

    The aggregator goes on first: its trainers have packs for it. Then the driver does.
    """
    pace.of(changed(light, "audit.trials", 300))
    pace.slow(0.5)
    paused = start(light, tmp_path)
    wait_for_packs(tmp_path, 10, paused)
    (aggregator,) = shared_head.processes("Aggregator")
    driver = psutil.Process(paused.pid)
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.2)
    stop(RunDirectory(str(tmp_path / "tiny")), driver, aggregator)
    assert not (tmp_path / "tiny/_SUCCESS").exists()

    pace.hurry()
    monkeypatch.setattr(lease, "held", functools.partial(lease.held, watch=1.5))
    assert da.run(light, storage_path=str(tmp_path), executor="inline").complete
    before = snapshot(tmp_path / "tiny")
    aggregator.resume()
    time.sleep(1)
    assert snapshot(tmp_path / "tiny") == before
    driver.send_signal(signal.SIGCONT)
    output, _ = paused.communicate(timeout=400)
    assert paused.returncode == 4, output
    told = [line for line in output.splitlines() if line.startswith("dpaudit: ")]
    assert len(told) == 1, output
    assert "another driver had taken over and has ended" in told[0]
    assert "Traceback" not in output
    assert snapshot(tmp_path / "tiny") == before
    da.run(light, storage_path=str(tmp_path / "quiet"), executor="inline")
    assert_same(tmp_path / "tiny", tmp_path / "quiet/tiny")
