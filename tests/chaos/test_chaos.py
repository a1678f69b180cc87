"""A sweep while blow after blow falls on it, and while processes of it stand still.

Its results are those of a quiet run. What hangs is not what dies: it is stopped, and goes on later.
"""

import contextlib
import logging
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import psutil
import pytest

import dpaudit_ray as da
from dpaudit_ray.errors import Exit
from tests.command import changed, write_sweep
from tests.head import Head, actors, head, tree, wait_for
from tests.long import long
from tests.orchestration.nodes import Driver, Node, Nodes, drained, ids, nodes
from tests.orchestration.test_faults import assert_same
from tests.pace import Pace

pytestmark = pytest.mark.cluster
Kind = Literal["trainer", "node", "drain", "aggregator", "driver", "pause", "gcs"]
HUNDRED: dict[Kind, int] = {
    "trainer": 54, "node": 20, "aggregator": 12, "driver": 7, "drain": 4, "pause": 2, "gcs": 1,
}  # fmt: skip
STORMS = int(os.environ.get("DPAUDIT_STORMS", "1"))  # `make chaos STORMS=10` takes hours
IN_A_ROW = 4  # blows that may follow each other without any progress between them
PACED = 0.75  # of the work: a drain late in a storm took 21 s, and the rest was done meanwhile
TAKEN_OVER = 120.0  # seconds in which a paused driver's run must be another one's
Stopped = Literal["gcs", "raylet", "node", "aggregator", "trainer", "driver"]
SAID, DEADLINE = 30.0, 20  # seconds: until a line, and resources.pack_deadline of the sweep
ASKED = "finished packs are safe"
LINES: dict[Stopped, str] = {
    "gcs": "the cluster's head at ",
    "raylet": "Ray on this node has not answered",
    "node": " has left (",
    "aggregator": "the aggregator has not answered",
    "trainer": f"was silent for {DEADLINE} s",
    "driver": "that had this run before are ended",
}
log = logging.getLogger("chaos")

FAULTS = """
import errno, os, random
sync, dice = os.fsync, random.Random(os.getpid())

def fails_at_times(file):
    if dice.random() < 1 / 60:
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    sync(file)

os.fsync = fails_at_times
"""  # a write syncs twice


class Cluster:
    """A head without CPUs and `size` nodes of one CPU; gone with the block, and can be had anew."""

    def __init__(self, size: int) -> None:
        self._size, self._stack = size, contextlib.ExitStack()

    def __enter__(self) -> "Cluster":
        self.head: Head = self._stack.enter_context(head(cpus=0, dashboard=False))
        self.nodes: Nodes = self._stack.enter_context(nodes(self.head))
        joining = [self.nodes.join() for _ in range(self._size)]
        wait_for(lambda: all(node.joined for node in joining))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def again(self) -> None:
        """Ends what is left of it, and starts one like it."""
        self._stack.close()
        self.__enter__()


class Storm:
    """Starts the driver, and again whenever it was lost.

    The order of the kinds and the choice of victims follow the seed; what runs at that moment
    does not.
    """

    def __init__(self, cluster: Cluster, sweep: Path, storage: Path, seed: int) -> None:
        self._cluster, self._sweep, self._storage = cluster, sweep, storage
        self._random = random.Random(seed)
        self._started = time.monotonic()
        self._killed = set[int]()
        self.blows: list[Kind] = []
        self.driver = self._another()

    def rage(self, kinds: list[Kind], trials: int, pause: tuple[float, float]) -> None:
        """One blow for every entry of `kinds`, in random order, while this many trials are done.

        Between two there is a random pause. It is cut short when the work would else be done too
        soon, and made longer when little of it was done since the last few.
        """
        order = self._random.sample(kinds, len(kinds))
        self._wait_for(1)
        for number, kind in enumerate(order, 1):
            moment = time.monotonic() + self._random.uniform(*pause)
            latest = PACED * trials * number // (len(order) + 1)
            while time.monotonic() < moment and self.driver.trials < latest:
                time.sleep(0.05)
            self._wait_for(int(PACED * trials * (number - IN_A_ROW) // (len(order) + 1)))
            victim = self._until(getattr(self, f"_{kind}"))
            self.blows.append(kind)
            self._log(f"{kind:10s} {victim}")

    def end(self, seconds: float) -> int:
        """Waits for the driver; returns its exit code."""
        while (code := self.driver.ends(seconds)) in (3, 4):
            self._again()
        self._log("the end")
        return code

    def _log(self, what: str) -> None:
        second = time.monotonic() - self._started
        log.info("%6.1f s %6d trials  %s", second, self.driver.trials, what)

    def _another(self, *more: str) -> Driver:
        return Driver(self._cluster.head, self._sweep, self._storage, *more)

    def _again(self) -> None:
        """Goes on as a user would.

        Storage that failed too often ends the driver with 4. A pack whose trainer was killed five
        times is given up, which is 3: nobody can tell that it was not the pack's fault.
        """
        code = self.driver.process.returncode
        assert code in (3, 4), self.driver.output[-3000:]
        self._log(f"exit code {code}, and again")
        self.driver = self._another(*(["--retry-failed"] if code == 3 else []))

    def _until(self, what: Callable[[], str | None], seconds: float = 180) -> str:
        def happened() -> str | None:
            if self.driver.process.poll() is not None:
                self._again()
            return what()

        victim: str = wait_for(happened, seconds)
        return victim

    def _wait_for(self, least: int) -> None:
        self._until(lambda: "enough" if self.driver.trials >= least else None)

    # Strikes of each kind return their victim's description, None where there is none just now.

    def _trainer(self, name: str = "Trainer") -> str | None:
        alive = [one for one in actors(os.getpid(), name) if one.pid not in self._killed]
        if not alive:  # it takes a moment
            return None
        victim = self._random.choice(alive)
        victim.kill()
        self._killed.add(victim.pid)
        return f"process {victim.pid}"

    def _aggregator(self) -> str | None:
        return self._trainer("Aggregator")

    def _any_node(self) -> Node:
        return self._random.choice(self._cluster.nodes.all)

    def _node(self) -> str:
        victim = self._any_node()
        self._cluster.nodes.lose(victim)
        return f"{victim.address}, {self._cluster.nodes.join().address} joins"

    def _drain(self) -> str | None:
        victim = self._any_node()
        if not victim.joined or victim.address not in ids(self._cluster.head):
            return None
        drained(self._cluster.head, victim)
        other = self._cluster.nodes.joined()
        self._cluster.nodes.lose(victim)
        return f"{victim.address}, {other.address} joins"

    def _driver(self) -> str:
        before = self.driver
        before.kill()
        self.driver = self._another()
        return f"process {before.process.pid}, {self.driver.process.pid} takes over"

    def _pause(self) -> str | None:
        """It comes back when another driver has worked on the run for a while, and must go."""
        before, around = self.driver, self._cluster.nodes
        if before.at_work != before.process.pid:
            return None  # one that was stopped at its start is refused, like any second one
        before.process.send_signal(signal.SIGSTOP)
        extra = around.joined()  # the paused one's trainers keep their places
        deadline, trials = time.monotonic() + TAKEN_OVER, before.trials
        self.driver = self._another()
        while not (self.driver.process.poll() == 0 or self.driver.trials > trials):
            assert time.monotonic() < deadline, self.driver.output[-3000:]
            if self.driver.process.poll() is not None:
                self.driver = self._another()
            time.sleep(0.2)
        before.process.send_signal(signal.SIGCONT)
        assert before.ends(300) == 4, before.output[-3000:]
        around.lose(extra)
        return f"process {before.process.pid}, {self.driver.process.pid} takes over"

    def _gcs(self) -> str:
        """The cluster is gone with it: the driver says so and ends, and another one resumes."""
        (server,) = [p for p in tree(self._cluster.head.pid) if p.name() == "gcs_server"]
        server.kill()
        code = self.driver.ends(300)
        new = code == 2 and "cannot reach a Ray cluster" in self.driver.output[-1000:]
        assert code == 4 or new, self.driver.output[-3000:]
        self._cluster.again()
        self.driver = self._another()
        return f"process {server.pid}, a new head at {self._cluster.head.gcs}"


def survives(
    sweep: dict,
    folder: Path,
    size: int,
    kinds: list[Kind],
    pause: tuple[float, float],
    seed: int = 5,
    pace: Pace | None = None,
) -> None:
    """Runs a sweep on `size` nodes and a head through one blow for each of `kinds`."""
    changed(sweep, "resources.max_worker_losses", 1000)
    quiet = da.run(sweep, storage_path=str(folder / "quiet"), executor="inline")
    if pace is not None:
        pace.slow(0.5)
    trials = len(quiet.scores.drop_duplicates(["audit", "trial"]))
    with Cluster(size) as around:
        storm = Storm(around, write_sweep(folder, sweep), folder / "stormy", seed)
        try:
            storm.rage(kinds, trials, pause)
            assert storm.end(600) == 0, storm.driver.output
        finally:
            storm.driver.kill()
    assert Counter(storm.blows) == Counter(kinds)
    assert "Traceback" not in storm.driver.output
    assert storm.driver.trials == trials
    assert_same(folder / "stormy/tiny", quiet.location)


def test_one_kill_of_each_kind(light, pace, tmp_path):
    """Trainers that start again wait for no torch; those of a hundred blows do."""
    pace.of(changed(light, "audit.trials", 300))
    kinds: list[Kind] = ["trainer", "trainer", "node", "aggregator", "driver"]
    survives(light, tmp_path, 2, kinds, (0.5, 3), pace=pace)


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
    survives(tiny, tmp_path, 3, list(Counter(HUNDRED).elements()), (1, 6), seed)


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

    def _victim(self, kind: Stopped) -> psutil.Process | None:
        """A process of a kind that may be stopped; None for none now."""
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

    def strike(self, kind: Stopped, asked: bool = False) -> tuple[float, float]:
        """Stops one process of a kind at a random moment; with `asked` the driver has to end, too.

        Returned are seconds until the line, and until the driver ended or trials came again.
        """
        ends = asked or kind in ("gcs", "raylet")
        if kind == "node":
            joined = self._joined()
            self.driver.wait_for(lambda: joined.actors("Trainer"))
        driver, before = self.driver, self.driver.trials
        driver.wait_for(lambda: driver.trials > before)
        time.sleep(self._random.uniform(0, 4))
        chosen = wait_for(lambda: self._victim(kind))
        self._struck.add(chosen.pid)
        heard = len(driver.output)
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
            if ends:
                assert driver.ends(60) == Exit.STOPPED, driver.output
            else:
                wait_for(lambda: driver.trials > before, 120)
            settled = time.monotonic() - began
        if kind == "driver":
            assert driver.ends(120) == Exit.STOPPED, driver.output
        if driver.process.poll() is not None and self.driver is driver:
            self.driver = Driver(self._center, self._sweep, self.storage)
        assert "Traceback" not in driver.output
        log.info("%s: said in %.1f s, settled in %.1f s", kind, said, settled)
        return said, settled


def survives_stops(
    kinds: list[Stopped], sweep: Path, folder: Path, seed: int, pace: Pace, asked: bool = False
) -> list[tuple[float, float]]:
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
    stops = survives_stops([kind] * 5, write_sweep(tmp_path, light), tmp_path, 5, pace)
    assert all(said < (90 if kind in ("driver", "node") else SAID) for said, _ in stops), stops


@long("a stop of each kind and a driver that is asked to end take five minutes on two cores")
@pytest.mark.timeout(3600)
def test_who_is_asked_to_stop_meanwhile_ends(light, pace, tmp_path):
    """The grace of running packs is 5 s; an aggregator is started again, to write what is done."""
    changed(light, "resources.grace_seconds", 5)
    pace.of(changed(light, "audit.trials", 2000))
    kinds: list[Stopped] = ["gcs", "raylet", "aggregator", "trainer"]
    stops = survives_stops(kinds, write_sweep(tmp_path, light), tmp_path, 2, pace, asked=True)
    limits = [SAID, SAID, 2 * SAID, SAID]
    assert all(s < limit for (_, s), limit in zip(stops, limits, strict=True)), stops
