"""The scripts, run: several Ray nodes on this machine, and Slurm's commands played by doubles."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import changed, write_sweep
from tests.conftest import ROOT
from tests.head import free_port, wait_for

pytestmark = pytest.mark.slow
BIN = Path(sys.executable).parent

# They run on this node what they are asked to run on any.
SRUN = """#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
if [[ $1 == ray && $2 == start ]]; then set -- "$@" --node-ip-address=127.0.0.1; fi
exec "$@"
"""
SCONTROL = """#!/usr/bin/env bash
if [[ $1 == show ]]; then echo 127.0.0.1; fi
if [[ $1 == requeue ]]; then echo "$2" >"$PLACE/requeued"; fi
"""


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


def slurm(place: Path, sweep: Path) -> subprocess.Popen[str]:
    for name, text in [("srun", SRUN), ("scontrol", SCONTROL)]:
        (place / name).write_text(text)
        (place / name).chmod(0o755)
    (place / "activate").write_text("")
    variables = environment(
        PLACE=str(place),
        SLURM_JOB_ID=str(free_port()),
        SLURM_JOB_NODELIST="node1",
        SLURM_CPUS_PER_TASK="1",
        DPAUDIT_ACTIVATE=str(place / "activate"),
        DPAUDIT_TOKEN_FOLDER=str(place),
    )
    variables["PATH"] = f"{place}:{variables['PATH']}"
    with (place / "log").open("a") as out:
        return subprocess.Popen(
            [ROOT / "cluster" / "slurm.sh", sweep, place / "runs"],
            env=variables, stdout=out, stderr=out, text=True, start_new_session=True,
        )  # fmt: skip


def test_slurm_stops_cleanly_requeues_and_resumes(tiny: dict, tmp_path: Path) -> None:
    changed(tiny, "mechanism.steps", 300)
    changed(tiny, "audit.trials", 600)
    sweep = write_sweep(tmp_path, tiny)
    packs = tmp_path / "runs" / "tiny" / "scores"
    first = slurm(tmp_path, sweep)
    try:
        wait_for(lambda: len(list(packs.rglob("*.parquet"))) >= 3 or first.poll() is not None, 120)
        assert first.poll() is None, (tmp_path / "log").read_text()
        os.kill(first.pid, signal.SIGTERM)  # what --signal=B:TERM@180 does
        assert first.wait(90) == 4, (tmp_path / "log").read_text()
    finally:
        with_group(first.pid)
    assert (tmp_path / "requeued").exists()
    assert not list(tmp_path.glob(".dpaudit-token.*"))

    second = slurm(tmp_path, sweep)
    try:
        assert second.wait(200) == 0, (tmp_path / "log").read_text()
    finally:
        with_group(second.pid)
    assert (tmp_path / "runs" / "tiny" / "_SUCCESS").exists()
