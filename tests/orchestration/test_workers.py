"""How many trainers a cluster holds, and the pool of them: all played, no Ray process."""

import math
import random
import socket
from typing import Any

import pytest

from dpaudit_ray.errors import NoClusterError
from dpaudit_ray.orchestration import workers
from dpaudit_ray.orchestration.executors import Cluster, Node
from dpaudit_ray.orchestration.workers import (
    FAULTS_PER_NODE,
    PENDING,
    Places,
    Pool,
    ResourceRequest,
    Room,
    Worker,
)
from dpaudit_ray.plan.model import Pack
from dpaudit_ray.sweep.resources import ResourceSpec

GIB = 2**30


class PlayedCluster:
    """As much of an executor as is asked for nodes, with an autoscaler or without."""

    def __init__(self, **members: dict[str, float]) -> None:
        self.members = members
        self.labels: dict[str, dict[str, str]] = {}
        self.draining: set[str] = set()
        self.grows = False
        self.address: tuple[str, int] = ("127.0.0.1", 1)

    def nodes(self) -> Cluster:
        nodes = [
            Node(name, *self.address, resources, self.labels.get(name, {}))
            for name, resources in self.members.items()
        ]
        return Cluster(tuple(nodes), frozenset(self.draining), self.grows)


def places(cluster: PlayedCluster, told: list[str] | None = None, **resources: Any) -> Places:
    spec = ResourceSpec(**resources)
    limit = spec.max_concurrent_trainers
    tell = ([] if told is None else told).append
    request = ResourceRequest.from_spec(spec)
    return Places(cluster, request, None if limit == "auto" else limit, tell)


@pytest.mark.parametrize(
    ("resources", "room"),
    [
        ({}, 4),
        ({"num_cpus": 2}, 2),
        ({"num_cpus": 0.1}, 40),
        ({"num_gpus": 0.25}, 2),
        ({"num_gpus": 1}, 1),
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
    cluster = PlayedCluster(
        here={"CPU": 2, "memory": 4.0 * GIB},
        there={"CPU": 2, "GPU": 1, "memory": 7.0 * GIB, "tape": 0.5},
    )
    cluster.labels["there"] = {"kind": "old"}
    counted = places(cluster, **resources)
    counted.require_room()
    assert counted.room(ready=0).start == room


def test_what_never_fits_is_refused():
    cluster = PlayedCluster(here={"CPU": 2})
    for resources, needs in (
        ({"num_gpus": 1}, "of 1 CPU and 1 GPU"),
        ({"memory": "1TiB"}, "of 1 CPU and 1.02e+03 GiB memory"),
        ({"label_selector": {"kind": "old"}}, "of 1 CPU and kind old"),
    ):
        with pytest.raises(NoClusterError, match="no node of this cluster fits") as refused:
            places(cluster, **resources).require_room()
        assert needs in str(refused.value)


def test_demand_is_bounded_and_grows_with_what_came():
    cluster = PlayedCluster(head={})
    cluster.grows = True
    counted = places(cluster)
    counted.require_room()
    assert counted.room(ready=0).start == 1 + PENDING
    assert places(cluster, max_concurrent_trainers=40).room(ready=0).start == 40
    cluster.members["a"] = {"CPU": 64}
    assert places(cluster).room(ready=64).start == 128


def test_drained_nodes_count_no_more():
    cluster = PlayedCluster(a={"CPU": 2}, b={"CPU": 1})
    cluster.draining = {"a"}
    counted = places(cluster)
    assert counted.room(ready=3).start == 1
    assert counted.leaving == {"a"}


def test_a_node_at_fault_is_left_out_unless_it_is_the_last():
    cluster = PlayedCluster(a={"CPU": 2}, b={"CPU": 1})
    counted = places(cluster, told := [])
    for _ in range(FAULTS_PER_NODE):
        assert counted.room(ready=3).start == 3
        assert counted.avoided == set()
        counted.fault("a", "10.0.0.1")
    assert counted.room(ready=3).start == 1
    assert counted.avoided == {"a"}
    assert len(told) == 1
    assert told[0].startswith("node 10.0.0.1 is left out: 2 of its trainers failed")
    for _ in range(2 * FAULTS_PER_NODE):
        counted.fault("b", "10.0.0.2")
    assert counted.room(ready=1).start == 1


def test_a_node_with_other_code_is_left_out_and_the_last_one_ends_the_run():
    counted = places(PlayedCluster(a={"CPU": 2}, b={"CPU": 2}), told := [])
    for _ in range(2):
        counted.leave_out("a", "10.0.0.1", "it has torch 3")
    assert told == ["node 10.0.0.1 is left out: it has torch 3"]
    assert counted.leaving == {"a"}
    assert counted.room(ready=0).start == 2
    with pytest.raises(NoClusterError, match=r"^node 10.0.0.2 is left out: it has torch 3, and no"):
        counted.leave_out("b", "10.0.0.2", "it has torch 3")


def test_a_node_that_nobody_answers_for_is_gone():
    with socket.create_server(("127.0.0.1", 0)) as raylet:
        cluster = PlayedCluster(a={"CPU": 2})
        cluster.address = raylet.getsockname()[:2]
        counted = places(cluster)
        assert counted.alive("a")
        assert not counted.alive("b")
    assert not counted.alive("a")


PACK = Pack(1, 0, 0)


class PlayedPool:
    """A pool whose places have the room that is set, and the time too."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(workers.time, "monotonic", lambda: self.now)
        self.now_room, self.leaving = Room(keep=4, start=4, now=4), set[str]()
        self.ended: list[str] = []
        self.told: list[int] = []
        self.pool = Pool(
            lambda number: Worker(f"t-{number}", f"t-{number}", None), self.ended.append, self
        )

    def room(self, ready: int) -> Room:
        return self.now_room

    def tell_what_for(self, trainers: int, room: Room) -> None:
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
            self.pool.changed(worker)

    def work(self, *packs: Pack | None) -> None:
        """Gives trainers these packs, in turn."""
        for worker, pack in zip(self.pool.workers, packs, strict=False):
            worker.pack = pack
            self.pool.changed(worker)

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
    played.work(None, PACK)
    assert played.resize() == ["t-2"]


def test_what_is_lost_at_the_end_finds_a_trainer(played):
    played.pool.backlog = 0
    assert played.resize() == []
    played.pool.backlog = 2
    assert played.resize() == ["t-0", "t-1"]


def test_too_many_end_their_packs_before_they_go(played):
    played.resize()
    played.place("a", "a", "a", "a")
    played.work(PACK, PACK, PACK, PACK)
    played.now_room = Room(keep=2, start=2, now=4)
    assert len(played.resize()) == 4
    assert played.trusted == ["t-2", "t-3"]
    played.work(None, PACK, PACK, PACK)
    assert played.resize() == ["t-1", "t-2", "t-3"]
    assert played.ended == ["t-0"]


@pytest.mark.parametrize(("now", "told"), [(0, [9, 9]), (4, [9])])
def test_what_is_waited_for_is_told_at_once_or_after_half_a_minute(now, told, played):
    """At once, and once, where no node fits one; later where there is room."""
    played.now_room = Room(keep=1, start=9, now=now)
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
        played.pool.changed(worker)
        idle = {w for w in played.pool.workers if w.trusted and w.pack is None}
        assert played.pool.idle.keys() == idle


def test_who_saves_a_checkpoint_is_not_silent(played):
    played.resize()
    played.place("a", "b")
    played.work(Pack(0, 0, 0), Pack(0, 9, 9))
    first, second = list(played.pool.workers)[:2]

    def overdue() -> list[str]:
        return [worker.name for worker, _ in played.pool.overdue(lambda pack: 50.0)]

    played.now += 40
    played.pool.checkpoints_saved({Pack(0, 0, 0): 100})
    played.now += 40
    assert overdue() == [second.name]
    played.pool.checkpoints_saved({Pack(0, 0, 0): 100})  # nothing new
    played.now += 20
    assert overdue() == [first.name, second.name]
    since = played.now - 40  # what was before a silence of the aggregator
    assert list(played.pool.overdue(lambda pack: 50.0, since)) == []
    played.pool.checkpoints_saved({Pack(0, 0, 0): 200, Pack(0, 9, 9): 100})
    assert overdue() == []
