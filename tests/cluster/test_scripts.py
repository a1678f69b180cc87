"""`cluster/local.sh`, run: several Ray nodes on this machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import write_sweep
from tests.conftest import ROOT
from tests.head import free_port, wait_for

pytestmark = pytest.mark.slow
BIN = Path(sys.executable).parent


def environment(**more: str) -> dict[str, str]:
    bare = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    return bare | {"PATH": f"{BIN}:{os.environ['PATH']}"} | more


def stop(process: subprocess.Popen[str], seconds: float = 60) -> None:
    process.terminate()
    try:
        process.wait(seconds)
    finally:
        with_group(process.pid)


def with_group(leader: int) -> None:
    """Nothing that the script started may outlive the test."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


def test_local_nodes(tiny: dict, tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path, tiny)
    port = free_port()
    more = {"PORT": str(port), "DASHBOARD_PORT": str(free_port())}
    log = tmp_path / "log"
    with log.open("w") as out:
        script = subprocess.Popen(
            [ROOT / "cluster" / "local.sh", "2"],
            env=environment(**more), stdout=out, stderr=out, text=True, start_new_session=True,
        )  # fmt: skip
    try:
        wait_for(lambda: "dpaudit submit" in log.read_text() or script.poll() is not None, 120)
        assert script.poll() is None, log.read_text()
        (token,) = re.findall(r"RAY_AUTH_TOKEN_PATH=(\S+)", log.read_text())
        assert Path(token).stat().st_mode & 0o077 == 0
        variables = environment(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=token)
        command = [BIN / "dpaudit", "run", sweep, "--storage-path", tmp_path / "runs"]
        command += ["--address", f"127.0.0.1:{port}"]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "runs" / "tiny" / "_SUCCESS").exists()
    finally:
        stop(script)
    assert not Path(token).exists()
