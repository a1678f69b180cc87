"""Figures of papers, drawn by their command from small runs, show what the runs say."""

import dataclasses
import importlib
import re
import types

import numpy as np
import pandas as pd
import pytest

import dpaudit_ray as da
from jobs import paper_figures
from tests.jobs.small import JOBS, noise_images, run_small

SMALL = ("mechanism.batch_size=8", "resources={}", "audit.accountants=[rdp]")
LABELS = (
    "mechanism.training.data={name: breast_cancer, records: 80}", "mechanism.training.steps=3",
    "mechanism.training.batch_size=20", "mechanism.training.model.width=80",
)  # fmt: skip
GUESSED = "[{name: one-run, guesses: 40}, {name: one-run-fdp, guesses: 40}]"


@dataclasses.dataclass(frozen=True)
class Case:
    """Runs of a paper by sweep file, with changes; the first figure has the `middle` of bounds."""

    paper: str
    runs: dict[str, tuple[str, ...]]
    figure: str
    estimators: tuple[str, ...]
    x: str
    images: tuple[int, ...] = ()
    middle: str = "mean"


CASES = [
    Case(
        "cebere2024",
        {"landscape_repetitions": (
            "mechanism.steps=3", "audit.trials=400", "grid.mechanism.seed=[1, 2]",
            "grid.mechanism.batch_size=[1, 16]", "grid.mechanism.noise_multiplier=[1.0, 2.0, 3.0]",
        )},
        "figure14", ("accuracy",), "step",
    ),
    Case(
        "nasr2021",
        {"figure8_malicious_dataset": (
            *SMALL, "mechanism.steps=4", "audit.trials=2000", "grid.mechanism.epsilon=[4, 10]",
            "audit.estimators=[accuracy, paper-eps-delta]",  # through the claim it takes long
        )},
        "figure8", ("accuracy", "paper-eps-delta"), "epsilon_upper", (40, 28, 28, 1),
    ),
    Case(
        "steinke2023",
        {"figure5_steps": (
            *SMALL, "grid.mechanism.epsilon=[8, 20]", "grid.mechanism.seed=[0, 1]",
            "grid.mechanism.steps=[1, 2]", "adversary.canaries=40", "audit.trials=40",
            f"audit.estimators={GUESSED}",
         ),
         "figure3_canaries": (
            *SMALL, "mechanism.steps=1", "grid.mechanism.epsilon=[8]", "grid.mechanism.seed=[0]",
            f"grid.adversary.canaries, audit.trials, audit.estimators=[[40, 40, {GUESSED}]]",
         )},
        "figure5", ("one-run", "one-run-fdp"), "epsilon_upper", (40, 32, 32, 3), "median",
    ),
    Case(
        "yuan2021",
        {"figure1_noise_cancer": (*LABELS, "grid.mechanism.training.noise_multiplier=[0.5, 1, 3]"),
         "figure5_batches_cancer": LABELS},
        "figure1", ("closed-form",), "mechanism.training.noise_multiplier", (), "median",
    ),
]  # fmt: skip


def test_a_gradient_canary_of_an_unnamed_choice_is_drawn():
    rows = [("0", "", name, 1, "accuracy", "certified") for name in ("biased-dimension", "loss")]
    columns = ["audit", "label", "adversary.name", "step", "estimator", "status"]
    run = types.SimpleNamespace(estimates=pd.DataFrame(rows, columns=columns))
    drawn = importlib.import_module("jobs.cebere2024.figures").with_series(run)["series"]
    assert [*drawn] == ["A_GC", "A_L"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.paper)
def test_figures_show_what_runs_say(case, tmp_path, monkeypatch):
    module, locations = importlib.import_module(f"jobs.{case.paper}.figures"), []
    data = noise_images(tmp_path, case.images, 4) if case.images else None
    for name, changes in case.runs.items():
        sets = [*changes, *([f"mechanism.data={{name: npz, path: {data}}}"] if data else [])]
        run = run_small(JOBS / case.paper / f"{name}.yaml", tmp_path / name, *sets)
        locations.append(run.directory.location)
    monkeypatch.setattr("sys.argv", ["figures", *locations, "--out", str(tmp_path / "pictures")])
    more = []
    if case.paper == "nasr2021":  # Figure 10 needs no run
        monkeypatch.setattr(module, "NOISES", [1.0, 2.0])
        more = [module.without_runs()]
    with pytest.raises(SystemExit) as ended:
        paper_figures.command(module.FIGURES, *more)
    assert ended.value.code == 0
    assert len({*(tmp_path / "pictures").glob("*.png")}) >= 2

    opened = da.open(locations[0])
    figures = dict(paper_figures.drawn(module.FIGURES, [opened]))
    shown = [
        point
        for axes in figures[case.figure].axes
        for line in axes.get_lines()
        if line.get_label() != "claim"
        for point in zip(*line.get_data(), strict=True)
    ]
    assert len(shown) > 3
    assert max(y for _, y in shown) > 0
    np.testing.assert_allclose(sorted(shown), sorted(said(opened.estimates, case)))
    with pytest.raises(paper_figures.typer.BadParameter, match="is of the sweep"):
        [*paper_figures.drawn({}, [opened])]


def said(table: pd.DataFrame, case: Case) -> list[tuple[float, float]]:
    """The points of the case's figure, by hand: a list of bounds for each audit but its seed."""
    points: dict[object, list[float]] = {}
    steps = table.groupby("audit")["step"].max()
    for row in table.to_dict("records"):
        if row["estimator"] in case.estimators and (
            case.x == "step" or row["step"] == steps[row["audit"]]
        ):
            audit = re.sub(r",? ?seed=\d+", "", row["label"])
            key = audit, row["estimator"], row["step"], row[case.x]
            points.setdefault(key, []).append(row["epsilon_lower"])
    return [(key[-1], pd.Series(bounds).agg(case.middle)) for key, bounds in points.items()]
