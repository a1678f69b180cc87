"""Pictures of sweeps: they fit, and show what matters first."""

from __future__ import annotations

import dataclasses
import math

import pytest
from rich.cells import cell_len

from dpaudit_ray.cli import frames, tested
from dpaudit_ray.cli.figures import middle
from dpaudit_ray.orchestration.progress import Activity, AuditProgress, Progress
from dpaudit_ray.report.verdict import AuditVerdict, RunVerdict, Verdict


def audit(label: str, done: int, **more: object) -> AuditProgress:
    return AuditProgress(label, 2000, done, 1.25, 13.207, **more)  # type: ignore[arg-type]


def twenty() -> Progress:
    """Twelve are done, of which one is above its claim; three run, one was given up."""
    done = [2000] * 12 + [800, 0, 0] + [0] * 4 + [120]
    audits = [
        audit(f"model=模型{i}, adversary=biased-dimension choice=simulated, clip_norm={i}", n)
        for i, n in enumerate(done)
    ]
    audits[7] = dataclasses.replace(audits[7], epsilon_lower=13.487)
    return Progress(
        tuple(audits),
        Activity(
            trainers=3,
            packs_in_flight=3,
            pack_seconds=1.0,
            failed={19: 60},
            running=frozenset({12, 13, 14}),
            over=frozenset({19}),
        ),
    )


def shown(progress: Progress, width: int, height: int) -> list[str]:
    return frames.frame(frames.View(progress, "", 0, 37.0, 95.0), width, height).plain.splitlines()


@pytest.mark.parametrize("width", [20, 40, 60, 80, 140, 300])
@pytest.mark.parametrize("height", [3, 5, 10, 24, 40])
def test_pictures_fit(width: int, height: int) -> None:
    for progress in (twenty(), Progress(twenty().audits[:1])):
        lines = shown(progress, width, height)
        assert 0 < len(lines) < height
        assert max(map(cell_len, lines)) <= width


def test_running_audits_come_first_and_the_rest_is_counted() -> None:
    totals, legend, _, *rows, rest = shown(twenty(), 80, 14)
    assert totals == "24,920 / 40,000 trials, 60 failed  37 trials/s, ETA 1m 35s"
    assert legend == "audit: model, clip_norm; all: adversary=biased-dimension choice=simulated"
    assert [row.split()[1] for row in rows] == ["12", "13", "14", "7", "19"]
    assert rest == "+15 more: 11 done, 4 waiting"


def test_a_bound_above_its_claim_is_not_lost_among_those_that_are_done() -> None:
    (row,) = (line for line in shown(twenty(), 100, 24) if "13.49" in line)
    assert "! 13.49" in row
    assert frames.last(twenty(), 60).plain == (
        "24,920 / 40,000 trials, 60 failed in 1m 00s; 20 audits: 12 done, 7 not finished, "
        "1 given up, 1 above its claim (!)"
    )


def test_decided_audits_and_preparations_say_so() -> None:
    progress = Progress(
        (audit("decided", 420, decided=400), audit("waits", 0, parts_done=3, parts=16))
    )
    _, _, decided, waits = shown(progress, 80, 24)
    assert "420 enough" in decided
    assert "prepared 3 / 16" in waits
    assert "–" in waits, "of no trial there is no bound"


def test_nothing_is_said_of_the_pace_that_is_not_known() -> None:
    view = frames.View(twenty(), "", 0, math.nan, math.nan)
    assert "? trials/s, ETA ?" in frames.frame(view, 80, 24).plain
    assert frames.line(view).startswith("24920/40000 trials, ?/s, ETA ?; model=")


@pytest.mark.parametrize("width", range(1, 30))
def test_labels_lose_their_middle(width: int) -> None:
    label = "clip_norm=1.0, 模型, noise=2.5"
    short = middle(label, width)
    assert cell_len(short) <= width
    assert short.endswith(label[-max(1, width // 2) :]) or "…" in short


def verdict(*audits: Verdict, together: Verdict) -> RunVerdict:
    one = AuditVerdict("x", Verdict.CONSISTENT, 1.0, "prv", 1.0, None, 0.0, 2.0, 9, 9, None, 1.0)
    rows = tuple(dataclasses.replace(one, verdict=each) for each in audits)
    return RunVerdict(together, 0.95, rows)


def test_a_verdict_that_is_not_a_rows_is_explained() -> None:
    violation, consistent, inconclusive = Verdict
    mixed = tested.why_rows_differ(verdict(consistent, inconclusive, together=consistent))
    assert mixed is not None
    assert mixed.startswith("CONSISTENT: each mechanism has an audit that would have found")
    joint = tested.why_rows_differ(verdict(inconclusive, inconclusive, together=violation))
    assert joint == "VIOLATION: by the evidence of all audits together, and of none alone"
    for plain in ((consistent,), (consistent, consistent)):
        assert tested.why_rows_differ(verdict(*plain, together=consistent)) is None
    alone = verdict(violation, inconclusive, together=violation)
    assert tested.why_rows_differ(alone) is None
