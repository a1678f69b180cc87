"""`dpaudit list`: every name that a sweep file takes, as the registries have them."""

from __future__ import annotations

import json

import pytest

from dpaudit_ray import accounting, stats
from dpaudit_ray.adversaries.base import Adversary
from dpaudit_ray.data.base import Data
from dpaudit_ray.mechanisms.base import Mechanism
from dpaudit_ray.models.base import Model
from dpaudit_ray.plugins import known
from tests.command import dpaudit, refused
from tests.test_contract import modules_after

REGISTRIES = {
    "data": lambda: known(Data),
    "models": lambda: known(Model),
    "adversaries": lambda: known(Adversary),
    "mechanisms": lambda: known(Mechanism),
    "estimators": stats.estimators,
    "accountants": accounting.accountants,
}


@pytest.mark.parametrize("kind", REGISTRIES)
def test_every_name_has_a_line(kind: str) -> None:
    entries = json.loads(dpaudit("list", kind, "--json").out)
    assert [entry["name"] for entry in entries] == sorted(REGISTRIES[kind]())
    assert all(10 < len(entry["line"]) <= 100 for entry in entries)
    shown = dpaudit("list", kind).out
    for entry in entries:
        assert f"\n{entry['name']} " in shown
        assert entry["line"] in shown


def test_all_kinds_are_shown_with_their_keys() -> None:
    everything = json.loads(dpaudit("list", "--json").out)
    assert set(REGISTRIES) < set(everything)
    shown = dpaudit("list").out
    assert "adversary.name" in shown
    assert all(entry["name"] in shown for entries in everything.values() for entry in entries)


def test_options_are_those_of_the_class_and_of_its_variants() -> None:
    found = json.loads(dpaudit("list", "adversaries", "one-run", "--json").out)
    options = {option.pop("name"): option for option in found["options"]}
    assert options["canaries"] == {"takes": "whole number ≥ 1", "default": None, "required": True}
    assert options["adjacency"]["default"] == "add-remove"
    assert options["kind"]["takes"] == "dirac | random | natural | mislabelled"
    assert "coin" in found["text"]
    rows = dpaudit("list", "mechanism", "dp-sgd").out.splitlines()  # the singular will do
    by_name = {row.split("  ")[0]: row.split("  ", 1)[1].split() for row in rows if "  " in row}
    assert by_name["steps"][-1] == "required"
    assert by_name["noise_multiplier"] == ["number", ">", "0", "|", "null", "null"]
    assert by_name["model"] == ["a", "model", "required"]
    assert by_name["sampling"] == ["a", "sampling", "scheme", "fixed"]
    accuracy = json.loads(dpaudit("list", "estimators", "accuracy", "--json").out)
    assert [option["name"] for option in accuracy["options"]] == ["warmup", "curve"]
    assert dpaudit("list", "accountants", "rdp").out.endswith("no options\n")


def test_what_is_not_there_is_told_with_what_was_meant() -> None:
    assert refused("list", "estmators").startswith(
        "KIND: unknown kind 'estmators'; did you mean estimators? known: accountants, adversaries,"
    )
    assert refused("list", "models", "fccn").startswith(
        "NAME: 'fccn' is none of the models; did you mean fcnn? known: alexnet, cnn4"
    )
    assert refused("list", "models", "xyz").startswith("NAME: 'xyz' is none of the models; known:")


def test_listing_loads_no_framework() -> None:
    loaded = modules_after(
        "from dpaudit_ray.sweep import catalogue\n"
        "for kind in ('data', 'models', 'adversaries', 'mechanisms', 'estimators'):\n"
        "    assert catalogue.entries(kind)"
    )
    assert not {"torch", "ray", "pandas", "opacus", "torchvision", "sklearn"} & loaded
