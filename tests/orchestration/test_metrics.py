"""What is published of a sweep, and that it is published again."""

from __future__ import annotations

import math
import re
import time

import pytest

from dpaudit_ray.orchestration import metrics
from dpaudit_ray.orchestration.progress import Activity, AuditProgress, Progress


class Recorder:
    """Stands for Ray's gauge class: keeps what was set, and how often."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], float] = {}
        self.count = 0

    def __call__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> Recorder.Gauge:
        assert description
        return self.Gauge(self, name, tag_keys)

    class Gauge:
        def __init__(self, recorder: Recorder, name: str, keys: tuple[str, ...]) -> None:
            self.recorder, self.name, self.keys = recorder, name, keys

        def set(self, value: float, tags: dict[str, str]) -> None:
            assert set(tags) == set(self.keys)
            assert isinstance(value, int | float)
            self.recorder.values[self.name, tags.get("audit", "")] = value
            self.recorder.count += 1


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """No heartbeat: the test sets gauges itself."""
    monkeypatch.setattr(metrics.Publisher, "_beat", lambda self: None)


IDLE = Activity()


def snapshot(done: int, activity: Activity = IDLE) -> Progress:
    audits = (
        AuditProgress("loss", 100, done, 0.5, 2.0, failed=3, lost=4),
        AuditProgress("other", 50, 20, 0.0, math.inf, decided=20),
    )
    return Progress(audits, activity)


def test_every_metric_is_set_from_the_snapshot(still: None) -> None:
    recorder = Recorder()
    publisher = metrics.Publisher(recorder, "sweep", Clock())
    activity = Activity(packs_in_flight=4, trainers=2, pack_seconds=1.5, last_result=990.0)
    publisher.publish(snapshot(40, activity))
    publisher.set_gauges()
    values = recorder.values
    assert {name for name, _ in values} == {metric.name for metric in metrics.METRICS}
    assert values["dpaudit_trials_done", "loss"] == 40
    assert values["dpaudit_trials_failed", "loss"] == 3
    assert values["dpaudit_trials_lost", "loss"] == 4
    assert values["dpaudit_epsilon_gap", "loss"] == 1.5
    assert values["dpaudit_epsilon_claim", "other"] == math.inf
    assert values["dpaudit_trials_planned", "other"] == 20  # decided: the rest is not to be done
    assert values["dpaudit_packs_in_flight", ""] == 4
    assert values["dpaudit_last_result_timestamp_seconds", ""] == 990.0
    assert values["dpaudit_verdict", "loss"] == values["dpaudit_sweep_verdict", ""] == 0


@pytest.mark.parametrize(("together", "refuted"), [(2.0, 0), (2.1, 1)])
def test_a_claim_is_refuted_by_the_bound_for_all_audits_together(
    still: None, together: float, refuted: int
) -> None:
    recorder = Recorder()
    publisher = metrics.Publisher(recorder, "sweep", Clock())
    leaky = AuditProgress("leaky", 100, 50, 3.0, 2.0, epsilon_together=together)
    fine = AuditProgress("fine", 100, 50, 3.0, math.inf, epsilon_together=3.0)
    publisher.publish(Progress((leaky, fine)))
    publisher.set_gauges()
    assert recorder.values["dpaudit_verdict", "leaky"] == refuted
    assert recorder.values["dpaudit_verdict", "fine"] == 0
    assert recorder.values["dpaudit_sweep_verdict", ""] == refuted


def test_before_the_first_result_the_start_counts(still: None) -> None:
    recorder = Recorder()
    publisher = metrics.Publisher(recorder, "sweep", Clock())
    publisher.publish(snapshot(0))
    publisher.set_gauges()
    assert recorder.values["dpaudit_last_result_timestamp_seconds", ""] == 1000.0
    assert recorder.values["dpaudit_pack_seconds", ""] == 0.0


def test_trials_per_second_cover_the_last_minute_and_fall_while_nothing_comes(still: None) -> None:
    recorder, clock = Recorder(), Clock()
    publisher = metrics.Publisher(recorder, "sweep", clock)
    rates = []
    for second, done in [(0, 0), (30, 60), (60, 120), (90, 120), (120, 120)]:
        clock.now = 1000.0 + second
        publisher.publish(snapshot(done))
        publisher.set_gauges()
        rates.append(recorder.values["dpaudit_trials_per_second", ""])
    assert rates == [0, 2, 2, 1, 0]


def test_gauges_are_set_again_while_no_news_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert metrics.HEARTBEAT_SECONDS <= 10
    monkeypatch.setattr(metrics, "HEARTBEAT_SECONDS", 0.01)
    recorder = Recorder()
    publisher = metrics.Publisher(recorder, "sweep")
    publisher.publish(snapshot(1))
    series = 2 * 9 + 6
    deadline = time.monotonic() + 300
    while recorder.count < 5 * series and time.monotonic() < deadline:
        time.sleep(0.01)
    assert recorder.count >= 5 * series


def test_names_follow_the_conventions_of_ray_and_prometheus() -> None:
    names = [metric.name for metric in metrics.METRICS]
    assert len(set(names)) == len(names) == 15
    for name in names:
        assert re.fullmatch(r"dpaudit_[a-z_]+", name)
        assert not name.endswith(("_total", "_sum", "_count", "_bucket"))  # gauges are none of them
