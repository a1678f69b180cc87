"""A sweep on several nodes while blow after blow falls on it, at random."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tests.head import Head, actors, head, tree, wait_for
from tests.orchestration.nodes import Driver, Node, Nodes, drained, ids, nodes

Kind = Literal["trainer", "node", "drain", "aggregator", "driver", "pause", "gcs"]
IN_A_ROW = 4  # blows that may follow each other without any progress between them
PACED = 0.75  # of the work: a drain late in a storm took 21 s, and the rest was done meanwhile
TAKEN_OVER = 120.0  # seconds in which a paused driver's run must be another one's
log = logging.getLogger("chaos")


@dataclasses.dataclass(frozen=True)
class Blow:
    """One of them: when, with how many trials done, at what."""

    second: float
    trials: int
    kind: Kind
    victim: str

    def __str__(self) -> str:
        return f"{self.second:6.1f} s {self.trials:6d} trials  {self.kind:10s} {self.victim}"


class Cluster:
    """A head without CPUs and `size` nodes of one CPU; gone with the block, and can be had anew."""

    def __init__(self, size: int) -> None:
        self._size, self._stack = size, contextlib.ExitStack()

    def __enter__(self) -> Cluster:
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
        self._cluster, self._sweep, self.storage = cluster, sweep, storage
        self._random = random.Random(seed)
        self._started = time.monotonic()
        self.blows: list[Blow] = []
        self._killed = set[int]()
        self.again = Counter[int]()  # by the exit code of the driver before
        self.driver = self._another()

    def rage(self, kinds: Sequence[Kind], trials: int, pause: tuple[float, float]) -> None:
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
            victim = self._until(functools.partial(self._strike, kind))
            second = time.monotonic() - self._started
            self.blows.append(Blow(second, self.driver.trials, kind, victim))
            log.info("%s", self.blows[-1])

    def end(self, seconds: float) -> int:
        """Waits for the driver; returns its exit code."""
        while (code := self.driver.ends(seconds)) in (3, 4):
            self._again()
        log.info(
            "%6.1f s %5d trials  the end", time.monotonic() - self._started, self.driver.trials
        )
        return code

    def _another(self, *more: str) -> Driver:
        return Driver(self._cluster.head, self._sweep, self.storage, *more)

    def _again(self) -> None:
        """Goes on as a user would.

        Storage that failed too often ends the driver with 4. A pack whose trainer was killed five
        times is given up, which is 3: nobody can tell that it was not the pack's fault.
        """
        code = self.driver.process.returncode
        assert code in (3, 4), self.driver.output[-3000:]
        log.info("exit code %d, and again", code)
        self.again[code] += 1
        self.driver = self._another(*(["--retry-failed"] if code == 3 else []))

    def _until(self, what: functools.partial[str | None], seconds: float = 180) -> str:
        def found() -> str | None:
            if self.driver.process.poll() is not None:
                self._again()
            return what()

        victim: str = wait_for(found, seconds)
        return victim

    def _wait_for(self, least: int) -> None:
        def enough() -> str | None:
            return "enough" if self.driver.trials >= least else None

        self._until(functools.partial(enough))

    def _strike(self, kind: Kind) -> str | None:
        """Strikes one of a kind; returns its description, None when there is none just now."""
        if kind in ("trainer", "aggregator"):
            found = actors(os.getpid(), kind.capitalize())
            found = [one for one in found if one.pid not in self._killed]  # it takes a moment
            if not found:
                return None
            chosen = self._random.choice(found)
            chosen.kill()
            self._killed.add(chosen.pid)
            return f"process {chosen.pid}"
        strikes = {
            "node": self._lose, "drain": self._drain, "driver": self._kill_driver,
            "pause": self._pause_driver, "gcs": self._kill_gcs,
        }  # fmt: skip
        return strikes[kind]()

    def _chosen(self) -> Node:
        return self._random.choice(self._cluster.nodes.all)

    def _lose(self) -> str:
        victim = self._chosen()
        self._cluster.nodes.lose(victim)
        return f"{victim.address}, {self._cluster.nodes.join().address} joins"

    def _drain(self) -> str | None:
        victim = self._chosen()
        if not victim.joined or victim.address not in ids(self._cluster.head):
            return None
        drained(self._cluster.head, victim)
        other = self._cluster.nodes.joined()
        self._cluster.nodes.lose(victim)
        return f"{victim.address}, {other.address} joins"

    def _kill_driver(self) -> str:
        before = self.driver
        before.kill()
        self.driver = self._another()
        return f"process {before.process.pid}, {self.driver.process.pid} takes over"

    def _pause_driver(self) -> str | None:
        """It comes back when another driver has worked on the run for a while, and must go."""
        before, around = self.driver, self._cluster.nodes
        if before.at_work != before.process.pid:
            return None  # one that was stopped at its start is refused, like any second one
        before.process.send_signal(signal.SIGSTOP)
        extra = around.joined()  # the paused one's trainers keep their places
        deadline, trials = time.monotonic() + TAKEN_OVER, before.trials
        self.driver = self._another()
        while not self._works_on(trials):
            assert time.monotonic() < deadline, self.driver.output[-3000:]
            if self.driver.process.poll() is not None:
                self.driver = self._another()
            time.sleep(0.2)
        before.process.send_signal(signal.SIGCONT)
        assert before.ends(300) == 4, before.output[-3000:]
        around.lose(extra)
        return f"process {before.process.pid}, {self.driver.process.pid} takes over"

    def _works_on(self, trials: int) -> bool:
        ended = self.driver.process.poll() is not None
        return (ended and self.driver.process.returncode == 0) or self.driver.trials > trials

    def _kill_gcs(self) -> str:
        """The cluster is gone with it: the driver says so and ends, and another one resumes."""
        (server,) = [p for p in tree(self._cluster.head.pid) if p.name() == "gcs_server"]
        server.kill()
        code = self.driver.ends(300)
        new = code == 2 and "cannot reach a Ray cluster" in self.driver.output[-1000:]
        assert code == 4 or new, self.driver.output[-3000:]
        self._cluster.again()
        self.driver = self._another()
        return f"process {server.pid}, a new head at {self._cluster.head.gcs}"
