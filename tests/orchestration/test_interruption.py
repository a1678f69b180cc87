"""How long a silent head is waited for, and a silent aggregator."""

import contextlib
import ctypes
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from dpaudit_ray.errors import ClusterError
from dpaudit_ray.orchestration import dispatcher, interruption
from dpaudit_ray.orchestration.dispatcher import QUIET, START_SECONDS, AggregatorClient
from dpaudit_ray.orchestration.executors import WorkerDiedError
from dpaudit_ray.orchestration.interruption import (
    GONE_SECONDS,
    LOOK_SECONDS,
    HeadLiveness,
    HealthChecks,
)
from dpaudit_ray.orchestration.progress import Activity
from tests.command import write_sweep
from tests.head import free_port, wait_for


@pytest.fixture
def store(tmp_path: Path) -> Iterator[str]:
    """Stands in for the socket of an object store."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "store"))
        server.listen()
        yield str(tmp_path / "store")


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


@pytest.mark.parametrize("there", [False, True])
def test_only_a_head_that_is_gone_is_not_waited_for_once_the_sweep_was_asked_to_stop(
    there, answering, monkeypatch
):
    """TERM to a whole process group, as Slurm sends it, reaches driver and head alike."""
    monkeypatch.setattr(interruption, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(interruption, "LEAVING_SECONDS", 0.3)
    head = answering if there else f"127.0.0.1:{free_port()}"
    watched = HeadLiveness(head, grpc.insecure_channel, lambda line: None)
    with contextlib.closing(watched):
        time.sleep(0.8)
        watched.require()  # it may come back
        watched.leaving = lambda: True
        if there:
            watched.require()
        else:
            with pytest.raises(ClusterError, match="has not answered"):
                wait_for(watched.require, 60)


def test_a_connection_is_no_sign_of_life(answering, standing):
    """The seconds add up."""
    checks = HealthChecks(grpc.insecure_channel)
    for _ in range(2):
        checks.ask({answering, standing}, 0.3)
    assert checks.silent[answering] == 0.0
    assert 2 * LOOK_SECONDS + 0.5 < checks.silent[standing] < 2 * LOOK_SECONDS + 0.7
    checks.ask({answering})
    assert checks.silent == {answering: 0.0}
    checks.close()


def test_a_signal_is_heard_while_the_main_thread_is_in_a_call_that_does_not_return():
    """Such as one of Ray's: it reaches another thread, and the main one runs no handler."""
    stop, heard = interruption.Stop(grace=60), []

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
    """An executor with an aggregator that answers the first `beats` pulses and then stands still.

    Its snapshots come all the same.
    """

    def __init__(self, beats: int) -> None:
        self.beats, self.now, self.restarted = beats, 100.0, list[bool]()

    def call(self, worker: str, method: str, *arguments: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        if method == "pulse":
            self.beats -= 1
        if method != "pulse" or self.beats >= 0:
            answer.set_result("snapshot")
        return answer

    def kill(self, worker: str, restart: bool) -> None:
        self.restarted.append(restart)


@pytest.mark.parametrize(("beats", "limit"), [(3, GONE_SECONDS), (0, START_SECONDS)])
def test_an_aggregator_that_stands_still_is_killed_and_started_again(beats, limit, monkeypatch):
    """A process that has not answered yet has longer; the snapshots come from before."""
    played, told = Standing(beats), list[str]()
    monkeypatch.setattr(dispatcher.time, "monotonic", lambda: played.now)
    client = AggregatorClient(played, "aggregator", HeadLiveness(), told.append)
    began = None
    while not played.restarted:
        played.now += 0.5
        client.progress(Activity())
        if began is None and played.beats < 0:
            began = played.now
        assert played.now < 1000
    assert began is not None
    assert limit <= played.now - began <= limit + 2 * LOOK_SECONDS
    assert played.restarted == [True]
    assert told[0].startswith(f"the aggregator has not answered for {limit:.0f} s: it is killed")


def test_trainers_that_wait_for_a_silent_aggregator_are_known(monkeypatch):
    """Restarted, it reads all packs: trainers that wait for it are not hung, nor slow."""
    played = Standing(1000)
    monkeypatch.setattr(dispatcher.time, "monotonic", lambda: played.now)
    client = AggregatorClient(played, "aggregator", HeadLiveness(), pytest.fail)
    played.now += 60
    assert not client.silent, "it owes no answer"
    snapshot: Future[Any] = Future()
    with monkeypatch.context() as patch:
        patch.setattr(played, "call", lambda *_: snapshot)
        client.progress(Activity())
    played.now += QUIET - 1
    assert not client.silent, "it may take a while"
    played.now += 60
    assert client.silent
    ended = played.now
    snapshot.set_result("snapshot")
    played.now += 5
    client.progress(Activity())
    assert not client.silent
    assert client.silent_until == ended, "from when on trainers are timed again"


def test_an_aggregator_that_cannot_be_restarted_is_told(monkeypatch):
    played = Standing(0)
    client = AggregatorClient(played, "aggregator", HeadLiveness(), pytest.fail)
    dead: Future[Any] = Future()
    dead.set_exception(WorkerDiedError("its node left"))
    monkeypatch.setattr(played, "call", lambda *_: dead)
    with pytest.raises(ClusterError, match=r"cannot be restarted \(its node left\); finished"):
        client.call("flush")


def test_the_end_of_the_object_store_ends_the_driver_with_a_line_and_not_as_a_violation(
    store, tmp_path
):
    """Ray would end it with exit code 1."""
    code = f"""
import socket, sys, time
import grpc
from dpaudit_ray.orchestration.interruption import HeadLiveness
closed = HeadLiveness("127.0.0.1:1", grpc.insecure_channel, print)
closed.guard("", {store!r})
closed.close()
time.sleep(1)  # it has seen that
mine = {str(tmp_path / "mine")!r}
server = socket.socket(socket.AF_UNIX)
server.bind(mine)
server.listen()
said = lambda line: print(line, flush=True)
HeadLiveness("127.0.0.1:1", grpc.insecure_channel, said).guard("", mine)
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


@pytest.mark.cluster
def test_a_sweep_that_cannot_start_is_not_watched_when_ray_ends(light, tmp_path):
    """The watch took the end of Ray, after the error, for a lost node, and ended the process."""
    script = tmp_path / "own.py"
    script.write_text(
        "import time, dpaudit_ray as da\n"
        "from dpaudit_ray.orchestration import ray_executor\n"
        "class Failing:\n"
        "    def from_plan(plan, sweep): raise MemoryError\n"
        "ray_executor.Brief = Failing\n"
        "try:\n"
        f"    da.run({str(write_sweep(tmp_path, light))!r}, storage_path={str(tmp_path)!r})\n"
        "except MemoryError:\n"
        "    time.sleep(2)\n"
        "    print('alive')\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=400)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
