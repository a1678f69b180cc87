"""Many kills on a real cluster: the results are those of a quiet run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import dpaudit_ray as da
from dpaudit_ray import plan as planning
from dpaudit_ray.storage import RunDirectory
from tests.chaos.storm import Kind, Storm
from tests.command import changed, write_sweep
from tests.head import head
from tests.long import long
from tests.orchestration.nodes import nodes
from tests.orchestration.test_faults import assert_same

pytestmark = pytest.mark.slow
LONG = long("33 kills during 600 packs take minutes on two cores")


def survives(
    sweep: dict, folder: Path, size: int, kinds: list[Kind], pause: tuple[float, float]
) -> None:
    """Runs a sweep on `size` nodes and a head through one kill for each entry of `kinds`."""
    changed(sweep, "resources.max_worker_losses", 1000)
    quiet = da.run(sweep, storage_path=str(folder / "quiet"), executor="inline")
    packs = planning.require(RunDirectory(quiet.location)).trials // 10
    file, storage = write_sweep(folder, sweep), folder / "stormy"
    with head(cpus=0, dashboard=False) as center, nodes(center) as around:
        for _ in range(size):
            around.join()
        storm = Storm(around, file, storage, seed=5)
        try:
            storm.rage(kinds, packs, pause)
            assert storm.end(600) == 0, storm.driver.output
        finally:
            storm.driver.kill()
    assert Counter(kill.kind for kill in storm.kills) == Counter(kinds)
    assert "Traceback" not in storm.driver.output
    assert storm.driver.packs == packs
    assert_same(storage / "tiny", quiet.location)


def test_one_kill_of_each_kind(tiny: dict, tmp_path: Path) -> None:
    changed(tiny, "mechanism.steps", 300)
    changed(tiny, "audit.record_every", 100)
    changed(tiny, "audit.trials", 300)
    survives(tiny, tmp_path, 2, ["trainer", "trainer", "node", "aggregator", "driver"], (0.5, 3))


@LONG
@pytest.mark.timeout(3600)
def test_33_kills_during_600_packs(tiny: dict, tmp_path: Path) -> None:
    changed(tiny, "mechanism.steps", 300)
    changed(tiny, "audit.record_every", 100)
    changed(tiny, "audit.trials", 3000)
    kinds: list[Kind] = [*14 * ["trainer"], *7 * ["node"], *7 * ["aggregator"], *5 * ["driver"]]
    survives(tiny, tmp_path, 3, kinds, (2, 8))
