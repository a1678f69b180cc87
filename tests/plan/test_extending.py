"""What is said of an audit whose number of trials followed from its trials."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dpaudit_ray as da
from dpaudit_ray import plan as planning
from dpaudit_ray import stats
from dpaudit_ray.report.tables import Run, overview
from dpaudit_ray.storage.run_directory import RunDirectory
from tests.command import dpaudit, stored_scores
from tests.plan.failing import of_function


def sweep(*estimators: Any, **audit: Any) -> dict[str, Any]:
    how = {"path": "tests.plan.failing:steady", "curve": "gaussian", "isolated": False}
    return of_function("longer", {"estimators": list(estimators)} | audit, 20, **how)


def grown(raw: dict[str, Any], folder: Path, *trials: int) -> pd.DataFrame:
    """Estimates after the sweep was run with these numbers of trials in turn."""
    for number in trials:
        done = da.run(raw, str(folder), "inline", overrides={"audit.trials": number})
        assert done.complete
    return done.estimates.set_index("estimator")


def by_hand(method, shares, scores, members, **options) -> float:
    """The largest of the bounds after so many trials, each at its share of the error."""
    bounds = []
    for number, share in shares.items():
        state = stats.make(method, planned=number, **options)
        state.fold(scores[:number], members[:number])
        bounds.append(state.bound(1e-5, 1 - share * 0.05).epsilon_lower)
    return max(bounds)


def scores_in(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Scores and members of all trials."""
    run = RunDirectory(str(folder / "longer"))
    (audit,) = planning.require(run).audits
    table = stored_scores(run, audit.id)
    return table["score"].to_numpy(), table["member"].to_numpy()


def speaks_for(folder: Path) -> tuple[str, str]:
    """The estimator that stands for the audit, and its status."""
    (entry,) = overview(Run.open(str(folder / "longer")))
    return entry["estimator"], entry["status"]


ADDED = {"anytime": "certified", "eps-delta-anytime": "certified"}


@pytest.mark.parametrize(
    ("options", "trials", "statuses"),
    [
        ({}, (100,), {"accuracy": "certified", "paper-gdp": "paper"}),
        # Nothing is added where a time-uniform one is asked for.
        ({}, (100, 200), {"accuracy": "extended", "claim": "certified"}),
        # It spends its error over the declared trials, so it may be looked at, but not extended.
        ({}, (100, 200), {"group-sequential": "extended"} | ADDED),
        ({"up_to": 200}, (100, 200, 300), {"accuracy": "extended"} | ADDED),
    ],
)
def test_statuses_follow_from_what_was_declared(options, trials, statuses, tmp_path):
    asked = (name for name in statuses if name not in ADDED)
    table = grown(sweep(*asked, **options), tmp_path, *trials)
    assert table["status"].to_dict() == statuses


def test_after_an_extension_time_uniform_bounds_take_over(tmp_path):
    raw = sweep("accuracy", "eps-delta", "paper-gdp")
    table = grown(raw, tmp_path, 100, 200)
    extended = {"accuracy": "extended", "eps-delta": "extended", "paper-gdp": "paper"}
    assert table["status"].to_dict() == extended | ADDED
    assert set(table["trials"]) == {200}
    for name in table.index:
        bound = by_hand(name, {200: 1}, *scores_in(tmp_path))
        assert table.loc[name, "epsilon_lower"] == bound, name
    shown = dpaudit("status", tmp_path / "longer").out
    assert speaks_for(tmp_path) == ("anytime", "certified")
    assert "interim" not in shown
    stored = json.loads((tmp_path / "longer/plan.json").read_text())["audits"][0]["declared"]
    assert stored == [100, 200]
    assert dpaudit("report", tmp_path / "longer").code == 0
    page = (tmp_path / "longer/report.html").read_text()
    assert '<span class="tag extended">extended</span>' in page
    rows = json.loads(dpaudit("report", tmp_path / "longer", "--format", "json").out)
    assert {row["estimator"]: row["status"] for row in rows} == table["status"].to_dict()


def test_every_recorded_step_has_them(tiny, tmp_path):
    tiny["audit"]["estimators"] = ["accuracy"]
    grown(tiny, tmp_path, 20, 30)
    table = RunDirectory(str(tmp_path / "tiny")).estimates()
    holding = table[table["status"].isin(["certified", "if-gaussian"])]
    found = holding.groupby(["audit", "step"])["estimator"].agg(set)
    assert found.tolist() == [{"anytime", "eps-delta-anytime"}] * 4


def test_an_audit_that_was_decided_early_certifies_what_holds_then(tmp_path):
    """`accuracy` at the trial that decided is looked at, wherever it is written."""
    raw = sweep("accuracy", "eps-delta", trials=2000, stop_when={"within": 0.7})
    result = da.run(raw, str(tmp_path), "inline")
    assert result.complete
    table = result.estimates.set_index("estimator")
    assert 0 < table["trials"].max() < 2000
    assert table["status"].to_dict() == {"accuracy": "interim", "eps-delta": "interim"} | ADDED
    number = table["trials"].max()
    shown = dpaudit("status", tmp_path / "longer").out
    assert speaks_for(tmp_path) == ("anytime", "certified")
    assert f"ended by stop_when after {number} trials" in shown
    rows = json.loads(dpaudit("report", tmp_path / "longer", "--format", "json").out)
    assert {row["estimator"]: (row["status"], row["interim"]) for row in rows} == {
        "accuracy": ("interim", True), "eps-delta": ("interim", True),
        "anytime": ("certified", False), "eps-delta-anytime": ("certified", False),
    }  # fmt: skip


def test_going_on_to_the_declared_number_is_no_extension(tmp_path):
    """The stop was a look, but the bound is the one at the number that was declared first."""
    raw = sweep("accuracy", trials=400, stop_when={"within": 0.7})
    early = da.run(raw, str(tmp_path), "inline").estimates
    assert early["trials"].max() < 400
    del raw["audit"]["stop_when"]
    table = grown(raw, tmp_path, 400)
    assert table["status"].to_dict() == {"accuracy": "certified"}
    assert grown(raw, tmp_path, 500)["status"].to_dict() == {"accuracy": "extended"} | ADDED
