"""A pool that follows the cluster: nodes have a GPU, do not see the storage, join, are lost."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.command import changed, write_sweep
from tests.head import head
from tests.orchestration.nodes import Node, Nodes, actors, driver, nodes
from tests.orchestration.test_faults import assert_same

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def around() -> Iterator[Nodes]:
    """A cluster whose head has one CPU; every test adds its own nodes and takes them away."""
    with head(cpus=1, dashboard=False) as center, nodes(center) as joined:
        yield joined


def trainers(besides: Node | None = None) -> list[psutil.Process]:
    """Trainers on all nodes, or on all but one."""
    there = besides.actors("Trainer") if besides else []
    return [found for found in actors(os.getpid(), "Trainer") if found not in there]


def test_trainers_with_a_gpu_stay_off_nodes_without(
    around: Nodes, tiny: dict, tmp_path: Path
) -> None:
    """The GPU is one that Ray is told of: a landscape audit computes on the CPU anyway."""
    tiny["mechanism"] = {"name": "landscape", "steps": 50, "batch_size": 2, "noise_multiplier": 2.0}
    tiny["resources"] |= {"num_gpus": 0.5, "pack_size": 100}
    tiny["adversary"] = {"name": "landscape"}
    del tiny["grid"]
    changed(tiny, "audit.record_every", 50)
    changed(tiny, "audit.trials", 1_000_000)
    sweep, storage = write_sweep(tmp_path, tiny), tmp_path / "runs"
    with driver(around.head, sweep, storage) as run:
        assert run.ends() == 2
        assert "no node of this cluster fits a trainer of 1 CPU and 0.5 GPU" in run.output
    node = around.joined(cpus=3, gpus=1)
    with driver(around.head, sweep, storage) as run:
        run.wait_for(lambda: run.packs > 3 and len(node.actors("Trainer")) == 2)
        assert not trainers(besides=node)
        run.process.terminate()
        assert run.ends() == 4
    around.leave(node)


def alone(place: Path) -> list[str]:
    """Starts a command that sees an empty folder at `place`; skips where that is not permitted."""
    place.mkdir()
    private = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    command = [*private, "sh", "-c", f'mount -t tmpfs tmpfs "{place}" && exec "$@"', "sh"]
    tried = subprocess.run([*command, "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        pytest.skip(f"a node cannot have a disk of its own here ({tried.stderr.strip()})")
    return command


def test_a_node_that_does_not_see_the_storage(
    around: Nodes, sweep_of_400: Path, quiet_400: str, tmp_path: Path
) -> None:
    """Refused at the start; told and left out when it joins later."""
    runs = tmp_path / "runs"
    hidden = alone(runs)
    node = around.joined(inside=hidden)
    with driver(around.head, sweep_of_400, runs) as run:
        assert run.ends() == 2
        assert f"{runs}/tiny is not shared: node {node.address} does not see" in run.output
        assert run.output.count("dpaudit: ") == 1
    around.leave(node)
    with driver(around.head, sweep_of_400, runs) as run:
        (first,) = run.wait_for(lambda: run.packs and trainers())
        first.suspend()
        node = around.joined(inside=hidden)
        run.wait_for(lambda: f"node {node.address} has joined, does not see" in run.output)
        first.resume()
        assert run.ends() == 0, run.output
        assert not node.actors("Trainer")
    around.leave(node)
    assert_same(runs / "tiny", quiet_400)


def test_a_node_joins_and_is_lost(
    around: Nodes, sweep_of_400: Path, quiet_400: str, tmp_path: Path
) -> None:
    """Trainers without num_gpus take a node with a GPU as well as one without."""
    with driver(around.head, sweep_of_400, tmp_path / "runs") as run:
        (first,) = run.wait_for(lambda: run.packs and trainers())
        first.suspend()  # from here on only the new node works
        before = run.packs
        node = around.joined(gpus=1)
        run.wait_for(lambda: node.actors("Trainer"))
        run.wait_for(lambda: run.packs > before + 3)
        around.lose(node)
        assert run.packs < 80
        first.resume()
        assert run.ends() == 0, run.output
    assert "Traceback" not in run.output
    assert_same(tmp_path / "runs/tiny", quiet_400)
