"""`cluster/local.sh`, run: several Ray nodes on this machine."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.command import changed, write_sweep
from tests.conftest import ROOT
from tests.head import free_port, wait_for

pytestmark = pytest.mark.cluster
BIN = Path(sys.executable).parent


def environment(**more: str) -> dict[str, str]:
    bare = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    return bare | {"PATH": f"{BIN}:{os.environ['PATH']}"} | more


def typed(log: str, verb: str, place: Path, *more: str) -> subprocess.Popen[str]:
    """The command that the script printed, as a user types it there, with its variables."""
    (command,) = re.findall(rf"^  (dpaudit {verb} .*)$", log, re.MULTILINE)
    (token,) = re.findall(r"RAY_AUTH_TOKEN_PATH=(\S+)", log)
    variables = environment(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=token)
    return subprocess.Popen(
        ["bash", "-c", " ".join(["exec", command, *more])],
        cwd=place, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def test_what_it_prints_works_while_a_node_is_killed_and_it_stops_at_once(light, pace, tmp_path):
    (tmp_path / "jobs").mkdir()
    shutil.copy(ROOT / "tests" / "pace.py", tmp_path / "own_pace.py")
    pace.of(changed(light, "audit.trials", 400), "own_pace:Paced")
    pace.slow(0.5)
    sweep = write_sweep(tmp_path / "jobs", light)
    sweep.rename(tmp_path / "jobs/quickstart.yaml")
    more = {"PORT": str(free_port()), "DASHBOARD_PORT": str(free_port())}
    log = tmp_path / "log"
    with log.open("w") as out:
        script = subprocess.Popen(
            [ROOT / "cluster" / "local.sh", "2"],
            cwd=tmp_path, env=environment(**more), stdout=out, stderr=out, text=True,
            start_new_session=True,
        )  # fmt: skip
    packs = tmp_path / "runs/tiny/scores"
    try:
        wait_for(lambda: "dpaudit submit" in log.read_text() or script.poll() is not None, 300)
        assert script.poll() is None, log.read_text()
        (token,) = re.findall(r"RAY_AUTH_TOKEN_PATH=(\S+)", log.read_text())
        assert Path(token).stat().st_mode & 0o077 == 0
        (victim,) = re.findall(r"node 2: kill (\d+) takes it away", log.read_text())
        job = typed(log.read_text(), "submit", tmp_path)
        wait_for(lambda: list(packs.rglob("*.parquet")) or job.poll() is not None, 300)
        os.kill(int(victim), signal.SIGTERM)
        wait_for(lambda: not psutil.pid_exists(int(victim)))
        pace.hurry()
        said, _ = job.communicate(timeout=400)
        assert job.returncode == 0, said
        assert (tmp_path / "runs/tiny/_SUCCESS").exists()

        pace.slow(0.5)
        run = typed(log.read_text(), "run", tmp_path, "--set audit.trials=40000")
        wait_for(lambda: len(list(packs.rglob("*.parquet"))) > 82 or run.poll() is not None, 300)
        script.terminate()
        script.wait(200)
        said, _ = run.communicate(timeout=400)
        assert run.returncode == 4, said  # not 1: that is a violation
        assert "run the same command again to resume" in said
    finally:
        script.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            script.wait(60)
        with contextlib.suppress(ProcessLookupError):  # nothing that it started outlives the test
            os.killpg(script.pid, signal.SIGKILL)
    assert not Path(token).exists()
