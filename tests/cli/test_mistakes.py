"""Several mistakes in one sweep file: all of them at once, each with its place and its remedy."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from dpaudit_ray.errors import SpecError
from dpaudit_ray.sweep import spec
from tests.command import dpaudit, write_sweep


def told(text: str, folder: Path, *options: str) -> list[str]:
    """Every line that `plan` says of a sweep file, without the file's folder."""
    file = folder / "sweep.yaml"
    file.write_text(text)
    outcome = dpaudit("plan", file, "--storage-path", folder / "runs", *options)
    assert (outcome.code, outcome.out) == (2, "")
    return [line.removeprefix(f"dpaudit: {folder}/") for line in outcome.err.splitlines()]


ALL_WRONG = """\
name: a b
sed: 3
mechanism:
  name: dp-sgd
  data: {name: breast_cancr}
  model: {name: fcnn, initialisation: random}
  step: 5
  batch_size: 0
  learning_rate: 0.1
  clip_norm: 1.0
  noise_multiplier: 2.0
  engine: packd
adversary: loss
audit:
  delta: 1e-5
  trials: ten
  estimators: [acuracy, {name: eps-delta, treshold: past}]
  accountants: [gausian]
grid:
  mechanism.clip_norm: [1, two]
  adversary, mechanism.learning_rate:
    - [loss, 1]
    - [{name: biased-dimension,
        choise: random}, fast]
resources: {num_cpus: 0, num_gpu: 1}
"""


def test_all_that_is_wrong_is_told_at_once_with_its_place(tmp_path: Path) -> None:
    """Unknown keys first, with the key that was meant, which is not said to be missing; then in the
    order of the file.
    """
    lines = told(ALL_WRONG, tmp_path)
    unknown = [
        "sweep.yaml:2:1: sed: unknown key; did you mean seed? known: name, seed, mechanism",
        "sweep.yaml:6:23: mechanism.model.initialisation: unknown key; did you mean init",
        "sweep.yaml:7:3: mechanism.step: unknown key; did you mean steps? known: name, data",
        "sweep.yaml:17:43: audit.estimators.1.treshold: unknown option of eps-delta; did",
        "sweep.yaml:24:9: adversary.choise: unknown key; did you mean choice? known: name, period",
        "sweep.yaml:25:26: resources.num_gpu: unknown key; did you mean num_gpus? known: num_cpus",
    ]
    wrong = [
        "sweep.yaml:1:7: name: names a folder: up to 100 letters",
        "sweep.yaml:5:16: mechanism.data.name: unknown data set 'breast_cancr'; did you",
        "sweep.yaml:8:15: mechanism.batch_size: must be at least 1, got 0",
        "sweep.yaml:12:11: mechanism.engine: must be 'packed' or 'opacus', got 'packd'; did you",
        "sweep.yaml:16:11: audit.trials: must be a whole number, got 'ten'",
        "sweep.yaml:17:16: audit.estimators.0.name: unknown estimator 'acuracy'; did you mean",
        "sweep.yaml:18:17: audit.accountants.0: unknown accountant 'gausian'; did you mean",
        "sweep.yaml:20:28: mechanism.clip_norm: must be a number, got 'two'",
        "sweep.yaml:24:26: mechanism.learning_rate: must be a number, got 'fast'",
        "sweep.yaml:25:23: resources.num_cpus: must be greater than 0, got 0",
    ]
    assert len(lines) == len(unknown + wrong), lines
    for line, expected in zip(lines, unknown + wrong, strict=True):
        assert line.startswith(expected), line
    assert not any("is required" in line for line in lines)


def test_what_options_have_set_is_told_with_the_option(tmp_path: Path) -> None:
    text = ALL_WRONG.replace("sed: 3", "seed: 3").partition("grid:")[0]
    changes = ("mechanism.schedule=x", "audit.confidense=3", "mechanism.batch_size=0")
    lines = told(text, tmp_path, *(part for change in changes for part in ("--set", change)))
    options = [line for line in lines if not line.startswith("sweep.yaml:")]
    assert [line.partition(";")[0] for line in options] == [
        "dpaudit: --set audit.confidense: unknown key",
        "dpaudit: --set mechanism.batch_size: must be at least 1, got 0",
        "dpaudit: --set mechanism.schedule.name: unknown schedule 'x'",
    ]


def test_a_wrong_grid_hides_nothing_else(tmp_path: Path) -> None:
    """Nor is what it would have filled said to be missing."""
    text = (
        "name: x\nmechanism: {name: dp-sgd, stepz: 1}\naudit: {trials: 10, delta: 1}\n"
        "grid:\n  adversary: [loss]\n  mechanizm.steps: [1]\n  audit.: [2]\n"
    )
    assert [line.partition(";")[0] for line in told(text, tmp_path)] == [
        "sweep.yaml:2:27: mechanism.stepz: unknown key",
        "sweep.yaml:3:28: audit.delta: must be less than 1, got 1",
        "sweep.yaml:6:20: grid.mechanizm.steps: must start with one of mechanism, adversary, audit",
    ]


def test_what_is_missing_is_told_where_it_should_be(tmp_path: Path) -> None:
    lines = told("3: 4\non: 5\nmechanism:\n  name: dp-sgd\n  steps: 3\n", tmp_path)
    assert lines[0].startswith("sweep.yaml:1:1: 3: unknown key; known: name, seed")
    assert {line.partition(": ")[2] for line in lines if line.startswith("sweep.yaml:3:1: ")} == {
        f"mechanism.{key}: is required"
        for key in ("data", "model", "batch_size", "learning_rate", "clip_norm")
    }
    assert {"sweep.yaml:1:1: adversary: is required", "sweep.yaml:1:1: name: is required"} < {
        *lines
    }


def test_a_mistake_that_only_the_data_show_is_told_with_its_place(
    tiny: dict, tmp_path: Path
) -> None:
    tiny["mechanism"]["batch_size"] = 570
    (line,) = told(write_sweep(tmp_path, tiny).read_text(), tmp_path)
    assert re.match(r"sweep\.yaml:\d+:15: mechanism\.batch_size: is 570, but breast_", line), line


def test_what_the_data_show_of_one_cell_is_told_with_its_line(tiny: dict, tmp_path: Path) -> None:
    tiny["grid"] = {"mechanism.batch_size": [64, 570]}
    text = write_sweep(tmp_path, tiny).read_text()
    (line,) = told(text, tmp_path)
    number = text.splitlines().index("  - 570") + 1
    assert line.startswith(f"sweep.yaml:{number}:5: mechanism.batch_size: is 570, but breast_")


def test_so_many_mistakes_are_counted(tmp_path: Path) -> None:
    keys = "".join(f"x{number}: 1\n" for number in range(30))
    lines = told(f"{keys}name: x\n", tmp_path)
    assert (len(lines), lines[-1]) == (21, "dpaudit: and 13 more")


def test_plain_data_have_no_place(tiny: dict) -> None:
    """Whoever calls from Python gets all of it in one error, a line each."""
    tiny["mechanism"] |= {"stepz": 1, "clip_norm": "x"}
    with pytest.raises(SpecError) as caught:
        spec.from_raw(tiny)
    assert [line.partition(";")[0] for line in str(caught.value).splitlines()] == [
        "mechanism.stepz: unknown key",
        "mechanism.clip_norm: must be a number, got 'x'",
    ]
    assert pickle.loads(pickle.dumps(caught.value)).problems[1].key == "mechanism.clip_norm"
