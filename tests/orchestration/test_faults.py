"""Ways to end early and what comes after: signals, lost processes, damage, storage that fails.

Nothing is lost, and estimates are the same bit for bit, in a bucket as well (a real S3 server on
loopback). `tests/chaos` kills at random moments.
"""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

import dpaudit_ray as da
from dpaudit_ray import plan as planning
from dpaudit_ray.errors import LeaseLostError, RunDirectoryError
from dpaudit_ray.orchestration import aggregation
from dpaudit_ray.plan import outcomes
from dpaudit_ray.storage import files, lease
from dpaudit_ray.storage.place import Patience
from dpaudit_ray.storage.run_directory import RunDirectory
from tests.command import changed, completed, dpaudit, inline, write_sweep
from tests.head import actors, free_port, head, tree, wait_for
from tests.orchestration.nodes import driver
from tests.plan import failing
from tests.screen import DPAUDIT, Screen
from tests.storage.test_lease import snapshot
from tests.storage.test_storage import pack


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


@pytest.mark.cluster
def test_damaged_scores_are_set_aside_and_run_again(light, tmp_path, monkeypatch):
    """One that the aggregator comes upon, and one that a listing shows. The home stays clean."""
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


@pytest.mark.cluster
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
    assert "count as wrong guesses; run --retry-failed repeats them" in output
    other = da.run(slow, storage_path=str(tmp_path / "inline"), executor="inline")
    assert set(other.estimates["trials"]) == {300}
    assert_same(tmp_path / "failing", other.location)
    monkeypatch.delenv(failing.FLAG)
    again = da.run(slow, storage_path=str(tmp_path), executor="inline", retry_failed=True)
    quiet = da.run(slow, storage_path=str(tmp_path / "quiet"), executor="inline")
    assert_same(again.location, quiet.location)


@pytest.mark.cluster
def test_a_lost_head_ends_the_sweep_and_another_one_resumes(
    sweep_of_400, quiet_400, pace, tmp_path
):
    """Ray alone would end the driver after a minute with exit code 1, which is a violation."""
    pace.slow(2.0)
    with head(dashboard=False) as center, driver(center, sweep_of_400, tmp_path / "runs") as run:
        run.wait_for(lambda: run.packs)
        (server,) = (below for below in tree(center.pid) if below.name() == "gcs_server")
        server.kill()
        assert run.ends(300) == 4, run.output
    # The head's node, which is the driver's here, ends with its head, a moment sooner or later.
    line = run.output.splitlines()[-1]
    seen = re.match("dpaudit: (the cluster's head at |Ray on this node has ended)", line)
    assert seen, run.output
    assert line.endswith("run the same command again to resume")
    assert "Traceback" not in run.output
    assert 0 < run.packs < 80
    pace.hurry()
    da.run(sweep_of_400, storage_path=str(tmp_path / "runs"), executor="inline")
    assert_same(tmp_path / "runs/tiny", quiet_400)


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


@pytest.mark.cluster
def test_a_paused_driver_that_was_overtaken_writes_nothing(
    light, pace, tmp_path, monkeypatch, shared_head
):
    """Driver and aggregator pause, another driver ends the run; the aggregator goes on first."""
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
    monkeypatch.setattr(lease, "STALE_SECONDS", 1.5)
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


@pytest.mark.parametrize("number", [5, 13, 28])
def test_patience_backs_off_and_ends_and_does_not_wait_for_what_lasts(number):
    pauses: list[float] = []

    def fails() -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(OSError, match=r"Input/output|denied|space"):
        Patience(seconds=60, sleep=pauses.append)(fails)
    if number == 5:
        assert 50 < sum(pauses) < 75
        assert pauses[0] < pauses[3]
        assert max(pauses) <= 10
    else:
        assert pauses == []


def test_storage_that_fails_one_write_in_five_changes_nothing(light, tmp_path, monkeypatch):
    da.run(light, storage_path=str(tmp_path / "quiet"), executor="inline")
    write, dice, failed = files._write, random.Random(1), []

    def flaky(path: Path, *how: Any) -> None:
        if dice.random() < 0.2:
            failed.append(path)
            raise OSError(5, "Input/output error")
        write(path, *how)

    monkeypatch.setattr(files, "_write", flaky)
    assert da.run(light, storage_path=str(tmp_path / "flaky"), executor="inline").complete
    assert failed
    assert_same(tmp_path / "flaky/tiny", tmp_path / "quiet/tiny")


def test_stop_when_ends_an_audit_after_the_same_trial_in_any_order(light, tmp_path):
    """The bound reaches a tenth of the claim; packs stored beyond the decision change nothing."""
    light["audit"] |= {"trials": 600, "record_every": 6}
    light["resources"]["pack_size"] = 30
    full = da.run(light, storage_path=str(tmp_path), executor="inline")
    whole = full.estimates
    assert set(whole["trials"]) == {600}
    light["audit"]["stop_when"] = {"within": 0.9}
    early = da.run(light, storage_path=str(tmp_path / "early"), executor="inline")
    assert early.complete
    ended = early.estimates.groupby("audit")["trials"].max()
    assert ended.min() < 600
    again = da.run(light, storage_path=str(tmp_path), executor="inline")  # all packs are there
    pd.testing.assert_frame_equal(again.estimates, early.estimates, check_exact=True)
    assert da.run(light, storage_path=str(tmp_path / "early"), executor="inline").complete
    del light["audit"]["stop_when"]  # lifting the rule extends the run
    lifted = da.run(light, storage_path=str(tmp_path / "early"), executor="inline")
    pd.testing.assert_frame_equal(lifted.estimates, whole, check_exact=True)


def test_members_that_are_not_the_plans_are_told(light, tmp_path):
    result = da.run(light, storage_path=str(tmp_path), executor="inline")
    file = next((tmp_path / "tiny/scores").glob("000-*/0-9.parquet"))
    run = RunDirectory(result.location)
    pack = run.read_scores(file.parent.name, 0, 9)
    file.unlink()
    run.write_scores(file.parent.name, type(pack)(0, ~pack.members, pack.steps, pack.scores))
    with pytest.raises(RunDirectoryError, match=r"0-9\.parquet does not have the bits .*delete it"):
        aggregation.Aggregation.rebuild(run)


@pytest.mark.cluster
def test_sigterm_ends_in_exit_4_and_resumes(light, pace, tmp_path):
    """Also where the terminal, which nobody read, is closed meanwhile: Ray must not hear of it."""
    pace.of(changed(light, "audit.trials", 600))
    pace.slow(0.5)
    command = [*DPAUDIT, "run", write_sweep(tmp_path, light), "--storage-path", tmp_path]
    screen = Screen(*command, errors=tmp_path / "errors")
    wait_for_packs(tmp_path, 5, screen.process)
    screen.process.send_signal(signal.SIGTERM)
    screen.close()
    assert screen.process.wait(timeout=400) == 4
    output = (tmp_path / "errors").read_text()
    assert "stopped; finished packs are safe" in output
    assert "Ray on this node has ended" not in output
    assert "Traceback" not in output
    assert not (tmp_path / "tiny/driver.json").exists()
    pace.hurry()
    assert da.run(light, storage_path=str(tmp_path), executor="inline").complete
    da.run(light, storage_path=str(tmp_path / "quiet"), executor="inline")
    assert_same(tmp_path / "tiny", tmp_path / "quiet/tiny")


BUCKET = "audits"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty bucket of a server in a process of its own; clients find it by their environment."""
    pytest.importorskip("moto.server", reason="moto[server] is not installed: no S3 server here")
    port = free_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(create_bucket)
        yield f"s3://{BUCKET}/runs"
    finally:
        server.terminate()
        server.wait(200)


def client():
    import boto3
    from botocore.config import Config

    return boto3.client("s3", config=Config(retries={"max_attempts": 1}, connect_timeout=2))


def create_bucket() -> bool:
    from botocore.exceptions import BotoCoreError

    with contextlib.suppress(BotoCoreError):
        client().create_bucket(Bucket=BUCKET)
        return True
    return False


def packs() -> set[str]:
    found = client().list_objects_v2(Bucket=BUCKET).get("Contents", [])
    return {entry["Key"] for entry in found if entry["Key"].endswith(".parquet")}


def killed(sweep: Path, bucket: str, files: int, *more: str) -> set[str]:
    """What a run leaves that is killed once it has stored so many files."""
    command = [sys.executable, "-m", "dpaudit_ray", "run", sweep, "--storage-path", bucket, *more]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as driver:
        wait_for(lambda: len(packs()) >= files or driver.poll() is not None)
        assert driver.poll() is None, "it ended before it could be killed"
        os.killpg(driver.pid, signal.SIGKILL)  # the driver, its Ray and all trainers
    return packs()


@pytest.mark.cluster
def test_run_kill_resume(sweep_of_400, pace, tmp_path, bucket):
    sweep = sweep_of_400
    pace.slow(0.5)
    partial = killed(sweep, bucket, 3)
    assert 3 <= len(partial) < 80

    pace.hurry()
    assert dpaudit("status", f"{bucket}/tiny").code == 0
    completed(dpaudit("run", sweep, "--storage-path", bucket, "--executor", "inline"))
    assert partial < packs()
    assert dpaudit("report", f"{bucket}/tiny").code == 0
    assert dpaudit("verify", f"{bucket}/tiny", "--trust", "tests.pace").code in (0, 5)

    assert inline(sweep, tmp_path / "quiet").code == 0
    assert_same(f"{bucket}/tiny", tmp_path / "quiet/tiny")


@pytest.mark.cluster
def test_a_lease_in_a_bucket(bucket, monkeypatch):
    """Taken over from a driver that stands still, which then writes nothing."""
    monkeypatch.setattr(lease, "SETTLE_SECONDS", 0.2)
    run = RunDirectory.under(bucket, "held")
    run.write_json("plan.json", [1])
    with lease.held(run, beat=1000) as paused:
        with lease.held(RunDirectory(f"{run.location}/"), watch=0.4) as new:
            new.run.write_scores("a", pack())
            with pytest.raises(LeaseLostError, match="another driver has taken over"):
                paused.run.write_estimates([])
            new.run.set_aside("scores/a/10-15.parquet")
            assert run.score_files("a") == set()
        with pytest.raises(LeaseLostError, match=r"is gone: another driver"):
            paused.run.write_scores("a", pack())
    assert packs() == set()
    assert not run.estimates().size


@pytest.mark.cluster
def test_checkpoints_and_preparations_in_a_bucket(tiny, tmp_path, bucket, monkeypatch):
    from tests.orchestration.test_preparation import sweep as waiting_sweep
    from tests.orchestration.test_trainer import long  # they import from here

    sweep = write_sweep(tmp_path, long(tiny, 0.002))
    quiet = da.run(str(sweep), storage_path=str(tmp_path / "quiet"), executor="inline")
    left = killed(sweep, bucket, 2, "--executor", "inline")
    assert all("/checkpoints/" in key for key in left)
    result = da.run(str(sweep), storage_path=bucket, executor="inline")
    assert result.complete
    assert not any("/checkpoints/" in key for key in packs())
    assert_same(result.location, quiet.location)

    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    waiting = waiting_sweep(parts=3)
    there, here = (
        da.run(waiting, storage_path=place, executor="inline")
        for place in (bucket, str(tmp_path / "quiet"))
    )
    parts = [key for key in packs() if "/preparations/" in key]
    assert sorted(key.rpartition("/")[2] for key in parts) == [f"{n}.parquet" for n in range(3)]
    assert_same(there.location, here.location)
