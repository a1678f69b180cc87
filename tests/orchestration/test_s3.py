"""A run directory in an object store: a real S3 server on loopback, a killed driver, a resume."""

from __future__ import annotations

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
from tests.command import changed, dpaudit, inline, write_sweep
from tests.head import free_port, wait_for

pytest.importorskip("moto.server", reason="moto[server] is not installed: no S3 server to test on")
pytestmark = pytest.mark.slow
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
        server.wait(20)


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


def test_run_kill_resume(tiny: dict, tmp_path: Path, bucket: str) -> None:
    changed(tiny, "mechanism.steps", 60)
    changed(tiny, "audit.record_every", 20)
    changed(tiny, "audit.trials", 400)
    sweep = write_sweep(tmp_path, tiny)
    command = [*(sys.executable, "-m", "dpaudit_ray", "run", str(sweep)), "--storage-path", bucket]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as driver:
        wait_for(lambda: len(packs()) >= 3 or driver.poll() is not None, 120)
        assert driver.poll() is None, "it ended before it could be killed"
        os.killpg(driver.pid, signal.SIGKILL)  # the driver, its Ray and all trainers
    partial = packs()
    assert 3 <= len(partial) < 80

    assert dpaudit("status", f"{bucket}/tiny").code == 0
    resumed = dpaudit("run", sweep, "--storage-path", bucket)
    assert resumed.code == 0, resumed.err
    assert partial < packs()
    assert dpaudit("report", f"{bucket}/tiny").code == 0
    assert dpaudit("verify", f"{bucket}/tiny").code in (0, 5)

    assert inline(sweep, tmp_path / "quiet").code == 0
    quiet = da.Result(str(tmp_path / "quiet" / "tiny"), complete=True)
    stored = da.Result(f"{bucket}/tiny", complete=True)
    pd.testing.assert_frame_equal(stored.scores, quiet.scores, check_exact=True)
    pd.testing.assert_frame_equal(stored.estimates, quiet.estimates, check_exact=True)
