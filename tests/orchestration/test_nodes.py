"""How many trainers a cluster holds, with a cluster that is played: no Ray process, no waiting."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from dpaudit_ray.errors import NoClusterError
from dpaudit_ray.orchestration import internals
from dpaudit_ray.orchestration.internals import NodeType
from dpaudit_ray.orchestration.needs import Needs
from dpaudit_ray.orchestration.nodes import FAULTS_PER_NODE, PENDING, Nodes, Place
from dpaudit_ray.orchestration.sharing import Share, fair_part
from dpaudit_ray.sweep.resources import ResourceSpec

GIB = 2**30


class Cluster:
    """Plays the parts of Ray that are asked, and an autoscaler with `types` of nodes."""

    def __init__(self, **members: dict[str, float]) -> None:
        self.members = members
        self.labels: dict[str, dict[str, str]] = {}
        self.draining: set[str] = set()
        self.types: tuple[NodeType, ...] = ()
        self.grows = False
        self.others: dict[str, int] = {}  # trainers of other sweeps, by namespace
        self.address: tuple[str, int] = ("127.0.0.1", 1)
        self.kill: Any = None
        self.get_actor: Any = None
        self.util = SimpleNamespace(list_named_actors=self._named)

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {
                "NodeID": n,
                "Alive": True,
                "Resources": held,
                "Labels": self.labels.get(n, {}),
                "NodeManagerAddress": self.address[0],
                "NodeManagerPort": self.address[1],
            }
            for n, held in self.members.items()
        ]

    def cluster_resources(self) -> dict[str, float]:
        total: dict[str, float] = {}
        for held in self.members.values():
            for name, value in held.items():
                total[name] = total.get(name, 0) + value
        return total

    def _named(self, all_namespaces: bool) -> list[dict[str, str]]:
        return [
            {"name": f"other-trainer-{number}", "namespace": space}
            for space, count in self.others.items()
            for number in range(count)
        ]


@pytest.fixture(autouse=True)
def _played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "draining", lambda ray: ray.draining)
    monkeypatch.setattr(internals, "node_types", lambda ray: ray.types)
    monkeypatch.setattr(internals, "autoscales", lambda ray: ray.grows)


def watch(cluster: Cluster, told: list[str] | None = None, **resources: Any) -> Nodes:
    return Nodes(cluster, ResourceSpec(**resources), ([] if told is None else told).append)


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
def test_room(resources: dict, room: int) -> None:
    cluster = Cluster(
        here={"CPU": 2, "memory": 4.0 * GIB},
        there={"CPU": 2, "GPU": 1, "memory": 7.0 * GIB, "tape": 0.5},
    )
    cluster.labels["there"] = {"kind": "old"}
    nodes = watch(cluster, **resources)
    nodes.require_room()
    assert nodes.room(ready=0).start == room


def test_what_never_fits_is_refused() -> None:
    cluster = Cluster(here={"CPU": 2})
    for resources, needs in (
        ({"num_gpus": 1}, "of 1 CPU and 1 GPU"),
        ({"memory": "1TiB"}, "of 1 CPU and 1.02e+03 GiB memory"),
        ({"label_selector": {"kind": "old"}}, "of 1 CPU and kind old"),
    ):
        with pytest.raises(NoClusterError, match="no node of this cluster fits") as refused:
            watch(cluster, **resources).require_room()
        assert needs in str(refused.value)


def test_an_autoscaler_is_asked_unless_it_can_never_help() -> None:
    """Ray's first autoscaler does not tell its types of nodes, the second does."""
    cluster = Cluster(head={})
    cluster.grows = True
    watch(cluster, num_gpus=1).require_room()
    cluster.types = (NodeType("cpu", {"CPU": 4}, 10), NodeType("gpu", {"CPU": 8, "GPU": 1}, 2))
    watch(cluster, num_gpus=1).require_room()
    with pytest.raises(NoClusterError, match="its configuration has cpu, gpu"):
        watch(cluster, num_gpus=2).require_room()


def test_demand_is_bounded_and_grows_with_what_came() -> None:
    cluster = Cluster(head={})
    cluster.grows = True
    assert watch(cluster).room(ready=0).start == 1 + PENDING
    assert watch(cluster, max_concurrent_trainers=40).room(ready=0).start == 40
    cluster.members["a"] = {"CPU": 64}
    assert watch(cluster).room(ready=64).start == 128
    cluster.types = (NodeType("a", {"CPU": 64}, 1),)
    assert watch(cluster).room(ready=64).start == 64, "no more nodes can come"


def test_drained_nodes_count_no_more() -> None:
    cluster = Cluster(a={"CPU": 2}, b={"CPU": 1})
    cluster.draining = {"a"}
    nodes = watch(cluster)
    assert nodes.room(ready=3).start == 1
    assert nodes.leaving == {"a"}


def test_a_node_at_fault_is_left_out_unless_it_is_the_last() -> None:
    cluster = Cluster(a={"CPU": 2}, b={"CPU": 1})
    nodes = watch(cluster, told := [])
    for _ in range(FAULTS_PER_NODE):
        assert nodes.room(ready=3).start == 3
        assert nodes.options["label_selector"] == {}
        nodes.fault(Place("a", "10.0.0.1"))
    assert nodes.room(ready=3).start == 1
    assert nodes.options["label_selector"] == {"ray.io/node-id": "!in(a)"}
    assert len(told) == 1
    assert told[0].startswith("node 10.0.0.1 is left out: 2 of its trainers failed")
    for _ in range(2 * FAULTS_PER_NODE):
        nodes.fault(Place("b", "10.0.0.2"))
    assert nodes.room(ready=1).start == 1


def test_a_node_with_other_code_is_left_out_and_the_last_one_ends_the_run() -> None:
    nodes = watch(Cluster(a={"CPU": 2}, b={"CPU": 2}), told := [])
    for _ in range(2):
        nodes.leave_out(Place("a", "10.0.0.1"), "it has torch 3")
    assert told == ["node 10.0.0.1 is left out: it has torch 3"]
    assert nodes.leaving == {"a"}
    assert nodes.room(ready=0).start == 2
    with pytest.raises(NoClusterError, match=r"^node 10.0.0.2 is left out: it has torch 3, and no"):
        nodes.leave_out(Place("b", "10.0.0.2"), "it has torch 3")


def test_max_min_parts() -> None:
    assert fair_part([]) == 1
    assert fair_part([1.0]) == 0.5
    assert fair_part([0.25]) == 0.75
    assert fair_part([0.1, 5.0]) == pytest.approx(0.45)
    assert fair_part([1.0, 1.0, 1.0]) == 0.25


def test_sweeps_share_a_cluster_without_passing_a_trainer_to_and_fro() -> None:
    """Two sweeps of equal needs on three CPUs, looking in turn, whoever came first."""
    cluster = Cluster(a={"CPU": 2}, b={"CPU": 1})
    space = "dpaudit-00000000-1.0000-0.0000"
    held = [3, 0]
    history = []
    for turn in range(8):
        mine, other = turn % 2, 1 - turn % 2
        cluster.others = {space: held[other]}
        room = watch(cluster).room(ready=held[mine])
        held[mine] = min(room.start, room.keep)
        history.append(tuple(held))
    assert history[1] == (3, 1), "the second asks for its part"
    assert set(history[3:]) == {(2, 1)}


def test_cpus_and_gpus_are_shared_apart() -> None:
    cluster = Cluster(a={"CPU": 60}, b={"CPU": 4, "GPU": 4})
    cluster.others = {"dpaudit-00000000-1.0000-0.0000": 64}
    assert watch(cluster, num_gpus=1).room(ready=0).start == 4
    cluster.others = {"dpaudit-00000000-1.0000-1.0000": 4}
    assert watch(cluster, num_gpus=1).room(ready=0).start == 2
    assert watch(cluster).room(ready=64).keep == 60
    cluster.others = {"somebody-else": 64}
    assert watch(cluster).room(ready=64).keep == 64


def test_needs_are_rays_options() -> None:
    spec = ResourceSpec(
        num_gpus=0.5, memory="2GiB", custom_resources={"tape": 1}, label_selector={"kind": "old"}
    )
    assert Needs.of(spec).options({"b", "a"}) == {
        "num_cpus": 1,
        "num_gpus": 0.5,
        "memory": 2 * GIB,
        "resources": {"tape": 1},
        "label_selector": {"kind": "old", "ray.io/node-id": "!in(a,b)"},
    }


def test_a_node_that_nobody_answers_for_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as raylet:
        cluster = Cluster(a={"CPU": 2})
        cluster.address = raylet.getsockname()[:2]
        nodes = watch(cluster)
        assert nodes.alive(Place("a", "127.0.0.1"))
        assert not nodes.alive(Place("b", "127.0.0.1"))
    assert not nodes.alive(Place("a", "127.0.0.1"))


OLD, NEW = "0123456789abcdef", "fedcba9876543210"


def test_who_holds_the_places_is_said_while_no_trainer_has_one() -> None:
    cluster, told = Cluster(a={"CPU": 4}), list[str]()
    nodes = watch(cluster, told)
    cluster.others = {"dpaudit-0123456789ab-1.0000-0.0000": 3, nodes.share.namespace: 2}
    nodes.tell_what_for(2, nodes.room(0))
    assert "nothing else runs on it, and places are held by 3 trainers of other" in told[0]


@pytest.mark.parametrize(("owner", "ended"), [(OLD, 3), ("", 0), ("0", 0), ("*" * 16, 0)])
def test_only_actors_of_the_driver_that_had_the_run_are_ended(owner: str, ended: int) -> None:
    """What a run directory says of its driver may be anybody's writing."""
    cluster, killed = Cluster(a={"CPU": 4}), list[str]()
    before = Share(cluster, Needs.of(ResourceSpec()), OLD).namespace
    other = Share(cluster, Needs.of(ResourceSpec()), NEW)
    cluster.others = {before: 3, other.namespace: 2, "dpaudit-0123456-1.0000-0.0000": 1}
    cluster.get_actor = lambda name, namespace: namespace
    cluster.kill = killed.append
    assert other.end(owner) == ended
    assert killed == [before] * ended
