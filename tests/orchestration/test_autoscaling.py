"""Ray's own autoscaler, whose nodes are processes of this machine: from none to three and back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import dpaudit_ray as da
from tests.command import changed, write_sweep
from tests.head import Head, head, wait_for
from tests.orchestration.nodes import SMALL, actors, driver, tree
from tests.orchestration.test_faults import assert_same
from tests.pace import Pace

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def growing() -> Iterator[Head]:
    """A head without CPUs; up to three nodes of one CPU, each taken away after 6 idle seconds."""
    worker = {
        "resources": {"CPU": 1, "object_store_memory": SMALL},
        "node_config": {},
        "min_workers": 0,
        "max_workers": 3,
    }
    with head(cpus=0, dashboard=False, worker=worker) as center:
        yield center


def raylets() -> int:
    """Nodes that the autoscaler runs now."""
    found = 0
    for process in tree(os.getpid()):
        try:
            command = process.cmdline()
        except psutil.Error:
            continue
        found += command[:1] != [] and command[0].endswith("raylet") and "--head" not in command
    return found


def running() -> int:
    """Trainers that have their place."""
    return len(actors(os.getpid(), "Trainer"))


def test_two_sweeps_on_nodes_that_come_and_go(
    growing: Head, light: dict, pace: Pace, tmp_path: Path
) -> None:
    """The first gets all nodes, gives the second its share and has it back; then all nodes go."""
    short = write_sweep(tmp_path, pace.of(changed(light, "audit.trials", 100)))
    quiet = da.run(short, storage_path=str(tmp_path / "quiet"), executor="inline").location
    (tmp_path / "long").mkdir()
    long = write_sweep(tmp_path / "long", changed(light, "audit.trials", 20_000))
    pace.slow(0.4)
    assert raylets() == 0
    with driver(growing, long, tmp_path / "first") as first:
        first.wait_for(lambda: running() == 3)
        assert first.output.count("waiting for nodes: ") == 1
        with driver(growing, short, tmp_path / "second") as second:
            assert second.ends() == 0, second.output
        before = first.packs
        first.wait_for(lambda: running() == 3 and first.packs > before + 9)
        first.process.terminate()
        assert first.ends() == 4
    output = first.output + second.output
    assert "Traceback" not in output
    assert "worker lost" not in output
    assert_same(tmp_path / "second/tiny", quiet)
    wait_for(lambda: raylets() == 0)
