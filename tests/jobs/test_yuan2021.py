"""The sweep files of Yuan et al.: each runs as it is written, and trends are as published."""

from pathlib import Path

import pandas as pd
import pytest
import yaml

from tests.command import dpaudit
from tests.conftest import SHARED
from tests.jobs.small import JOBS, names, run_small
from tests.long import long

FOLDER, FILES = JOBS / "yuan2021", names("yuan2021")
CANCER = SHARED / "data/risk_factors_cervical_cancer.csv"


AS_FIGURE_1 = long("as figure 1, with C in place of σ")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=AS_FIGURE_1) if name.startswith("figure2") else name
        for name in FILES
        if not name.endswith("_bank")
    ],
)
def test_every_sweep_file_runs(name, tmp_path):
    """On bundled data, with less of everything; the report has its figures."""
    raw = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    sets = [
        "mechanism.training.data={name: breast_cancer, records: 80}",
        "mechanism.training.steps=3", "mechanism.training.batch_size=20", "audit.trials=60",
        "resources.pack_size=20",
    ]  # fmt: skip
    exact = raw["mechanism"].get("backend") == "exact"
    for key, values in raw["grid"].items():
        if "training" in key:  # three of the numbers are a trend, which is drawn of exact bounds
            few = [*values[: 1 + exact], values[-1]]
            sets.append(f"grid.{key}=[{', '.join(map(str, few))}]")
    if "crafts" not in raw["adversary"]:
        sets.append("mechanism.training.model.width=80")
    location = run_small(FOLDER / f"{name}.yaml", tmp_path, *sets).directory.location
    assert dpaudit("report", location).code == 0
    figures = {file.name for file in (Path(location) / "figures").iterdir()}
    wanted = {"distribution-1.png", "evolution-closed-form.png"} if exact else {"overview.png"}
    if exact and not name.startswith("figure5"):
        wanted.add("trend-closed-form.png")
    assert wanted <= figures


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith("_bank")])
def test_on_the_bank_it_is_the_same_sweep_but_for_its_data(name):
    bank, cancer = (
        yaml.safe_load((FOLDER / f"{name.replace('bank', data)}.yaml").read_text())
        for data in ("bank", "cancer")
    )
    bank["name"] = bank["name"].replace("bank", "cancer")
    for key in ("data", "steps"):
        bank["mechanism"]["training"][key] = cancer["mechanism"]["training"][key]
    assert bank == cancer


@pytest.mark.skipif(not CANCER.is_file(), reason="the cervical cancer data are not at hand")
@pytest.mark.parametrize(
    "name", ["figure1_noise_cancer", pytest.param("figure2_clipping_cancer", marks=AS_FIGURE_1)]
)
def test_trends_on_the_real_data_are_those_of_the_paper(name, tmp_path):
    """More noise, or a larger clip norm, lowers bounds; the last layer tells more."""
    run = run_small(FOLDER / f"{name}.yaml", tmp_path, f"mechanism.training.data.path={CANCER}")
    last = run.estimates[run.estimates["step"] == 17].drop_duplicates(["audit", "estimator"])
    table = last.pivot_table(index="audit", columns="estimator", values="epsilon_lower")
    claims = last.groupby("audit")["epsilon_upper"].first()
    assert (table["exact"] <= claims * (1 + 1e-9)).all()
    assert (table["complement"] <= table["exact"]).all()
    found = {a.label: table.loc[a.id, "closed-form"] for a in run.plan.audits}
    series = [pd.Series([v for k, v in found.items() if f"layer={layer}," in k])
              for layer in ("last", "second-last")]  # fmt: skip
    for bounds in series:
        assert bounds.is_monotonic_decreasing
    assert (series[0] > series[1]).all()
