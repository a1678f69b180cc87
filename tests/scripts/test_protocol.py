"""Messages between a watched run and its judge: read as they were written."""

import dataclasses
import json

import pytest

from dpaudit_ray.scripts import protocol
from dpaudit_ray.scripts.protocol import (
    AccountedStep,
    ArraysGiven,
    Correlation,
    Cut,
    RunResult,
    Trial,
)
from tests.scripts.made_up import APART, CLAIM, result, step

PAIR = Correlation("tensors", (0, 1), 100, 0.5, 3)
ENTRIES = [
    step(correlations=(PAIR,), norms=(float("inf"), 0.0), line="train.py:3"),
    APART,
    ArraysGiven(kind="sum"),
    Trial(member=True, score=0.5, noise=None, rate=0.1),
    Cut(steps=4),
]


def test_entries_are_read_as_they_were_written(tmp_path):
    file = tmp_path / "record"
    lines = [protocol.encode(entry) for entry in ENTRIES]
    # A run that is killed leaves the beginning of a line.
    file.write_text("\n".join([*lines, '{"entry": "Tri']))
    assert protocol.read_record(file) == ENTRIES
    assert protocol.entries_of(ENTRIES, Cut) == [ENTRIES[-1]]
    assert protocol.read_record(tmp_path / "none") == []


def test_a_result_is_read_from_its_plain_values():
    written = result(
        accounted=(AccountedStep(0, 1, 1.0, 0.5),),
        claims=(dataclasses.replace(CLAIM, epsilons=(None,)),),
        leftovers={"records": ["ids"]},
    )
    plain = json.loads(json.dumps(dataclasses.asdict(written)))
    assert protocol.decode_result(plain) == written
    assert protocol.decode_result({}) == RunResult()


@pytest.mark.parametrize("value", [[], {"steps": "many"}, {"made": None}])
def test_a_result_of_another_form_is_refused(value):
    with pytest.raises(ValueError, match="RunResult"):
        protocol.decode_result(value)


def test_seeds_of_runs_are_functions_of_their_labels():
    first = protocol.RunRequest(seed=1)
    assert first.derived("a", 1) == first.derived("a", 1) != first.derived("a", 2)
    assert first.derived("a") != protocol.RunRequest(seed=2).derived("a")
    coins = [first.coin(0.5, n) for n in range(400)]
    # Fewer than 150 or more than 250 of 400 come once in a million seeds.
    assert 150 < sum(coins) < 250
