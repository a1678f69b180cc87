"""A run directory in an object store: a real S3 server on loopback, a killed driver, a resume."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

import dpaudit_ray as da
from dpaudit_ray.errors import LeaseLostError
from dpaudit_ray.storage import lease
from dpaudit_ray.storage.run_directory import RunDirectory
from tests.command import dpaudit, inline, write_sweep
from tests.head import free_port, wait_for
from tests.orchestration import test_preparation
from tests.orchestration.test_checkpoints import long
from tests.storage.test_storage import pack

pytest.importorskip("moto.server", reason="moto[server] is not installed: no S3 server to test on")
pytestmark = pytest.mark.cluster
BUCKET = "audits"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty bucket of a server in a process of its own; clients find it by their environment."""
    port = free_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
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


def test_run_kill_resume(sweep_of_400, pace, tmp_path, bucket):
    sweep = sweep_of_400
    pace.slow(0.5)
    command = [*(sys.executable, "-m", "dpaudit_ray", "run", str(sweep)), "--storage-path", bucket]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as driver:
        wait_for(lambda: len(packs()) >= 3 or driver.poll() is not None, 300)
        assert driver.poll() is None, "it ended before it could be killed"
        os.killpg(driver.pid, signal.SIGKILL)  # the driver, its Ray and all trainers
    partial = packs()
    assert 3 <= len(partial) < 80

    pace.hurry()
    assert dpaudit("status", f"{bucket}/tiny").code == 0
    resumed = dpaudit("run", sweep, "--storage-path", bucket, "--executor", "inline")
    assert resumed.code == 0, resumed.err
    assert partial < packs()
    assert dpaudit("report", f"{bucket}/tiny").code == 0
    assert dpaudit("verify", f"{bucket}/tiny", "--trust", "tests.pace").code in (0, 5)

    assert inline(sweep, tmp_path / "quiet").code == 0
    quiet = da.Result(str(tmp_path / "quiet" / "tiny"), complete=True)
    stored = da.Result(f"{bucket}/tiny", complete=True)
    pd.testing.assert_frame_equal(stored.scores, quiet.scores, check_exact=True)
    pd.testing.assert_frame_equal(stored.estimates, quiet.estimates, check_exact=True)


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


def test_checkpoints_and_preparations_in_a_bucket(tiny, tmp_path, bucket, monkeypatch):
    sweep = write_sweep(tmp_path, long(tiny, 0.002))
    quiet = da.run(str(sweep), storage_path=str(tmp_path / "quiet"), executor="inline")
    command = [*(sys.executable, "-m", "dpaudit_ray", "run", str(sweep)), "--storage-path", bucket]
    with subprocess.Popen([*command, "--executor", "inline"], stdout=subprocess.DEVNULL) as driver:
        wait_for(lambda: len(packs()) >= 2 or driver.poll() is not None, 300)
        driver.kill()
    left = packs()
    assert left
    assert all("/checkpoints/" in key for key in left)
    result = da.run(str(sweep), storage_path=bucket, executor="inline")
    assert result.complete
    assert not any("/checkpoints/" in key for key in packs())
    pd.testing.assert_frame_equal(result.scores, quiet.scores, check_exact=True)

    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    waiting = test_preparation.sweep(parts=3)
    there, here = (
        da.run(waiting, storage_path=place, executor="inline")
        for place in (bucket, str(tmp_path / "quiet"))
    )
    parts = [key for key in packs() if "/preparations/" in key]
    assert sorted(key.rpartition("/")[2] for key in parts) == [f"{n}.parquet" for n in range(3)]
    pd.testing.assert_frame_equal(there.scores, here.scores, check_exact=True)
