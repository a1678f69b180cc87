"""What is said of speed, remaining time and phases; from packs that ended."""

import math

import pytest

from dpaudit_ray.orchestration import driver
from dpaudit_ray.orchestration.driver import Driver, FailureBudget
from dpaudit_ray.orchestration.interruption import Stop
from dpaudit_ray.orchestration.progress import (
    WINDOW_SECONDS,
    Activity,
    AuditProgress,
    Progress,
    Speed,
)
from dpaudit_ray.sweep.resources import ResourceSpec
from tests.orchestration.test_driver import PACKS, Scripted


def snapshot(done: int, trials: int = 1000, **activity: object) -> Progress:
    audits = (AuditProgress("one", trials, done, 0.0, 1.0),)
    return Progress(audits, Activity(**activity))  # type: ignore[arg-type]


def test_time_counts_since_the_first_pack_was_begun():
    speed = Speed()
    for now in (0.0, 10.0, 20.0):  # Ray starts, trainers import
        speed.see(snapshot(300), now)
        assert math.isnan(speed.rate(now))
        assert math.isnan(speed.seconds_left(snapshot(300), now))
    speed.see(snapshot(320, training_seconds=2.0), 30.0)
    assert speed.rate(30.0) == 10
    assert speed.seconds_left(snapshot(320), 30.0) == 68


@pytest.mark.parametrize("trainers", [1, 2, 16])
def test_the_first_time_that_is_told_is_near_what_it_takes(trainers):
    """Each trainer reads data for 25 s, and then trains 500 trials every 3 s, one after another."""
    speed, total, told = Speed(), 500 * 20 * trainers, []
    for tick in range(2 * (25 + 60)):
        now = tick / 2
        ends = [25 + 3 * pack + worker * 3 / trainers for pack in range(1, 21)
                for worker in range(trainers)]  # fmt: skip
        done = 500 * sum(end <= now for end in ends)
        known = {"training_seconds": now - 25, "trainer_rate": 500 / 3} if done else {}
        progress = snapshot(done, total, trainers=trainers, **known)
        speed.see(progress, now)
        if not math.isnan(left := speed.seconds_left(progress, now)) and done < total:
            told.append(left / (max(ends) - now))
    assert min(told[:60]) > 0.6
    assert max(told[:60]) < 1.6


def test_a_driver_leaves_out_what_a_trainer_reads():
    executor = Scripted(slots=1)
    executor.seconds, executor.opening = 30.0, 29.0
    budget = FailureBudget(ResourceSpec(), ["first", "second"])
    activity = Driver(executor, iter(PACKS), budget, Stop(grace=60)).run().progress.activity
    assert activity.trainer_rate == pytest.approx(PACKS[0].size)
    assert activity.training_seconds == pytest.approx(1, abs=1)
    assert activity.pack_seconds == 30.0


def test_the_speed_is_that_of_the_last_half_minute():
    speed = Speed()
    speed.see(snapshot(0), 0.0)
    for second in range(1, 61):
        speed.see(snapshot(second, training_seconds=float(second)), float(second))
    assert speed.rate(60.0) == pytest.approx(1)
    for second in range(61, 61 + int(WINDOW_SECONDS) + 2):
        speed.see(snapshot(60 + 10 * (second - 60)), float(second))
    assert speed.rate(92.0) == pytest.approx(10)


def test_packs_that_take_longer_than_the_window_have_a_speed():
    speed = Speed()
    speed.see(snapshot(0), 0.0)
    for pack in range(1, 5):
        speed.see(snapshot(10 * pack, training_seconds=100.0 * pack), 100.0 * pack)
        assert speed.rate(100.0 * pack) == pytest.approx(0.1)
    assert speed.rate(460.0) == pytest.approx(0.1), "the next one is not late"


def test_a_stall_slows_it_down():
    speed = Speed()
    speed.see(snapshot(0), 0.0)
    for second in range(1, 11):
        speed.see(snapshot(10 * second, training_seconds=float(second)), float(second))
    assert speed.rate(10.0) == pytest.approx(10)
    assert speed.rate(112.0) == pytest.approx(100 / 110)


def test_what_is_left_knows_decided_audits_and_failed_packs():
    audits = (
        AuditProgress("decided", 1000, 300, 1.0, 1.0, decided=250),
        AuditProgress("given up", 1000, 0, 0.0, 1.0),
        AuditProgress("goes on", 1000, 100, 0.0, 1.0, failed=37),
    )
    progress = Progress(audits, Activity(failed={1: 30, 2: 20}, over=frozenset({1})))
    assert progress.left == 880, "single trials that failed are among those that are done"
    assert progress.ended == 450
    speed = Speed()
    speed.see(Progress(audits, Activity(failed={1: 10, 2: 20}, over=frozenset({1}))), 0.0)
    speed.see(progress, 10.0)
    assert speed.rate(10.0) == 2, "a pack that fails ends, too"
    assert speed.seconds_left(progress, 10.0) == 440


def test_failed_packs_that_are_run_again_are_no_negative_speed():
    speed = Speed()
    speed.see(snapshot(50, failed={0: 50}), 0.0)
    speed.see(snapshot(50), 1.0)
    assert math.isnan(speed.rate(1.0))
    speed.see(snapshot(60), 2.0)
    assert speed.rate(2.0) == 10


def test_phases_until_a_pack_is_done():
    waiting = AuditProgress("one", 100, 0, 0.0, 1.0, parts_done=3, parts=16)
    ready = AuditProgress("two", 100, 0, 0.0, 1.0)
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
    stop = executor.stop = Stop(grace=60)
    budget = FailureBudget(ResourceSpec(), ["first", "second"])
    summary = Driver(executor, iter(PACKS), budget, stop, shown.append).run()
    seen = [(sorted(each.activity.running), sorted(each.activity.over)) for each in shown]
    assert seen[0] == ([], [])
    assert seen[1] == ([0], []), "one of two packs has ended"
    assert seen[-1] == ([], [0]), "three packs failed in a row"
    assert summary.progress.activity.stopping
    assert summary.progress.activity.running == frozenset()
    assert summary.progress.activity.packs_in_flight == 0
    assert summary.progress.activity.training_seconds is not None


def test_of_a_pack_that_lags_behind_only_the_activity_is_new():
    """The last answer of an aggregator may be of before; the driver knows what is of now."""

    class Late(Scripted):
        def progress(self, activity: Activity) -> Progress:
            return super().progress(Activity(packs_in_flight=7, running=frozenset({1})))

    executor = Late()
    budget = FailureBudget(ResourceSpec(), ["first", "second"])
    summary = Driver(executor, iter(PACKS), budget, Stop(grace=60)).run()
    assert summary.progress.activity.packs_in_flight == 0
    assert summary.progress.activity.running == frozenset()
