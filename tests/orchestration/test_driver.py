"""The driver against an executor that fails on command, what is told of it, and published."""

import collections
import math
import signal
import types
from collections.abc import Mapping
from typing import Any

import pytest

from dpaudit_ray.errors import ClusterError, LeaseLostError, StorageError
from dpaudit_ray.orchestration import driver, metrics
from dpaudit_ray.orchestration.driver import LOSSES_PER_PACK, NODES_PER_PACK, Driver, FailureBudget
from dpaudit_ray.orchestration.executors import Done, Lost, Outcome
from dpaudit_ray.orchestration.faults import FIRST, SHORTEST, Deadlines
from dpaudit_ray.orchestration.interruption import Stop
from dpaudit_ray.orchestration.progress import (
    WINDOW_SECONDS,
    Activity,
    AuditProgress,
    Progress,
    Speed,
)
from dpaudit_ray.plan.model import Pack
from dpaudit_ray.plan.outcomes import Failure
from dpaudit_ray.sweep.resources import ResourceSpec
from tests.head import wait_for


class Scripted:
    """Answers every pack with the next outcome scripted for it, `Done` when none is left."""

    trainers = 1

    def __init__(self, slots: int = 3, decided: Mapping[int, int] | None = None) -> None:
        self.slots, self.decided = slots, decided or {}
        self.script: dict[Pack, list[str]] = collections.defaultdict(list)
        self.submitted: list[Pack] = []
        self.queue: list[Pack] = []
        self.most_in_flight = 0
        self.flushed = 0
        self.backlogs: list[float] = []
        self.given_up: list[Failure] = []
        self.stop: Stop | None = None

    @property
    def free(self) -> int:
        return self.slots - len(self.queue)

    def set_backlog(self, packs: float) -> None:
        self.backlogs.append(packs)

    def submit(self, pack: Pack) -> None:
        self.submitted.append(pack)
        self.queue.append(pack)
        self.most_in_flight = max(self.most_in_flight, len(self.queue))

    def wait(self, timeout: float) -> list[Outcome]:
        if not self.queue:
            return []
        pack = self.queue.pop()  # the newest first: completion order is not trial order
        what = self.script[pack].pop(0) if self.script[pack] else "done"
        if what == "stop":
            self.stop.request()
        if what.startswith("fail"):
            return [Failure(pack, what, "boom", "")]
        return [Lost(pack, "node gone") if what == "lose" else Done(pack, 9.0, opening=8.0)]

    def progress(self, activity: Activity) -> Progress:
        audits = [
            AuditProgress("x", 100, 0, 0.0, 1.0, 1e-5, decided=self.decided.get(i))
            for i in range(2)
        ]
        return Progress(tuple(audits), activity)

    def give_up(self, failed: list[Failure]) -> None:
        self.given_up += failed

    def flush(self) -> None:
        self.flushed += 1


LABELS = ["first", "second"]
PACKS = [Pack(audit, first, first + 9) for audit in (0, 1) for first in range(0, 100, 10)]


def drive(executor: Scripted, losses: int = 5, failures: int = 100, **more: Any) -> Driver:
    resources = ResourceSpec(max_worker_losses=losses, max_trial_failures=failures)
    executor.stop = Stop(grace=60)
    budget = FailureBudget(resources, LABELS)
    return Driver(executor, iter(PACKS), budget, executor.stop, **more)


def test_every_pack_runs_once_within_the_window_and_no_more_are_known_in_the_end():
    executor = Scripted(slots=4)
    summary = drive(executor).run()
    assert sorted(executor.submitted, key=PACKS.index) == PACKS
    assert executor.most_in_flight == 4
    assert (summary.failures, summary.stopped) == ([], False)
    assert (executor.backlogs[0], executor.backlogs[-1]) == (float("inf"), 0)


def test_lost_packs_run_again_before_new_ones():
    executor = Scripted(slots=1)
    executor.script[PACKS[2]] = ["lose", "lose"]
    summary = drive(executor).run()
    assert summary.losses == 2
    assert executor.submitted[2:6] == [PACKS[2], PACKS[2], PACKS[2], PACKS[3]]
    assert set(executor.submitted) == set(PACKS)
    assert summary.progress.activity.lost == {0: 20}


def test_an_audit_whose_packs_all_fail_the_same_way_is_stopped_and_others_go_on():
    executor = Scripted(slots=1)
    for pack in PACKS[:10]:
        executor.script[pack] = ["fail"]
    summary = drive(executor).run()
    assert [failure.pack for failure in summary.failures] == PACKS[:3]
    assert executor.submitted == PACKS[:3] + PACKS[10:]


def test_recorded_failures_close_an_audit_only_when_they_were_in_a_row():
    recorded = [Failure(pack, "fail", "boom", "") for pack in PACKS[2:8:2]]
    for reached, closed in (({0: PACKS[9].first}, set()), ({0: PACKS[1].first}, {0}), ({}, {0})):
        budget = FailureBudget(ResourceSpec(), LABELS, recorded=recorded, last_done=reached)
        assert budget.closed == closed
        assert budget.trials_failed == {0: 30}


def test_failures_of_several_kinds_or_between_successes_stop_nothing():
    executor = Scripted(slots=1)
    kinds = ["fail a", "fail b", "fail a", "fail a", "done", "fail a", "fail a", "done"]
    for pack, kind in zip(PACKS, kinds, strict=False):
        executor.script[pack] = [kind]
    summary = drive(executor).run()
    assert len(summary.failures) == 6
    assert executor.given_up == summary.failures, "their trials are misses from now on"
    assert executor.submitted == PACKS
    assert summary.progress.activity.failed == {0: 60}


def test_the_budget_of_failed_packs_ends_the_sweep_without_an_error():
    executor = Scripted(slots=2)
    for index, pack in enumerate(PACKS):
        executor.script[pack] = [f"fail {index}"]
    summary = drive(executor, failures=4).run()
    assert 5 <= len(summary.failures) <= 6, "running packs finish"
    assert executor.flushed == 1
    assert not summary.stopped


def test_the_budget_of_lost_workers_is_separate_and_kept():
    """A cluster that is gone does not hide what ended the sweep."""

    class Gone(Scripted):
        def flush(self) -> None:
            super().flush()
            raise ClusterError("the aggregator cannot be restarted")

    for executor in (Scripted(), Gone()):
        for pack in PACKS[:3]:
            executor.script[pack] = ["lose"] * 3
        with pytest.raises(ClusterError, match="max_worker_losses = 5"):
            drive(executor, failures=0).run()
        assert executor.flushed == 1, "what is there is written"


def test_a_pack_that_kills_every_worker_is_given_up():
    executor = Scripted(slots=1)
    executor.script[PACKS[1]] = ["lose"] * 99
    summary = drive(executor, losses=50).run()
    assert summary.losses == LOSSES_PER_PACK
    assert [(f.pack, f.kind) for f in summary.failures] == [(PACKS[1], "WorkerLost")]
    assert executor.given_up == summary.failures
    assert set(executor.submitted) == set(PACKS)


def test_a_pack_whose_trainers_are_ended_for_memory_is_told_with_a_smaller_size():
    budget = FailureBudget(ResourceSpec(), LABELS)
    for _ in range(LOSSES_PER_PACK):
        budget.lost(Lost(Pack(0, 0, 63), "its node ran out of memory; with resources.memory"))
    (failure,) = budget.failures
    assert failure.message == "out of memory; set resources.pack_size: 16"


def test_nodes_that_leave_are_held_against_no_budget():
    budget = FailureBudget(ResourceSpec(max_worker_losses=0), LABELS, (told := []).append)
    for _ in range(3 * NODES_PER_PACK):
        assert budget.lost(Lost(PACKS[0], "x: node a has left", "node", foreseen=True))
    vanished = Lost(PACKS[0], "x: node a has left", "node")
    for _ in range(NODES_PER_PACK - 1):
        assert budget.lost(vanished)
    assert budget.failures == []
    assert not budget.lost(vanished), "a pack that ends every node is given up"
    assert budget.losses == 0
    assert told[0] == "x: node a has left (not a failure: what it worked on is run again)"


def test_a_stop_lets_running_packs_finish_and_starts_no_more():
    executor = Scripted(slots=3)
    executor.script[PACKS[4]] = ["stop"]
    summary = drive(executor).run()
    assert (summary.stopped, executor.queue, executor.flushed) == (True, [], 1)
    assert len(executor.submitted) < len(PACKS)


def test_a_decided_audit_gets_no_more_packs():
    executor = Scripted(slots=1, decided={0: 40})
    summary = drive(executor).run()
    assert executor.submitted == PACKS[10:]
    assert not summary.stopped


@pytest.mark.parametrize("error", [LeaseLostError("taken over"), StorageError("no space left")])
def test_what_lost_its_lease_or_its_storage_stops_where_it_is(error):
    executor, looks = Scripted(slots=2), iter([None, None, error])

    def require() -> None:
        if (lost := next(looks)) is not None:
            raise lost

    with pytest.raises(type(error)):
        drive(executor, require=require).run()
    assert len(executor.submitted) == 4, "two were done, two were under way"
    assert executor.flushed == 0


def test_signals_ask_first_and_stop_then():
    # A shell's background job starts with SIGINT ignored, which `Stop` leaves as it is.
    own = signal.signal(signal.SIGINT, signal.default_int_handler)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    stop = Stop(grace=60, tell=(told := []).append)
    with stop.listening():
        stop.install()
        signal.raise_signal(signal.SIGTERM)
        assert (stop.requested, stop.expired) == (True, False)
        assert "60 s" in told[0]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    signal.signal(signal.SIGINT, own)
    assert before == after


def test_deadlines_follow_the_slowest_pack():
    deadlines = Deadlines("auto")
    assert deadlines.limit_seconds(PACKS[0]) == FIRST
    deadlines.record_timeout(PACKS[0])
    assert deadlines.limit_seconds(PACKS[0]) == 2 * FIRST, "what hung there may only be slow"
    deadlines.record_seconds(PACKS[0], 1.0)
    assert deadlines.limit_seconds(PACKS[1]) == SHORTEST
    deadlines.record_seconds(PACKS[1], 100.0)
    deadlines.record_seconds(PACKS[2], 50.0)
    assert deadlines.limit_seconds(PACKS[3]) == 1000.0
    assert deadlines.limit_seconds(PACKS[10]) == FIRST, "another audit"
    assert Deadlines(7.0).limit_seconds(PACKS[0]) == 7.0
    patient = Deadlines("auto", {0: 100.0})
    for pack in (PACKS[0], PACKS[10]):
        patient.record_seconds(pack, 1.0)
    assert patient.limit_seconds(PACKS[0]) == SHORTEST + 100 * 10, "each trial may wait for its end"
    assert patient.limit_seconds(PACKS[10]) == SHORTEST, "another audit"


def snapshot(done: int, **activity: object) -> Progress:
    audits = (AuditProgress("one", 1000, done, 0.0, 1.0, 1e-5),)
    return Progress(audits, Activity(**activity))  # type: ignore[arg-type]


def test_time_counts_since_the_first_pack_was_begun():
    speed = Speed()
    for now in (0.0, 10.0, 20.0):  # Ray starts, trainers import
        speed.add(snapshot(300), now)
        assert math.isnan(speed.rate(now))
        assert math.isnan(speed.seconds_left(snapshot(300), now))
    speed.add(snapshot(320, training_seconds=2.0), 30.0)
    assert speed.rate(30.0) == 10
    assert speed.seconds_left(snapshot(320), 30.0) == 68


def test_the_speed_is_that_of_the_last_half_minute_or_of_the_last_packs():
    speed, done = Speed(), 0
    speed.add(snapshot(0), 0.0)
    for second in range(1, 62 + int(WINDOW_SECONDS)):
        done += 1 if second <= 60 else 10
        speed.add(snapshot(done, training_seconds=float(second)), float(second))
        if second == 60:
            assert speed.rate(60.0) == pytest.approx(1)
    assert speed.rate(91.0) == pytest.approx(10)
    speed = Speed()
    speed.add(snapshot(0), 0.0)
    for pack in range(1, 5):
        speed.add(snapshot(10 * pack, training_seconds=100.0 * pack), 100.0 * pack)
        assert speed.rate(100.0 * pack) == pytest.approx(0.1)
    assert speed.rate(460.0) == pytest.approx(0.1), "the next one is not late"
    assert speed.rate(600.0) == pytest.approx(10 / 200), "a stall slows it down"


def test_what_is_left_knows_decided_audits_and_failed_packs():
    audits = (
        AuditProgress("decided", 1000, 300, 1.0, 1.0, 1e-5, decided=250),
        AuditProgress("given up", 1000, 0, 0.0, 1.0, 1e-5),
        AuditProgress("goes on", 1000, 100, 0.0, 1.0, 1e-5, failed=37),
    )
    progress = Progress(audits, Activity(failed={1: 30, 2: 20}, over=frozenset({1})))
    assert progress.trials_remaining == 880, (
        "single trials that failed are among those that are done"
    )
    assert progress.ended == 450
    speed = Speed()
    speed.add(Progress(audits, Activity(failed={1: 10, 2: 20}, over=frozenset({1}))), 0.0)
    speed.add(progress, 10.0)
    assert speed.rate(10.0) == 2, "a pack that fails ends, too"
    assert speed.seconds_left(progress, 10.0) == 440

    speed = Speed()
    speed.add(snapshot(50, failed={0: 50}), 0.0)
    speed.add(snapshot(50), 1.0)  # failed packs are run again: no negative speed
    assert math.isnan(speed.rate(1.0))
    speed.add(snapshot(60), 2.0)
    assert speed.rate(2.0) == 10


def test_phases_until_a_pack_is_done():
    waiting = AuditProgress("one", 100, 0, 0.0, 1.0, 1e-5, parts_done=3, parts=16)
    ready = AuditProgress("two", 100, 0, 0.0, 1.0, 1e-5)
    works = Activity(trainers=2, packs_in_flight=4)
    phases = {
        "trainers start and import what they run": Progress((ready,), Activity()),
        "preparing, 3 of 16 parts done": Progress((waiting,), works),
        "the first packs are trained": Progress((waiting, ready), works),
        "": snapshot(10, pack_seconds=1.0, trainers=2),
        "stopping, 1 pack under way": snapshot(10, stopping=True, packs_in_flight=1),
    }
    assert {progress.phase: progress for progress in phases.values()} == phases
    assert snapshot(1000).phase == "the last estimates are computed"


def test_the_driver_tells_which_audits_run_and_what_it_does_now(monkeypatch):
    monkeypatch.setattr(driver, "SHOW_SECONDS", 0)
    executor = Scripted(slots=2)
    for pack in PACKS[3:6]:
        executor.script[pack] = ["fail"]
    executor.script[PACKS[12]] = ["stop"]
    shown: list[Progress] = []
    activity = drive(executor, show=shown.append).run().progress.activity
    seen = [(sorted(each.activity.running), sorted(each.activity.over)) for each in shown]
    assert seen[0] == ([], [])
    assert seen[1] == ([0], []), "one of two packs has ended"
    assert seen[-1] == ([], [0]), "three packs failed in a row"
    assert (activity.stopping, activity.running, activity.packs_in_flight) == (True, set(), 0)


def test_of_a_pack_that_lags_behind_only_the_activity_is_new():
    """The last answer of an aggregator may be of before; the driver knows what is of now."""

    class Late(Scripted):
        def progress(self, activity: Activity) -> Progress:
            return super().progress(Activity(packs_in_flight=7, running=frozenset({1})))

    activity = drive(Late()).run().progress.activity
    assert (activity.packs_in_flight, activity.running) == (0, set())
    assert activity.training_seconds == pytest.approx(1, abs=0.5)
    assert activity.pack_seconds == 9.0


class Recorder:
    """Stands for Ray's gauge class: keeps what was set, and how often, at the time that is set."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], float] = {}
        self.count, self.now = 0, 1000.0
        self.publisher = metrics.Publisher(self, "sweep", lambda: self.now)

    def __call__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> Any:
        assert description

        def set_gauge(value: float, tags: Mapping[str, str]) -> None:
            assert set(tags) == set(tag_keys)
            assert isinstance(value, int | float)
            self.values[name.removeprefix("dpaudit_"), tags.get("audit", "")] = value
            self.count += 1

        return types.SimpleNamespace(set=set_gauge)

    def publish(self, progress: Progress) -> dict[tuple[str, str], float]:
        """What is set at a heartbeat after this."""
        self.publisher.publish(progress)
        self.publisher.set_gauges()
        return self.values


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Without a heartbeat of its own."""
    monkeypatch.setattr(metrics.Publisher, "_beat", metrics.Publisher.set_gauges)
    return Recorder()


def two_audits(done: int, **activity: Any) -> Progress:
    audits = (
        AuditProgress("loss", 100, done, 0.5, 2.0, 1e-5, failed=3, lost=4),
        AuditProgress("other", 50, 20, 0.0, math.inf, 1e-5, decided=20),
    )
    return Progress(audits, Activity(**activity))


def test_every_metric_is_set_from_the_snapshot(recorder):
    values = recorder.publish(two_audits(40))
    assert values["last_result_timestamp_seconds", ""] == 1000.0, "the start, before any result"
    assert values["pack_seconds", ""] == 0.0
    activity = {"packs_in_flight": 4, "trainers": 2, "pack_seconds": 1.5, "last_result": 990.0}
    recorder.publish(two_audits(40, **activity))
    assert {f"dpaudit_{name}" for name, _ in values} == {each.name for each in metrics.METRICS}
    expected = {
        ("trials_done", "loss"): 40,
        ("trials_failed", "loss"): 3,
        ("trials_lost", "loss"): 4,
        ("epsilon_gap", "loss"): 1.5,
        ("epsilon_claim", "other"): math.inf,
        ("trials_planned", "other"): 20,  # decided: the rest is not to be done
        ("packs_in_flight", ""): 4,
        ("last_result_timestamp_seconds", ""): 990.0,
        ("verdict", "loss"): 0,
        ("sweep_verdict", ""): 0,
    }
    assert expected.items() <= values.items()


@pytest.mark.parametrize(("epsilon", "refuted"), [(2.0, 0), (2.1, 1)])
def test_a_claim_is_refuted_by_the_bound_that_is_shown(recorder, epsilon, refuted):
    leaky = AuditProgress("leaky", 100, 50, epsilon, 2.0, 1e-5)
    fine = AuditProgress("fine", 100, 50, 3.0, math.inf, 1e-5)
    values = recorder.publish(Progress((leaky, fine)))
    verdicts = {("verdict", "leaky"): refuted, ("verdict", "fine"): 0}
    assert (verdicts | {("sweep_verdict", ""): refuted}).items() <= values.items()


def test_trials_per_second_cover_the_last_minute_and_fall_while_nothing_comes(recorder):
    rates = []
    for second, done in [(0, 0), (30, 60), (60, 120), (90, 120), (120, 120)]:
        recorder.now = 1000.0 + second
        rates.append(recorder.publish(two_audits(done))["trials_per_second", ""])
    assert rates == [0, 2, 2, 1, 0]


def test_gauges_are_set_again_while_no_news_comes(monkeypatch):
    assert metrics.HEARTBEAT_SECONDS <= 10
    monkeypatch.setattr(metrics, "HEARTBEAT_SECONDS", 0.01)
    recorder = Recorder()
    recorder.publisher.publish(two_audits(1))
    wait_for(lambda: recorder.count >= 5 * (2 * 8 + 6))
