"""The sweep files of Cebere et al.: each runs as it is written, only with less of everything."""

from pathlib import Path

import numpy as np
import pytest

from dpaudit_ray.report.figures import whole_run
from dpaudit_ray.sweep import spec
from tests.jobs.small import JOBS, names, noise_images, run_small
from tests.long import long

FOLDER, EVERY = JOBS / "cebere2024", names("cebere2024")
PAIRS = "grid.mechanism.steps, adversary.period"
TRAINED = [name for name in EVERY if not name.startswith("landscape")]
ON_TABLES = [name for name in TRAINED if name.startswith("housing")]
ON_IMAGES = [name for name in TRAINED if name not in ON_TABLES]
LARGE = ["alexnet", "resnet", "resnet_periods"]
LONG = long("steps of ResNet-18, AlexNet's weights and grids of the landscape take minutes")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file like California Housing's, of 600 districts nobody lives in."""
    rng = np.random.default_rng(0)
    rows = rng.lognormal(size=(600, 9))
    file = tmp_path_factory.mktemp("data") / "california_housing.csv"
    names = "MedInc,HouseAge,AveRooms,AveBedrms,Population,AveOccup,Latitude,Longitude,MedHouseVal"
    np.savetxt(file, rows, delimiter=",", header=names, comments="")
    return file


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file like CIFAR-10's, of 30 images of noise."""
    return noise_images(tmp_path_factory.mktemp("data"), (30, 32, 32, 3), 10)


def settings(name: str, table: Path, images: Path) -> list[str]:
    """What makes a file independent of the network: its data, and AlexNet's weights."""
    if name not in TRAINED:
        return []
    if name in ON_TABLES:
        return [f"mechanism.data.path={table}"]
    weights = ["mechanism.model.weights=none"] * (name == "alexnet")
    return [f"mechanism.data={{name: npz, path: {images}}}", *weights]


def with_steps(name: str, steps: int, every: int) -> list[str]:
    """T and how often scores are recorded; where the sweep pairs T with k, for k = 1 and 5."""
    if name.endswith(("periods", "simulated")):
        length = f"{PAIRS}=[[{steps}, 1], [{5 * steps}, 5]]"
    else:
        length = f"mechanism.steps={steps}"
    return [length, f"audit.record_every={every}"]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=LONG) if n in LARGE or n not in TRAINED else n
        for n in EVERY
        if n != "housing_repetitions"  # which is run below
    ],
)
def test_every_sweep_file_runs(name, table, images, tmp_path):
    """On images one or two steps with small batches."""
    short = ["audit.trials=8"]
    if name in TRAINED:
        short += with_steps(name, 1 if name == "resnet_periods" else 2, 1)
    if name in ON_IMAGES:
        short += ["audit.trials=2", "mechanism.batch_size=2"]
    if name == "canary_norm":
        short += ["grid.mechanism.model.name=[convnet]"]
    run = run_small(FOLDER / f"{name}.yaml", tmp_path, *settings(name, table, images), *short)
    assert run.sweep.name == f"cebere2024-{name.replace('_', '-')}"
    assert len(run.estimates)


def test_every_period_has_the_same_claim(table):
    for name in ("housing_periods", "convnet_periods", "resnet_periods", "convnet_simulated"):
        cells = spec.load(FOLDER / f"{name}.yaml").cells
        claims = [cell.mechanism.claimed(cell.adversary, cell.horizons[-1]) for cell in cells]
        assert {claim.steps for claim in claims} == {250}, name


def test_the_report_averages_repetitions(table, images, tmp_path):
    name = "housing_repetitions"
    short = ["audit.trials=30", "grid.mechanism.seed=[1, 2]", *with_steps(name, 4, 2)]
    run = run_small(FOLDER / f"{name}.yaml", tmp_path, *settings(name, table, images), *short)
    assert run.sweep.name == "cebere2024-housing-repetitions"
    bounds = whole_run.bounds_table(run)
    assert set(bounds["panel"]) == {0}
    assert bounds.groupby("label", sort=False)["audit"].nunique().to_dict() == {
        "biased-dimension choice=simulated": 2,
        "biased-dimension choice=random": 2,
        "loss": 2,
    }
    for figure in (whole_run.bars_figure(bounds), whole_run.evolution_figure(bounds)):
        assert figure is not None
        assert len(figure.axes) == 1
