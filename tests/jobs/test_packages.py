"""Audits of released packages: workers in other interpreters, and entries that go together."""

import ast
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from dpaudit_ray.errors import DpauditError
from jobs.packages import table
from jobs.packages.entries import ENTRIES
from jobs.packages.entry import Entry
from jobs.packages.environments import HERE, REQUIREMENTS, Worker

FUNCTIONS = """
import numpy as np

print("packages may print")

def noisy(data, rng, n, scale, bounds=(0, 1)):
    assert isinstance(bounds, tuple)
    return sum(data) + rng.laplace(0, scale, n)

def fails(data, rng, n):
    raise ValueError(f"cannot take {data}")
"""


@pytest.fixture
def worker(tmp_path: Path):
    file = tmp_path / "functions.py"
    file.write_text(FUNCTIONS)
    made = Worker(Path(sys.executable), file)
    yield made
    made.stop()


def test_outputs_of_another_interpreter_follow_the_seed(worker):
    one, again, other = (
        worker.outputs("noisy", [1, 2], {"scale": 1.0, "bounds": [0, 2]}, seed, 5)
        for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(one, again)
    expected = 3 + np.random.default_rng(3).laplace(0, 1.0, 5)
    np.testing.assert_allclose(one, expected)
    assert (one != other).any()


def test_what_a_package_raises_is_one_line(worker):
    with pytest.raises(DpauditError, match=r"^ValueError: cannot take \[1\]$"):
        worker.outputs("fails", [1], {}, 0, 2)
    assert len(worker.outputs("noisy", [1], {"scale": 1.0}, 0, 2)) == 2


def test_a_broken_function_is_a_violation(tmp_path, monkeypatch):
    """Half of the noise: refuted in all but one of 10^6 audits."""
    (tmp_path / "functions").mkdir()
    (tmp_path / "functions" / "made_up_functions.py").write_text(FUNCTIONS)
    monkeypatch.setattr(table, "HERE", tmp_path)
    monkeypatch.setattr(table, "python_of", lambda _: Path(sys.executable))
    monkeypatch.setitem(REQUIREMENTS, "made-up", ("made-up==1.0",))
    claim = table.da.Claim(epsilon=1)
    entry = Entry("half", "made-up", "noisy", {"scale": 0.5}, claim, [([0], [1])])
    row = table.audited(entry, trials=4000)
    assert (row.verdict, row.version) == ("VIOLATION", "1.0")
    assert 1 < row.certified < 2.1


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_entries_name_functions_and_versions(entry):
    source = table.functions_of(entry.package).read_text()
    defined = {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    assert entry.function in defined
    assert REQUIREMENTS[entry.package][0].count("==") == 1
    json.dumps([dict(entry.arguments), list(entry.pairs)])
    assert entry.claim.epsilon_at(entry.delta) < 20


def test_names_are_unique():
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES) >= 40
    assert {file.stem.removesuffix("_functions") for file in (HERE / "functions").iterdir()} >= {
        "diffprivlib", "opendp"
    }  # fmt: skip
