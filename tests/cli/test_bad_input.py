"""A sweep file that cannot be run: exit 2, and a line with its place for each mistake."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from dpaudit_ray.errors import SpecError
from dpaudit_ray.sweep import spec
from tests.command import changed, dpaudit, inline, refused, write_sweep

NAN, INF = float("nan"), float("inf")

# (key, value, the beginning of the line after "dpaudit: "). Keys of the adversary drop the grid.
TYPES: list[tuple[str, Any, str]] = [
    ("mechanism.steps", "6", "mechanism.steps: must be a whole number, got '6'"),
    ("mechanism.steps", True, "mechanism.steps: must be a whole number, got True"),
    ("mechanism.data.path", 3, "mechanism.data.path: unknown key; known: name"),
    ("mechanism.trials", 3, "mechanism.trials: unknown key here; write it under audit"),
    ("audit.pack_size", 3, "audit.pack_size: unknown key here; write it under resources"),
    ("audit.estimators", "accuracy", "audit.estimators: must be a list, got 'accuracy'"),
    ("adversary", {"name": 3}, "adversary: must be a name or a mapping with a name"),
    ("resources", None, "resources: must be a mapping, got None"),
    ("resources.memory", "much", "resources.memory: could not parse value and unit"),
    ("resources.memory", 1.5, "resources.memory: must be a whole number of bytes or text such as"),
    ("resources.label_selector", {"kind": 3}, "resources.label_selector.kind: must be text, got 3"),
    ("name", 3, "name: must be text, got 3"),
]
BOUNDS: list[tuple[str, Any, str]] = [
    ("resources.num_cpus", 1e308, "resources.num_cpus: must be at most 1,000,000, got 1e308"),
    *(("mechanism.data", {"name": "npz", "path": path}, "npz: no file at ") for path in
      ("~nobody-of-this-name/x.npz", "a" * 5000, "a\0b", "/a" * 3000)),
    ("resources.num_gpus", 1.5, "resources.num_gpus: is above 1, so it must be a whole number"),
    ("resources.num_gpus", 0.00001, "resources.num_gpus: must be a multiple of 0.0001"),
    ("resources.custom_resources", {"a": 0}, "resources.custom_resources.a: must be greater than"),
    ("resources.custom_resources", {"GPU": 1}, "resources.custom_resources: names GPU; use num_"),
    ("resources.label_selector", {"kind": "a b"}, "resources.label_selector.kind: must be a label"),
    ("mechanism.noise_multiplier", NAN, "mechanism.noise_multiplier: must be finite, got nan"),
    ("mechanism.batch_size", 570, "mechanism.batch_size: is 570, but breast_cancer has 569"),
    ("adversary.period", 7, "adversary.period: is 7, which does not divide the 6 steps"),
    ("audit.trials", 0, "audit.trials: must be at least 1, got 0"),
    ("audit.trials", 10**30, "audit.trials: must be at most 1e8"),
    ("audit.record_every", 7, "audit.record_every: must be 1 to 6: of 6 steps"),
    ("mechanism.steps", 10**5, "audit.record_every: must be 10 to 100000: of 100000 steps"),
    ("audit.estimators", [], "audit.estimators: must not be empty"),
    ("audit.estimators", ["rank"] * 2, "audit.estimators: lists rank twice; remove one of them"),
    ("audit.accountants", ["rdp"] * 2, "audit.accountants: lists rdp twice; remove one of them"),
    ("audit.stop_when", {}, "audit.stop_when: names no rule"),
    ("audit.up_to", 50, "audit.up_to: is 50, fewer than the 90 of audit.trials"),
]  # fmt: skip
NAMES: list[tuple[str, Any, str]] = [
    ("mechanism.name", "foo", "mechanism.name: unknown mechanism 'foo'; known: dp-sgd"),
    ("audit.accountants", ["rdp", "foo"], "audit.accountants.1: unknown accountant 'foo'; known: "),
    *(("name", name, "name: names a folder: up to 100 letters") for name in
      ("a/b", "../x", "..", "", "a b", "-x", "x" * 101)),
]  # fmt: skip
ESTIMATORS: list[tuple[Any, str]] = [
    (3, "audit.estimators.0: must be a name or a mapping with a name, got 3"),
    ({"name": "accuracy", "foo": 1}, "audit.estimators.0.foo: unknown key; known: curve, warmup"),
    ({"name": "eps-delta", "threshold": "x"}, "audit.estimators.0.threshold: must be 'past'"),
    ({"name": "eps-delta", "threshold": "fixed"}, "audit.estimators.0: eps-delta: threshold: fix"),
    ({"name": "accuracy", "warmup": 1.5}, "audit.estimators.0.warmup: must be a whole number"),
]
GRIDS: list[tuple[Any, str]] = [
    ([1], "grid: must map dotted keys to lists of values, got [1]"),
    ({"adversary": []}, "grid.adversary: must be a list of at least one value, got []"),
    ({"resources.num_cpus": [1]}, "grid.resources.num_cpus: must start with one of mechanism"),
    ({"mechanism.steps.x": [5]}, "grid.mechanism.steps.x: steps is 6, no mapping that could hold"),
    ({"adversary": ["loss", None]}, "adversary: is required"),
    ({"mechanism.clip_norm": [1, 1.0]}, "grid: gives the same audit twice (clip_norm=1; clip_no"),
    ({"adversary": [{"name": "loss", "period": 1}, "loss"]}, "grid: gives the same audit twice"),
    ({"adversary.period": [1, 2], "adversary": ["loss"]}, "grid: gives the same audit twice"),
]


def line_for(sweep: dict[str, Any], folder: Path) -> str:
    """What `dpaudit run` says; also checks that it has touched nothing."""
    file = write_sweep(folder, sweep)
    before = set(folder.iterdir())
    line = refused("run", file, "--storage-path", folder / "runs", "--executor", "inline")
    assert set(folder.iterdir()) == before
    return line


LISTED = [("audit.estimators", [estimator], expected) for estimator, expected in ESTIMATORS]
WHOLE = [("grid", grid, expected) for grid, expected in GRIDS]


@pytest.mark.parametrize(("key", "value", "expected"), [*TYPES, *BOUNDS, *NAMES, *LISTED, *WHOLE])
def test_a_wrong_value(key, value, expected, tiny, tmp_path):
    if key.startswith("adversary"):
        del tiny["grid"]
    line = line_for(changed(tiny, key, value), tmp_path)
    assert line.startswith(expected), line


def test_a_canary_example_beyond_the_data_is_told_by_plan(tiny, tmp_path):
    tiny.pop("grid")
    tiny["adversary"]["example"] = 569
    line = refused("plan", write_sweep(tmp_path, tiny), "--storage-path", tmp_path / "runs")
    assert line == "adversary.example: is 569, but the data ends at 568"


@pytest.mark.parametrize(
    ("delta", "times"), [(1 / 569, 0), (0.01, 1)], ids=["of a record", "of many"]
)
def test_a_delta_above_one_record_is_told_once_and_not_refused(delta, times, tiny, tmp_path):
    tiny["audit"]["delta"] = delta
    file = write_sweep(tmp_path, tiny)
    for outcome in (dpaudit("plan", file), inline(file, tmp_path / "runs")):
        assert outcome.code == 0
        assert outcome.err.replace("\n  ", " ").count(
            "warning: audit.delta is 0.01, above 1 / N = 0.0018 for 569 records: publishing one of "
            "them, at random, would keep it; use at most 0.001"
        ) == times  # fmt: skip


@pytest.mark.parametrize(("trials", "times"), [(2, 1), (4, 1), (5, 0)])
def test_audits_of_too_few_trials_are_told_before_anything_is_loaded(trials, times, tiny, tmp_path):
    """At a confidence of 95 %, 5 coins are the fewest that show their bias, if all agree."""
    tiny["audit"]["trials"] = trials
    file = write_sweep(tmp_path, tiny)
    line = (
        f"warning: 2 of 2 audits can show no ε above 0 and no violation: audit.trials is {trials}, "
        "but at least 5 are needed, even if all guesses are right; raise it (`dpaudit plan` "
        "forecasts what more trials show)"
    )
    for outcome in (dpaudit("plan", file), inline(file, tmp_path / "runs")):
        assert outcome.code == 0
        assert outcome.err.replace("\n  ", " ").count(line) == times


def test_few_trials_are_told_although_the_data_cannot_be_loaded(tiny, tmp_path):
    tiny["audit"]["trials"] = 2
    tiny["mechanism"]["data"] = {"name": "npz", "path": str(tmp_path / "none.npz")}
    outcome = dpaudit("plan", write_sweep(tmp_path, tiny))
    assert outcome.code == 2
    assert outcome.err.index("can show no ε above 0") < outcome.err.index("none.npz")


def test_a_file_that_cannot_be_read(tmp_path):
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(bytes(range(256)))
    for file, reason in [
        (tmp_path / "none.yaml", "No such file or directory"),
        (tmp_path, "Is a directory"),
    ]:
        line = refused("plan", file)
        assert line == f"cannot read sweep file {file}: {reason}; give the path of a YAML file"
    assert refused("plan", binary).endswith("not UTF-8 text; give the path of a YAML file, or save "
                                            "it as UTF-8")  # fmt: skip


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


def test_all_that_is_wrong_is_told_at_once(tmp_path):
    """Unknown keys first, with the key that was meant, which is not said to be missing."""
    lines = told(ALL_WRONG, tmp_path)
    unknown = [
        "dpaudit: sed: unknown key; did you mean seed? known: name, seed, mechanism",
        "dpaudit: mechanism.model.initialisation: unknown key; did you mean init",
        "dpaudit: mechanism.step: unknown key; did you mean steps? known: name, data",
        "dpaudit: audit.estimators.1.treshold: unknown key; did you mean threshold? k",
        "dpaudit: adversary.choise: unknown key; did you mean choice? known: name, period",
        "dpaudit: resources.num_gpu: unknown key; did you mean num_gpus? known: num_cpus",
    ]
    wrong = [
        "dpaudit: name: names a folder: up to 100 letters",
        "dpaudit: mechanism.data.name: unknown data set 'breast_cancr'; did you",
        "dpaudit: mechanism.batch_size: must be at least 1, got 0",
        "dpaudit: mechanism.engine: must be 'packed' or 'opacus', got 'packd'; did you",
        "dpaudit: audit.trials: must be a whole number, got 'ten'",
        "dpaudit: audit.estimators.0.name: unknown estimator 'acuracy'; did you mean",
        "dpaudit: audit.accountants.0: unknown accountant 'gausian'; did you mean",
        "dpaudit: mechanism.clip_norm: must be a number, got 'two'",
        "dpaudit: mechanism.learning_rate: must be a number, got 'fast'",
        "dpaudit: resources.num_cpus: must be greater than 0, got 0",
    ]
    assert len(lines) == len(unknown + wrong), lines
    for part, expected in ((lines[: len(unknown)], unknown), (lines[len(unknown) :], wrong)):
        assert all(any(line.startswith(words) for line in part) for words in expected), part
    assert not any("is required" in line for line in lines)


def test_a_wrong_grid_hides_nothing_else(tmp_path):
    """Nor is what it would have filled said to be missing."""
    text = (
        "name: x\nmechanism: {name: dp-sgd, stepz: 1}\naudit: {trials: 10, delta: 1}\n"
        "grid:\n  adversary: [loss]\n  mechanizm.steps: [1]\n  audit.: [2]\n"
    )
    assert [line.partition(";")[0] for line in told(text, tmp_path)] == [
        "dpaudit: mechanism.stepz: unknown key",
        "dpaudit: grid.mechanizm.steps: must start with one of mechanism, adversary, audit",
        "dpaudit: grid.audit.: has an empty part",
        "dpaudit: audit.delta: must be less than 1, got 1",
    ]


def test_what_is_missing_is_told(tmp_path):
    lines = told("3: 4\non: 5\nmechanism:\n  name: dp-sgd\n  steps: 3\n", tmp_path)
    assert lines[0].startswith("dpaudit: 3: unknown key; known: name, seed")
    keys = ("data", "model", "batch_size", "learning_rate", "clip_norm")
    missing = [*(f"mechanism.{key}" for key in keys), "adversary", "name"]
    assert {f"dpaudit: {key}: is required" for key in missing} < {*lines}


def test_so_many_mistakes_are_counted(tmp_path):
    keys = "".join(f"x{number}: 1\n" for number in range(30))
    lines = told(f"{keys}name: x\n", tmp_path)
    assert (len(lines), lines[-1]) == (21, "dpaudit: and 13 more")


def test_plain_data_are_told_alike(tiny):
    """Whoever calls from Python gets all of it in one error, a line each."""
    tiny["mechanism"] |= {"stepz": 1, "clip_norm": "x"}
    with pytest.raises(SpecError) as caught:
        spec.from_raw(tiny)
    assert [line.partition(";")[0] for line in str(caught.value).splitlines()] == [
        "mechanism.stepz: unknown key",
        "mechanism.clip_norm: must be a number, got 'x'",
    ]
    assert pickle.loads(pickle.dumps(caught.value)).problems[1].key == "mechanism.clip_norm"
