"""Which nodes count, with a cluster that is played: no Ray process, no waiting."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpaudit_ray.errors import NoClusterError, RunDirectoryError
from dpaudit_ray.orchestration import actors
from dpaudit_ray.orchestration.nodes import PROBE, PROBE_SECONDS, Nodes
from dpaudit_ray.spec import ResourceSpec
from dpaudit_ray.storage import RunDirectory


class SilentError(Exception):
    """Stands for Ray's error of a call that has no answer."""


class Cluster:
    """Plays the parts of Ray that are asked. Nodes answer what `answers` says, or nothing."""

    def __init__(self) -> None:
        self.members: dict[str, dict[str, float]] = {}
        self.answers: dict[str, bool] = {}
        self.exceptions = SimpleNamespace(
            GetTimeoutError=SilentError, RayTaskError=KeyboardInterrupt, RayError=KeyboardInterrupt
        )
        self.util = SimpleNamespace(
            scheduling_strategies=SimpleNamespace(
                NodeAffinitySchedulingStrategy=lambda name, soft: name
            )
        )
        no_autoscaler = SimpleNamespace(get_max_resources_from_cluster_config=lambda: None)
        self._private = SimpleNamespace(state=SimpleNamespace(state=no_autoscaler))

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "here")

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": name, "NodeManagerAddress": name, "Alive": True, "Resources": held}
            for name, held in self.members.items()
        ]

    def cluster_resources(self) -> dict[str, float]:
        return {}

    def wait(self, probes: list[str], timeout: float) -> tuple[list[str], list[str]]:
        return [p for p in probes if p in self.answers], []

    def get(self, probe: str, timeout: float) -> bool:
        if probe not in self.answers:
            raise SilentError
        return self.answers[probe]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    def options(name: str, scheduling_strategy: str) -> Any:
        return SimpleNamespace(remote=lambda *arguments: scheduling_strategy)

    monkeypatch.setattr(actors, "sees", SimpleNamespace(options=options))
    played = Cluster()
    played.members["here"] = {"CPU": 2}
    return played


def watch(cluster: Cluster, folder: Path, told: list[str], **resources: Any) -> Nodes:
    return Nodes(cluster, ResourceSpec(**resources), RunDirectory(str(folder)), told.append)


def test_a_node_counts_once_it_has_answered(cluster: Cluster, tmp_path: Path) -> None:
    nodes = watch(cluster, tmp_path, told := [])
    nodes.require_shared()
    assert nodes.room() == 2
    cluster.members |= {"a": {"CPU": 4}, "b": {"CPU": 8}}
    assert nodes.room() == 2
    assert (tmp_path / PROBE).exists()
    cluster.answers["a"] = True
    assert nodes.room() == 6
    cluster.answers["b"] = False
    assert nodes.room() == 6
    assert not (tmp_path / PROBE).exists()
    assert nodes.selector == {"ray.io/node-id": "!in(b)"}
    assert len(told) == 1
    assert told[0].startswith("node b has joined, does not see what the driver wrote")
    del cluster.members["a"]
    assert nodes.room() == 2


def test_a_node_that_stays_silent_is_left_out(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = watch(cluster, tmp_path, told := [])
    cluster.members["a"] = {"CPU": 4}
    assert nodes.room() == 2
    monkeypatch.setattr("time.monotonic", lambda: 1e12)
    assert nodes.room() == 2
    assert f"did not answer for {PROBE_SECONDS:g} s" in told[0]


def test_at_the_start_a_node_without_the_storage_is_refused(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.members["a"], cluster.answers["a"] = {"CPU": 4}, False
    with pytest.raises(RunDirectoryError, match="is not shared: node a does not see"):
        watch(cluster, tmp_path, []).require_shared()
    assert not (tmp_path / PROBE).exists()


@pytest.mark.parametrize(
    ("resources", "room"),
    [
        ({}, 4),
        ({"num_cpus": 2}, 2),
        ({"num_gpus": 0.25}, 2),
        ({"num_gpus": 1}, 1),
        ({"max_concurrent_trainers": 3}, 3),
    ],
)
def test_room(cluster: Cluster, tmp_path: Path, resources: dict, room: int) -> None:
    cluster.members["a"], cluster.answers["a"] = {"CPU": 2, "GPU": 1}, True
    nodes = watch(cluster, tmp_path, [], **resources)
    nodes.require_room()
    nodes.require_shared()
    assert nodes.room() == room


def test_what_never_fits_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(NoClusterError, match="fits a trainer of 1 CPU and 1 GPU"):
        watch(cluster, tmp_path, [], num_gpus=1).require_room()
