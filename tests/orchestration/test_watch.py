"""How long a silent head is waited for, a silent raylet, and a silent aggregator."""

from __future__ import annotations

import ctypes
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from dpaudit_ray.errors import ClusterError
from dpaudit_ray.orchestration import interrupt, link, watch
from dpaudit_ray.orchestration.link import START_SECONDS
from dpaudit_ray.orchestration.watch import GONE_SECONDS, LOOK_SECONDS, Questions, Watch
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
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TERM to a whole process group, as Slurm sends it, reaches driver and head alike."""
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(watch, "LEAVING_SECONDS", 0.5)
    watched = Watch(f"127.0.0.1:{free_port()}", grpc.insecure_channel, lambda line: None)
    try:
        time.sleep(1.2)
        assert raised_by(watched) == ""  # it may come back
        watched.leaving = lambda: True
        assert "has not answered" in wait_for(lambda: raised_by(watched), 300)
    finally:
        watched.close()


@pytest.fixture
def answering() -> Iterator[str]:
    """The address of a server that answers."""
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)


@pytest.fixture
def standing() -> Iterator[str]:
    """The address of one whose kernel accepts connections, and that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_head_that_answers_is_waited_for(answering: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LEAVING_SECONDS", 0.2)
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.1)
    watched = Watch(answering, grpc.insecure_channel, lambda line: None)
    watched.leaving = lambda: True
    time.sleep(0.8)
    assert raised_by(watched) == ""
    watched.close()


def test_a_connection_is_no_sign_of_life(answering: str, standing: str) -> None:
    """The seconds add up; another node that stands still is named, and does not end the sweep."""
    questions = Questions(grpc.insecure_channel)
    for _ in range(2):
        questions.ask({answering, standing}, 0.3)
    assert questions.silent[answering] == 0.0
    assert 2 * LOOK_SECONDS + 0.5 < questions.silent[standing] < 2 * LOOK_SECONDS + 0.7
    questions.ask({answering})
    assert questions.silent == {answering: 0.0}
    questions.close()


def test_a_node_that_stands_still_is_named_and_the_head_is_not_blamed(
    answering: str, standing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOOK_SECONDS", "GONE_SECONDS"):
        monkeypatch.setattr(watch, name, 0.3)
    monkeypatch.setattr(Questions.ask, "__defaults__", (0.3,))
    watched = Watch(answering, grpc.insecure_channel, pytest.fail)
    watched.nodes = {"good": answering, "bad": standing}
    wait_for(lambda: watched.silent_nodes == {"bad"}, 60)
    assert watched.answers
    watched.close()


def test_a_signal_is_heard_while_the_main_thread_is_in_a_call_that_does_not_return() -> None:
    """Such as one of Ray's: it reaches another thread, and the main one runs no handler."""
    stop, heard = interrupt.Stop(grace=60), []

    def asks() -> None:
        time.sleep(0.2)
        signal.raise_signal(signal.SIGTERM)
        time.sleep(0.5)
        heard.append((stop.heard, stop.requested))

    with stop.listening():
        asking = threading.Thread(target=asks)
        asking.start()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        ctypes.CDLL(None).usleep(1_500_000)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        asking.join()
    assert heard == [(True, False)]
    assert stop.requested


class Standing:
    """Plays Ray, and an aggregator that answers the first `beats` pulses and then stands still."""

    exceptions = SimpleNamespace(RayTaskError=KeyError, RayError=LookupError)

    def __init__(self, beats: int) -> None:
        self._beats, self.now, self.killed = beats, 100.0, list[bool]()
        answers = SimpleNamespace(remote=lambda activity: "snapshot")
        answers.options = lambda name: answers
        self.actor = SimpleNamespace(progress=answers, pulse=SimpleNamespace(remote=self._pulse))

    def _pulse(self) -> bool:
        self._beats -= 1
        return self._beats >= 0

    def wait(self, references: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        return ([one for one in references if one], [])

    def get(self, reference: Any) -> Any:
        return reference

    def kill(self, actor: Any, no_restart: bool) -> None:
        self.killed.append(no_restart)


@pytest.mark.parametrize(("beats", "limit"), [(3, GONE_SECONDS), (0, START_SECONDS)])
def test_an_aggregator_that_stands_still_is_killed_and_ray_starts_it_again(
    beats: int, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that has not answered yet has longer; the snapshots come from before."""
    played, told = Standing(beats), list[str]()
    watched = SimpleNamespace(require=lambda: None, limit=GONE_SECONDS)
    monkeypatch.setattr(link.time, "monotonic", lambda: played.now)
    seen = link.Link(played, played.actor, watched, told.append)
    began = None
    while not played.killed:
        played.now += 0.5
        seen.progress(None)
        if began is None and played._beats < 0:
            began = played.now
        assert played.now < 1000
    assert began is not None
    assert limit <= played.now - began <= limit + 2 * LOOK_SECONDS
    assert played.killed == [False]
    assert told[0].startswith(f"the aggregator has not answered for {limit:.0f} s: it is killed")


def test_the_end_of_the_object_store_ends_the_driver_with_a_line_and_not_as_a_violation(
    store: str, tmp_path: Path
) -> None:
    """Ray would end it with exit code 1."""
    code = f"""
import socket, sys, time
import grpc
from dpaudit_ray.orchestration.watch import Watch
closed = Watch("127.0.0.1:1", grpc.insecure_channel, print)
closed.guard("", {store!r})
closed.close()
time.sleep(1)  # it has seen that
mine = {str(tmp_path / "mine")!r}
server = socket.socket(socket.AF_UNIX)
server.bind(mine)
server.listen()
said = lambda line: print(line, flush=True)
Watch("127.0.0.1:1", grpc.insecure_channel, said).guard("", mine)
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
