"""The driver against an executor that fails on command."""

from __future__ import annotations

import collections

import pytest

from dpaudit_ray.errors import ClusterError
from dpaudit_ray.orchestration.aggregation import Progress
from dpaudit_ray.orchestration.driver import Done, Driver, Lost, Outcome
from dpaudit_ray.orchestration.trainer import Failure
from dpaudit_ray.plan import Pack


class Scripted:
    """Answers every pack with the next outcome scripted for it, `Done` when none is left."""

    def __init__(self, slots: int = 3) -> None:
        self.slots = slots
        self.script: dict[Pack, list[str]] = collections.defaultdict(list)
        self.submitted: list[Pack] = []
        self.queue: list[Pack] = []
        self.most_in_flight = 0

    def submit(self, pack: Pack) -> None:
        self.submitted.append(pack)
        self.queue.append(pack)
        self.most_in_flight = max(self.most_in_flight, len(self.queue))

    def wait(self, timeout: float) -> list[Outcome]:
        pack = self.queue.pop()  # the newest first: completion order is not trial order
        what = self.script[pack].pop(0) if self.script[pack] else "done"
        if what == "fail":
            return [Failure(pack, "ValueError", "boom", "")]
        return [Lost(pack, "node gone")] if what == "lose" else [Done(pack)]

    def progress(self) -> Progress:
        return Progress(())

    def flush(self) -> None: ...

    def close(self) -> None: ...


PACKS = [Pack(audit, first, first + 9) for audit in (0, 1) for first in range(0, 100, 10)]


def drive(executor: Scripted, losses: int = 5) -> Driver:
    return Driver(executor, iter(PACKS), losses, lambda progress: None)


def test_every_pack_runs_once_within_the_window() -> None:
    executor = Scripted(slots=4)
    summary = drive(executor).run()
    assert sorted(executor.submitted, key=PACKS.index) == PACKS
    assert executor.most_in_flight == 4
    assert summary.failures == []


def test_lost_packs_run_again_before_new_ones() -> None:
    executor = Scripted(slots=1)
    executor.script[PACKS[2]] = ["lose", "lose"]
    summary = drive(executor).run()
    assert summary.lost == 2
    assert executor.submitted[2:6] == [PACKS[2], PACKS[2], PACKS[2], PACKS[3]]
    assert set(executor.submitted) == set(PACKS)


def test_a_failed_pack_stops_its_audit_only() -> None:
    executor = Scripted(slots=1)
    executor.script[PACKS[3]] = ["fail"]
    summary = drive(executor).run()
    assert [failure.pack for failure in summary.failures] == [PACKS[3]]
    assert executor.submitted == PACKS[:4] + PACKS[10:]


def test_the_budget_of_lost_workers_is_separate_and_kept() -> None:
    executor = Scripted()
    for pack in PACKS[:3]:
        executor.script[pack] = ["lose"] * 3
    with pytest.raises(ClusterError, match="max_worker_losses = 5"):
        drive(executor).run()
