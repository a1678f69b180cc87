"""`dpaudit list` and `init`: names as the registries have them; a sweep file that runs as it is."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dpaudit_ray import accounting, stats
from dpaudit_ray.adversaries.base import Adversary
from dpaudit_ray.data.base import Data
from dpaudit_ray.mechanisms.base import Mechanism
from dpaudit_ray.models.base import Model
from dpaudit_ray.plugins import registry
from dpaudit_ray.sweep import spec, template
from tests.command import dpaudit, inline, refused

REGISTRIES = {
    "data": lambda: registry(Data),
    "models": lambda: registry(Model),
    "adversaries": lambda: registry(Adversary),
    "mechanisms": lambda: registry(Mechanism),
    "estimators": stats.estimators,
    "accountants": accounting.accountants,
}


@pytest.mark.parametrize("kind", REGISTRIES)
def test_every_name_has_a_line(kind):
    entries = json.loads(dpaudit("list", kind, "--json").out)
    assert [entry["name"] for entry in entries] == sorted(REGISTRIES[kind]())
    assert all(10 < len(entry["line"]) <= 100 for entry in entries)
    shown = dpaudit("list", kind, "--all").out
    for entry in entries:
        assert f"\n{entry['name']} " in shown
        assert entry["line"] in shown


def test_estimators_are_the_common_five_unless_all_are_requested():
    rows = dpaudit("list", "estimators").out.splitlines()[1:]
    common = ["accuracy", "eps-delta", "one-run", "one-run-adaptive", "one-run-fdp"]
    assert [row.split()[0] for row in rows[:6]] == [*common, "goes"]
    assert "--all lists all 16" in " ".join(rows[5:])


def test_all_kinds_are_shown_with_their_keys():
    everything = json.loads(dpaudit("list", "--json").out)
    shown = dpaudit("list").out
    assert set(REGISTRIES) < set(everything)
    assert "adversary.name" in shown
    assert all(entry["name"] in shown for entries in everything.values() for entry in entries)


def test_options_are_those_of_the_class_and_of_its_variants():
    found = json.loads(dpaudit("list", "adversaries", "one-run", "--json").out)
    options = {option.pop("name"): option for option in found["options"]}
    assert options["canaries"] == {"takes": "whole number ≥ 1", "default": None, "required": True}
    assert options["adjacency"]["default"] == "add-remove"
    assert options["kind"]["takes"] == "dirac | random | natural | mislabelled"
    assert "random bit" in found["text"]
    rows = dpaudit("list", "mechanisms", "dp-sgd").out.splitlines()
    by_name = {row.split("  ")[0]: row.split("  ", 1)[1].split() for row in rows if "  " in row}
    assert by_name["steps"][-1] == "required"
    assert by_name["noise_multiplier"] == ["number", "≥", "0", "|", "null", "null"]
    assert by_name["model"] == ["a", "model", "required"]
    assert by_name["sampling"] == ["a", "sampling", "scheme", "fixed"]
    accuracy = json.loads(dpaudit("list", "estimators", "accuracy", "--json").out)
    assert [option["name"] for option in accuracy["options"]] == ["curve", "warmup"]
    assert dpaudit("list", "accountants", "rdp").out.endswith("no options\n")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(home: Path, *options: str, file: str = "sweep.yaml") -> spec.Sweep:
    """What `init` writes, every line of it commented, as a sweep."""
    outcome = dpaudit("init", *([] if file == "sweep.yaml" else [file]), *options)
    assert (outcome.code, outcome.err) == (0, ""), outcome
    text = (home / file).read_text()
    assert all("#" in line and len(line.partition("#")[2]) > 3 for line in text.splitlines()), text
    return spec.load(home / file)


def test_it_plans_and_runs_as_it_is(home):
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
def test_arrays_are_looked_at(shape, classes, model, words, home):
    x = np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)
    (home / "my data").mkdir()
    x, y = x if len(shape) == 4 else x / 255, np.arange(40) % classes
    np.savez(home / "my data/it, [1].npz", x=x, y=y)
    data = template.read_data(None, "my data/it, [1].npz", Path())
    assert (data.model, data.words) == (model, words)
    text = template.sweep_text("own", data, None)
    assert words in text
    assert "path: 'my data/it, [1].npz'" in text, "so that the folder can be moved"
    assert "batch_size: 8 " in text
    if model == "fcnn":
        sweep = written(home, "--data-path", "my data/it, [1].npz", file="own.yaml")
        assert sweep.name == "own"
        assert sweep.cells[0].mechanism.batch_size == 8


@pytest.mark.parametrize(
    ("label", "options", "loss", "second"),
    [
        ("animal", {"label_order": ["cat", "dog", "no"]}, "cross-entropy", "loss"),
        ("price", {"regression": True}, "mse", "cosine"),
    ],
)
def test_any_table_is_described_by_what_its_columns_hold(label, options, loss, second, home):
    """Text of few values is a category, of many a name; columns of row numbers are left out."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"id": [f"n{i}" for i in range(90)], "age": rng.integers(18, 90, 90)})
    table["city"], table["row"] = rng.choice(["Oslo", "Rome"], 90), range(7, 97)
    animals, prices = rng.choice(["cat", "dog", "no"], 90), rng.normal(size=90)
    table[label] = animals if label == "animal" else prices
    table.to_csv(home / "own.csv", sep=";")
    mechanism = written(home, "--data-path", "own.csv").cells[0].mechanism
    stated = mechanism.data.model_dump(exclude_defaults=True, exclude={"name", "path"})
    described = {"label": label, "categories": ["city"], "drop": ["Unnamed: 0", "row", "id"]}
    assert stated == described | options
    assert mechanism.loss == loss
    assert mechanism.data.load().x.shape == (90, 3)
    assert [cell.adversary.name for cell in spec.load(home / "sweep.yaml").cells][1] == second


def test_what_a_guess_leaves_out_or_changes_is_said_on_screen_and_in_the_file(home):
    """A decimal comma, dates, empty cells and prices were dropped in silence, or refused."""
    rows = [f"{700 + i};{i},5;{i % 28 + 1:02d}.11.2026;${i};{i or ''};{i % 2}" for i in range(60)]
    (home / "own.csv").write_text("id;age;day;price;few;y\n" + "\n".join(rows), "utf-8")
    shown = dpaudit("init", "--data-path", "own.csv")
    assert shown.code == 0, shown.err
    told = (
        "column 'id' is left out: it only numbers the rows",
        "column 'price' is left out: it is numbers with signs or separators, such as '$0' in row 1",
        "column 'day' becomes days since 1970",
        "1 empty cells of 'few' become 0: give a constant that is known without the records",
    )
    text = (home / "sweep.yaml").read_text()
    for line in told:
        assert line in " ".join(shown.out.split())
        assert f"# {line}" in text
    data = spec.load(home / "sweep.yaml").cells[0].mechanism.data
    stated = data.model_dump(exclude_defaults=True, exclude={"name", "path", "label"})
    assert stated == {
        "dates": ["day"], "drop": ["id", "price"], "fill": {"few": 0}, "decimal": ",",
    }  # fmt: skip
    np.testing.assert_array_equal(data.load().x[:2], [[0.5, 20758, 0], [1.5, 20759, 1]])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--data", "bnak"), "--data: unknown data set 'bnak'; did you mean bank? known: "),
        (("--data", "bank"), "--data-path: is required: bank is read from a file or a folder"),
        (("--data-path", "none.npz"), "--data-path: nothing is at "),
        (("--model", "fcn"), "mechanism.model.name: unknown model 'fcn'; did you mean fcnn?"),
        (("--model", "convnet"), "mechanism.model: convnet needs images"),
        (("--model", "no_such:Net"), "mechanism.model.path: cannot import 'no_such:Net'"),
        (("none/sweep.yaml",), "FILE: cannot write none/sweep.yaml: No such file or directory; "),
    ],
)
def test_what_cannot_be_audited_is_told_before_it_is_written(options, expected, home):
    assert refused("init", *options).startswith(expected)
    assert not list(home.iterdir())


def test_a_sweep_to_begin_with_has_who_can_decide_it(home):
    """Of Poisson batches the last model shows too little, and a Gaussian curve reads it as less."""
    first, _ = written(home, "--sampling", "poisson").cells
    assert first.adversary.name == "watched-dimension"
    assert first.mechanism.trade_off(first.adversary, first.horizons[-1]) == "claimed"
    assert first.audit.estimators[0].options == {"curve": "claimed"}
    refusal = refused("init", "other.yaml", "--sampling", "shuffle")
    assert refusal == "--sampling: is 'shuffle'; use fixed or poisson"
