"""The bench: its truths by slow twins, its verdicts on a dozen mechanisms, and its page."""

import dataclasses
import json
import math
import re
import shlex

import pytest

from dpaudit_ray import Claim
from jobs.bench import __main__ as bench
from jobs.bench import picture
from jobs.bench.entry import Entry
from jobs.bench.registry import ENTRIES
from jobs.bench.table import Row, audited, failures, table
from tests.conftest import ROOT
from tests.jobs.truths import (
    histograms,
    learning,
    local,
    noise,
    pipelines,
    selection,
    sparse_vector,
)

TRUTHS = (
    noise.TRUTHS
    | selection.TRUTHS
    | sparse_vector.TRUTHS
    | local.TRUTHS
    | histograms.TRUTHS
    | learning.TRUTHS
    | pipelines.TRUTHS
)
BY_NAME = {entry.name: entry for entry in ENTRIES}
PAGE = (ROOT / "docs/bench.md").read_text()
FEW = 5000  # trials
HEALTHY = (
    "TruncatedGeometric",
    "permute and flip",
    "OUE",
    "propose, test, release",
    "FedAvg",
    "count",
)
BROKEN = (
    "Laplace of half the scale",
    "GRR of a smaller domain",
    "SVT5",
    "stability histogram, no threshold",
    "PATE, exact votes",
    "sum with missing values",
)


def test_each_mechanism_has_one_name_and_a_twin():
    assert len(BY_NAME) == len(ENTRIES) >= 60
    assert BY_NAME.keys() == TRUTHS.keys()


@pytest.mark.parametrize("name", TRUTHS)
def test_truth_is_that_of_its_twin(name):
    assert BY_NAME[name].truth == pytest.approx(TRUTHS[name](), rel=1e-5)


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_mechanism_is_no_violation(name):
    row = audited(BY_NAME[name], FEW)
    assert BY_NAME[name].is_healthy
    assert row.verdict != "VIOLATION"
    assert row.certified <= 1.2 * BY_NAME[name].truth  # 5 % of bounds are above the truth


@pytest.mark.parametrize("name", BROKEN)
def test_broken_mechanism_is_a_violation_after_few_trials(name):
    row = audited(BY_NAME[name], FEW)
    assert not BY_NAME[name].is_healthy
    assert row.verdict == "VIOLATION"
    assert row.certified > BY_NAME[name].claim.epsilon_at(BY_NAME[name].delta)


ROW = Row("a", "b", "ε = 1", 1.0, 0.9, 0.9, "CONSISTENT", True, 1000, 2.0)


def test_table_begins_with_what_is_not_reached():
    rows = [
        ROW,
        dataclasses.replace(ROW, name="without a bar", truth=None, share=None),
        dataclasses.replace(ROW, name="least", share=0.1),
        dataclasses.replace(ROW, name="wrong", share=0.95, is_expected=False),
    ]
    lines = table(rows).splitlines()
    names = [line.split("|")[1].strip() for line in lines[2:]]
    assert names == ["wrong", "least", "a", "without a bar"]
    assert "CONSISTENT (wrong)" in lines[2]
    assert "| ∞ |" in lines[-1]


def test_a_healthy_mechanism_must_not_be_a_violation_and_a_broken_one_must():
    entry = Entry("a", lambda data, rng, n: [], [], Claim(epsilon=1.0), 1.0, "b")
    broken = dataclasses.replace(entry, truth=math.inf, bar=3.0)
    assert [entry.is_expected(verdict) for verdict in ("VIOLATION", "INCONCLUSIVE")] == [
        False,
        True,
    ]
    assert [broken.is_expected(verdict) for verdict in ("VIOLATION", "CONSISTENT")] == [True, False]
    assert (entry.reachable, broken.reachable) == (1.0, 3.0)


def test_commands_of_the_page_run(tmp_path, monkeypatch, capsys):
    """With fewer trials: of one mechanism where the page has them all."""
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^\$ python -m jobs\.bench( .*)$", PAGE, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        options = shlex.split(command)
        if "--only" not in options:
            options += ["--only", "TruncatedGeometric"]
        bench.main([*options, "--trials", "2000"])
        assert capsys.readouterr().out.startswith("| mechanism |")
    rows = json.loads((tmp_path / "bench.json").read_text())
    assert rows[0]["name"] == "TruncatedGeometric"
    assert rows[0]["trials"] == 2000


def test_the_picture_has_each_mechanism_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    bench.main(["--only", "Laplace", "SVT5", "--trials", "2000", "--json", "bench.json"])
    command = re.search(r"^\$ python -m jobs\.bench\.picture (.*)$", PAGE, re.MULTILINE)[1]
    picture.main(command.replace("docs/", "").split())
    assert (tmp_path / "bench.svg").read_text().startswith("<?xml")
    rows = picture.read_rows(tmp_path / "bench.json")
    healthy, broken = picture.picture(rows).axes[0].collections
    assert healthy.get_offsets().tolist() == [[0.1, picture.SMALLEST]], "nothing is certified"
    assert broken.get_offsets()[:, 0].tolist() == [picture.INFINITE]


def test_make_runs_the_bench():
    recipes = (ROOT / "Makefile").read_text()
    recipe = r"^bench-claims:.*\n\t\$\(BIN\)/python -m jobs\.bench --jobs 2$"
    assert re.search(recipe, recipes, re.MULTILINE)
    assert "make bench-claims" in PAGE


def test_an_unknown_name_is_answered_in_one_line(capsys):
    with pytest.raises(SystemExit) as stop:
        bench.main(["--only", "Laplacian"])
    assert stop.value.code == 2
    assert "--only: is 'Laplacian', but must be one of Laplace," in capsys.readouterr().err


def test_a_broken_mechanism_that_is_missed_is_the_exit_code(monkeypatch):
    monkeypatch.setattr(bench, "audited", lambda *_: dataclasses.replace(ROW, is_expected=False))
    with pytest.raises(SystemExit, match="wrong verdicts: a"):
        bench.main(["--only", "Laplace"])


def test_healthy_mechanisms_may_be_refuted_at_the_level_and_no_more():
    """Of 20 audits at 5 %, four or more are refuted with a probability of 1.6 %, five with .3 %."""
    refuted = dataclasses.replace(ROW, verdict="VIOLATION", is_expected=False)
    assert failures([refuted] * 4 + [ROW] * 16) == []
    assert failures([refuted] * 5 + [ROW] * 15) == ["a"] * 5
