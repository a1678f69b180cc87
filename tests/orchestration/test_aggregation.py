"""The aggregator: a function of the prefix, whatever order packs arrive in, and however often.

What a pack costs must not depend on how many there are; `jobs/scale` measures it at length. Of
trainings of several canaries no score is taken for a trial.
"""

import pickle
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from scipy import special

import dpaudit_ray as da
from dpaudit_ray import plan as planning
from dpaudit_ray import seeds, stats
from dpaudit_ray.accounting import Training
from dpaudit_ray.adversaries.base import Adversary
from dpaudit_ray.errors import SpecError, StorageError
from dpaudit_ray.mechanisms.base import Session
from dpaudit_ray.orchestration import aggregation as aggregations
from dpaudit_ray.orchestration.aggregation import Aggregation
from dpaudit_ray.orchestration.driver import Driver, FailureBudget
from dpaudit_ray.orchestration.executors import Done, Outcome
from dpaudit_ray.orchestration.interruption import Stop
from dpaudit_ray.orchestration.trainer import Brief
from dpaudit_ray.plan import outcomes
from dpaudit_ray.plan.finished_trials import (
    MOST_READS,
    PackRange,
    RecentPacks,
    read_ahead,
    read_in_order,
)
from dpaudit_ray.plan.model import Pack, Plan, PlannedAudit
from dpaudit_ray.report import verdict
from dpaudit_ray.report.tables import Run
from dpaudit_ray.stats import Estimate
from dpaudit_ray.stats.guess_count_bound import Accuracy
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.storage.scores import PackScores
from dpaudit_ray.sweep import spec
from dpaudit_ray.sweep.resources import ResourceSpec
from dpaudit_ray.sweep.spec import Sweep
from jobs.scale import empty, played
from jobs.scale.empty import Empty
from jobs.studies.coverage import Nobody
from tests.command import changed, dpaudit, inline, stored_scores, write_sweep
from tests.costs import calls_of, peak_bytes_of
from tests.orchestration.test_driver import Scripted
from tests.plan.failing import of_function


@pytest.fixture
def opened(tiny: dict, tmp_path: Path) -> tuple[Sweep, Plan, RunDirectory]:
    sweep = spec.from_raw(tiny)
    run = RunDirectory(str(tmp_path / "run"))
    return sweep, planning.open_run(sweep, run), run


def scores_of(plan: Plan, pack: Pack) -> PackScores:
    """Made-up scores, a function of the trial: N(2 b, 1), one diverged trial in 30."""
    audit = plan.audits[pack.audit]
    members = seeds.bits(plan.seed, audit.fingerprint, pack.first, pack.last)
    rng = np.random.default_rng([pack.audit, pack.first])
    values = rng.normal(size=(pack.size, len(audit.horizons))) + 2 * members[:, None]
    values[(np.arange(pack.first, pack.last + 1) % 30) == 7] = np.nan
    return PackScores(pack.first, members, audit.horizons, values)


def aggregated(opened: tuple[Sweep, Plan, RunDirectory], packs: Iterable[Pack]) -> Aggregation:
    aggregation = Aggregation(*opened)
    for pack in packs:
        aggregation.fold(pack, scores_of(opened[1], pack))
    return aggregation


def folded(opened: tuple[Sweep, Plan, RunDirectory], packs: Iterable[Pack]) -> pd.DataFrame:
    aggregated(opened, packs).flush()
    return opened[2].estimates()


def alone(plan: Plan, packs: list[Pack], name: str, **options: Any) -> stats.Estimator:
    """An estimator that has seen the last step of these packs."""
    state = stats.make(name, planned=90, **options)
    for pack in packs:
        scores = scores_of(plan, pack)
        state.fold(scores.scores[:, -1], scores.members)
    return state


def test_estimates_are_those_of_the_finished_prefix(opened):
    """Packs 0, 1, 3 of nine: trials 0-19 count, 30-39 wait."""
    _, plan, run = opened
    packs = [p for p in planning.remaining(run, plan) if p.audit == 0]
    table = folded(opened, [packs[3], packs[0], packs[1]])
    mine = table[table["audit"] == plan.audits[0].id]
    assert set(mine["trials"]) == {20}
    assert not run.complete
    together = mine.set_index("estimator")["epsilon_lower_together"]
    assert together["anytime"].notna().all(), "nothing is decided by those not all in"
    assert together[["accuracy", "eps-delta", "paper-gdp"]].isna().all()
    state = alone(plan, packs[:2], "accuracy")
    row = mine[(mine["estimator"] == "accuracy") & (mine["step"] == 6)].iloc[0]
    assert row["epsilon_lower"] == state.bound(1e-5, 0.95).epsilon_lower


def test_what_cannot_be_stored_is_not_folded(opened, monkeypatch):
    def full_disk(*_: object) -> None:
        raise StorageError("no space left")

    sweep, plan, run = opened
    pack = next(planning.remaining(run, plan))
    aggregation = Aggregation(sweep, plan, run)
    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "_write_with", full_disk)
        with pytest.raises(StorageError):
            aggregation.fold(pack, scores_of(plan, pack))
    assert aggregation.progress().done == 0
    aggregation.fold(pack, scores_of(plan, pack))
    assert aggregation.progress().done == 10


def test_bounds_that_decide_are_those_of_the_sweeps_level(opened):
    """Three estimators that hold their level, two steps, two audits: twelve bounds share 5 %."""
    sweep, plan, run = opened
    packs = list(planning.remaining(run, plan))
    table = folded(opened, packs)
    assert sweep.budget.parts == 12
    row = table[(table["estimator"] == "eps-delta") & (table["step"] == 6)].iloc[0]
    state = alone(plan, [pack for pack in packs if pack.audit == 0], "eps-delta")
    assert row["epsilon_lower_together"] == state.bound(1e-5, 1 - 0.05 / 12).epsilon_lower
    assert row["epsilon_lower_together"] < row["epsilon_lower"]
    paper = table["estimator"] == "paper-gdp"
    assert table.loc[paper, "epsilon_lower_together"].isna().all()
    assert table.loc[~paper, "epsilon_lower_together"].notna().all()


def test_bounds_that_a_rule_adds_divide_the_share_of_those_asked_for(tiny, tmp_path):
    """One estimator with a rule has two more rows: of two audits at one step, each has 5 % / 6."""
    tiny["audit"] |= {"estimators": ["accuracy"], "record_every": 6}
    tiny["audit"]["stop_when"] = {"within": 0.01}
    sweep = spec.from_raw(tiny)
    run = RunDirectory(str(tmp_path / "run"))
    plan = planning.open_run(sweep, run)
    packs = [pack for pack in planning.remaining(run, plan) if pack.audit == 0]
    table = folded((sweep, plan, run), packs)
    mine = table[table["audit"] == plan.audits[0].id].set_index("estimator")
    together = mine["epsilon_lower_together"]
    assert set(mine.index) == {"accuracy", "anytime", "eps-delta-anytime"}
    for name in mine.index:
        found = alone(plan, packs, name).bound(1e-5, 1 - 0.05 / sweep.budget.parts / 3)
        assert together[name] == pytest.approx(found.epsilon_lower, rel=1e-9)


def test_the_bound_without_assumption_is_that_of_the_prefix(tiny, tmp_path):
    """Stored packs behind a gap do not count: which packs failed may depend on the bits."""
    tiny["audit"]["estimators"] = ["accuracy"]
    sweep, run = spec.from_raw(tiny), RunDirectory(str(tmp_path / "run"))
    plan = planning.open_run(sweep, run)
    packs = [p for p in planning.remaining(run, plan) if p.audit == 0]
    table = folded((sweep, plan, run), [*packs[:4], *packs[5:]])
    state = alone(plan, packs[:4], "one-run", independent=True)
    mine = table[table["audit"] == plan.audits[0].id].set_index("step")
    assert mine["estimator"].eq("accuracy").all(), "no row was added"
    assert mine.loc[6, "epsilon_lower_free"] == state.bound(1e-5, 0.95).epsilon_lower
    assert mine["free_estimator"].to_dict() == {3: "", 6: "one-run"}
    again = Aggregation.rebuild(run)
    again.flush()
    pd.testing.assert_frame_equal(run.estimates(), table, check_exact=True)


def test_what_an_alarm_compares_holds_for_all_audits_at_once(opened):
    aggregation = aggregated(opened, planning.remaining(opened[2], opened[1]))
    shown = aggregation.progress().audits
    assert [audit.assumes for audit in shown] == ["Gaussian steps", "assumes Gaussian"]
    for audit, live in zip(shown, aggregation._audits, strict=True):
        assert 0 < audit.epsilon_lower < live._bounds[0].bound(1e-5, 0.95).epsilon_lower


def test_a_claim_that_is_not_gaussian_is_not_held_against_a_converted_bound(tmp_path):
    """A μ above that of the Gaussian through (ε, δ) does not refute a subsampled claim."""
    bounds = {}
    for rate, noise, accountant in ((0.5, 4.0, "pld"), (1.0, 1.0, "gaussian")):
        options = {"path": "own:train", "sample_rate": rate, "noise_multiplier": noise}
        audit = {"trials": 400, "accountants": [accountant]}
        sweep = spec.from_raw(of_function("own", audit, 100, **options))
        run = RunDirectory(str(tmp_path / f"{rate}"))
        plan = planning.open_run(sweep, run)
        packs = planning.remaining(run, plan)
        bounds[rate] = aggregated((sweep, plan, run), packs).progress().audits[0]
    assert bounds[1.0].assumes == "assumes Gaussian"
    assert bounds[0.5].assumes == "assumption-free", "the other would be above the claim"
    assert bounds[0.5].epsilon_lower < bounds[1.0].epsilon_lower / 2


def planned(folder: Path, packs: int, size: int) -> tuple[spec.Sweep, Plan, RunDirectory]:
    sweep = spec.from_raw(empty.sweep("scale", packs * size, size))
    run = RunDirectory.under(str(folder), sweep.name)
    return sweep, planning.open_run(sweep, run), run


def results(plan: Plan) -> list[tuple[Pack, PackScores]]:
    packs = planning.remaining(RunDirectory("nowhere"), plan)
    return [(pack, scores_of(plan, pack)) for pack in packs]


def test_a_late_pack_costs_the_aggregator_what_an_early_one_does(tmp_path, monkeypatch):
    """Work that grows with the packs before would cost the last quarter 7 times as many calls."""
    monkeypatch.setattr(RunDirectory, "write_scores", lambda *_: None)
    aggregation = Aggregation(*planned(tmp_path, packs=4000, size=5))
    packs = results(planning.require(RunDirectory(str(tmp_path / "scale"))))
    quarters = []
    for start in range(0, 4000, 1000):

        def fold(start=start):
            for pack, scores in packs[start : start + 1000]:
                aggregation.fold(pack, scores)

        quarters.append(calls_of(fold))
    assert quarters[3] < 1.5 * quarters[0]
    assert sum(quarters) / 4000 < 2000
    assert aggregation.progress().done == 20_000


def test_estimates_are_those_of_one_thread_when_sixteen_store_at_once(tmp_path, monkeypatch):
    sweep, plan, run = planned(tmp_path / "many", packs=64, size=10)
    packs = results(plan)
    np.random.default_rng(0).shuffle(packs)
    write, together = RunDirectory.write_scores, threading.Barrier(4)

    def slow(self: RunDirectory, audit: str, pack: PackScores) -> None:
        together.wait(200)  # storage is asked for several packs at once
        write(self, audit, pack)

    aggregation = Aggregation(sweep, plan, run)
    with monkeypatch.context() as patch, ThreadPoolExecutor(16) as pool:
        patch.setattr(RunDirectory, "write_scores", slow)
        list(pool.map(lambda each: aggregation.fold(*each), packs))
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda each: aggregation.fold(*each), packs[:8]))
    aggregation.flush()
    one = Aggregation(*planned(tmp_path / "one", packs=64, size=10))
    for each in results(plan):
        one.fold(*each)
    one.flush()
    assert run.complete
    assert run.estimates().equals(RunDirectory(str(tmp_path / "one/scale")).estimates())


class Instant(Scripted):
    """Answers every pack at once, and keeps none."""

    def set_backlog(self, packs: float) -> None: ...

    def submit(self, pack: Pack) -> None:
        self.queue.append(pack)

    def wait(self, timeout: float) -> list[Outcome]:
        return [Done(self.queue.pop(), 0.1)]


def test_the_drivers_memory_does_not_grow_with_the_packs():
    def packs() -> Iterator[Pack]:
        yield from (Pack(0, first, first + 9) for first in range(0, 300_000, 10))

    driver = Driver(Instant(), packs(), FailureBudget(ResourceSpec(), ["only"]), Stop(grace=60))
    assert peak_bytes_of(driver.run) < 200_000, "of 30,000 packs that would take megabytes"


def pack(first: int, n: int = 10) -> PackScores:
    return PackScores(first, np.ones(n, dtype=np.bool_), (1,), np.full((n, 1), float(first)))


def ranges(packs: int, size: int) -> list[PackRange]:
    return [PackRange((n * size, n * size + size - 1), n, n + 1) for n in range(packs)]


def test_packs_come_in_order_from_memory_or_else_from_storage(tmp_path):
    read: list[int] = []

    def reader(packs: PackRange) -> PackScores:
        first = 10 * packs.start
        read.append(first)
        time.sleep(0.01 if first % 20 else 0.03)  # a later one may arrive first
        return pack(first)

    recent = RecentPacks(limit=5 * 90)
    for first in range(0, 100, 10):
        recent.put("a", pack(first))
    run, packs = RunDirectory(str(tmp_path)), ranges(100, 10)
    found = read_in_order(run, reader, packs, 100, lambda each: recent.take("a", 10 * each.start))
    assert [p.first for p in found] == list(range(0, 1000, 10))
    assert sorted(read) == [*range(0, 50, 10), *range(100, 1000, 10)], "the latest five were kept"
    assert recent.take("a", 90) is None, "each is handed out once"


@pytest.mark.parametrize(("size", "most"), [(1, MOST_READS), (2**17, 16)])
def test_no_more_is_read_than_is_asked_for_soon(tmp_path, size, most):
    """Neither many packs nor large ones: those of 1 MiB hold 16 MiB."""
    read: list[int] = []

    def reader(packs: PackRange) -> PackScores:
        read.append(packs.start)
        return pack(packs.start)

    claims, bounds = {"gaussian": (1.0,)}, tuple(each.file for each in ranges(1000, size))
    audit = PlannedAudit("a", "a", "f", 1000 * size, (1,), claims, bounds, (1000 * size,))
    run = RunDirectory(str(tmp_path))
    packs = read_in_order(run, reader, iter(ranges(1000, size)), read_ahead(audit))
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
    """A loop over all trainers for each pack would make it 7 times as many calls."""
    run = RunDirectory(str(tmp_path / "none"))

    def calls(trainers: int, packs: int) -> int:
        return calls_of(lambda: played.rate(trainers, packs, run))

    few = calls(20, 120) - calls(20, 20)
    many = calls(150, 250) - calls(150, 150)
    assert many < 2 * few


SEVERAL = ["several-canaries", "one-run"]
NAMES = ["one-run", "one-run-fdp"]


class OneTraining(Nobody):
    name: str = "test_aggregation:OneTraining"
    one_run: ClassVar[bool] = True


class Twenty(Adversary):
    name: str = "test_aggregation:Twenty"

    @property
    def canaries(self) -> int:
        return 20


class Alike(Empty):
    """A training of the claimed μ, or of `leak` times it, whose canaries all have the same luck."""

    name: str = "test_aggregation:Alike"
    mu: float = 1.0
    leak: float = 1.0

    def claimed(self, adversary: Adversary, horizon: int) -> Training:
        return Training(1 / self.mu, 1)

    def open(self, adversary: Adversary, seed: int, craft_seed: int, gpu: bool) -> Session:
        return Opened(self.mu * self.leak, adversary.canaries)


class Opened:
    def __init__(self, mu: float, canaries: int) -> None:
        self._mu, self._canaries = mu, canaries

    def run(self, members: np.ndarray, seed: int, horizons: tuple[int, ...]) -> np.ndarray:
        bits = members.reshape(-1, self._canaries)
        hit = np.random.default_rng(seed).random((len(bits), 1)) < special.ndtr(self._mu / 2)
        return np.where(bits == hit, 1.0, -1.0).reshape(-1, 1)


@pytest.fixture
def twenty() -> dict[str, Any]:
    return {
        "name": "twenty",
        "seed": 4,
        "mechanism": {"name": "test_aggregation:Alike"},
        "adversary": {"name": "test_aggregation:Twenty"},
        "audit": {"trials": 4000, "delta": 1e-5, "estimators": SEVERAL},
        "resources": {"pack_size": 400},
    }


def finished(raw: dict[str, Any], folder: Path) -> Run:
    return da.run(raw, str(folder), "inline").run


@pytest.mark.parametrize(
    ("adversary", "names", "runs"),
    [
        ("test_aggregation:Twenty", SEVERAL, np.arange(4000) // 20),
        ("jobs.studies.coverage:Nobody", NAMES, np.arange(4000)),
        ("test_aggregation:OneTraining", NAMES, np.zeros(4000)),
    ],
)
def test_bounds_are_those_of_trainings_as_the_adversary_has_them(
    adversary, names, runs, twenty, tmp_path
):
    changed(twenty, "adversary.name", adversary)
    run = finished(changed(twenty, "audit.estimators", names), tmp_path)
    (audit,) = run.plan.audits
    scores = stored_scores(run.directory, audit.id)
    rows = run.estimates.set_index("estimator")
    for name in names:
        expected = stats.estimate(scores["score"], scores["member"], 1e-5, 0.95, name, runs=runs)
        assert rows.loc[name, "epsilon_lower"] == expected.epsilon_lower > 0
        assert rows.loc[name, "status"] == expected.status
    if names is SEVERAL:
        assert run.directory.read_json("plan.json")["audits"][0]["canaries"] == audit.canaries == 20
        assert set(rows["free_estimator"]) == {"one-run"}
        assert rows["epsilon_lower_free"].iloc[0] == rows.loc["one-run", "epsilon_lower"]


def test_a_healthy_training_is_no_violation_and_a_leaking_one_is(twenty, tmp_path):
    """Pooled, luck that 20 canaries share would look like a violation every third time."""
    healthy = verdict.judge(finished(twenty, tmp_path))
    assert healthy.verdict is not verdict.Verdict.VIOLATION
    changed(twenty, "mechanism.leak", 2.5)
    leaking = verdict.judge(finished(twenty | {"name": "leaking"}, tmp_path))
    assert leaking.verdict is verdict.Verdict.VIOLATION
    assert leaking.audits[0].effective_noise is not None
    assert leaking.audits[0].effective_noise < 1
    changed(twenty, "adversary", {"name": "test_aggregation:OneTraining"})
    changed(twenty, "audit.estimators", ["one-run"])
    single = verdict.judge(finished(twenty | {"name": "single"}, tmp_path))
    assert single.verdict is verdict.Verdict.INCONCLUSIVE, "one training refutes by no hit rate"


def test_what_is_watched_live_and_stops_a_run_are_trainings(twenty, tmp_path):
    """Of 10 healthy runs that stop where they refute, more than 2 do so once in 80 such tests."""
    changed(twenty, "audit.stop_when", {"verdict": True})
    changed(twenty, "audit.trials", 1200)
    stopped = 0
    for seed in range(10):
        run = finished(twenty | {"seed": seed, "name": f"seed-{seed}"}, tmp_path)
        stopped += outcomes.decided(run.directory, run.sweep, run.plan) != {}
    assert stopped <= 2
    changed(twenty, "mechanism.leak", 3.0)
    changed(twenty, "audit.trials", 4000)
    leaking = finished(twenty | {"name": "leaking"}, tmp_path)
    assert outcomes.decided(leaking.directory, leaking.sweep, leaking.plan)[0] <= 1200
    assert set(leaking.estimates["estimator"]) == {*SEVERAL}


def test_plan_and_report_say_it(twenty, tmp_path):
    file = write_sweep(tmp_path, twenty)
    assert inline(file, tmp_path).code == 0
    run = tmp_path / "twenty"
    assert dpaudit("report", run).code == 0
    page = (run / "report.html").read_text()
    assert "Each training run has 20 canaries" in page
    assert "The Gaussian fit has" not in page
    shown = dpaudit("plan", file, "--storage-path", tmp_path / "elsewhere")
    alone = stats.power.largest_certifiable(200, 1e-5, 0.95)
    assert f"{alone:.3f}" in shown.out


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"audit.estimators": ["accuracy"]}, "accuracy takes scores of many training runs, one of"),
        ({"audit.trials": 4010}, "but each training run has 20 canaries, a trial each; use 4000"),
        ({"resources.pack_size": 50}, "is 50, but each training run has 20 canaries.* use 60"),
        (
            {"adversary.name": "test_aggregation:OneTraining", "audit.estimators": ["accuracy"]},
            "accuracy takes scores of many training runs",
        ),
    ],
)
def test_what_does_not_fit_is_refused(twenty, changes, told):
    with pytest.raises(SpecError, match=told):
        planning.make(spec.from_raw(twenty, overrides=changes))


def test_a_pack_holds_whole_trainings(twenty, tmp_path):
    changed(twenty, "resources.pack_size", "auto")
    run = finished(twenty, tmp_path)
    assert {(last - first + 1) % 20 for first, last in run.plan.audits[0].packs} == {0}
