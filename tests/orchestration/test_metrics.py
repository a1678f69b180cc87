"""What is published of a sweep, and that it is published again."""

import math
from collections.abc import Mapping
from typing import Any

import pytest

from dpaudit_ray.orchestration import metrics
from dpaudit_ray.orchestration.progress import Activity, AuditProgress, Progress
from tests.head import wait_for


class Recorder:
    """Stands for Ray's gauge class: keeps what was set, and how often, at the time that is set."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], float] = {}
        self.count, self.now = 0, 1000.0

    def __call__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> Any:
        assert description
        recorder = self

        class Gauge:
            def set(self, value: float, tags: Mapping[str, str]) -> None:
                assert set(tags) == set(tag_keys)
                assert isinstance(value, int | float)
                recorder.values[name.removeprefix("dpaudit_"), tags.get("audit", "")] = value
                recorder.count += 1

        return Gauge()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def publisher(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> metrics.Publisher:
    """Without a heartbeat: the test sets gauges itself."""
    monkeypatch.setattr(metrics.Publisher, "_beat", lambda self: None)
    return metrics.Publisher(recorder, "sweep", lambda: recorder.now)


def snapshot(done: int, **activity: Any) -> Progress:
    audits = (
        AuditProgress("loss", 100, done, 0.5, 2.0, failed=3, lost=4),
        AuditProgress("other", 50, 20, 0.0, math.inf, decided=20),
    )
    return Progress(audits, Activity(**activity))


def test_every_metric_is_set_from_the_snapshot(recorder, publisher):
    values = recorder.values
    publisher.publish(snapshot(40))
    publisher.set_gauges()
    assert values["last_result_timestamp_seconds", ""] == 1000.0, "the start, before any result"
    assert values["pack_seconds", ""] == 0.0
    activity = {"packs_in_flight": 4, "trainers": 2, "pack_seconds": 1.5, "last_result": 990.0}
    publisher.publish(snapshot(40, **activity))
    publisher.set_gauges()
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
def test_a_claim_is_refuted_by_the_bound_that_is_shown(recorder, publisher, epsilon, refuted):
    leaky = AuditProgress("leaky", 100, 50, epsilon, 2.0)
    fine = AuditProgress("fine", 100, 50, 3.0, math.inf)
    publisher.publish(Progress((leaky, fine)))
    publisher.set_gauges()
    verdicts = {("verdict", "leaky"): refuted, ("verdict", "fine"): 0}
    assert (verdicts | {("sweep_verdict", ""): refuted}).items() <= recorder.values.items()


def test_trials_per_second_cover_the_last_minute_and_fall_while_nothing_comes(recorder, publisher):
    rates = []
    for second, done in [(0, 0), (30, 60), (60, 120), (90, 120), (120, 120)]:
        recorder.now = 1000.0 + second
        publisher.publish(snapshot(done))
        publisher.set_gauges()
        rates.append(recorder.values["trials_per_second", ""])
    assert rates == [0, 2, 2, 1, 0]


def test_gauges_are_set_again_while_no_news_comes(recorder, monkeypatch):
    assert metrics.HEARTBEAT_SECONDS <= 10
    monkeypatch.setattr(metrics, "HEARTBEAT_SECONDS", 0.01)
    metrics.Publisher(recorder, "sweep").publish(snapshot(1))
    wait_for(lambda: recorder.count >= 5 * (2 * 8 + 6))
