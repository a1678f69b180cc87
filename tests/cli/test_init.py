"""`dpaudit init`: the file that it writes is commented, valid, and runs as it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpaudit_ray.sweep import spec
from tests.command import dpaudit, inline, refused

FEATURES = (
    "MedInc", "HouseAge", "AveRooms", "AveBedrms", "Population", "AveOccup", "Latitude",
    "Longitude", "MedHouseVal",
)  # fmt: skip


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(home: Path, *options: str, file: str = "sweep.yaml") -> spec.Sweep:
    """What `init` writes, every line of it commented, as a sweep."""
    outcome = dpaudit("init", *([] if file == "sweep.yaml" else [file]), *options)
    assert (outcome.code, outcome.err) == (0, ""), outcome
    text = (home / file).read_text()
    assert all("#" in line and len(line.partition("#")[2]) > 3 for line in text.splitlines()), text
    return spec.load(home / file)


def test_it_plans_and_runs_as_it_is(home: Path) -> None:
    sweep = written(home)
    assert [cell.label for cell in sweep.cells] == ["biased-dimension", "loss"]
    few = ("--set", "audit.trials=6", "--set", "mechanism.steps=4", "--set", "audit.record_every=2")
    assert dpaudit("plan", "sweep.yaml", *few).code == 0
    assert inline(Path("sweep.yaml"), home / "runs", *few).code == 0
    before = (home / "sweep.yaml").read_text()
    assert refused("init").startswith("FILE: sweep.yaml exists; give another name, or --force")
    assert (home / "sweep.yaml").read_text() == before
    assert written(home, "--force", "--model", "mlp3").cells[0].mechanism.model.name == "mlp3"


@pytest.mark.parametrize(
    ("shape", "classes", "model", "words"),
    [
        ((40, 7), 2, "fcnn", "40 records of 7 features, 2 classes"),
        ((40, 7), 5, "mlp3", "40 records of 7 features, 5 classes"),
        ((40, 28, 28, 1), 2, "cnn4", "40 records of 28 x 28 pixels in 1 channels, 2 classes"),
        ((40, 32, 32, 3), 3, "convnet", "40 records of 32 x 32 pixels in 3 channels, 3 classes"),
    ],
)
def test_arrays_are_looked_at(
    shape: tuple[int, ...], classes: int, model: str, words: str, home: Path
) -> None:
    x = np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)
    (home / "my data").mkdir()
    np.savez(
        home / "my data/it, [1].npz", x=x if len(shape) == 4 else x / 255, y=np.arange(40) % classes
    )
    sweep = written(home, "--data-path", "my data/it, [1].npz", file="own.yaml")
    mechanism = sweep.cells[0].mechanism
    assert mechanism.model.name == model
    assert mechanism.batch_size == 8
    assert sweep.name == "own"
    text = (home / "own.yaml").read_text()
    assert words in text
    assert "path: 'my data/it, [1].npz'" in text, "so that the folder can be moved"


def test_a_table_of_this_projects_kinds_is_recognised(home: Path) -> None:
    rows = np.random.default_rng(0).random((30, len(FEATURES)))
    np.savetxt(home / "h.csv", rows, delimiter=",", header=",".join(FEATURES), comments="")
    sweep = written(home, "--data-path", str(home / "h.csv"))
    assert sweep.cells[0].mechanism.data.name == "california_housing"
    (home / "foreign.csv").write_text("a,b\n1,2\n")
    line = refused("init", "other.yaml", "--data-path", "foreign.csv")
    assert line.startswith(
        "--data-path: no data set of this project reads foreign.csv; write arrays"
    )
    assert not (home / "other.yaml").exists()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--data", "bnak"), "--data: unknown data set 'bnak'; did you mean bank? known: "),
        (("--data", "bank"), "--data-path: is required: bank is read from a file or a folder"),
        (("--data-path", "none.npz"), "--data-path: nothing is at "),
        (("--model", "fcn"), "mechanism.model.name: unknown model 'fcn'; did you mean fcnn?"),
        (("--model", "convnet"), "mechanism.model: convnet needs images"),
        (("--model", "no_such:Net"), "mechanism.model.path: cannot import 'no_such:Net'"),
    ],
)
def test_what_cannot_be_audited_is_told_before_it_is_written(
    options: tuple[str, ...], expected: str, home: Path
) -> None:
    assert refused("init", *options).startswith(expected)
    assert not list(home.iterdir())


def test_a_folder_that_is_not_there_is_told(home: Path) -> None:
    assert refused("init", "none/sweep.yaml") == (
        "FILE: cannot write none/sweep.yaml: No such file or directory; make its folder, or give "
        "another place"
    )
