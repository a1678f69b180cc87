"""How long a silent head is waited for."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpaudit_ray.errors import ClusterError
from dpaudit_ray.orchestration import watch
from dpaudit_ray.orchestration.watch import Watch
from tests.command import write_sweep
from tests.head import free_port, wait_for


@pytest.fixture
def store(tmp_path: Path) -> Iterator[str]:
    """Stands in for the socket of an object store."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "store"))
        server.listen()
        yield str(tmp_path / "store")


def raised_by(watched: Watch) -> str:
    try:
        watched.require()
    except ClusterError as error:
        return str(error)
    return ""


def test_a_head_that_is_gone_is_not_waited_for_by_a_sweep_that_was_asked_to_stop(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TERM to a whole process group, as Slurm sends it, reaches driver and head alike."""
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(watch, "LEAVING_SECONDS", 0.5)
    watched = Watch(f"127.0.0.1:{free_port()}", lambda line: None, store)
    try:
        time.sleep(1.2)
        assert raised_by(watched) == ""  # it may come back
        watched.leaving = lambda: True
        assert "has not answered" in wait_for(lambda: raised_by(watched), 300)
    finally:
        watched.close()


def test_a_head_that_answers_is_waited_for(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(watch, "LEAVING_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        watched = Watch(f"127.0.0.1:{server.getsockname()[1]}", lambda line: None, store)
        watched.leaving = lambda: True
        time.sleep(0.8)
        assert raised_by(watched) == ""
        watched.close()


def test_the_end_of_the_object_store_ends_the_driver_with_a_line_and_not_as_a_violation(
    store: str, tmp_path: Path
) -> None:
    """Ray would end it with exit code 1."""
    code = f"""
import socket, sys, time
from dpaudit_ray.orchestration.watch import Watch
closed = Watch("127.0.0.1:1", print, {store!r})
closed.close()
time.sleep(1)  # it has seen that
mine = {str(tmp_path / "mine")!r}
server = socket.socket(socket.AF_UNIX)
server.bind(mine)
server.listen()
Watch("127.0.0.1:1", lambda line: print(line, flush=True), mine)
accepted, _ = server.accept()
time.sleep(1)  # nothing happens while it lives
accepted.close()
time.sleep(5)
sys.exit(1)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=400)
    assert (done.returncode, done.stderr) == (4, "")
    assert done.stdout.startswith("Ray on this node has ended")
    assert done.stdout.count("\n") == 1


@pytest.mark.slow
def test_a_sweep_that_cannot_start_is_not_watched_when_ray_ends(
    light: dict, tmp_path: Path
) -> None:
    """The watch took the end of Ray, after the error, for a lost node, and ended the process."""
    script = tmp_path / "own.py"
    script.write_text(
        "import time, dpaudit_ray as da\n"
        "from dpaudit_ray.orchestration import ray_executor\n"
        "class Failing:\n"
        "    def of(plan, sweep): raise MemoryError\n"
        "ray_executor.Brief = Failing\n"
        "try:\n"
        f"    da.run({str(write_sweep(tmp_path, light))!r}, storage_path={str(tmp_path)!r})\n"
        "except MemoryError:\n"
        "    time.sleep(2)\n"
        "    print('alive')\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=400)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
