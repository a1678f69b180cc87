"""A pool that follows the cluster: nodes without the storage, taken back, or of an autoscaler.

Those of Ray's own autoscaler are processes of this machine: from none to three and back.
"""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import dpaudit_ray as da
from tests.command import changed, write_sweep
from tests.head import Head, actors, head, tree, wait_for
from tests.orchestration.nodes import SMALL, Nodes, drained, driver, nodes
from tests.orchestration.test_faults import assert_same

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def around() -> Iterator[Nodes]:
    """A cluster whose head has one CPU; every test adds its own nodes and takes them away."""
    with head(cpus=1, dashboard=False) as center, nodes(center) as joined:
        yield joined


def alone(place: Path) -> list[str]:
    """Starts a command that sees an empty folder at `place`; skips where that is not permitted."""
    place.mkdir()
    private = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    command = [*private, "sh", "-c", f'mount -t tmpfs tmpfs "{place}" && exec "$@"', "sh"]
    tried = subprocess.run([*command, "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        pytest.skip(f"a node cannot have a disk of its own here ({tried.stderr.strip()})")
    return command


def test_a_node_that_does_not_see_the_storage_trains_too(
    around, sweep_of_400, quiet_400, pace, tmp_path
):
    """Scores go through the aggregator, which is where the driver is: no one else needs it."""
    runs = tmp_path / "runs"
    node = around.joined(inside=alone(runs))
    pace.slow(0.4)
    with driver(around.head, sweep_of_400, runs) as run:
        run.wait_for(lambda: run.packs and len(actors(os.getpid(), "Trainer")) == 2)
        (near,) = set(actors(os.getpid(), "Trainer")) - set(node.actors("Trainer"))
        near.suspend()  # from here on only the node without the storage works
        before = run.packs
        run.wait_for(lambda: run.packs > before + 3)
        assert len(actors(os.getpid(), "Aggregator")) == 1
        assert not node.actors("Aggregator")
        near.resume()
        pace.hurry()
        assert run.ends() == 0, run.output
    around.lose(node)
    assert_same(runs / "tiny", quiet_400)


def test_a_drained_node_is_given_no_more_and_its_loss_is_no_failure(around, light, pace, tmp_path):
    """As when the owner of a spot node takes it back: a notice first, the end a moment later."""
    changed(light, "resources.max_worker_losses", 0)
    pace.slow(0.4)
    sweep = write_sweep(tmp_path, pace.of(changed(light, "audit.trials", 1000)))
    node = around.joined(cpus=2)
    with driver(around.head, sweep, tmp_path / "runs") as run:
        run.wait_for(lambda: run.packs and len(node.actors("Trainer")) == 2)
        drained(around.head, node)
        run.wait_for(lambda: not node.actors("Trainer"))  # they end what they have, and go
        assert "worker lost" not in run.output
        around.lose(node)
        pace.hurry()
        assert run.ends() == 0, run.output
    assert "Traceback" not in run.output


@pytest.fixture(scope="module")
def growing() -> Iterator[Head]:
    """A head without CPUs; up to three nodes of one CPU, each taken away after 6 idle seconds."""
    resources = {"CPU": 1, "object_store_memory": SMALL}
    worker = {"resources": resources, "node_config": {}, "min_workers": 0, "max_workers": 3}
    with head(cpus=0, dashboard=False, worker=worker) as center:
        yield center


def raylets() -> int:
    """Nodes that the autoscaler runs now."""
    found = 0
    for process in tree(os.getpid()):
        with contextlib.suppress(psutil.Error):
            command = process.cmdline() or [""]
            found += command[0].endswith("raylet") and "--head" not in command
    return found


def test_two_sweeps_on_nodes_that_come_and_go(growing, light, pace, tmp_path):
    """The first leaves a node to the second, as it is told to; in the end all nodes go."""
    short = write_sweep(tmp_path, pace.of(changed(light, "audit.trials", 100)))
    quiet = da.run(short, storage_path=str(tmp_path / "quiet"), executor="inline").location
    (tmp_path / "long").mkdir()
    changed(light, "resources.max_concurrent_trainers", 2)
    long = write_sweep(tmp_path / "long", changed(light, "audit.trials", 20_000))
    pace.slow(0.4)
    assert raylets() == 0
    with driver(growing, long, tmp_path / "first") as first:
        first.wait_for(lambda: len(actors(os.getpid(), "Trainer")) == 2)
        assert "waiting for nodes: " in first.output
        with driver(growing, short, tmp_path / "second") as second:
            assert second.ends() == 0, second.output
        before = first.packs
        first.wait_for(lambda: first.packs > before + 9)
        first.process.terminate()
        assert first.ends() == 4
    output = first.output + second.output
    assert "Traceback" not in output
    assert "worker lost" not in output
    assert_same(tmp_path / "second/tiny", quiet)
    wait_for(lambda: raylets() == 0)
