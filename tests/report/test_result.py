"""A run in Python: opened again, as tables with what the grid varies, and as figures."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

import dpaudit_ray as da
from dpaudit_ray.adversaries.biased_dimension import BiasedDimension
from dpaudit_ray.errors import SpecError
from dpaudit_ray.report.tables import Run
from tests.report.handed import DP_SGD, played, sweep
from tests.test_contract import modules_after

mpl.use("agg")  # which draws into no window
GRID = {
    "mechanism.noise_multiplier": [2.0, 4],
    "adversary": [
        "loss",
        {"name": "biased-dimension", "choice": "simulated"},
        {"name": "biased-dimension"},
    ],
    "mechanism.model, audit.estimators": [["fcnn", ["eps-delta"]]],
}


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw = sweep("grid", mechanism=DP_SGD, grid=GRID)
    return played(raw, tmp_path_factory.mktemp("grid"), 10_000)


@pytest.fixture
def result(location: Path) -> da.Result:
    return da.open(location)


def test_a_run_is_opened_as_it_was_left(location, tmp_path):
    opened = da.open(location)
    assert (opened.complete, opened.failures, opened.location) == (True, (), str(location))
    failed = da.open(played(sweep("failed"), tmp_path, 4, missed=True))
    assert not failed.complete
    assert len(failed.failures) == 2


def test_what_the_grid_varies_is_a_column(result):
    table = result.overview
    columns = ["audit", "label", "adversary.choice", "adversary.name", "audit.estimators"]
    columns += ["mechanism.model.name", "mechanism.name", "mechanism.noise_multiplier", "quote"]
    assert table.columns[: len(columns)].tolist() == columns
    assert table["mechanism.noise_multiplier"].tolist() == [2.0] * 3 + [4.0] * 3
    assert table["adversary.name"].tolist() == ["loss", "biased-dimension", "biased-dimension"] * 2
    default = BiasedDimension.model_fields["choice"].default
    assert table["adversary.choice"].fillna("-").tolist() == ["-", "simulated", default] * 2
    assert set(table["mechanism.model.name"]) == {"fcnn"}
    assert set(table["audit.estimators"]) == {"[{'name': 'eps-delta'}]"}


def test_a_bound_is_a_row_however_many_accountants_claim(result, location):
    table, run = result.estimates, Run.open(str(location))
    assert not table.duplicated(["audit", "step", "estimator"]).any()
    assert len(table) == len(run.estimates) / 2
    assert set(run.estimates.columns) <= set(table.columns)
    for name in ("gaussian", "rdp"):
        rows = run.estimates[run.estimates["accountant"] == name]
        np.testing.assert_array_equal(table[f"claim_{name}"], rows["epsilon_upper"])
    assert table["epsilon_upper"].equals(table["claim_gaussian"])


def test_a_run_of_nothing_yet_has_tables_without_rows(tmp_path):
    begun = played(sweep("begun"), tmp_path, 0)
    (begun / "estimates.parquet").unlink()
    empty = da.open(begun)
    assert len(empty.overview) == 2
    assert (len(empty.estimates), "mechanism.gradient" in empty.estimates) == (0, True)


def test_plots_are_drawn_where_one_likes(result):
    from matplotlib import pyplot as plt

    figure, (left, *right) = plt.subplots(1, 3)
    assert result.plot(ax=left) is left
    assert len(left.patches) == 6, "bars"
    drawn = result.plot(steps=True, ax=right)
    assert [axes.get_ylabel() for axes in drawn] == ["ε at δ = 1e-5"] * 2
    assert len(figure.axes) == 3
    assert result.plot(steps=True).shape == (2,)
    with pytest.raises(SpecError, match="ax: must be 2 axes"):
        result.plot(steps=True, ax=left)
    plt.close("all")


def test_pyplot_is_left_alone_until_something_is_drawn(location):
    opened = f"import dpaudit_ray as da; run = da.open({str(location)!r})"
    assert "matplotlib" not in modules_after(f"{opened}; run.overview; run.estimates")


def test_one_step_alone_is_no_line(tmp_path):
    one = da.open(played(sweep("one", audit={"trials": 20, "delta": 1e-5}), tmp_path, 4))
    with pytest.raises(SpecError, match="steps: cannot be drawn"):
        one.plot(steps=True)
