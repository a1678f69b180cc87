"""The driver against an executor that fails on command."""

import collections
import signal

import pytest

from dpaudit_ray.errors import ClusterError, LeaseLostError, StorageError
from dpaudit_ray.orchestration.driver import LOSSES_PER_PACK, NODES_PER_PACK, Driver, FailureBudget
from dpaudit_ray.orchestration.executors import Done, Lost, Outcome
from dpaudit_ray.orchestration.faults import FIRST, SHORTEST, Deadlines
from dpaudit_ray.orchestration.interruption import Stop
from dpaudit_ray.orchestration.progress import Activity, AuditProgress, Progress
from dpaudit_ray.plan.model import Pack
from dpaudit_ray.plan.outcomes import Failure
from dpaudit_ray.sweep.resources import ResourceSpec


class Scripted:
    """Answers every pack with the next outcome scripted for it, `Done` when none is left."""

    trainers = 1

    def __init__(self, slots: int = 3) -> None:
        self.slots = slots
        self.script: dict[Pack, list[str]] = collections.defaultdict(list)
        self.submitted: list[Pack] = []
        self.queue: list[Pack] = []
        self.most_in_flight = 0
        self.decided: dict[int, int] = {}
        self.flushed = 0
        self.backlogs: list[float] = []
        self.given_up: list[Failure] = []
        self.stop: Stop | None = None
        self.seconds, self.opening = 1.0, 0.0

    @property
    def free(self) -> int:
        return self.slots - len(self.queue)

    def backlog(self, packs: float) -> None:
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
        done = Done(pack, seconds=self.seconds, opening=self.opening)
        return [Lost(pack, "node gone")] if what == "lose" else [done]

    def progress(self, activity: Activity) -> Progress:
        audits = [
            AuditProgress("x", 100, 0, 0.0, 1.0, decided=self.decided.get(i)) for i in range(2)
        ]
        return Progress(tuple(audits), activity)

    def give_up(self, failed: list[Failure]) -> None:
        self.given_up += failed

    def flush(self) -> None:
        self.flushed += 1


PACKS = [Pack(audit, first, first + 9) for audit in (0, 1) for first in range(0, 100, 10)]


def drive(executor: Scripted, losses: int = 5, failures: int = 100) -> Driver:
    resources = ResourceSpec(max_worker_losses=losses, max_trial_failures=failures)
    executor.stop = Stop(grace=60)
    budget = FailureBudget(resources, ["first", "second"])
    return Driver(executor, iter(PACKS), budget, executor.stop)


def test_every_pack_runs_once_within_the_window():
    executor = Scripted(slots=4)
    summary = drive(executor).run()
    assert sorted(executor.submitted, key=PACKS.index) == PACKS
    assert executor.most_in_flight == 4
    assert summary.failures == []
    assert not summary.stopped


def test_lost_packs_run_again_before_new_ones():
    executor = Scripted(slots=1)
    executor.script[PACKS[2]] = ["lose", "lose"]
    summary = drive(executor).run()
    assert summary.lost == 2
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
        labels = ["first", "second"]
        budget = FailureBudget(ResourceSpec(), labels, recorded=recorded, reached=reached)
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
    assert summary.lost == LOSSES_PER_PACK
    assert [(f.pack, f.kind) for f in summary.failures] == [(PACKS[1], "WorkerLost")]
    assert executor.given_up == summary.failures
    assert set(executor.submitted) == set(PACKS)


def test_a_pack_whose_trainers_are_ended_for_memory_is_told_with_a_smaller_size():
    budget = FailureBudget(ResourceSpec(), ["first", "second"])
    for _ in range(LOSSES_PER_PACK):
        budget.lost(Lost(Pack(0, 0, 63), "its node ran out of memory; with resources.memory"))
    (failure,) = budget.failures
    assert failure.message == "out of memory; set resources.pack_size: 16"


def test_a_pack_is_not_to_blame_for_a_trainer_that_had_not_begun():
    budget = FailureBudget(ResourceSpec(), ["first", "second"])
    for _ in range(3 * LOSSES_PER_PACK):
        assert budget.lost(Lost(PACKS[0], "oom", begun=False))
    assert budget.losses == 3 * LOSSES_PER_PACK


def test_nodes_that_leave_are_held_against_no_budget():
    told: list[str] = []
    budget = FailureBudget(ResourceSpec(max_worker_losses=0), ["first", "second"], told.append)
    for _ in range(3 * NODES_PER_PACK):
        assert budget.lost(Lost(PACKS[0], "x: node a has left", "node", foreseen=True))
    vanished = Lost(PACKS[0], "x: node a has left", "node")
    for _ in range(NODES_PER_PACK - 1):
        assert budget.lost(vanished)
    assert budget.failures == []
    assert not budget.lost(vanished), "a pack that ends every node is given up"
    assert budget.losses == 0
    assert told[0] == "x: node a has left (not a failure: what it worked on is run again)"


def test_the_executor_learns_when_no_pack_is_left_to_hand_out():
    executor = Scripted(slots=15)
    executor.script[PACKS[14]] = ["lose"]
    drive(executor).run()
    last = executor.submitted.index(PACKS[-1])
    assert executor.backlogs[0] == float("inf")
    assert executor.backlogs[-1] == 0
    assert last < len(executor.submitted)


def test_a_stop_lets_running_packs_finish_and_starts_no_more():
    executor = Scripted(slots=3)
    executor.script[PACKS[4]] = ["stop"]
    summary = drive(executor).run()
    assert summary.stopped
    assert executor.queue == []
    assert len(executor.submitted) < len(PACKS)
    assert executor.flushed == 1


def test_a_decided_audit_gets_no_more_packs():
    executor = Scripted(slots=1)
    executor.decided = {0: 40}
    summary = drive(executor).run()
    assert executor.submitted == PACKS[10:]
    assert not summary.stopped


@pytest.mark.parametrize("error", [LeaseLostError("taken over"), StorageError("no space left")])
def test_what_lost_its_lease_or_its_storage_stops_where_it_is(error):
    executor, looks = Scripted(slots=2), iter([None, None, error])

    def require() -> None:
        if (lost := next(looks)) is not None:
            raise lost

    budget = FailureBudget(ResourceSpec(), ["first", "second"])
    driver = Driver(executor, PACKS, budget, Stop(grace=60), require=require)
    with pytest.raises(type(error)):
        driver.run()
    assert len(executor.submitted) == 4, "two were done, two were under way"
    assert executor.flushed == 0


def test_signals_ask_first_and_stop_then():
    # A shell's background job starts with SIGINT ignored, which `Stop` leaves as it is.
    own = signal.signal(signal.SIGINT, signal.default_int_handler)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    told: list[str] = []
    stop = Stop(grace=60, tell=told.append)
    with stop.listening():
        stop.install()
        signal.raise_signal(signal.SIGTERM)
        assert stop.requested
        assert not stop.expired
        assert "60 s" in told[0]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    signal.signal(signal.SIGINT, own)
    assert before == after


def test_deadlines_follow_the_slowest_pack():
    deadlines = Deadlines("auto")
    assert deadlines.seconds(PACKS[0]) == FIRST
    deadlines.missed(PACKS[0])
    assert deadlines.seconds(PACKS[0]) == 2 * FIRST, "what hung there may only be slow"
    assert deadlines.seconds(PACKS[1]) == FIRST
    deadlines.measured(PACKS[0], 1.0)
    assert deadlines.seconds(PACKS[1]) == SHORTEST
    deadlines.measured(PACKS[1], 100.0)
    deadlines.measured(PACKS[2], 50.0)
    assert deadlines.seconds(PACKS[3]) == 1000.0
    assert deadlines.seconds(PACKS[10]) == FIRST, "another audit"
    assert Deadlines(7.0).seconds(PACKS[0]) == 7.0
    patient = Deadlines("auto", {0: 100.0})
    patient.measured(PACKS[0], 1.0)
    size = PACKS[0].size
    assert patient.seconds(PACKS[0]) == SHORTEST + 100 * size, (
        "each of its trials may wait for its end"
    )
    patient.measured(PACKS[10], 1.0)
    assert patient.seconds(PACKS[10]) == SHORTEST, "another audit"
