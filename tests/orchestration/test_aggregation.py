"""The aggregator: a function of the prefix, whatever order packs arrive in, and however often."""

import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dpaudit_ray import plan as planning
from dpaudit_ray import seeds, stats
from dpaudit_ray.errors import StorageError
from dpaudit_ray.orchestration.aggregation import Aggregation
from dpaudit_ray.plan.model import Pack, Plan
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.storage.scores import PackScores
from dpaudit_ray.sweep import spec
from dpaudit_ray.sweep.spec import Sweep


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


def folded(opened: tuple[Sweep, Plan, RunDirectory], packs: list[Pack]) -> pd.DataFrame:
    aggregation = Aggregation(*opened)
    for pack in packs:
        aggregation.fold(pack, scores_of(opened[1], pack))
    aggregation.flush()
    return opened[2].estimates()


def test_any_order_and_any_repeat_give_the_same_estimates(opened, tmp_path):
    sweep, plan, run = opened
    packs = list(plan.remaining(run))
    straight = folded(opened, packs)
    assert run.complete
    for seed in range(3):
        other = RunDirectory(str(tmp_path / f"other{seed}"))
        planning.open_run(sweep, other)
        order = packs * 2
        random.Random(seed).shuffle(order)
        again = folded((sweep, plan, other), order)
        pd.testing.assert_frame_equal(again, straight, check_exact=True)


def test_estimates_are_those_of_the_finished_prefix(opened):
    """Packs 0, 1, 3 of nine: trials 0-19 count, 30-39 wait."""
    _, plan, run = opened
    packs = [p for p in plan.remaining(run) if p.audit == 0]
    table = folded(opened, [packs[3], packs[0], packs[1]])
    mine = table[table["audit"] == plan.audits[0].id]
    assert set(mine["trials"]) == {20}
    assert not run.complete
    early = [scores_of(plan, pack) for pack in packs[:2]]
    values = np.concatenate([p.scores[:, -1] for p in early])
    members = np.concatenate([p.members for p in early])
    state = stats.make("accuracy", planned=90)
    state.fold(values, members)
    row = mine[(mine["estimator"] == "accuracy") & (mine["step"] == 6)].iloc[0]
    assert row["epsilon_lower"] == state.bound(1e-5, 0.95).epsilon_lower


def test_a_restarted_aggregator_goes_on_where_the_last_one_was(opened, tmp_path):
    sweep, plan, run = opened
    packs = list(plan.remaining(run))
    first = Aggregation(sweep, plan, run)
    for pack in packs[:7]:
        first.fold(pack, scores_of(plan, pack))
    second = Aggregation.rebuild(run)
    assert second.progress() == first.progress()
    for pack in packs[7:]:
        second.fold(pack, scores_of(plan, pack))
    second.flush()
    other = RunDirectory(str(tmp_path / "other"))
    planning.open_run(sweep, other)
    pd.testing.assert_frame_equal(
        run.estimates(), folded((sweep, plan, other), packs), check_exact=True
    )


def test_what_cannot_be_stored_is_not_folded(opened, monkeypatch):
    sweep, plan, run = opened
    pack = next(plan.remaining(run))
    aggregation = Aggregation(sweep, plan, run)
    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "_try", _full_disk)
        with pytest.raises(StorageError):
            aggregation.fold(pack, scores_of(plan, pack))
    assert aggregation.progress().done == 0
    aggregation.fold(pack, scores_of(plan, pack))
    assert aggregation.progress().done == 10


def _full_disk(*args: object) -> None:
    raise StorageError("no space left")


def test_bounds_that_decide_are_those_of_the_sweeps_level(opened):
    """Three estimators that hold their level, two steps, two audits: twelve bounds share 5 %."""
    sweep, plan, run = opened
    table = folded(opened, list(plan.remaining(run)))
    assert sweep.budget.parts == 12
    row = table[(table["estimator"] == "eps-delta") & (table["step"] == 6)].iloc[0]
    state = stats.make("eps-delta", planned=90)
    for pack in (p for p in plan.remaining(RunDirectory(f"{run.location}-none")) if p.audit == 0):
        scores = scores_of(plan, pack)
        state.fold(scores.scores[:, -1], scores.members)
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
    packs = [pack for pack in plan.remaining(run) if pack.audit == 0]
    table = folded((sweep, plan, run), packs)
    mine = table[table["audit"] == plan.audits[0].id].set_index("estimator")
    together = mine["epsilon_lower_together"]
    assert set(mine.index) == {"accuracy", "anytime", "eps-delta-anytime"}
    for name in mine.index:
        state = stats.make(name, planned=90)
        for pack in packs:
            scores = scores_of(plan, pack)
            state.fold(scores.scores[:, -1], scores.members)
        found = state.bound(1e-5, 1 - 0.05 / sweep.budget.parts / 3).epsilon_lower
        assert together[name] == pytest.approx(found, rel=1e-9)


def test_nothing_is_decided_by_a_bound_whose_trials_are_not_all_in(opened):
    table = folded(opened, list(opened[1].remaining(opened[2]))[:5])
    mine = table[table["audit"] == opened[1].audits[0].id].set_index("estimator")
    assert mine.loc["anytime", "epsilon_lower_together"].notna().all()
    for name in ("accuracy", "eps-delta", "paper-gdp"):
        assert mine.loc[name, "epsilon_lower_together"].isna().all()


def test_the_bound_without_assumption_is_that_of_the_prefix(tiny, tmp_path):
    """Stored packs behind a gap do not count: which packs failed may depend on the bits."""
    tiny["audit"]["estimators"] = ["accuracy"]
    sweep, run = spec.from_raw(tiny), RunDirectory(str(tmp_path / "run"))
    plan = planning.open_run(sweep, run)
    packs = [p for p in plan.remaining(run) if p.audit == 0]
    table = folded((sweep, plan, run), [*packs[:4], *packs[5:]])
    state = stats.make("one-run", planned=90, independent=True)
    for pack in packs[:4]:
        scores = scores_of(plan, pack)
        state.fold(scores.scores[:, -1], scores.members)
    mine = table[table["audit"] == plan.audits[0].id].set_index("step")
    assert mine["estimator"].eq("accuracy").all(), "no row was added"
    assert mine.loc[6, "epsilon_lower_free"] == state.bound(1e-5, 0.95).epsilon_lower
    assert mine["free_estimator"].to_dict() == {3: "", 6: "one-run"}
    again = Aggregation.rebuild(run)
    again.flush()
    pd.testing.assert_frame_equal(run.estimates(), table, check_exact=True)


def test_what_an_alarm_compares_holds_for_all_audits_at_once(opened):
    aggregation = Aggregation(*opened)
    for pack in opened[1].remaining(opened[2]):
        aggregation.fold(pack, scores_of(opened[1], pack))
    shown = aggregation.progress().audits
    assert [audit.assumes for audit in shown] == ["Gaussian steps", "assumes Gaussian"]
    for audit, live in zip(shown, aggregation._audits, strict=True):
        assert 0 < audit.epsilon_lower < live._live.bound(1e-5, 0.95).epsilon_lower


def test_a_claim_that_is_not_gaussian_is_not_held_against_a_converted_bound(tmp_path):
    """A μ above that of the Gaussian through (ε, δ) does not refute a subsampled claim."""
    mechanism = {
        "name": "function",
        "path": "test_failed_trials:steady",
        "steps": 4,
        "noise_multiplier": 1.0,
    }
    level = {"trials": 400, "delta": 1e-5}
    bounds = {}
    for rate, noise in ((0.5, 4.0), (1.0, 1.0)):
        changed = {"sample_rate": rate, "noise_multiplier": noise}
        raw = {"name": "own", "mechanism": mechanism | changed, "adversary": "own"}
        accountants = ["pld"] if rate < 1 else ["gaussian"]
        sweep = spec.from_raw(raw | {"audit": level | {"accountants": accountants}})
        run = RunDirectory(str(tmp_path / f"{rate}"))
        plan = planning.open_run(sweep, run)
        aggregation = Aggregation(sweep, plan, run)
        for pack in plan.remaining(run):
            aggregation.fold(pack, scores_of(plan, pack))
        bounds[rate] = aggregation.progress().audits[0]
    assert bounds[1.0].assumes == "assumes Gaussian"
    assert bounds[0.5].assumes == "assumption-free", "the other would be above the claim"
    assert bounds[0.5].epsilon_lower < bounds[1.0].epsilon_lower / 2
