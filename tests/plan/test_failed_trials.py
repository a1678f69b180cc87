"""Trials that failed are misses, in everything that is said, until what they are is known."""

import json
import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dpaudit_ray as da
from dpaudit_ray import plan as planning
from dpaudit_ray import stats
from dpaudit_ray.orchestration.aggregation import Aggregation
from dpaudit_ray.plan import outcomes
from dpaudit_ray.plan.model import Pack, Plan
from dpaudit_ray.plan.outcomes import Failure
from dpaudit_ray.plan.score_stream import MissedPack
from dpaudit_ray.report import page, verdict
from dpaudit_ray.report.tables import Run
from dpaudit_ray.stats.base import curve_free_method
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.sweep.spec import Sweep
from tests.command import Outcome, dpaudit, inline, stored_scores, write_sweep
from tests.plan.failing import FLAG, sweep

LEVEL = {"delta": 1e-5, "confidence": 0.95}


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of 300 trials in which some packs failed, and fail while the flag is set."""
    monkeypatch.setenv(FLAG, "1")
    assert inline(write_sweep(tmp_path, sweep("steady", 300)), tmp_path).code == 3
    return tmp_path / "failing"


def opened(location: Path) -> tuple[Sweep, Plan, RunDirectory]:
    run = RunDirectory(str(location))
    return *planning.read(run), run


def rows(location: Path) -> pd.DataFrame:
    return pd.read_parquet(location / "estimates.parquet").set_index("estimator")


def replayed(location: Path, name: str) -> float:
    """The slow twin of an estimate: trial by trial, failed ones as misses."""
    sweep, plan, run = opened(location)
    failed = {(f.pack.first, f.pack.last) for f in outcomes.failed(run, plan)}
    state = stats.make(name, planned=300, independent=True)
    for pack in outcomes.finished_trials(run, sweep, plan, 0).packs():
        for trial in range(pack.first, pack.last + 1):
            member = pack.members[[trial - pack.first]]
            if (pack.first, pack.last) in failed:
                state.miss(member)
            else:
                stored = run.read_scores(plan.audits[0].id, pack.first, pack.last)
                state.fold(stored.scores[[trial - pack.first], 0], member)
    return state.bound(**LEVEL).epsilon_lower


def test_estimates_cover_all_trials_with_the_failed_ones_as_misses(broken):
    _sweep, plan, run = opened(broken)
    failed = {(f.pack.first, f.pack.last) for f in outcomes.failed(run, plan)}
    assert 3 <= len(failed) <= 30
    assert not (broken / "_SUCCESS").exists()
    found = rows(broken)
    assert set(found["trials"]) == {300}
    assert found.loc["eps-delta", "status"] == "certified", "all that was declared was run"
    for name in found.index:
        assert found.loc[name, "epsilon_lower"] == replayed(broken, name), name


@pytest.mark.parametrize(("mechanism", "size"), [("tests.pace:WithoutTorch", 1), ("function", 20)])
def test_failures_that_tell_the_bit_show_nothing(mechanism, size, tmp_path, monkeypatch):
    """Scores that are stored are perfect, and half of the trials failed: as packs, or in them."""
    failing = sweep("telling", 200)
    failing["mechanism"]["name"], failing["resources"]["pack_size"] = mechanism, size
    # Three of one kind in a row stop an audit; this one is to run to its end.
    monkeypatch.setattr("dpaudit_ray.orchestration.driver.SAME_FAILURES", 10**6)
    assert inline(write_sweep(tmp_path, failing), tmp_path).code == 3
    found, (_, plan, run) = rows(tmp_path / "failing"), opened(tmp_path / "failing")
    assert set(found["trials"]) == {200}
    assert (found[["epsilon_lower", "epsilon_lower_free"]] == 0).all(axis=None)
    stored = stored_scores(run, plan.audits[0].id).dropna(subset="score")
    alone = stats.estimate(stored["score"], stored["member"], **LEVEL, method="eps-delta")
    assert alone.epsilon_lower > 2, "what is left of them would have"


def test_a_part_of_a_missed_pack_has_its_bits_alone():
    part = MissedPack(10, np.array([True, False, False, True, True])).part(11, 13)
    assert (part.first, part.last, *part.members) == (11, 13, False, False, True)


def test_everything_that_is_said_rests_on_the_same_trials(broken):
    sweep, plan, run = opened(broken)
    packs = list(outcomes.finished_trials(run, sweep, plan, 0).packs())
    assert [(p.first, p.last) for p in packs] == list(plan.audits[0].packs)
    missed = sum(len(p.members) for p in packs if isinstance(p, MissedPack))
    assert missed == sum(f.pack.size for f in outcomes.failed(run, plan)) > 0
    reading = Run.open(str(broken))
    assert verdict.judge(reading).audits[0].trials == 300
    free = replayed(broken, curve_free_method())
    assert set(rows(broken)["epsilon_lower_free"]) == {free} != {0.0}
    html = Path(page.write(reading)).read_text()
    assert f"failed, counted as misses: {missed}" in html
    assert f"{free:.4f}" in html
    live = Aggregation.rebuild(run).progress().audits[0]
    assert live.epsilon_lower == rows(broken).loc["anytime", "epsilon_lower"]
    assert live.done == 300 - missed
    planned = dpaudit("plan", broken.parent / "sweep.yaml", "--storage-path", broken.parent)
    assert "remaining: about 0s" in planned.out, "failed packs are not run again unasked"


def test_any_order_of_scores_failures_and_restarts_gives_the_same(broken, tmp_path):
    sweep, plan, run = opened(broken)
    known = {failure.pack: failure for failure in outcomes.failed(run, plan)}
    packs = [Pack(0, *bounds) for bounds in plan.audits[0].packs]
    for seed in range(3):
        other = RunDirectory(str(tmp_path / f"other{seed}"))
        planning.open_run(sweep, other)
        aggregation, dice = Aggregation.rebuild(other), random.Random(seed)
        for pack in dice.sample(packs * 2, 2 * len(packs)):
            if pack in known:
                aggregation.give_up([known[pack]])
            else:
                stored = run.read_scores(plan.audits[0].id, pack.first, pack.last)
                aggregation.fold(pack, stored)
            if dice.random() < 0.1:
                aggregation = Aggregation.rebuild(other)
        aggregation.flush()
        pd.testing.assert_frame_equal(other.estimates(), run.estimates(), check_exact=True)
        assert len(outcomes.failed(other, plan)) == len(known)


def test_a_failure_is_recorded_before_it_counts(broken, monkeypatch, tmp_path):
    sweep, plan, _ = opened(broken)
    other = RunDirectory(str(tmp_path / "other"))
    planning.open_run(sweep, other)
    aggregation = Aggregation(sweep, plan, other)
    failure = Failure(Pack(0, 0, 4), "ValueError", "boom", "")
    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "_write", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            aggregation.give_up([failure])
    aggregation.flush()
    assert set(other.estimates()["trials"]) == {0}
    aggregation.give_up([failure])
    aggregation.flush()
    assert set(other.estimates()["trials"]) == {5}


def test_scores_of_a_trainer_that_was_taken_for_lost_stand_above_the_miss(broken, tmp_path):
    sweep, plan, run = opened(broken)
    other = RunDirectory(str(tmp_path / "other"))
    planning.open_run(sweep, other)
    aggregation = Aggregation(sweep, plan, other)
    done = [Pack(0, *pack) for pack in sorted(run.score_files(plan.audits[0].id))][:2]
    aggregation.give_up([Failure(done[0], "WorkerLost", "its worker died", "")])
    for pack in done:
        aggregation.fold(pack, run.read_scores(plan.audits[0].id, pack.first, pack.last))
    aggregation.flush()
    assert outcomes.recorded(other, plan) == []
    before, again = other.estimates(), Aggregation.rebuild(other)
    assert aggregation.progress() == again.progress()
    again.flush()
    pd.testing.assert_frame_equal(before, other.estimates(), check_exact=True)


def retried(location: Path) -> Outcome:
    return inline(location.parent / "sweep.yaml", location.parent, "--retry-failed")


def test_scores_replace_misses_when_a_retry_succeeds(broken, tmp_path, monkeypatch):
    monkeypatch.delenv(FLAG)
    assert retried(broken).code == 0
    assert json.loads((broken / "outcomes.json").read_text())["failed_packs"] == []
    whole = da.run(sweep("steady", 300), storage_path=str(tmp_path / "whole"), executor="inline")
    found = RunDirectory(str(broken)).estimates()
    pd.testing.assert_frame_equal(found, whole.run.estimates, check_exact=True)


def test_a_retry_that_fails_again_changes_nothing(broken):
    """Three failures in a row end it; packs whose turn did not come are misses again."""
    before, record = rows(broken), broken / "outcomes.json"
    known = json.loads(record.read_text())["failed_packs"]
    again = retried(broken)
    assert again.code == 3
    assert "3 packs in a row failed the same way" in again.err
    assert len(json.loads(record.read_text())["failed_packs"]) == len(known) > 3
    pd.testing.assert_frame_equal(rows(broken), before, check_exact=True)


def test_code_that_is_not_deterministic_is_not_retried(tmp_path, monkeypatch):
    """Its scores are seeded by the clock.

    A pack passes if all 14 runs of its 5 trials are truthful: .731 ** 70 = 3e-10, in 300 retries.
    """
    monkeypatch.setattr("dpaudit_ray.orchestration.driver.SAME_FAILURES", 10**6)
    file = write_sweep(tmp_path, sweep("restless", 1000))
    assert inline(file, tmp_path).code == 3
    location = tmp_path / "failing"
    before = rows(location)
    stored = {f: f.read_bytes() for f in location.rglob("*.parquet")}
    unlike = "ValueError: boom; run again, it did not give the same twice"
    for _ in range(2):
        again = inline(file, tmp_path, "--retry-failed")
        assert again.code == 3
        record = json.loads((location / "outcomes.json").read_text())["failed_packs"]
        assert {failed["message"] for failed in record} <= {"ValueError: boom", unlike}
        pd.testing.assert_frame_equal(rows(location), before, check_exact=True)
    assert {
        f: f.read_bytes() for f in location.rglob("scores/*/*.parquet")
    }.items() <= stored.items()
    assert before.loc["eps-delta", "epsilon_lower"] < 1


@pytest.mark.parametrize("steady", [True, False])
def test_an_audit_without_a_finished_pack_is_run_twice(steady, tmp_path, monkeypatch):
    lone = sweep("first_try", 10, steady=steady) | {"resources": {"pack_size": 10}}
    file = write_sweep(tmp_path, lone)
    monkeypatch.setenv(FLAG, "1")
    assert inline(file, tmp_path).code == 3
    monkeypatch.delenv(FLAG)
    again = inline(file, tmp_path, "--retry-failed")
    assert again.code == (0 if steady else 3), again.err
    assert ("run again, it did not give the same twice" in again.err) == (not steady)


def test_a_decision_that_rested_on_misses_is_taken_again(tmp_path, monkeypatch):
    """With the misses the bound takes longer to get there than with the scores."""
    early = sweep("steady", 300)
    early["audit"]["stop_when"] = {"within": 0.7}
    early["resources"]["pack_size"] = 2
    file = write_sweep(tmp_path, early)
    location = tmp_path / "failing"
    monkeypatch.setenv(FLAG, "1")
    assert inline(file, tmp_path).code == 3, "packs before the decision failed"
    late = json.loads((location / "outcomes.json").read_text())["decided"]["000"]["trials"]
    assert set(rows(location)["trials"]) == {late}
    monkeypatch.delenv(FLAG)
    assert inline(file, tmp_path, "--retry-failed").code == 0
    after = json.loads((location / "outcomes.json").read_text())["decided"]["000"]["trials"]
    quiet = da.run(early, storage_path=str(tmp_path / "quiet"), executor="inline")
    assert after < late
    pd.testing.assert_frame_equal(
        RunDirectory(str(location)).estimates(), quiet.run.estimates, check_exact=True
    )
