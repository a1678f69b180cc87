"""The sweep files and the exact figures of Steinke, Nasr, Jagielski."""

import numpy as np
import pytest
import yaml

from jobs.steinke2023 import curves
from tests.jobs.small import JOBS, names, noise_images, run_small

CANARIES = "adversary.canaries, audit.trials, audit.estimators"


@pytest.mark.parametrize("name", names("steinke2023"))
def test_every_sweep_file_runs(name, tmp_path):
    """As it is written, on images of noise and with less of everything."""
    file, images = JOBS / f"steinke2023/{name}.yaml", noise_images(tmp_path, (40, 32, 32, 3), 4)
    raw = yaml.safe_load(file.read_text())
    grid = raw.get("grid", {})
    sets = [
        f"mechanism.data={{name: npz, path: {images}}}",
        "mechanism.batch_size=8", "mechanism.steps=4", "resources={}", "audit.accountants=[rdp]",
        "audit.estimators=[{name: one-run, guesses: 3}, {name: one-run-fdp, guesses: 4}]",
        "adversary.canaries=4", "audit.trials=8",
    ]  # fmt: skip
    smaller = {
        CANARIES: "[[3, 6, [{name: one-run, guesses: 2}, paper-one-run]]]",
        "mechanism.data.records, mechanism.batch_size, mechanism.learning_rate": "[[2, 2, 0.1]]",
        "mechanism.steps": "[2, 4]",
        "mechanism.epsilon": "[4]",
        "mechanism.seed": "[0, 1]",
        "mechanism.data.records, mechanism.reserved": "[[30, 0.5], [40, 0.4]]",
    }
    own = {part.strip() for key in grid for part in key.split(",")}
    sets = [one for one in sets if one.partition("=")[0] not in own]
    sets += [f"grid.{key}={values}" for key, values in smaller.items() if key in grid]
    if "held_out" in raw["mechanism"]:
        sets.append("mechanism.held_out=0.2")
    if "physical_batch_size" in raw["mechanism"]:
        sets += ["mechanism.model=convnet", "audit.record_every=2"]
    run = run_small(file, tmp_path / "runs", *sets)
    assert not any("estimators=" in audit.label for audit in run.plan.audits)


def test_the_exact_figures_have_the_papers_numbers():
    """Figures 9 and 10 print 3.87 of 9820 right and 2.675 of 1439; 1429 of 1500 is Figure 11's."""
    ninth = curves.figure_9().table
    assert ninth["95 % lower bound"].iloc[-1] == pytest.approx(3.874410725, abs=1e-8)
    tenth = curves.figure_10().table
    assert tenth["95 % lower bound"].max() == pytest.approx(2.675, abs=0.01)
    assert tenth["upper bound"].iloc[0] == pytest.approx(4.377178, abs=1e-6)
    assert curves.ideal_right(1510, curves.CANARIES) == 1439
    assert curves.ideal_right(curves.GUESSES, curves.CANARIES) == curves.RIGHT


def test_the_surest_guesses_of_gaussian_scores_are_right_that_often():
    """Against a million scores: one standard error of the rate is .5 %."""
    rng, canaries, guesses = np.random.default_rng(0), 1_000_000, 20_000
    bits = rng.random(canaries) < 0.5
    order = np.argsort(2.0 * bits - 1 + curves.SIGMA * rng.standard_normal(canaries))
    right = bits[order[-guesses // 2 :]].sum() + (~bits[order[: guesses // 2]]).sum()
    assert right / guesses == pytest.approx(
        curves.ideal_right(guesses, canaries) / guesses, abs=0.01
    )


def test_the_exact_figures_are_written(tmp_path):
    curves.main(tmp_path)
    for number in (1, 2, 9, 10, 11):
        assert (tmp_path / f"figure{number}.png").stat().st_size > 5000
        assert (tmp_path / f"figure{number}.csv").read_text().count("\n") > 20
