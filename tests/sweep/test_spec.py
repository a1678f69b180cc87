"""Sweeps: what YAML says, what the fingerprint covers, and that a recorded sweep runs again."""

import copy
import dataclasses
import os
from typing import Any, ClassVar

import numpy as np
import pytest

import dpaudit_ray as da
from dpaudit_ray import stats
from dpaudit_ray.errors import SpecError
from dpaudit_ray.report import verdict
from dpaudit_ray.stats.threshold_rates import EpsDelta
from dpaudit_ray.sweep import spec, yamlfile
from dpaudit_ray.sweep.yamlfile import dump_yaml, parse_value, parse_yaml
from tests.command import changed, inline, refused, write_sweep
from tests.conftest import ROOT
from tests.plan.test_inputs import write_data

JOBS = sorted((ROOT / "jobs").rglob("*.yaml"))


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.stem)
def test_the_jobs_of_this_project_are_sound(job):
    assert spec.load(job).trials > 0


def test_options_of_estimators_are_typed(tiny):
    tiny["audit"]["estimators"] = [{"name": "eps-delta", "threshold": "fixed", "value": 3}]
    (estimator,) = spec.from_raw(tiny).cells[0].audit.estimators
    assert estimator.options == {"threshold": "fixed", "value": 3.0}
    assert type(estimator.options["value"]) is float


@pytest.mark.parametrize(("every", "horizons"), [(None, (6,)), (3, (3, 6)), (4, (4, 6)), (6, (6,))])
def test_the_last_step_is_always_recorded(every, horizons, tiny):
    assert spec.from_raw(changed(tiny, "audit.record_every", every)).cells[0].horizons == horizons


def test_the_given_mapping_is_left_alone(tiny, tmp_path):
    data = write_data(tmp_path / "data.npz")
    tiny["mechanism"]["data"] = {"name": "npz", "path": os.path.relpath(data)}
    before = copy.deepcopy(tiny)
    spec.from_raw(tiny, overrides={"audit.trials": 5})
    assert tiny == before


def test_python_values_are_welcome(tiny):
    """A sweep built in Python: numpy numbers and tuples, which YAML could not be written from."""
    plain = spec.from_raw(tiny)
    changed(tiny, "mechanism.noise_multiplier", np.float64(2.0))
    changed(tiny, "audit.trials", np.int64(90))
    changed(tiny, "audit.estimators", tuple(tiny["audit"]["estimators"]))
    assert spec.from_raw(tiny).canonical() == plain.canonical()


CHANGES: list[tuple[str, Any]] = [
    ("seed", 4),
    ("mechanism.steps", 9),
    ("mechanism.data", {"name": "california_housing"}),
    ("audit.confidence", 0.9),
    ("audit.record_every", 2),
    ("audit.estimators", ["accuracy"]),
    ("audit.estimators", ["paper-gdp", "accuracy", "eps-delta", "anytime"]),
    ("audit.accountants", ["rdp"]),
    ("resources.pack_size", 30),
    ("grid", {"adversary": ["loss", "biased-dimension"]}),
    ("grid", {"adversary": [{"name": "biased-dimension", "choice": "simulated"}, "loss"]}),
]
NO_CHANGES: list[tuple[str, Any]] = [
    ("name", "other"),
    ("audit.trials", 900),
    ("audit.confidence", 0.95),
    ("mechanism.noise_multiplier", 2),
    ("mechanism.engine", "packed"),
    ("mechanism.sampling", "fixed"),
    ("mechanism.batches", "known"),
    ("mechanism.optimizer", "sgd"),
    ("mechanism.schedule", {"name": "constant", "warmup": 0}),
    ("mechanism.model", "fcnn"),
    ("adversary", "biased-dimension"),  # the grid replaces it
    ("resources.num_gpus", 0.25),
    ("grid", {"adversary": ["biased-dimension", "loss"]}),
    ("grid", {"adversary": [{"name": "biased-dimension", "choice": "random"}, {"name": "loss"}]}),
]


@pytest.mark.parametrize(("key", "value"), CHANGES)
def test_what_changes_a_result_changes_the_fingerprint(key, value, tiny):
    before = spec.from_raw(tiny).fingerprint
    assert spec.from_raw(changed(tiny, key, value)).fingerprint != before


@pytest.mark.parametrize(("key", "value"), NO_CHANGES)
def test_what_changes_no_result_changes_no_fingerprint(key, value, tiny):
    before = spec.from_raw(tiny)
    after = spec.from_raw(changed(tiny, key, value))
    assert after.fingerprint == before.fingerprint
    assert [c.fingerprint for c in after.cells] == [c.fingerprint for c in before.cells]


def test_the_level_of_an_audit_leaves_its_bits_alone(tiny):
    before = [cell.fingerprint for cell in spec.from_raw(tiny).cells]
    tiny["audit"] |= {"delta": 1e-6, "estimators": ["accuracy"], "trials": 7}
    assert [cell.fingerprint for cell in spec.from_raw(tiny).cells] == before


def test_fingerprints_are_pinned(tiny):
    """When this fails, run directories of users can no longer be resumed: only on purpose.

    New options keep it, because options at their default are left out.
    """
    assert spec.from_raw(tiny).fingerprint == "3b21426086870f5644b2e8ed3376749a"


def test_overrides_apply_before_validation(tiny, tmp_path):
    tiny["audit"]["trials"] = "later"
    sweep = spec.load(write_sweep(tmp_path, tiny), {"audit.trials": 20, "name": "other"})
    assert sweep.name == "other"
    assert sweep.trials == 40
    assert "trials: 20" in sweep.canonical()


@dataclasses.dataclass
class Needy(EpsDelta):
    """Has an option without a default."""

    needle: float = dataclasses.field(kw_only=True)
    name: ClassVar[str] = "needy"


def test_an_estimator_without_its_required_option_is_one_line(tiny, tmp_path, monkeypatch):
    """It was a TypeError with a traceback, and exit 70."""
    known = stats.estimators() | {"needy": Needy}
    for place in ("dpaudit_ray.stats.estimators", "dpaudit_ray.stats.base.estimators"):
        monkeypatch.setattr(place, lambda: known)
    for estimator in ("needy", {"name": "needy"}):
        file = write_sweep(tmp_path, changed(tiny, "audit.estimators", ["accuracy", estimator]))
        assert refused("run", file, "--storage-path", tmp_path) == (
            "audit.estimators.1.needle: is required"
        )
    changed(tiny, "audit.estimators", [{"name": "needy", "needle": 1.0}])
    assert spec.from_raw(tiny).cells[0].audit.estimators[0].options == {"needle": 1.0}


def test_a_removed_estimator_names_its_replacement(tiny):
    with pytest.raises(SpecError) as error:
        spec.from_raw(changed(tiny, "audit.estimators", ["accuracy", "gdp"]))
    assert str(error.value).startswith(
        "audit.estimators.1.name: is 'gdp', but it was removed: use accuracy, whose bounds are"
    )


def test_several_gpus_are_for_functions_of_ones_own(tiny):
    """A trainer of DP-SGD would use one of two; a run that asked for two before can be read."""
    kept = spec.from_raw(tiny)
    asked = changed(tiny, "resources.num_gpus", 2)
    with pytest.raises(SpecError, match="would be idle; use 1"):
        spec.from_raw(asked)
    assert spec.from_raw(asked | {"fingerprint": kept.fingerprint}).resources.num_gpus == 2
    own = {"name": "function", "path": "own:train", "steps": 3, "noise_multiplier": 1.0}
    asked |= {"mechanism": own, "adversary": "own", "grid": {}}
    del asked["audit"]["record_every"]
    assert spec.from_raw(asked).resources.num_gpus == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        (".5E3", 500.0),
        ("-1.e+2", -100.0),
        ("3", 3),
        ("'1e5'", "1e5"),
        ("1e5x", "1e5x"),
        ("", None),
        ("[1, 2]", [1, 2]),
        ("{name: loss}", {"name": "loss"}),
        ("1:30", "1:30"),
        ("[59:59:59, 1:1.5]", ["59:59:59", "1:1.5"]),
        ("9" * 400, int("9" * 400)),
    ],
)
def test_values_are_what_they_look_like(text, value):
    parsed = parse_value(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize("text", ["1e5", "12e7", "3", ".5", "yes", "null", "1:30", "a: b", "é", ""])
def test_text_stays_text_when_written_and_read_again(text):
    assert parse_yaml(dump_yaml({"name": text, "delta": 1e-5}), "") == {"name": text, "delta": 1e-5}


def test_keys_keep_their_order_and_merged_ones_may_be_overridden():
    assert list(parse_yaml(dump_yaml({"z": 1, "a": 2, "m": 3}), "")) == ["z", "a", "m"]
    text = "base: &base {steps: 5, clip: 1}\nother: {<<: *base, clip: 2}\n"
    assert parse_yaml(text, "")["other"] == {"steps": 5, "clip": 2}


@pytest.mark.parametrize(
    ("text", "line"),
    [("seed: 1\nname: x\nseed: 2\n", 3), ("mechanism:\n  seed: 5\n  name: x\n\n  seed: 6\n", 5)],
)
def test_a_repeated_key_is_told_with_its_line(text, line):
    with pytest.raises(
        SpecError, match=rf"^sweep\.yaml:{line}:\d+: .*: seed is given twice; remove"
    ):
        parse_yaml(text, "sweep.yaml")


def test_aliases_count_as_what_they_stand_for(monkeypatch):
    """Of text, too; a file of as much without an alias is refused alike."""
    monkeypatch.setattr(yamlfile, "MAX_VALUES", 30)
    assert parse_yaml("a: &a [1, 2, 3]\nb: [*a, *a]\n", "") == {
        "a": [1, 2, 3],
        "b": [[1, 2, 3]] * 2,
    }
    for text in (
        "a: &a [1, 2, 3]\nb: [*a, *a, *a, *a, *a, *a]\n",
        f"a: &a {'x' * 100}\nb: [*a, *a]\n",
        "a: &a {x: 1, y: 2}\nb: {<<: [*a, *a, *a, *a]}\n",
        f"a: {list(range(30))}\n",
    ):
        with pytest.raises(SpecError, match="more than 30 values, with those that aliases repeat"):
            parse_yaml(text, "sweep.yaml")


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("a: [1,\nb: }", ":2:4", "found '}'"),
        ("a:\n\t- b", ":2:1", r"'\\t'"),
        ("a: 1\n---\nb: 2\n", ":2:1", "another document"),
        ("!!python/object/apply:os.system ['true']", ":1:1", "python/object/apply"),
        ("a: &a\n  b: *a\n", ":1:4", "recursive"),
        ("? [1, 2]\n: 3\n", ":1:3", "unhashable key"),
        ("a: 2020-13-45", ":1:4", "month must be in 1..12"),
        ('a: !!int ""', ":1:4", "'' cannot be read as int"),
        ('a: {b: !!float ""}', ":1:8", "'' cannot be read as float"),
        ("a: 1\nb: !!bool maybe", ":2:4", "'maybe' cannot be read as bool"),
        ("a: !!timestamp abc", ":1:4", "'abc' cannot be read as timestamp"),
        (f"a: !!float 1:{'1:' * 190}1.5", ":1:4", "cannot be read as float"),
        ("- !!int [1]", ":1:3", "expected a scalar node"),
        ("? !!null x\n: !!int 0x\n", ":2:3", "'0x' cannot be read as int"),
        ("a: !!binary é", ":1:4", "failed to convert base64"),
        (f"a: !!int {'59:' * 160_000}59", ":1:4", "a number has 480,002 characters; write at most"),
        (f"a: {'9' * 401}", ":1:4", "a number has 401 characters; write at most 400"),
        ("a: " + "[" * 5000, ":1:67", "nested deeper than 64 levels"),
        ("a: \x00", "", "special characters"),
    ],
)
def test_what_is_not_yaml_is_told_with_place_and_reason(text, place, problem):
    with pytest.raises(
        SpecError, match=rf"^sweep\.yaml{place}: not valid YAML: .*{problem}"
    ) as error:
        parse_yaml(text, "sweep.yaml")
    assert "\n" not in str(error.value)
    assert str(error.value).endswith("; check brackets, quotes and indentation")


def test_a_script_in_place_of_a_sweep_file_is_told_where_it_belongs():
    with pytest.raises(SpecError, match=r"is a script: `dpaudit audit train\.py:FUNCTION` "):
        parse_yaml("def main() -> None:", "train.py")


@pytest.mark.parametrize("text", ["hello", "- a"])
def test_what_is_no_mapping_is_refused(text):
    with pytest.raises(SpecError, match=r"sweep\.yaml must hold a mapping"):
        parse_yaml(text, "sweep.yaml")


def test_canaries_drawn_are_audits_of_their_own(tmp_path):
    """Other bits, another canary and label; the first is that of an audit without the option."""
    raw = {
        "name": "drawn",
        "seed": 1,
        "mechanism": {"name": "jobs.scale.empty:Empty"},
        "adversary": "jobs.scale.empty:Nobody",
        "audit": {"trials": 400, "delta": 1e-5, "canaries_drawn": 3},
    }
    cells = spec.from_raw(raw).cells
    labels = [cell.label.rpartition(", ")[2] for cell in cells]
    assert labels == ["canary 1", "canary 2", "canary 3"]
    assert len({cell.fingerprint for cell in cells}) == 3
    (alone,) = spec.from_raw(changed(raw, "audit.canaries_drawn", 1)).cells
    assert alone.fingerprint == cells[0].fingerprint
    done = inline(write_sweep(tmp_path, changed(raw, "audit.canaries_drawn", 3)), tmp_path)
    quotes = verdict.quotes(da.open(tmp_path / "drawn", trust="jobs.scale.empty").run, None)
    bounds = [quote.epsilon for quote in quotes]
    said = f"ε ≥ {min(bounds):.3f} to {max(bounds):.3f} for 3 sampled canaries; the mean"
    assert said in " ".join(done.out.split())
    mean, error = np.mean(bounds), np.std(bounds, ddof=1) / 3**0.5 * 4.302653  # Student's, 2 df
    assert f"{mean:.3f} ± {error:.3f} (95 %)" in " ".join(done.out.split())
