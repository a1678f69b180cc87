"""YAML as users expect it, and one line when it is not what they meant."""

import math

import pytest

from dpaudit_ray.errors import SpecError
from dpaudit_ray.sweep import yamlfile
from dpaudit_ray.sweep.yamlfile import dump_yaml, parse_value, parse_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("1E5", 1e5),
        (".5e3", 500.0),
        ("-1.e+2", -100.0),
        ("1.0e-05", 1e-5),
        ("3", 3),
        ("'1e5'", "1e5"),
        ("1e5x", "1e5x"),
        ("e5", "e5"),
        ("", None),
        ("[1, 2]", [1, 2]),
        ("{name: loss}", {"name": "loss"}),
    ],
)
def test_values_are_what_they_look_like(text, value):
    parsed = parse_value(text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_nan_is_a_number():
    assert math.isnan(parse_value(".nan"))


@pytest.mark.parametrize("text", ["1e5", "12e7", "3", ".5", "yes", "null", "1:30", "a: b", "é", ""])
def test_text_stays_text_when_written_and_read_again(text):
    assert parse_yaml(dump_yaml({"name": text, "delta": 1e-5}), "") == {"name": text, "delta": 1e-5}


def test_keys_keep_their_order():
    assert list(parse_yaml(dump_yaml({"z": 1, "a": 2, "m": 3}), "")) == ["z", "a", "m"]


def test_merged_keys_may_be_overridden():
    text = "base: &base {steps: 5, clip: 1}\nother: {<<: *base, clip: 2}\n"
    assert parse_yaml(text, "")["other"] == {"steps": 5, "clip": 2}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("seed: 1\nname: x\nseed: 2\n", 3),
        ("mechanism:\n  seed: 5\n  name: x\n\n  seed: 6\n", 5),
        ("grid: {seed: [1], seed: [2]}\n", 1),
    ],
)
def test_a_repeated_key_is_told_with_its_line(text, line):
    with pytest.raises(SpecError, match=rf"^sweep\.yaml:{line}:\d+: seed: is given twice; remove"):
        parse_yaml(text, "sweep.yaml")


def test_the_same_key_in_different_places_is_fine():
    assert parse_yaml("a: {n: 1}\nb: {n: 1}\n", "") == {"a": {"n": 1}, "b": {"n": 1}}


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
        ("a: 2020-13-45", "", "month must be in 1..12"),
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


@pytest.mark.parametrize("text", ["", "hello", "- a", "3", "null"])
def test_what_is_no_mapping_is_refused(text):
    with pytest.raises(SpecError, match=r"sweep\.yaml must hold a mapping"):
        parse_yaml(text, "sweep.yaml")


def test_an_override_that_is_not_yaml_names_set():
    with pytest.raises(SpecError, match=r"^--set: '\{' is not a YAML value"):
        parse_value("{")
