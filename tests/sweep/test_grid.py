"""The plain tree of a sweep: overrides, cells and labels, paths."""

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit_ray.errors import SpecError
from dpaudit_ray.sweep import grid


def unrolled(tree: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    whole = {"mechanism": {"steps": 1}, "adversary": "loss", "audit": {}} | tree
    return list(grid.cells(whole))


def test_cells_share_nothing():
    (first, _), (second, _) = unrolled({"grid": {"audit.x": [{"a": [1]}, {"a": [2]}]}})
    first["mechanism"]["steps"] = 99
    first["audit"]["x"]["a"].append(3)
    assert second == {"mechanism": {"steps": 1}, "adversary": "loss", "audit": {"x": {"a": [2]}}}


def test_a_key_may_change_what_an_earlier_one_has_set():
    cells = unrolled({"grid": {"adversary": [{"name": "a"}, {"name": "b"}], "adversary.k": [1, 2]}})
    assert [cell["adversary"] for cell, _ in cells] == [
        {"name": "a", "k": 1},
        {"name": "a", "k": 2},
        {"name": "b", "k": 1},
        {"name": "b", "k": 2},
    ]


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({"adversary": ["loss"]}, "loss"),
        ({"adversary": [{"name": "a", "choice": "random", "k": 2}]}, "a choice=random k=2"),
        ({"mechanism.clip_norm": [1.5]}, "clip_norm=1.5"),
        ({"mechanism.data.name": ["npz"]}, "name=npz"),
        ({"mechanism.steps": [5], "adversary": ["loss"]}, "steps=5, loss"),
        ({"mechanism.steps, audit.trials": [[5, 1]]}, "steps=5"),
        ({"audit.delta, audit.trials": [[0.1, 1]]}, "delta=0.1, trials=1"),
        ({"mechanism.steps, audit.trials": [[5, 1], [5, 2]]}, "steps=5, trials=1"),
        ({}, ""),
    ],
)
def test_labels_say_what_was_changed(changes, label):
    assert unrolled({"grid": changes})[0][1] == label


def test_keys_joined_by_commas_change_together():
    pairs = [[5, {"name": "a"}], [25, {"name": "b"}]]
    cells = unrolled({"grid": {"mechanism.steps, adversary": pairs, "adversary.k": [1, 2]}})
    found = [(cell["mechanism"]["steps"], *cell["adversary"].values()) for cell, _ in cells]
    assert found == [(5, "a", 1), (5, "a", 2), (25, "b", 1), (25, "b", 2)]
    tree: dict[str, Any] = {"grid": {"mechanism.steps, adversary": pairs}}
    with pytest.raises(SpecError, match=r"^adversary\.k: is set by the grid in every audit"):
        grid.override(tree, {"adversary.k": 3})
    for wrong in ([[5]], [5], [[5, "a", 1]]):
        with pytest.raises(SpecError, match="must list 2 values each"):
            unrolled({"grid": {"mechanism.steps, adversary": wrong}})
    with pytest.raises(SpecError, match="must start with one of"):
        unrolled({"grid": {"mechanism.steps, name": pairs}})


def test_no_grid_is_one_cell_and_a_grid_may_fill_a_section_that_is_left_out():
    for empty in ({}, {"grid": None}, {"grid": {}}):
        assert len(unrolled(empty)) == 1
    assert (
        unrolled({"adversary": None, "grid": {"adversary": ["loss"]}})[0][0]["adversary"] == "loss"
    )


def test_overrides_reach_nested_new_and_grid_keys():
    tree = {"audit": {"trials": 1}, "grid": {"mechanism.steps": [1]}}
    grid.override(
        tree,
        {"audit.trials": 2, "mechanism.data.path": "x", "name": "n", "grid.mechanism.steps": [3]},
    )
    assert tree == {
        "audit": {"trials": 2},
        "mechanism": {"data": {"path": "x"}},
        "name": "n",
        "grid": {"mechanism.steps": [3]},
    }


@pytest.mark.parametrize("key", ["adversary", "adversary.period", "mechanism.data.path"])
def test_an_override_without_effect_is_refused(key):
    """The grid would replace it in every cell, and nobody would notice."""
    tree: dict[str, Any] = {"grid": {"adversary": ["loss"], "mechanism.data": ["x"]}}
    with pytest.raises(SpecError, match=rf"^{key}: is set by the grid in every audit; set grid\."):
        grid.override(tree, {key: 3})


@pytest.mark.parametrize("key", ["mechanism", "mechanism.clip_norm", "adversaryx"])
def test_an_override_beside_the_grid_is_taken(key):
    tree: dict[str, Any] = {"grid": {"mechanism.clip": [1], "adversary": ["loss"]}}
    grid.override(tree, {key: {}})


def test_python_values_become_plain_data():
    raw = {"a": np.float64(0.5), "b": np.int64(3), "c": (1, 2), "d": np.arange(2), "e": Path("x")}
    assert grid.plain(raw) == {"a": 0.5, "b": 3, "c": [1, 2], "d": [0, 1], "e": "x"}
    assert grid.plain({"day": datetime.date(2020, 1, 1)}) == {"day": "2020-01-01"}
    for value in grid.plain(raw).values():
        assert type(value) in (float, int, list, str)


def test_what_cannot_be_plain_data_is_told():
    endless: dict[str, Any] = {}
    endless["again"] = endless
    for raw in ({(1, 2): 3}, endless):
        with pytest.raises(SpecError, match="must be plain data"):
            grid.plain(raw)


def test_paths_are_made_absolute_where_something_is_found(tmp_path, monkeypatch):
    here, beside, home = tmp_path / "here", tmp_path / "beside", tmp_path / "home"
    for folder, names in ((here, "ab"), (beside, "bc"), (home, "d")):
        folder.mkdir()
        for name in names:
            (folder / name).touch()
    monkeypatch.setenv("HOME", str(home))

    def located(value: Any, key: str = "path") -> Any:
        return grid.located({"mechanism": {key: value}}, [here, beside])["mechanism"][key]

    assert located("a") == str(here / "a")
    assert located("b") == str(here / "b"), "the working directory comes first"
    assert located("c") == str(beside / "c")
    assert located("nowhere") == "nowhere"
    assert located("~/d") == str(home / "d")
    assert located(str(beside / "c")) == str(beside / "c")
    assert located("") == ""
    assert located("package.module:function") == "package.module:function"
    assert located("a", "root") == str(here / "a")
    assert located("a", "name") == "a"
    assert located(["a", "e"], "mechanism.data.path") == [str(here / "a"), "e"], "of a grid"
    assert located(["a"], "mechanism.name") == ["a"]


@pytest.mark.parametrize(
    ("labels", "legend", "brief"),
    [
        (["loss"], "", ["loss"]),
        (["loss", "cosine"], "", ["loss", "cosine"]),
        (["steps=5, loss", "steps=5, cosine"], "all: steps=5", ["loss", "cosine"]),
        (["a=1, b=2", "a=3, b=4"], "audit: a, b", ["1, 2", "3, 4"]),
        (["a=1, c=0, b=2", "a=3, c=0, b=2"], "audit: a; all: c=0, b=2", ["1", "3"]),
        (["loss period=5, a=1", "loss, a=2"], "audit: name, a", ["loss period=5, 1", "loss, 2"]),
        (["a=1, b=2", "b=4, a=3"], "", ["a=1, b=2", "b=4, a=3"]),
        (["a=1", "a=1, b=2"], "", ["a=1", "a=1, b=2"]),
    ],
)
def test_labels_say_once_what_all_have(labels, legend, brief):
    assert grid.shorten_labels(labels) == (legend, brief)
