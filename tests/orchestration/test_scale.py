"""What a pack costs must not depend on how many there are; `jobs/scale` measures it at length."""

import math
import pickle
import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from dpaudit_ray import plan as planning
from dpaudit_ray import seeds
from dpaudit_ray.orchestration import aggregation as aggregations
from dpaudit_ray.orchestration.aggregation import Aggregation
from dpaudit_ray.orchestration.driver import Driver, FailureBudget
from dpaudit_ray.orchestration.executors import Done, Outcome
from dpaudit_ray.orchestration.interruption import Stop
from dpaudit_ray.orchestration.progress import Activity, Progress
from dpaudit_ray.orchestration.trainer import Brief
from dpaudit_ray.plan.compaction import Stretch
from dpaudit_ray.plan.model import Pack, Plan, PlannedAudit
from dpaudit_ray.plan.score_stream import UNDERWAY, RecentPacks, in_order, read_ahead
from dpaudit_ray.stats import Estimate
from dpaudit_ray.stats.guess_count_bound import Accuracy
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.storage.scores import PackScores
from dpaudit_ray.sweep import spec
from dpaudit_ray.sweep.resources import ResourceSpec
from jobs.scale import empty, played


def planned(folder: Path, packs: int, size: int) -> tuple[spec.Sweep, Plan, RunDirectory]:
    sweep = spec.from_raw(empty.sweep("scale", packs * size, size))
    run = RunDirectory.under(str(folder), sweep.name)
    return sweep, planning.open_run(sweep, run), run


def results(plan: Plan) -> list[tuple[Pack, PackScores]]:
    found = []
    for index, audit in enumerate(plan.audits):
        for first, last in audit.packs:
            members = seeds.bits(plan.seed, audit.fingerprint, first, last)
            noise = np.random.default_rng(first).standard_normal((len(members), 1))
            pack = PackScores(first, members, audit.horizons, noise + members[:, None])
            found.append((Pack(index, first, last), pack))
    return found


def test_a_late_pack_costs_the_aggregator_what_an_early_one_does(tmp_path, monkeypatch):
    """CPU time, so that a busy machine does not fail it. Quadratic work would make it 7 times."""
    monkeypatch.setattr(RunDirectory, "write_scores", lambda *_: None)
    aggregation = Aggregation(*planned(tmp_path, packs=8000, size=5))
    packs = results(planning.require(RunDirectory(str(tmp_path / "scale"))))
    quarters = []
    for start in range(0, 8000, 2000):
        began = time.process_time()
        for pack, scores in packs[start : start + 2000]:
            aggregation.fold(pack, scores)
        quarters.append(time.process_time() - began)
    assert quarters[3] < 2 * quarters[0]
    assert sum(quarters) / 8000 < 0.005
    assert aggregation.progress().done == 40_000


def test_estimates_are_those_of_one_thread_when_sixteen_store_at_once(tmp_path, monkeypatch):
    sweep, plan, run = planned(tmp_path / "many", packs=64, size=10)
    packs = results(plan)
    np.random.default_rng(0).shuffle(packs)
    write, writing, most = RunDirectory.write_scores, [0], [0]
    guard = threading.Lock()

    def slow(self: RunDirectory, audit: str, pack: PackScores) -> None:
        with guard:
            writing[0] += 1
            most[0] = max(most[0], writing[0])
        time.sleep(0.02)
        write(self, audit, pack)
        with guard:
            writing[0] -= 1

    monkeypatch.setattr(RunDirectory, "write_scores", slow)
    aggregation = Aggregation(sweep, plan, run)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda each: aggregation.fold(*each), [*packs, *packs[:8]]))
    aggregation.flush()
    monkeypatch.setattr(RunDirectory, "write_scores", write)
    one = Aggregation(*planned(tmp_path / "one", packs=64, size=10))
    for each in results(plan):
        one.fold(*each)
    one.flush()
    assert most[0] > 4, "storage is asked for several packs at once"
    assert run.complete
    assert run.estimates().equals(RunDirectory(str(tmp_path / "one/scale")).estimates())


class Instant:
    """Answers every pack at once."""

    trainers = 1

    def __init__(self) -> None:
        self.queue: list[Pack] = []

    @property
    def free(self) -> int:
        return 2 - len(self.queue)

    def backlog(self, packs: float) -> None: ...

    def submit(self, pack: Pack) -> None:
        self.queue.append(pack)

    def wait(self, timeout: float) -> list[Outcome]:
        return [Done(self.queue.pop(), 0.1)]

    def progress(self, activity: Activity) -> Progress:
        return Progress((), activity)

    def flush(self) -> None: ...

    def close(self) -> None: ...


def test_the_drivers_memory_does_not_grow_with_the_packs():
    def packs() -> Iterator[Pack]:
        yield from (Pack(0, first, first + 9) for first in range(0, 300_000, 10))

    driver = Driver(Instant(), packs(), FailureBudget(ResourceSpec(), ["only"]), Stop(grace=60))
    tracemalloc.start()
    driver.run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000, "of 30,000 packs that would take megabytes"


def pack(first: int, n: int = 10) -> PackScores:
    return PackScores(first, np.ones(n, dtype=np.bool_), (1,), np.full((n, 1), float(first)))


def audit_of(packs: int, size: int) -> PlannedAudit:
    bounds = tuple((first, first + size - 1) for first in range(0, packs * size, size))
    claims = {"gaussian": (1.0,)}
    return PlannedAudit("a", "a", "f", packs * size, (1,), claims, bounds, (packs * size,))


def stretches(packs: int, size: int) -> list[Stretch]:
    return [Stretch((n * size, n * size + size - 1), n, n + 1) for n in range(packs)]


def test_packs_come_in_order_from_memory_or_else_from_storage():
    read: list[int] = []

    def reader(packs: Stretch) -> PackScores:
        first = 10 * packs.start
        read.append(first)
        time.sleep(0.01 if first % 20 else 0.03)  # a later one may arrive first
        return pack(first)

    recent = RecentPacks(limit=5 * 90)
    for first in range(0, 100, 10):
        recent.put("a", pack(first))
    found = in_order(
        reader, stretches(100, 10), 100, lambda each: recent.take("a", 10 * each.start)
    )
    assert [p.first for p in found] == list(range(0, 1000, 10))
    assert sorted(read) == [*range(0, 50, 10), *range(100, 1000, 10)], "the latest five were kept"
    assert recent.take("a", 90) is None, "each is handed out once"


@pytest.mark.parametrize(("size", "most"), [(1, UNDERWAY), (2**17, 16)])
def test_no_more_is_read_than_is_asked_for_soon(size, most):
    """Neither many packs nor large ones: those of 1 MiB hold 16 MiB."""
    read: list[int] = []

    def reader(packs: Stretch) -> PackScores:
        read.append(packs.start)
        return pack(packs.start)

    packs = in_order(reader, iter(stretches(1000, size)), read_ahead(audit_of(1000, size)))
    for _ in range(5):
        next(packs)
    time.sleep(0.1)
    assert 5 + most // 2 < len(read) <= most + 6


def test_bounds_are_computed_while_packs_are_folded(tmp_path, monkeypatch):
    """A flush waits for its bounds; meanwhile a pack is folded, and is in the next flush."""
    sweep, plan, run = planned(tmp_path, packs=4, size=50)
    packs = results(plan)
    aggregation = Aggregation(sweep, plan, run)
    for each in packs[:2]:
        aggregation.fold(*each)
    computing, may_end, bound = threading.Event(), threading.Event(), Accuracy.bound

    def slow(self: Accuracy, *level: float) -> Estimate:
        computing.set()
        assert may_end.wait(200)
        return bound(self, *level)

    monkeypatch.setattr(Accuracy, "bound", slow)
    flushing = threading.Thread(target=aggregation.flush)
    flushing.start()
    assert computing.wait(200)
    aggregation.fold(*packs[2])
    assert aggregation.progress().done == 150
    may_end.set()
    flushing.join(200)
    assert set(run.estimates()["trials"]) == {100}, "those that were in when it began"
    aggregation.flush()
    assert set(run.estimates()["trials"]) == {150}


def test_flushes_are_spaced_by_what_they_cost(tmp_path, monkeypatch):
    clock, cpu, flushes = [0.0], [0.0], []
    monkeypatch.setattr(aggregations.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(aggregations.time, "thread_time", lambda: cpu[0])
    aggregation = Aggregation(*planned(tmp_path, packs=4, size=50))
    write, cost = RunDirectory.write_estimates, 0.01

    def costly(self: RunDirectory, rows: list) -> None:
        flushes.append(clock[0])
        cpu[0] += cost
        write(self, rows)

    monkeypatch.setattr(RunDirectory, "write_estimates", costly)
    for _ in range(20):
        clock[0] += 1
        aggregation.keep_up()
    assert flushes == [5, 10, 15, 20]
    cost = 2.0
    for _ in range(100):
        clock[0] += 1
        aggregation.keep_up()
    assert flushes[4:] == [25, 43, 61, 79, 97, 115], "2 of every 20 seconds"


def test_what_a_trainer_is_given_does_not_grow_with_the_packs(tmp_path):
    sizes = []
    for packs in (10, 10_000):
        sweep = spec.from_raw(empty.sweep("scale", packs, 1))
        plan = planning.make(sweep)
        assert len(plan.audits[0].packs) == packs
        sizes.append(len(pickle.dumps(Brief.from_plan(plan, sweep))))
    assert sizes[1] - sizes[0] < 10, "more digits of numbers"
    assert sizes[1] < 1000


def test_a_pack_costs_the_driver_the_same_with_many_trainers(tmp_path):
    """CPU time; a look at all trainers for each pack would make it 20 times as much."""
    run, few, many = RunDirectory(str(tmp_path / "none")), math.inf, math.inf
    for _ in range(3):  # the best of up to three: others take caches, and with them CPU time
        few = min(few, played.rate(50, 3000, run).milliseconds)
        many = min(many, played.rate(1000, 3000, run).milliseconds)
        if many < 4 * few:
            return
    pytest.fail(f"{many} ms against {few}")
