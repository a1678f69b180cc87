"""Many blows on a real cluster: the results are those of a quiet run."""

import dataclasses
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

import dpaudit_ray as da
from tests.chaos.storm import Cluster, Kind, Storm
from tests.command import changed, write_sweep
from tests.long import long
from tests.orchestration.test_faults import assert_same
from tests.pace import Pace

pytestmark = pytest.mark.cluster
HUNDRED: dict[Kind, int] = {
    "trainer": 54, "node": 20, "aggregator": 12, "driver": 7, "drain": 4, "pause": 2, "gcs": 1,
}  # fmt: skip
STORMS = int(os.environ.get("DPAUDIT_STORMS", "1"))  # `make chaos STORMS=10` takes hours

FAULTS = """
import errno, os, random
sync, dice = os.fsync, random.Random(os.getpid())

def fails_at_times(file):
    if dice.random() < 1 / 60:
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    sync(file)

os.fsync = fails_at_times
"""  # a write syncs twice


@dataclasses.dataclass(frozen=True)
class Weather:
    """What falls on a sweep, in a random order, with pauses of so many seconds."""

    kinds: Sequence[Kind]
    pause: tuple[float, float]
    seed: int = 5


def survives(
    sweep: dict, folder: Path, size: int, weather: Weather, pace: Pace | None = None
) -> None:
    """Runs a sweep on `size` nodes and a head through one blow for each of its kinds."""
    changed(sweep, "resources.max_worker_losses", 1000)
    quiet = da.run(sweep, storage_path=str(folder / "quiet"), executor="inline")
    if pace is not None:
        pace.slow(0.5)
    trials = len(quiet.scores.drop_duplicates(["audit", "trial"]))
    with Cluster(size) as around:
        storm = Storm(around, write_sweep(folder, sweep), folder / "stormy", weather.seed)
        try:
            storm.rage(weather.kinds, trials, weather.pause)
            assert storm.end(600) == 0, storm.driver.output
        finally:
            storm.driver.kill()
    assert Counter(blow.kind for blow in storm.blows) == Counter(weather.kinds)
    assert "Traceback" not in storm.driver.output
    assert storm.driver.trials == trials
    assert_same(folder / "stormy/tiny", quiet.location)


def test_one_kill_of_each_kind(light, pace, tmp_path):
    """Trainers that start again wait for no torch; those of a hundred blows do."""
    pace.of(changed(light, "audit.trials", 300))
    kinds: list[Kind] = ["trainer", "trainer", "node", "aggregator", "driver"]
    survives(light, tmp_path, 2, Weather(kinds, (0.5, 3)), pace)


@long("a hundred blows during 1200 packs take ten minutes on two cores")
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(STORMS))
def test_a_hundred_blows_while_writes_fail(seed, tiny, tmp_path, monkeypatch):
    """One write in thirty fails, in every process of Ray's and ours."""
    changed(tiny, "mechanism.steps", 300)
    changed(tiny, "audit.record_every", 100)
    changed(tiny, "audit.trials", 6000)
    (tmp_path / "sitecustomize.py").write_text(FAULTS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    kinds = [kind for kind, count in HUNDRED.items() for _ in range(count)]
    survives(tiny, tmp_path, 3, Weather(kinds, (1, 6), seed))
