"""The sweep files of Nasr et al.: each runs as it is written, only with less of everything."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy import stats

import dpaudit_ray as da
from dpaudit_ray.adversaries.base import SampleCanary
from dpaudit_ray.adversaries.poison import Poisoner
from dpaudit_ray.sweep import spec
from jobs.nasr2021 import order, table
from tests.jobs.small import JOBS, names, noise_images, run_small

FOLDER = JOBS / "nasr2021"
PLACES = "grid.mechanism.data, mechanism.model"
SHAPES = {"cnn4": (40, 28, 28, 1), "convnet": (40, 32, 32, 3)}  # whose loops are compiled already


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files of 40 images of noise, by the network that is trained on them."""
    folders = {model: tmp_path_factory.mktemp(model) for model in SHAPES}
    return {model: noise_images(folders[model], shape, 4) for model, shape in SHAPES.items()}


@pytest.fixture
def few_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poisons are moved three times in place of fifty."""
    poison = Poisoner.poison

    def moved(adversary: Poisoner, *known: Any) -> SampleCanary:
        return poison(adversary.model_copy(update={"ascent": 3}), *known)

    monkeypatch.setattr(Poisoner, "poison", moved)


@pytest.mark.usefixtures("few_moves")
@pytest.mark.parametrize("name", names("nasr2021"))
def test_every_sweep_file_runs(name, images, tmp_path):
    raw = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    model = raw["mechanism"]["model"]["name"]
    data = f"{{name: npz, path: {images.get(model, images['convnet'])}}}"
    trials = 24 if name == "figure1" else 4  # of 24, some are guessed
    sets = ["mechanism.batch_size=8", "mechanism.steps=4", f"audit.trials={trials}", "resources={}"]
    sets += [] if model in images else ["mechanism.model.name=convnet"]
    by_grid = PLACES.removeprefix("grid.") in raw.get("grid", {})
    sets.append(f"{PLACES}=[[{data}, convnet]]" if by_grid else f"mechanism.data={data}")
    if "mechanism.epsilon" in raw.get("grid", {}):
        sets.append("grid.mechanism.epsilon=[4]")
    if "held_out" in raw["mechanism"]:
        sets.append("mechanism.held_out=0.1")
    sets.append("audit.accountants=[rdp]")  # to solve for ε by others takes seconds
    if name == "black_box":
        start = "canary: blank, start: pretrained, start_steps: 3"
        query = f"{{name: crafted-query, rehearsals: 4, ascent: 2, {start}}}"
        sets.append(f"grid.adversary=[api-access, {{name: api-access, {start}}}, {query}]")
    if name in ("figure1", "paper_size"):  # whose attacks have files of their own
        assert len(spec.load(FOLDER / f"{name}.yaml").cells) > 15
        sets.append("grid.adversary=[api-access, gradient]")
    if "record_every" in raw["audit"]:
        sets.append("audit.record_every=2")
    if name == "order":
        sets += ["audit.canaries_drawn=2", "grid.adversary=[api-access, intermediate-poison]"]
    run = run_small(FOLDER / f"{name}.yaml", tmp_path, *sets)
    assert len(run.plan.audits) == len(run.sweep.cells)
    if name == "figure1":
        cells = list(table.rows(da.open(run.directory.location)))
        assert [cell[1] for cell in cells] == [cell.adversary.name for cell in run.sweep.cells]
        assert all(re.fullmatch(r"[01]\.\d\d \([01]\.\d\d–[01]\.\d\d\)", cell[2]) for cell in cells)
    if name == "order":
        drawn = order.shifts(da.open(run.directory.location))
        assert [len(values) for values in drawn.values()] == [2, 2]


def test_pairs_tell_a_small_shift_that_single_trainings_hide():
    """Worlds .2 apart and .1 of the noise not shared: a standard error of .01, where .09 is usual.

    So .03 is three standard errors; seeds are fixed. Any rising map of the scores changes nothing.
    """
    rng = np.random.default_rng(0)
    first = rng.random((250, 1)) < 0.5
    members = np.concatenate([first, ~first], axis=1)
    noise = np.sqrt(0.99) * rng.normal(size=(250, 1)) + 0.1 * rng.normal(size=(250, 2))
    scores = noise + 0.2 * members
    assert order.shift(scores, members) == pytest.approx(0.2, abs=0.03)
    assert order.shift(np.exp(scores), members) == order.shift(scores, members)
    values = {"a": [0.4, 0.5, 0.6], "b": [0.1, 0.1, 0.2], "c": [0.1, 0.2, 0.3]}
    drawn = {name: np.array(shifts) for name, shifts in values.items()}
    table = order.differences(drawn).set_index(["first", "second"])
    assert len(table) == 3
    one = stats.ttest_ind(drawn["a"], drawn["b"], equal_var=False).confidence_interval(1 - 0.05 / 3)
    assert tuple(table.loc["a", "b"][["low", "high"]]) == pytest.approx(tuple(one))


def test_the_figures_are_slices_of_the_first():
    """An audit that is in two sweeps has one fingerprint, so the same bits, noise and scores."""
    first = spec.load(FOLDER / "figure1.yaml")
    known = {cell.fingerprint for cell in first.cells}
    for number in range(3, 8):
        (file,) = FOLDER.glob(f"figure{number}_*.yaml")
        sweep = spec.load(file)
        assert sweep.seed == first.seed
        here = {cell.fingerprint for cell in sweep.cells}
        assert len(here & known) == 3, file.name  # its three claims on MNIST
