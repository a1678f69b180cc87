"""A sweep on several nodes while its processes are killed, one after another, at random."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tests.orchestration.nodes import Driver, Nodes, actors

Kind = Literal["trainer", "node", "aggregator", "driver"]
IN_A_ROW = 4  # kills that may follow each other without any progress between them
log = logging.getLogger("chaos")


@dataclasses.dataclass(frozen=True)
class Kill:
    """One blow: when, with how many packs done, at what."""

    second: float
    packs: int
    kind: Kind
    victim: str

    def __str__(self) -> str:
        return f"{self.second:6.1f} s {self.packs:5d} packs  {self.kind:10s} {self.victim}"


class Storm:
    """Starts the driver, and again whenever it was killed.

    The order of the kinds and the choice of victims follow the seed; what runs at that moment
    does not.
    """

    def __init__(self, nodes: Nodes, sweep: Path, storage: Path, seed: int) -> None:
        self._nodes, self._sweep, self._storage = nodes, sweep, storage
        self._random = random.Random(seed)
        self._started = time.monotonic()
        self.kills: list[Kill] = []
        self.driver = Driver(nodes.head, sweep, storage)

    def rage(self, kinds: Sequence[Kind], packs: int, pause: tuple[float, float]) -> None:
        """One kill for every entry of `kinds`, in random order, spread over `packs` packs of work.

        Between two there is a random pause. It is cut short when the work would else be done too
        soon, and made longer when little of it was done since the last few.
        """
        order = self._random.sample(kinds, len(kinds))
        self.driver.wait_for(lambda: self.driver.packs)
        for number, kind in enumerate(order, 1):
            moment = time.monotonic() + self._random.uniform(*pause)
            latest = packs * number // (len(order) + 1)
            earliest = packs * (number - IN_A_ROW) // (len(order) + 1)
            while time.monotonic() < moment and self.driver.packs < latest:
                time.sleep(0.05)
            self.driver.wait_for(lambda least=earliest: self.driver.packs >= least)
            victim = self.driver.wait_for(functools.partial(self._strike, kind))
            second = time.monotonic() - self._started
            self.kills.append(Kill(second, self.driver.packs, kind, victim))
            log.info("%s", self.kills[-1])

    def end(self, seconds: float) -> int:
        """Waits for the driver; returns its exit code."""
        code = self.driver.ends(seconds)
        log.info("%6.1f s %5d packs  the end", time.monotonic() - self._started, self.driver.packs)
        return code

    def _strike(self, kind: Kind) -> str | None:
        """Kills one of a kind; returns its description, None when there is none just now."""
        if kind == "driver":
            return self._strike_driver()
        if kind == "node":
            victim = self._random.choice(self._nodes.all)
            self._nodes.lose(victim)
            return f"{victim.address}, {self._nodes.join().address} joins"
        found = actors(os.getpid(), kind.capitalize())
        if not found:
            return None
        chosen = self._random.choice(found)
        chosen.kill()
        return f"process {chosen.pid}"

    def _strike_driver(self) -> str:
        before = self.driver
        before.kill()
        self.driver = Driver(self._nodes.head, self._sweep, self._storage)
        return f"process {before.process.pid}, {self.driver.process.pid} takes over"
