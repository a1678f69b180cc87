"""What runs with held releases show, and what else private records went into: made-up cases."""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Subset, TensorDataset

from dpaudit_ray.isolation import Ended, Limits, Sandbox
from dpaudit_ray.scripts import script_runs, single_run
from dpaudit_ray.scripts.script_audit import Audit, Options
from dpaudit_ray.scripts.script_findings import Weight
from dpaudit_ray.scripts.script_runs import EndedRun, Target
from dpaudit_ray.scripts.watch import held_runs, shared_records
from dpaudit_ray.scripts.watch.run_state import RunRequest, WatchedRun, entries_of
from tests.scripts.conftest import ZOO


def held(releases: str, rows: tuple[float, ...] = (1.0, 2.0, 3.0), **more: Any) -> dict:
    """A run of a step for each letter; the first has the record."""
    steps = [
        {
            "member": not n,
            "release": letter,
            "rows": [] if n else list(rows),
            "drawn": 3,
            "generators": "",
        }
        for n, letter in enumerate(releases)
    ]
    return {"held": steps, "cut": "", "published": []} | more


@pytest.mark.parametrize(
    ("other", "look", "words"),
    [
        (held("xbc"), "", ""),  # the step that has it may release something else
        (held("abd"), "state", "1 of 2 without the record"),
        (held("abc", (1.0, 5.0, 3.0)), "", ""),  # its own gradient
        (held("abc", (1.1, 2.1, 3.1)), "records apart", "changed 3 of 3 gradients"),
        (
            held("abc", published=[("mean", "2"), ("what X is given", "1")]),
            "release",
            "mean, which another record",
        ),
        (
            held("abc", published=[("mean", "1"), ("what X is given", "2")]),
            "updates",
            "what X is given, which",
        ),
    ],
)
def test_what_another_record_moves(other, look, words):
    first = held("abc", published=[("mean", "1"), ("what X is given", "1")])
    findings = single_run.judge_held(first, other, first).findings
    assert [finding.look for finding in findings] == [look] * bool(look)
    assert all(finding.weight is Weight.VIOLATION for finding in findings)
    assert all(words in finding.seen for finding in findings)
    # What other noise moves as well is hidden by it; and maybe what other random numbers do.
    assert not single_run.judge_held(first, other, other).findings
    if look and look != "records apart":
        judged = single_run.judge_held(first, other, first, other)
        assert not judged.findings
        assert "whether noise outside of steps hides" in judged.looks[0].said
        assert not judged.complete


@pytest.mark.parametrize("given", ["1", "2"])
def test_a_run_that_is_cut_is_compared_as_far_as_it_goes(given):
    whole = held("abc", published=[("what X is given", "1"), ("mean", "1")])
    other = held("ab", published=[("what X is given", given)], cut="the budget ended the run")
    judged = single_run.judge_held(whole, other)
    assert [finding.look for finding in judged.findings] == ["updates"] * (given == "2")
    assert "not compared" in judged.looks[0].said


@pytest.mark.parametrize("how", ["hung", "raised"])
def test_a_held_run_that_takes_too_long_was_not_looked_at(how):
    class Runner:
        width = 1

        def run(self, requests: Iterator[RunRequest], limits: Limits) -> Iterator[EndedRun]:
            for request in requests:
                yield EndedRun(request, Ended(how, None, "", "", "", 1.0), [])

    judged = Audit(Target(ZOO / "healthy.py", "mlp"), Runner(), Options(), print)._compare_held()
    assert judged.complete == (how == "raised")
    assert ("larger --budget" in judged.looks[0].said) == (how == "hung")


def test_a_record_comes_in_its_place_that_has_another_label_too():
    data = TensorDataset(torch.arange(8.0).reshape(4, 2), torch.tensor([0, 1, 0, 0]))
    assert [held_runs._other(data, record) for record in range(4)] == [1, 3, 1, 1]


def test_a_record_is_exchanged_in_memory():
    x, y = torch.arange(8.0).reshape(4, 2), torch.arange(4)
    data = Subset(TensorDataset(x, y), [3, 2, 1, 0])
    held_runs.exchange(data, 0)  # the third of the whole, by the first
    assert y.tolist() == [0, 1, 2, 1]
    assert x[3].tolist() == [2.0, 3.0]
    held_runs.exchange(data, 7)  # there is none
    assert y.tolist() == [0, 1, 2, 1]


def test_data_of_files_are_left_alone(tmp_path):
    array = np.memmap(tmp_path / "x", np.float32, "w+", shape=(4, 2))
    array[:] = np.arange(8).reshape(4, 2)
    mapped = torch.from_file(str(tmp_path / "y"), shared=True, size=8).reshape(4, 2)
    mapped[:] = torch.arange(8.0).reshape(4, 2)
    data = TensorDataset(torch.from_numpy(array), mapped)
    data.array, data.view, data.memory = array, np.asarray(array), np.arange(4)
    held_runs.exchange(data, 0)
    for values in (array, *data.tensors, data.view):
        assert values.reshape(-1).tolist() == list(range(8))
    assert data.memory.tolist() == [2, 1, 2, 3]


@pytest.mark.parametrize("held", ["alone", "exchanged"])
def test_a_loop_s_records_are_found_in_its_arrays(tmp_path, monkeypatch, held):
    for package in ("jax", "tensorflow"):  # another test may have imported it
        monkeypatch.delitem(sys.modules, package, raising=False)
    x, y, order = torch.randn(50, 3), np.arange(50) % 3, torch.arange(50)
    raw, places, generator = x.tolist(), [7, 2, 9, 4], torch.Generator()
    run = WatchedRun(RunRequest(0, held=held), tmp_path / "record")
    batch = [x[places], torch.from_numpy(y[places])]
    held_runs.find_tables(run, [torch.zeros(4, 3), *batch])
    assert [id(table) for table in run.tables] == [id(x), id(y)]
    assert (run.chosen, run.drawing) == (9, [generator])
    moved = [number for number, row in enumerate(raw) if row != x[number].tolist()]
    assert moved == [9] * (held == "exchanged")
    assert (y[9] != 0) == (held == "exchanged")
    assert torch.equal(order, torch.arange(50))
    if not moved:
        assert held_runs.has_row(run, batch)
        assert not held_runs.has_row(run, [rows[:2] for rows in batch])


def test_what_is_returned_has_a_name(tmp_path):
    run = WatchedRun(RunRequest(0), tmp_path / "record", public=("net",))
    returned = {"mean": np.ones(2), "losses": [0.5, 0.25], "net": nn.Linear(1, 1), "n": 3}
    held_runs.publish_all(run, returned)
    held_runs.publish_all(run, {"mean": np.zeros(2)}, "file 1: ")
    assert [name for name, _ in run.published] == ["mean", "file 1: mean"]


def test_data_that_were_scaled_by_themselves():
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)) * 2 + 1
    raw, scaled = TensorDataset(x), TensorDataset((x - x.mean(0)) / x.std(0))
    assert shared_records.standardised_columns(scaled) == 3
    assert shared_records.standardised_columns(raw) == 0
    assert shared_records.is_statistic(x.mean(0), [scaled, raw])
    assert not shared_records.is_statistic(x.mean(0) + 0.01, [raw])
    assert not shared_records.is_statistic(torch.ones(3), [scaled])


def test_networks_that_private_records_trained(tmp_path):
    run = WatchedRun(RunRequest(0, looks=True), tmp_path / "record")
    data = TensorDataset(torch.randn(4, 2), torch.zeros(4).long())
    teacher, student = nn.Linear(2, 1), nn.Linear(2, 1)
    run.data.append(data)
    run.modules.append(student)
    run.outside_params = {id(p): p for p in teacher.parameters()}
    run.fed = {
        key: (p, "Linear", shared_records.row_digests(data))
        for key, p in run.outside_params.items()
    }
    names = {"warmed": [], "beside": ["Linear"], "standardised": 0, "shared": False}
    assert shared_records.elsewhere(run) == names
    run.copies = {id(student.weight): id(teacher.weight)}
    assert shared_records.elsewhere(run) == names | {"warmed": ["weight"], "beside": []}
    run.fed = {key: (p, "Linear", set()) for key, p in run.outside_params.items()}
    assert shared_records.elsewhere(run) == names | {"beside": []}


def judged(warm: Sandbox, script: str, function: str) -> list[str]:
    """The looks that find something in the first steps of a script of the zoo."""
    results: dict[str, Any] = {}
    for kind in ("alone", "exchanged", "noised", "shaken"):
        record = results["alone"]["chosen"] if results else None
        request = RunRequest(3, held=kind, record=record, most_steps=4)
        run = script_runs.run_once(
            warm, Target(ZOO / f"{script}.py", function), request, Limits(120.0), 1
        )
        assert run.result is not None, run.ended
        results[kind] = run.result | {"held": entries_of(run.record, "held"), "cut": ""}
        if kind == "exchanged" and not single_run.differences(**results):
            break
    return [finding.look for finding in single_run.judge_held(**results).findings]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "function", "looks"),
    [
        ("healthy", "mlp", []),
        ("raw_momentum", "healthy", []),  # of what was released: noise moves it, too
        ("raw_momentum", "main", ["state"]),
        ("batches", "mixed", ["records apart"]),
    ],
)
def test_what_the_first_steps_of_a_script_show(warm, script, function, looks):
    assert judged(warm, script, function) == looks
