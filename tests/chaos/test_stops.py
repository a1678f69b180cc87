"""What hangs is not what dies: processes that are stopped, at random moments, on a real cluster."""

import contextlib
import dataclasses
import logging
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import psutil
import pytest

import dpaudit_ray as da
from dpaudit_ray.errors import Exit
from tests.command import changed, write_sweep
from tests.head import actors, head, tree, wait_for
from tests.long import long
from tests.orchestration.nodes import Driver, Node, Nodes, nodes
from tests.orchestration.test_faults import assert_same
from tests.pace import Pace

pytestmark = pytest.mark.cluster
Kind = Literal["gcs", "raylet", "node", "aggregator", "trainer", "driver"]
SAID, DEADLINE = 30.0, 20  # seconds: until a line, and resources.pack_deadline of the sweep
ASKED = "finished packs are safe"
LINES: dict[Kind, str] = {
    "gcs": "the cluster's head at ",
    "raylet": "Ray on this node has not answered",
    "node": " has left (",
    "aggregator": "the aggregator has not answered",
    "trainer": f"was silent for {DEADLINE} s",
    "driver": "that had this run before are ended",
}
log = logging.getLogger("chaos")


@dataclasses.dataclass(frozen=True)
class Stop:
    """Seconds from SIGSTOP until the line, and until the driver ended or trials came again."""

    kind: Kind
    trials: int
    said: float
    settled: float
    how: str


@contextlib.contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    """Stopped, and never left so."""
    process.suspend()
    try:
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


class Stops:
    """Stops what a sweep is run by, again and again; the driver is started again where it ended."""

    def __init__(self, around: Nodes, sweep: Path, storage: Path, seed: int) -> None:
        self._nodes, self._center, self._sweep, self.storage = around, around.head, sweep, storage
        self._random, self._struck = random.Random(seed), set[int]()
        self.driver = Driver(around.head, sweep, storage)

    def _joined(self) -> Node:
        """A new node; Ray gives it 30 s to start, which a busy machine exceeds."""
        for _ in range(4):
            with contextlib.suppress(AssertionError):
                return self._nodes.joined()
        return self._nodes.joined()

    def _victim(self, kind: Kind) -> psutil.Process | None:
        """A process of a kind that was not stopped before, or may be again; None for none now."""
        if kind == "driver":
            return psutil.Process(self.driver.process.pid)
        if kind in ("aggregator", "trainer"):
            found = actors(os.getpid(), kind.capitalize())
            return next((one for one in found if one.pid not in self._struck), None)
        name = "gcs_server" if kind == "gcs" else "raylet"
        found = [one for one in tree(os.getpid()) if one.name() == name]
        own = {one.pid for one in found if str(self._center.temp) in " ".join(one.cmdline())}
        # Of other nodes the last one: the others were stopped before, and Ray has given them up.
        return [one for one in found if (one.pid in own) != (kind == "node")][-1]

    def strike(self, kind: Kind, asked: bool = False) -> Stop:
        """Stops one process of a kind at a random moment; returns when that was settled.

        With `asked` the driver is asked to stop, too, and has to end.
        """
        if kind == "node":
            joined = self._joined()
            self.driver.wait_for(lambda: joined.actors("Trainer"))
        driver, before = self.driver, self.driver.trials
        driver.wait_for(lambda: driver.trials > before)
        time.sleep(self._random.uniform(0, 4))
        chosen = wait_for(lambda: self._victim(kind))
        self._struck.add(chosen.pid)
        trials, heard = driver.trials, len(driver.output)
        with stopped(chosen):
            began = time.monotonic()
            if kind == "driver":
                self.driver = Driver(self._center, self._sweep, self.storage)
            if asked:
                time.sleep(2)
                driver.process.send_signal(signal.SIGTERM)
            line = ASKED if asked else LINES[kind]
            wait_for(lambda: line in driver.output[heard:], 120)
            said, before = time.monotonic() - began, driver.trials
            if asked or kind in ("gcs", "raylet"):
                assert driver.ends(60) == Exit.STOPPED, driver.output
            else:
                wait_for(lambda: driver.trials > before, 120)
            settled = time.monotonic() - began
        if kind == "driver":
            assert driver.ends(120) == Exit.STOPPED, driver.output
        if driver.process.poll() is not None and self.driver is driver:
            self.driver = Driver(self._center, self._sweep, self.storage)
        assert "Traceback" not in driver.output
        ended = asked or kind in ("gcs", "raylet")
        stop = Stop(kind, trials, said, settled, "ended" if ended else "healed")
        log.info("%s", stop)
        return stop


def survives(
    kinds: list[Kind], sweep: Path, folder: Path, seed: int, pace: Pace, asked: bool = False
) -> list[Stop]:
    """Runs a sweep on a head through stops of all `kinds`; `asked` to stop in each, or not."""
    quiet = da.run(sweep, storage_path=str(folder / "quiet"), executor="inline").location
    pace.slow(2.0)
    with head(dashboard=False) as center, nodes(center) as around:
        stops = Stops(around, sweep, folder / "runs", seed)
        try:
            told = [stops.strike(kind, asked) for kind in kinds]
        finally:
            stops.driver.kill()
    pace.hurry()
    assert da.run(sweep, storage_path=str(folder / "runs"), executor="inline").complete
    assert_same(folder / "runs/tiny", quiet)
    return told


@long("thirty stops take half an hour on two cores")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", LINES)
def test_five_stops_at_random_moments(kind, light, pace, tmp_path):
    """A trainer's limit is the deadline of its pack, a driver's its lease, a node's that of Ray."""
    changed(light, "resources.pack_deadline", DEADLINE)
    # Each node that is stopped leaves another one behind: the sweep must last until the fifth.
    pace.of(changed(light, "audit.trials", 6000 if kind == "node" else 2000))
    stops = survives([kind] * 5, write_sweep(tmp_path, light), tmp_path, 5, pace)
    assert all(stop.said < (90 if kind in ("driver", "node") else SAID) for stop in stops), stops


@long("a stop of each kind and a driver that is asked to end take five minutes on two cores")
@pytest.mark.timeout(3600)
def test_who_is_asked_to_stop_meanwhile_ends(light, pace, tmp_path):
    """The grace of running packs is 5 s; an aggregator is started again, to write what is done."""
    changed(light, "resources.grace_seconds", 5)
    pace.of(changed(light, "audit.trials", 2000))
    kinds: list[Kind] = ["gcs", "raylet", "aggregator", "trainer"]
    stops = survives(kinds, write_sweep(tmp_path, light), tmp_path, 2, pace, asked=True)
    limits = [SAID, SAID, 2 * SAID, SAID]
    assert all(s.settled < limit for s, limit in zip(stops, limits, strict=True)), stops
