"""Who runs a pack and where, and what follows when somebody cannot or is silent: all played."""

import collections
import contextlib
import dataclasses
import json
import math
import random
import socket
import subprocess
import sys
import time
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

import dpaudit_ray as da
from dpaudit_ray import plan as planning
from dpaudit_ray.errors import ClusterError, NoClusterError
from dpaudit_ray.orchestration import dispatcher, interruption, workers
from dpaudit_ray.orchestration.dispatcher import (
    QUIET_SECONDS,
    START_SECONDS,
    AggregatorClient,
    Dispatcher,
)
from dpaudit_ray.orchestration.driver import Driver, FailureBudget, Summary
from dpaudit_ray.orchestration.executors import TRAINER, Cluster, Done, Node, Work, WorkerDiedError
from dpaudit_ray.orchestration.faults import FIRST, SHORTEST
from dpaudit_ray.orchestration.interruption import (
    GONE_SECONDS,
    HEALTH_CHECK_SECONDS,
    HeadLiveness,
    HealthChecks,
    Stop,
)
from dpaudit_ray.orchestration.progress import Activity, Progress
from dpaudit_ray.orchestration.workers import (
    FAULTS_PER_NODE,
    PENDING,
    Capacity,
    MachineCompatibility,
    Pool,
    ResourceRequest,
    Worker,
)
from dpaudit_ray.plan import provenance
from dpaudit_ray.plan.model import Pack, Plan
from dpaudit_ray.plan.outcomes import Failure
from dpaudit_ray.plan.provenance import Code
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.sweep import spec
from dpaudit_ray.sweep.resources import ResourceSpec
from dpaudit_ray.sweep.spec import from_raw
from tests.command import changed, write_sweep
from tests.head import free_port, wait_for

Fault = Callable[[str, str], str]  # of a trainer on a node: "fails", "hangs", "dies" or nothing


class PlayedCluster:
    """An executor on played nodes: a trainer works on its first call, and time passes in `wait`."""

    isolates = True

    def __init__(self, port: int, **cpus: float) -> None:
        self.now, self.port, self.cpus = 1000.0, port, cpus
        self.fault: Fault = lambda trainer, node: ""
        self.seconds: Callable[[str], float] = lambda trainer: 1.0  # that a pack takes
        self.at: Callable[[int], None] = lambda packs: None  # called with the packs that are done
        self.silent = lambda: False  # whether the aggregator owes its answers
        self.machine = lambda node: provenance.machine(())
        self.draining: set[str] = set()
        self.nodes_of: dict[str, str] = {}  # by trainer
        self.calls: dict[str, tuple[Future[Any], float, str, tuple[Any, ...]]] = {}  # since then
        self.done: list[tuple[Pack, str]] = []  # packs in their order, and the trainer's node
        self.misses: list[Failure] = []
        self.memory_kills = collections.Counter[str]()

    def start(self, role: str, name: str, avoid: Collection[str] = ()) -> str:
        if role == "Trainer":
            held = list(self.nodes_of.values())
            free = (n for n, cpus in self.cpus.items() if n not in avoid and held.count(n) < cpus)
            if (node := next(free, None)) is not None:
                self.nodes_of[name] = node
        return name

    def call(self, worker: str, method: str, *arguments: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        if TRAINER in worker:
            self.calls[worker] = answer, self.now, method, arguments
            return answer
        if method == "progress" and self.silent():
            return answer
        self.misses += arguments[0] if method == "give_up" else ()
        answer.set_result(Progress((), arguments[0]) if method == "progress" else None)
        return answer

    def wait(self, timeout: float) -> list[Future[Any]]:
        self.now += timeout
        self.at(len(self.done))
        placed = [trainer for trainer in self.calls if trainer in self.nodes_of]
        return [self.calls.pop(trainer)[0] for trainer in placed if self._answers(trainer)]

    def _answers(self, trainer: str) -> bool:
        answer, began, method, arguments = self.calls[trainer]
        node = self.nodes_of[trainer]
        fault = "" if method == "set_up" else self.fault(trainer, node)
        if fault == "eats":  # Ray does not give the reason to the caller
            self.memory_kills[node] += 1
        if node not in self.cpus or fault in ("dies", "eats"):
            answer.set_exception(WorkerDiedError("killed"))
        elif method == "set_up":
            answer.set_result((node, f"address-of-{node}", self.machine(node)))
        elif fault == "fails":
            answer.set_result(Failure(arguments[0], "RuntimeError", "RuntimeError: CUDA", ""))
        elif fault != "hangs" and self.now - began >= self.seconds(trainer):
            self.done.append((arguments[0], node))
            answer.set_result(Done(arguments[0], self.seconds(trainer)))
        return answer.done()

    def kill(self, worker: str, restart: bool = False) -> None:
        self.calls.pop(worker, None)
        self.nodes_of.pop(worker, None)

    def nodes(self) -> Cluster:
        there = self.cpus.items()
        nodes = tuple(Node(name, "127.0.0.1", self.port, {"CPU": cpus}) for name, cpus in there)
        return Cluster(nodes, frozenset(self.draining), memory_kills=lambda: self.memory_kills)


class Run:
    """A driver of a light sweep on a played cluster, from its start to its end."""

    def __init__(self, raw: dict[str, Any], folder: Path) -> None:
        self.sweep = spec.from_raw(raw)
        self.plan = planning.make(self.sweep)
        self.directory = RunDirectory(str(folder))
        self.lines: list[str] = []

    def __call__(self, cluster: PlayedCluster) -> Summary:
        packs = list(planning.remaining(self.directory, self.plan))
        places = Capacity(cluster, ResourceRequest({"CPU": 1.0}), None, self.lines.append)
        work = Work(self.sweep, self.plan, self.directory, len(packs), self.lines.append)
        dispatcher = Dispatcher(cluster, work, places, HeadLiveness())
        labels = [audit.label for audit in self.plan.audits]
        budget = FailureBudget(self.sweep.resources, labels, self.lines.append)
        summary = Driver(dispatcher, packs, budget, Stop(grace=60)).run()
        dispatcher.close()
        if not summary.failures:
            assert {pack for pack, _ in cluster.done} == set(packs)
            assert cluster.misses == []
        return summary

    def told(self, words: str) -> list[str]:
        """Lines for the user that have these words."""
        return [line for line in self.lines if words in line]


@pytest.fixture
def run(light: dict, tmp_path: Path) -> Run:
    """A run of 40 packs."""
    return Run(changed(light, "audit.trials", 200), tmp_path)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[PlayedCluster]:
    """Two nodes whose daemons answer, and the time as it passes there."""
    with socket.create_server(("127.0.0.1", 0)) as daemon:
        played = PlayedCluster(daemon.getsockname()[1], a=2, b=1)
        monkeypatch.setattr(time, "monotonic", lambda: played.now)
        yield played


def only(name: str, fault: str) -> Fault:
    """A fault of one trainer, or of all trainers of one node."""
    return lambda trainer, node: fault if name in (trainer, node) else ""


def eating(cluster: PlayedCluster, node: str, most: int) -> Fault:
    """A node whose memory holds `most` trainers: if there are more, the newest is killed."""

    def fault(trainer: str, on: str) -> str:
        there = [name for name, its in cluster.nodes_of.items() if its == node]
        newest = max(there, key=lambda name: int(name.rpartition("-")[2]), default="")
        return "eats" if on == node and len(there) > most and trainer == newest else ""

    return fault


def test_a_node_short_of_memory_gets_a_trainer_less(run, cluster, monkeypatch):
    """The packs of the killed trainers are not to blame, and another node keeps its trainers."""
    monkeypatch.setattr("dpaudit_ray.orchestration.driver.LOSSES_PER_PACK", 1)
    cluster.cpus = {"a": 3, "b": 1}
    cluster.fault = eating(cluster, "a", 2)
    summary = run(cluster)
    assert not summary.failures
    assert cluster.memory_kills == {"a": workers.MEMORY_KILLS}
    assert len(run.told("worker lost")) == workers.MEMORY_KILLS
    assert all("its node ran out of memory" in line for line in run.told("worker lost"))
    (line,) = run.told("ran out of memory 2 times")
    assert line == (
        "node address-of-a ran out of memory 2 times: it runs 2 of 3 trainers for a while; "
        "set resources.memory to what one trainer needs"
    )
    assert {node for _, node in cluster.done} == {"a", "b"}


def test_a_node_with_memory_again_gets_its_trainer_back(run, cluster):
    cluster.fault = eating(cluster, "a", 1)
    cluster.cpus = {"a": 2}
    cluster.seconds = lambda trainer: 60.0
    most = []

    def recover(packs: int) -> None:
        if packs > 10:
            cluster.fault = lambda trainer, node: ""
        most.append(len(cluster.nodes_of))

    cluster.at = recover
    run(cluster)
    assert most[-10] == 2
    assert 1 in most[10:]


def test_a_trainer_that_does_not_fit_alone_ends_the_sweep_with_the_reason(run, cluster):
    cluster.cpus = {"a": 2}
    cluster.fault = eating(cluster, "a", 0)
    with pytest.raises(NoClusterError, match="does not hold a single trainer, killed 3") as e:
        run(cluster)
    assert "address-of-a" in str(e.value)
    assert "lower mechanism.batch_size or resources.pack_size" in str(e.value)
    assert sum(cluster.memory_kills.values()) == workers.MEMORY_KILLS + workers.LONE_MEMORY_KILLS


def test_a_trainer_that_fits_alone_elsewhere_is_not_tried_there_again(run, cluster):
    cluster.cpus = {"a": 1, "b": 1}
    cluster.fault = eating(cluster, "a", 0)
    summary = run(cluster)
    assert not summary.failures
    assert run.told("node address-of-a is left out: its memory does not hold a single trainer")
    assert {node for _, node in cluster.done} == {"b"}


def test_an_aggregator_that_was_killed_for_memory_is_reported_so(cluster):
    lines: list[str] = []
    places = Capacity(cluster, ResourceRequest({"CPU": 1.0}), None, lines.append)
    dead: Future[Any] = Future()
    dead.set_exception(WorkerDiedError("the actor was restarted"))
    client = AggregatorClient(cluster, "aggregator", HeadLiveness(), lines.append, places)
    cluster.memory_kills["a"] += 1
    client._pulse = dead
    cluster.now += 10
    client.progress(Activity())
    assert len(lines) == 1
    assert lines[0].startswith("the aggregator was killed, as its node ran out of memory")


def test_a_trainer_that_fails_at_what_others_do_is_named_and_replaced(run, cluster):
    cluster.fault = only("tiny-trainer-0", "fails")
    run(cluster)
    (line,) = run.lines
    assert line.startswith("tiny-trainer-0 on node address-of-a failed (RuntimeError: CUDA) at ")
    assert line.endswith("on node address-of-b did: it is replaced")


def test_a_node_whose_trainers_fail_is_left_out(run, cluster):
    cluster.fault = only("a", "fails")
    run(cluster)
    assert {node for _, node in cluster.done} == {"b"}
    assert len(run.told("it is replaced")) >= FAULTS_PER_NODE
    assert len(run.told("node address-of-a is left out: 2 of its trainers failed")) == 1
    assert "a" not in cluster.nodes_of.values()


def test_a_failure_that_follows_the_audit_ends_it_and_blames_no_trainer(run, cluster):
    cluster.fault = lambda trainer, node: "fails"
    summary = run(cluster)
    assert {failure.pack.audit for failure in summary.failures} == {0, 1}
    assert cluster.misses == summary.failures
    assert len(run.lines) == 2
    assert all("stopped, 3 packs in a row failed the same way" in line for line in run.lines)


def test_a_trainer_that_dies_is_replaced_and_its_packs_are_run_again(run, cluster):
    cluster.fault = only("tiny-trainer-1", "dies")
    assert run(cluster).losses == 1
    (line,) = run.lines
    assert line.startswith("worker lost (1 of at most 100): tiny-trainer-1 on node ")
    assert line.endswith(": killed")


def test_a_hang_in_the_first_pack_is_found_by_a_guess(run, cluster):
    """Nothing is known of how long the audit's packs take: the limit is long."""
    cluster.cpus = {"a": 1}
    cluster.fault = only("tiny-trainer-0", "hangs")
    assert run(cluster).losses == 1
    (lost,) = run.lines
    assert lost.endswith(f"tiny-trainer-0 on node address-of-a was silent for {FIRST:.0f} s")
    assert cluster.now - 1000 < FIRST + 100


def test_while_the_aggregator_is_silent_no_trainer_hangs(run, cluster):
    """It waits to store its pack, for longer than one may take."""
    cluster.cpus = {"a": 1}
    cluster.silent = lambda: 1010 < cluster.now < 1000 + 1.4 * FIRST
    slow = only("tiny-trainer-0", "hangs")
    cluster.fault = lambda *who: slow(*who) if cluster.now < 1000 + 1.5 * FIRST else ""
    assert run(cluster).losses == 0


def test_a_hang_is_found_by_the_packs_that_were_timed(run, cluster):
    hangs = only("tiny-trainer-0", "hangs")
    cluster.fault = lambda *who: hangs(*who) if len(cluster.done) > 9 else ""
    assert run(cluster).losses == 1
    assert run.lines[-1].endswith(f"was silent for {SHORTEST:.0f} s")


def test_no_pack_waits_behind_a_slow_one(run, cluster):
    cluster.seconds = lambda trainer: 60.0 if trainer == "tiny-trainer-0" else 1.0
    run(cluster)
    assert run.lines == []
    assert cluster.now - 1000 < 70


def test_a_node_that_is_lost_is_no_failure(run, cluster):
    cluster.at = lambda done: cluster.cpus.pop("a", None) if done > 9 else None
    assert run(cluster).losses == 0
    assert len(run.lines) == 2, "a line for each of its trainers"
    assert all("node address-of-a has left (not a failure: what" in x for x in run.lines)


def test_a_drained_node_is_given_no_more_and_is_lost_without_a_word(run, cluster):
    def drain(done: int) -> None:
        if done > 9:
            cluster.draining = {"a"}
        if "a" in cluster.draining and "a" not in cluster.nodes_of.values():
            cluster.cpus.pop("a", None)

    cluster.at = drain
    run(cluster)
    assert run.lines == []
    assert {node for _, node in cluster.done[20:]} == {"b"}
    assert "a" not in cluster.cpus


def test_a_node_that_joins_is_given_packs(run, cluster):
    cluster.at = lambda done: cluster.cpus.update(c=1) if done > 9 else None
    run(cluster)
    assert (run.lines, "c" in {node for _, node in cluster.done}) == ([], True)


def test_a_node_with_another_version_is_left_out(run, cluster):
    here = provenance.machine(())
    other = dataclasses.replace(here, versions=here.versions | {"numba": "9.9"})
    cluster.machine = lambda node: other if node == "a" else here
    run(cluster)
    assert {node for _, node in cluster.done} == {"b"}
    assert len(run.told("node address-of-a is left out: it has numba 9.9, the driver")) == 1


@pytest.fixture
def answering() -> Iterator[str]:
    """The address of a server that answers."""
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)


def test_a_port_told_to_a_test_s_head_is_none_that_the_system_gives_to_anyone():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert max(free_port() for _ in range(50)) < server.getsockname()[1]


@pytest.mark.parametrize("there", [False, True])
def test_a_head_that_is_gone_is_told_after_a_while(there, answering, monkeypatch):
    monkeypatch.setattr(interruption, "HEALTH_CHECK_SECONDS", 0.1)
    monkeypatch.setattr(interruption, "GONE_SECONDS", 0.6)
    head = answering if there else f"127.0.0.1:{free_port()}"
    with contextlib.closing(HeadLiveness(head, grpc.insecure_channel)) as watched:
        watched.require()  # it may come back
        if there:
            time.sleep(1.0)
            watched.require()
        else:
            with pytest.raises(ClusterError, match="has not answered"):
                wait_for(watched.require, 60)


def test_a_connection_is_no_sign_of_life(answering):
    """The kernel accepts it for a process that stands still. The seconds add up."""
    with (
        contextlib.closing(HealthChecks(grpc.insecure_channel)) as checks,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        standing = f"127.0.0.1:{server.getsockname()[1]}"
        for _ in range(2):
            checks.ask({standing}, 0.3)
        assert checks.silent[standing] == pytest.approx(2 * (HEALTH_CHECK_SECONDS + 0.3), abs=0.1)
    with contextlib.closing(HealthChecks(grpc.insecure_channel)) as checks:
        checks.ask({answering}, 200)
        assert checks.silent[answering] == 0.0


class Standing:
    """An aggregator that answers `beats` pulses and then stands still; its snapshots still come."""

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


def no_memory_kills() -> Any:
    return types.SimpleNamespace(new_memory_kill=lambda: "")


@pytest.mark.parametrize(("beats", "limit"), [(3, GONE_SECONDS), (0, START_SECONDS)])
def test_an_aggregator_that_stands_still_is_killed_and_started_again(beats, limit, monkeypatch):
    """A process that has not answered yet has longer; the snapshots come from before."""
    played, told = Standing(beats), list[str]()
    monkeypatch.setattr(dispatcher.time, "monotonic", lambda: played.now)
    client = AggregatorClient(played, "aggregator", HeadLiveness(), told.append, no_memory_kills())
    began = None
    while not played.restarted:
        played.now += 0.5
        client.progress(Activity())
        if began is None and played.beats < 0:
            began = played.now
        assert played.now < 1000
    assert began is not None
    assert limit <= played.now - began <= limit + 2 * HEALTH_CHECK_SECONDS
    assert played.restarted == [True]
    assert told[0].startswith(f"the aggregator has not answered for {limit:.0f} s: it is killed")


def test_trainers_that_wait_for_a_silent_aggregator_are_known(monkeypatch):
    """Restarted, it reads all packs: trainers that wait for it are not hung, nor slow."""
    played = Standing(1000)
    monkeypatch.setattr(dispatcher.time, "monotonic", lambda: played.now)
    client = AggregatorClient(played, "aggregator", HeadLiveness(), pytest.fail, no_memory_kills())
    played.now += 60
    assert not client.silent, "it owes no answer"
    snapshot: Future[Any] = Future()
    with monkeypatch.context() as patch:
        patch.setattr(played, "call", lambda *_: snapshot)
        client.progress(Activity())
    played.now += QUIET_SECONDS - 1
    assert not client.silent, "it may take a while"
    played.now += 60
    assert client.silent
    ended = played.now
    snapshot.set_result("snapshot")
    played.now += 5
    client.progress(Activity())
    assert not client.silent
    assert client.silent_until == ended, "from when on trainers are timed again"
    dead: Future[Any] = Future()
    dead.set_exception(WorkerDiedError("its node left"))
    monkeypatch.setattr(played, "call", lambda *_: dead)
    with pytest.raises(ClusterError, match=r"cannot be restarted \(its node left\); finished"):
        client.call("flush")


def test_the_end_of_the_object_store_ends_the_driver_with_a_line_and_not_as_a_violation(tmp_path):
    """Ray would end it with exit code 1. Once the watch is closed, nothing happens."""
    code = f"""
import functools, grpc, socket, sys, time
from dpaudit_ray.orchestration.interruption import HeadLiveness
store = {str(tmp_path / "store")!r}
server = socket.socket(socket.AF_UNIX)
server.bind(store)
server.listen()
accepted = []
for _ in range(2):
    say = functools.partial(print, flush=True)
    watch = HeadLiveness("127.0.0.1:1", grpc.insecure_channel, say)
    watch.guard("", store)
    accepted.append(server.accept()[0])
    time.sleep(1)  # nothing happens while it lives
    if len(accepted) == 1:
        watch.close()
        accepted[0].close()
        time.sleep(1)
accepted[1].close()
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
    code = f"""
import time, dpaudit_ray as da
from dpaudit_ray.orchestration import ray_executor
class Failing:
    def from_plan(plan, sweep): raise MemoryError
ray_executor.Brief = Failing
try:
    da.run({str(write_sweep(tmp_path, light))!r}, storage_path={str(tmp_path)!r})
except MemoryError:
    time.sleep(2)
    print('alive')
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=400)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


GIB = 2**30


def nodes(
    draining: Collection[str] = (),
    grows: bool = False,
    labels: Mapping[str, dict[str, str]] = types.MappingProxyType({}),
    port: int = 1,
    **members: dict[str, float],
) -> Any:
    """As much of an executor as is asked for nodes, with an autoscaler or without."""
    there = tuple(
        Node(name, "127.0.0.1", port, resources, labels.get(name, {}))
        for name, resources in members.items()
    )
    return types.SimpleNamespace(nodes=lambda: Cluster(there, frozenset(draining), grows))


def places(cluster: Any, told: list[str] | None = None, **resources: Any) -> Capacity:
    spec = ResourceSpec(**resources)
    limit = spec.max_concurrent_trainers
    tell = ([] if told is None else told).append
    request = ResourceRequest.from_spec(spec)
    return Capacity(cluster, request, None if limit == "auto" else limit, tell)


@pytest.mark.parametrize(
    ("resources", "room"),
    [
        ({}, 4),
        ({"num_cpus": 0.1}, 40),
        ({"num_gpus": 0.25}, 2),
        ({"memory": 3 * GIB}, 3),
        ({"custom_resources": {"tape": 0.5}}, 1),
        ({"label_selector": {"kind": "old"}}, 2),
        ({"label_selector": {"kind": "!old"}}, 2),
        ({"label_selector": {"kind": "in(old, new)"}}, 2),
        ({"label_selector": {"kind": "!in(new)"}}, 4),
        ({"max_concurrent_trainers": 3}, 3),
    ],
)
def test_room(resources, room):
    there = {"CPU": 2, "GPU": 1, "memory": 7.0 * GIB, "tape": 0.5}
    here = {"CPU": 2, "memory": 4.0 * GIB}
    cluster = nodes(labels={"there": {"kind": "old"}}, here=here, there=there)
    counted = places(cluster, **resources)
    counted.require_room()
    assert counted.trainer_target(ready=0)[0] == room


def test_what_never_fits_is_refused():
    cluster = nodes(here={"CPU": 2})
    for resources, needs in (
        ({"num_gpus": 1}, "of 1 CPU, 1 GPU"),
        ({"memory": "1TiB"}, "of 1 CPU, 1024 GiB memory"),
        ({"label_selector": {"kind": "old"}}, "of 1 CPU, kind old"),
    ):
        with pytest.raises(NoClusterError, match="no node of this cluster fits") as refused:
            places(cluster, **resources).require_room()
        assert needs in str(refused.value)


def test_demand_is_bounded_and_grows_with_what_came():
    cluster = nodes(grows=True, head={})
    counted = places(cluster)
    counted.require_room()
    assert counted.trainer_target(ready=0)[0] == 1 + PENDING
    assert places(cluster, max_concurrent_trainers=40).trainer_target(ready=0)[0] == 40
    assert places(nodes(grows=True, head={}, a={"CPU": 64})).trainer_target(ready=64)[0] == 128


def test_a_node_at_fault_is_left_out_unless_it_is_the_last():
    counted = places(nodes(a={"CPU": 2}, b={"CPU": 1}), told := [])
    for _ in range(FAULTS_PER_NODE):
        assert (counted.trainer_target(ready=3)[0], counted.avoided) == (3, set())
        counted.count_fault("a", "10.0.0.1")
    assert (counted.trainer_target(ready=3)[0], counted.avoided, counted.leaving) == (
        1,
        {"a"},
        {"a"},
    )
    (line,) = told
    assert line.startswith("node 10.0.0.1 is left out: 2 of its trainers failed")
    for _ in range(2 * FAULTS_PER_NODE):
        counted.count_fault("b", "10.0.0.2")
    assert counted.trainer_target(ready=1)[0] == 1
    counted = places(nodes(draining={"a"}, a={"CPU": 2}, b={"CPU": 1}))
    assert (counted.trainer_target(ready=3)[0], counted.avoided, counted.leaving) == (
        1,
        set(),
        {"a"},
    )


def test_a_node_with_other_code_is_left_out_and_the_last_one_ends_the_run():
    counted = places(nodes(a={"CPU": 2}, b={"CPU": 2}), told := [])
    for _ in range(2):
        counted.leave_out("a", "10.0.0.1", "it has torch 3", "install it")
    assert told == ["node 10.0.0.1 is left out: it has torch 3"]
    assert counted.leaving == {"a"}
    assert counted.trainer_target(ready=0)[0] == 2
    with pytest.raises(NoClusterError, match=r"^node 10.0.0.2 is left out: it has torch 3, and no"):
        counted.leave_out("b", "10.0.0.2", "it has torch 3", "install it")


def test_a_node_that_nobody_answers_for_is_gone():
    with socket.create_server(("127.0.0.1", 0)) as raylet:
        counted = places(nodes(port=raylet.getsockname()[1], a={"CPU": 2}))
        assert counted.alive("a")
        assert not counted.alive("b")
    assert not counted.alive("a")
    assert places(nodes(port=0, a={"CPU": 2})).alive("a"), "it has no daemon that could answer"


PACK = Pack(1, 0, 0)


class PlayedPool:
    """A pool whose places have the room that is set, and the time too."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(workers.time, "monotonic", lambda: self.now)
        self.now_room, self.leaving = (4, 4), set[str]()
        self.ended: list[str] = []
        self.told: list[int] = []
        self.pool = Pool(
            lambda number: Worker(f"t-{number}", f"t-{number}", None), self.ended.append, self
        )

    def trainer_target(self, ready: int) -> tuple[int, int]:
        return self.now_room

    def tell_waiting(self, trainers: int, room: int) -> None:
        self.told.append(trainers)

    def resize(self, seconds: float = workers.RESIZE_SECONDS) -> list[str]:
        """The trainers' names some time later."""
        self.now += seconds
        self.pool.resize()
        return [worker.name for worker in self.pool.workers]

    def place(self, *nodes: str) -> None:
        """Gives trainers their places, in turn."""
        for worker, node in zip(self.pool.workers, nodes, strict=False):
            worker.node = node
            self.pool.update_idle(worker)

    def work(self, *packs: Pack | None) -> None:
        for worker, pack in zip(self.pool.workers, packs, strict=False):
            worker.pack = pack
            self.pool.update_idle(worker)

    @property
    def trusted(self) -> list[str]:
        """Trainers that may be given new packs."""
        return [worker.name for worker in self.pool.workers if worker.trusted]


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> PlayedPool:
    return PlayedPool(monkeypatch)


def test_idle_trainers_are_given_back_when_no_pack_is_left(played):
    assert played.resize() == ["t-0", "t-1", "t-2", "t-3"]
    played.place("a", "a", "b")
    played.work(PACK, None, PACK)
    assert len(played.resize()) == 4, "more may come"
    played.pool.backlog = 1
    assert played.resize() == ["t-0", "t-1", "t-2"], "one is due: who waits for a place is let go"
    played.pool.backlog = 0
    assert played.resize() == ["t-0", "t-2"]
    played.work(None, None)
    assert played.resize() == []
    played.pool.backlog = 1  # what is lost at the end finds a trainer
    assert played.resize() == ["t-4"]


def test_too_many_end_their_packs_before_they_go(played):
    played.resize()
    played.place("a", "a", "a", "a")
    played.work(PACK, PACK, PACK, PACK)
    played.now_room = 2, 4
    assert len(played.resize()) == 4
    assert played.trusted == ["t-2", "t-3"]
    played.work(None, PACK, PACK, PACK)
    assert played.resize() == ["t-1", "t-2", "t-3"]
    assert played.ended == ["t-0"]


@pytest.mark.parametrize(("now", "told"), [(0, [9, 9]), (4, [9])])
def test_what_is_waited_for_is_told_at_once_or_after_half_a_minute(now, told, played):
    """At once, and once, where no node fits one; later where there is room."""
    played.now_room = 9, now
    for _ in range(5):
        played.resize()
    assert played.told == told[1:]
    played.resize(workers.PATIENT_SECONDS + 1)
    assert played.told == told
    played.place("a")
    played.resize(math.inf)
    assert played.told == told


def test_idle_are_trusted_trainers_without_a_pack_whatever_happens_to_them(played):
    """What is kept step by step is what a look at all trainers would find."""
    random_ = random.Random(0)
    played.resize()
    for step in range(300):
        worker = random_.choice(list(played.pool.workers))
        match random_.randrange(4):
            case 0:
                worker.node = "a"
            case 1:
                worker.pack = None if worker.pack else PACK
            case 2:
                worker.suspected ^= {PACK}
            case 3 if step % 10 == 0:
                played.pool.replace(worker)
                played.resize()
                continue
        played.pool.update_idle(worker)
        idle = {w for w in played.pool.workers if w.trusted and w.pack is None}
        assert played.pool.idle.keys() == idle


def test_who_saves_a_checkpoint_is_not_silent(played):
    played.resize()
    played.place("a", "b")
    played.work(Pack(0, 0, 0), Pack(0, 9, 9))
    first, second = list(played.pool.workers)[:2]
    played.now = 40.0
    played.pool.checkpoints_saved({Pack(0, 0, 0): 100})
    played.now = 80.0
    played.pool.checkpoints_saved({Pack(0, 0, 0): 100})  # nothing new
    assert (first.since, second.since) == (40.0, 0.0)
    played.pool.checkpoints_saved({Pack(0, 0, 0): 200, Pack(0, 9, 9): 100})
    assert (first.since, second.since) == (80.0, 80.0)


HERE = {"dpaudit": "1", "torch": "2", "numba": "3", "ray": "4"}
MIXED = "warning: trials run on several kinds of machine (Abacus; {}): scores are equal in "
MIXED += "distribution, and may differ in last bits"


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory(str(tmp_path / "run"))


@pytest.fixture
def machines(directory: RunDirectory, tiny: dict) -> Callable[..., MachineCompatibility]:
    """What a new driver of the same run knows; lines for the user are added to `told`."""

    def opened(told: list[str], **resources: float) -> MachineCompatibility:
        sweep = from_raw(tiny | {"resources": resources})
        plan = Plan(0, "", (), (), (Code({"own": "a" * 64}, HERE, "Abacus"),))
        return MachineCompatibility(Work(sweep, plan, directory, 0, told.append))

    return opened


def machine(device: str = "Abacus", own: str | None = "a" * 64, **versions: str) -> Code:
    return Code({"own": own} if own else {}, HERE | versions, device)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (machine(), None),
        (machine(ray="5"), None),
        (machine(own=None), None),
        (machine(torch="2.1"), "it has torch 2.1, the driver 2"),
        (machine(numba="4"), "it has numba 4, the driver 3"),
        (machine(dpaudit="2"), "it has dpaudit 2, the driver 1"),
        (
            machine(own="b" * 64),
            "own has SHA-256 bbbbbbbbbbbb... there, SHA-256 aaaaaaaaaaaa... where the driver runs",
        ),
    ],
)
def test_a_machine_has_the_code_of_the_driver(other, why, machines):
    compatibility = machines([])
    assert compatibility.modules == ("own",)
    assert compatibility.admit("10.0.0.7", other) == why


def test_kinds_are_recorded_and_mixing_them_is_told_once(directory, machines):
    first = machines(told := [])
    for address in ("10.0.0.1", "10.0.0.2", "10.0.0.1"):
        first.admit(address, machine())
    assert told == []
    for address in ("10.0.0.3", "10.0.0.4"):
        first.admit(address, machine("Slide rule"))
    kinds = {"Abacus": ["10.0.0.1", "10.0.0.2"], "Slide rule": ["10.0.0.3", "10.0.0.4"]}
    assert directory.read_json("machines.json") == kinds
    assert told == [MIXED.format("Slide rule")]


@pytest.mark.parametrize(("cpus", "kind"), [(0.5, ""), (2, "Abacus, 2 threads")])
def test_another_number_of_threads_is_told_as_another_kind(cpus, kind, machines):
    """Threads share the models out in other groups, which may change last bits."""
    machines([]).admit("10.0.0.1", machine())
    machines(told := [], num_cpus=cpus).admit("10.0.0.1", machine())
    assert told == ([MIXED.format(kind)] if kind else [])


@pytest.mark.parametrize("damage", ["{", "[1]", '{"a": 3}', "3"])
def test_a_damaged_record_is_made_again(damage, directory, machines):
    directory.write_text("machines.json", damage)
    machines(told := []).admit("10.0.0.1", machine())
    assert told == []
    assert directory.read_json("machines.json") == {"Abacus": ["10.0.0.1"]}


def test_the_kind_of_this_machine_names_what_changes_last_bits_and_is_recorded(
    tiny, tmp_path, monkeypatch
):
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    kind = provenance.device.__wrapped__()
    assert kind.endswith(", default")
    monkeypatch.delenv("ATEN_CPU_CAPABILITY")
    assert provenance.device.__wrapped__() == kind.removesuffix(", default")
    changed(tiny, "audit.trials", 10)
    result = da.run(tiny, storage_path=str(tmp_path), executor="inline")
    (recorded,) = json.loads((Path(result.location) / "machines.json").read_text())
    _, plan = planning.read(RunDirectory(result.location))
    assert plan.code[0].device == recorded == provenance.device()
