"""Figures of a whole run: which audits stand together, and what is drawn of them."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dpaudit_ray.report.figures import whole_run
from dpaudit_ray.report.figures.whole_run import is_axis
from dpaudit_ray.report.tables import Run
from tests.report.handed import played


def bounds_of(raw: dict, folder: Path) -> tuple[Run, pd.DataFrame]:
    """A finished run whose scores are drawn (what is exact takes no pack), and its bounds."""
    run = Run.open(str(played(raw, folder, 10_000)))
    return run, whole_run.bounds_table(run)


def test_repetitions_are_one_line_and_claims_one_panel(tiny, tmp_path):
    tiny["audit"]["trials"] = 20
    tiny["grid"]["mechanism.noise_multiplier"] = [2.0, 3.0]
    tiny["grid"]["mechanism.seed"] = [0, 4]
    run, bounds = bounds_of(tiny, tmp_path)
    titles = ["noise_multiplier=2.0", "noise_multiplier=3.0"]
    assert bounds["title"].unique().tolist() == titles
    for _, panel in bounds.groupby("panel"):
        assert panel["label"].unique().tolist() == ["biased-dimension", "loss"]
        assert panel["step"].unique().tolist() == [3, 6]
    assert (bounds.groupby("line")["audit"].nunique() == 2).all()
    for audit in run.plan.audits:
        rows = run.estimates.query("audit == @audit.id and estimator == 'accuracy'")
        mine = bounds[bounds["audit"] == audit.id]
        np.testing.assert_array_equal(mine["bound"], rows.sort_values("step")["epsilon_lower"])
        assert tuple(mine["claim"]) == audit.claims["gaussian"]


def test_a_run_that_records_one_step_has_no_evolution(tiny, tmp_path):
    tiny["audit"] |= {"trials": 10, "record_every": 6}
    _, bounds = bounds_of(tiny, tmp_path)
    assert whole_run.evolution_figure(bounds) is None
    assert whole_run.bars_figure(bounds).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("key", "values", "drawn"),
    [
        ("mechanism.noise_multiplier", [0.5, 1, 2.0], True),
        ("mechanism.noise_multiplier", [0.5, 1.0], False),
        ("mechanism.steps", [1, True, 3], False),
        ("mechanism.seed", [0, 1, 2], False),
        ("mechanism.training.seed", [0, 1, 2, 3], False),
        ("mechanism.steps", [0, 1, 10**400], False),
        ("adversary.layer", ["last", "second-last", "input"], False),
    ],
)
def test_numbers_make_an_axis(key, values, drawn):
    assert is_axis(key, values) == drawn
