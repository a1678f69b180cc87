"""Who runs a pack, and what follows when somebody cannot: trainers and time are played."""

import dataclasses
import socket
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from dpaudit_ray import plan as planning
from dpaudit_ray.orchestration.dispatcher import Dispatcher
from dpaudit_ray.orchestration.driver import Driver, FailureBudget, Summary
from dpaudit_ray.orchestration.executors import TRAINER, Cluster, Done, Node, Work, WorkerDiedError
from dpaudit_ray.orchestration.faults import FIRST, SHORTEST
from dpaudit_ray.orchestration.interruption import HeadLiveness, Stop
from dpaudit_ray.orchestration.progress import Progress
from dpaudit_ray.orchestration.workers import FAULTS_PER_NODE, Places, ResourceRequest
from dpaudit_ray.plan import provenance
from dpaudit_ray.plan.model import Pack
from dpaudit_ray.plan.outcomes import Failure
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.sweep import spec
from tests.command import changed

Fault = Callable[[str, str], str]  # of a trainer on a node: "fails", "hangs", "dies" or nothing


class PlayedCluster:
    """An executor on played nodes: a trainer works on its first call, and time passes in `wait`."""

    isolates = True

    def __init__(self, port: int, **cpus: float) -> None:
        self.now, self.port, self.cpus = 1000.0, port, cpus
        self.fault: Fault = lambda trainer, node: ""
        self.seconds: Callable[[str], float] = lambda trainer: 1.0  # that a pack takes
        self.at: Callable[[int], None] = lambda packs: None  # called with the packs that are done
        self.machine = lambda node: provenance.machine(())
        self.draining: set[str] = set()
        self.nodes_of: dict[str, str] = {}  # by trainer
        self.calls: dict[str, list[tuple[Future[Any], str, tuple[Any, ...]]]] = {}
        self.began: dict[str, float] = {}
        self.done: list[tuple[Pack, str]] = []  # packs in their order, and the trainer's node
        self.misses: list[Failure] = []

    def start(self, role: str, name: str, avoid: Collection[str] = ()) -> str:
        if role == "Trainer":
            self.calls[name] = []
            held = list(self.nodes_of.values())
            free = (n for n, cpus in self.cpus.items() if n not in avoid and held.count(n) < cpus)
            if (node := next(free, None)) is not None:
                self.nodes_of[name] = node
        return name

    def call(self, worker: str, method: str, *arguments: Any, label: str = "") -> Future[Any]:
        answer: Future[Any] = Future()
        if TRAINER in worker:
            if not self.calls[worker]:
                self.began[worker] = self.now
            self.calls[worker].append((answer, method, arguments))
            return answer
        self.misses += arguments[0] if method == "give_up" else ()
        answer.set_result(Progress((), arguments[0]) if method == "progress" else None)
        return answer

    def wait(self, timeout: float) -> list[Future[Any]]:
        self.now += timeout
        self.at(len(self.done))
        answers = []
        for trainer, calls in self.calls.items():
            if calls and trainer in self.nodes_of and self._answers(trainer, *calls[0]):
                answers.append(calls.pop(0)[0])
                self.began[trainer] = self.now
        return answers

    def _answers(
        self, trainer: str, answer: Future[Any], method: str, arguments: tuple[Any, ...]
    ) -> bool:
        node = self.nodes_of[trainer]
        fault = "" if method == "ready" else self.fault(trainer, node)
        if node not in self.cpus or fault == "dies":
            answer.set_exception(WorkerDiedError("killed"))
        elif method == "ready":
            answer.set_result((node, f"address-of-{node}", self.machine(node)))
        elif fault == "fails":
            answer.set_result(Failure(arguments[0], "RuntimeError", "RuntimeError: CUDA", ""))
        elif fault != "hangs" and self.now - self.began[trainer] >= self.seconds(trainer):
            self.done.append((arguments[0], node))
            answer.set_result(Done(arguments[0], self.seconds(trainer)))
        return answer.done()

    def kill(self, worker: str, restart: bool = False) -> None:
        self.calls.pop(worker, None)
        self.nodes_of.pop(worker, None)

    def nodes(self) -> Cluster:
        nodes = (
            Node(name, "127.0.0.1", self.port, {"CPU": cpus}) for name, cpus in self.cpus.items()
        )
        return Cluster(tuple(nodes), frozenset(self.draining))


class Run:
    """A driver of a light sweep on a played cluster, from its start to its end."""

    def __init__(self, raw: dict[str, Any], folder: Path) -> None:
        self.sweep = spec.from_raw(raw)
        self.plan = planning.make(self.sweep)
        self.directory = RunDirectory(str(folder))
        self.liveness = HeadLiveness()
        self.lines: list[str] = []

    def __call__(self, cluster: PlayedCluster) -> Summary:
        packs = list(self.plan.remaining(self.directory))
        places = Places(cluster, ResourceRequest({"CPU": 1.0}), None, self.lines.append)
        work = Work(self.sweep, self.plan, self.directory, len(packs), self.lines.append)
        dispatcher = Dispatcher(cluster, work, places, self.liveness)
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
    assert run(cluster).lost == 1
    (line,) = run.lines
    assert line.startswith("worker lost (1 of at most 100): tiny-trainer-1 on node ")
    assert line.endswith(": killed")


def test_a_hang_in_the_first_pack_is_found_by_a_guess(run, cluster):
    """Nothing is known of how long the audit's packs take: the limit is long."""
    cluster.cpus = {"a": 1}
    cluster.fault = only("tiny-trainer-0", "hangs")
    assert run(cluster).lost == 1
    (lost,) = run.lines
    assert lost.endswith(f"tiny-trainer-0 on node address-of-a was silent for {FIRST:.0f} s")
    assert cluster.now - 1000 < FIRST + 100


def test_a_hang_is_found_by_the_packs_that_were_timed(run, cluster):
    cluster.fault = lambda trainer, node: (
        "hangs" if trainer == "tiny-trainer-0" and len(cluster.done) > 9 else ""
    )
    assert run(cluster).lost == 1
    assert run.lines[-1].endswith(f"was silent for {SHORTEST:.0f} s")


def test_no_pack_waits_behind_a_slow_one(run, cluster):
    cluster.seconds = lambda trainer: 60.0 if trainer == "tiny-trainer-0" else 1.0
    run(cluster)
    assert run.lines == []
    assert cluster.now - 1000 < 70


def test_a_node_that_is_lost_is_no_failure(run, cluster):
    cluster.at = lambda done: cluster.cpus.pop("a", None) if done > 9 else None
    assert run(cluster).lost == 0
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
    assert run.lines == []
    assert "c" in {node for _, node in cluster.done}


def test_a_node_with_another_version_is_left_out(run, cluster):
    here = provenance.machine(())
    other = dataclasses.replace(here, versions=here.versions | {"numba": "9.9"})
    cluster.machine = lambda node: other if node == "a" else here
    run(cluster)
    assert {node for _, node in cluster.done} == {"b"}
    assert len(run.told("node address-of-a is left out: it has numba 9.9, the driver")) == 1
