"""`dpaudit compare`: two runs side by side, and only what has two ends is said to differ."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import special

from dpaudit_ray import plan as planning
from dpaudit_ray import stats
from dpaudit_ray.cli import terminal
from dpaudit_ray.report import comparison
from dpaudit_ray.report.tables import Run
from dpaudit_ray.storage.run_directory import RunDirectory
from tests.command import dpaudit, stored_scores
from tests.report.handed import DP_SGD, LANDSCAPE, played, several_canaries, sweep


def made(folder: Path, name: str, packs: int = 8, mu: float = 2.0, **changes: Any) -> Path:
    """120 trials of each of two audits, whose scores are `mu` deviations apart."""
    audit = {"trials": 120, "delta": 1e-5, "record_every": 6}
    raw = sweep(name, audit=audit, resources={"pack_size": 30}, **changes)
    return played(raw, folder, packs, mu=mu)


@pytest.fixture(scope="module")
def strong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("strong"), "strong")


@pytest.fixture(scope="module")
def weak(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with another seed, more noise and scores that say nothing."""
    mechanism = LANDSCAPE | {"noise_multiplier": 4.0}
    return made(tmp_path_factory.mktemp("weak"), "weak", mu=0.0, mechanism=mechanism, seed=5)


@pytest.fixture(scope="module")
def both(strong: Path, weak: Path) -> comparison.Comparison:
    return compare(strong, weak)


def compare(left: Path, right: Path) -> comparison.Comparison:
    return comparison.compare(Run.open(str(left)), Run.open(str(right)))


def test_what_was_asked_otherwise_is_told_by_key(both, strong, weak):
    changes = {change.key: (change.old, change.new) for change in both.changes}
    assert changes == {"seed": (3, 5), "mechanism.noise_multiplier": (2.0, 4.0)}
    assert both.code == ()
    for pair in both.pairs:
        assert [change.key for change in pair.changes] == ["mechanism.noise_multiplier"]
    lines = dpaudit("compare", strong, weak).out.splitlines()
    assert "  mechanism.noise_multiplier: 2.0 -> 4.0" in lines
    assert "differ: gradient=threshold; gradient=constant" in lines


def test_intervals_are_those_of_right_guesses(both, strong):
    """The slow twin is what `accuracy` certifies, at half the error."""
    run = RunDirectory(str(strong))
    for pair, audit in zip(both.pairs, planning.require(run).audits, strict=True):
        scores = stored_scores(run, audit.id)
        compared = stats.estimate(scores["score"], scores["member"], 1e-5, 0.975, "accuracy")
        assert 2 * special.ndtri(pair.left.low) == pytest.approx(compared.mu_lower)
        assert pair.left.low < pair.left.rate < pair.left.high


def test_audits_differ_where_their_intervals_do_not_meet(both, strong):
    assert [pair.differs for pair in both.pairs] == [True, True]
    assert [pair.differs for pair in compare(strong, strong).pairs] == [False, False]
    same = dpaudit("compare", strong, strong).out.splitlines()
    assert "  the same sweep" in same
    assert "differ: none, as far as this shows" in same


def test_bounds_that_are_apart_are_no_difference_where_intervals_meet(strong, tmp_path):
    """Half the trials give a lower bound, and nobody has compared anything else."""
    half = compare(strong, made(tmp_path, "strong", packs=6)).pairs[1]
    assert half.left.entry["epsilon_lower"] > 1.15 * half.right.entry["epsilon_lower"]
    assert half.right.entry["done"] == 60
    assert half.differs is False
    assert "60/120" in dpaudit("compare", strong, tmp_path / "strong").out


def test_what_needs_no_trials_is_compared_as_it_is(tmp_path):
    exact, runs = LANDSCAPE | {"backend": "exact"}, []
    for number, noise in enumerate((2.0, 2.0, 2.5)):
        mechanism = exact | {"noise_multiplier": noise}
        runs.append(made(tmp_path, f"run-{number}", packs=0, mechanism=mechanism))
    assert [pair.differs for pair in compare(runs[0], runs[1]).pairs] == [False, False]
    assert [pair.differs for pair in compare(runs[0], runs[2]).pairs] == [True, True]


def test_scores_that_share_a_training_have_no_interval(strong, tmp_path):
    run = several_canaries(tmp_path)
    (pair,) = compare(run, run).pairs
    assert np.isnan([pair.left.rate, pair.left.low, pair.left.high]).all()
    assert pair.differs is None
    assert (pair.left.entry["accuracy"], pair.right.entry["loss"]) == (0.75, 0.75)
    assert compare(run, strong).pairs == ()
    out = dpaudit("compare", run, strong).out
    assert "only in handed: biased-dimension" in out
    assert "only in strong: gradient=threshold, gradient=constant" in out


def test_other_adversaries_on_one_mechanism_stand_beside_each_other(tmp_path, monkeypatch):
    """One to one, the most alike first."""
    runs = []
    for name, adversaries in (("two", ["loss", "cosine"]), ("one", ["watched-dimension"])):
        grid = {"adversary": adversaries}
        runs.append(made(tmp_path, name, mechanism=DP_SGD, grid=grid))
    labels = [(pair.left.label, pair.right.label) for pair in compare(*runs).pairs]
    assert labels == [("loss", "watched-dimension")]
    assert compare(*runs).only == (("cosine",), ())
    back = compare(*reversed(runs))
    assert [(pair.right.label, pair.left.label) for pair in back.pairs] == labels
    monkeypatch.setattr(terminal, "interactive", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    lines = dpaudit("compare", *runs).out.splitlines()
    assert "  grid.adversary: [loss, cosine] -> [watched-dimension]" in lines
    assert all(0 < len(line) <= 80 for line in lines)


def test_code_data_and_verdicts_stand_side_by_side(strong, weak, tmp_path):
    other = Path(shutil.copytree(weak, tmp_path / "other"))
    raw = json.loads((other / "plan.json").read_text())
    raw["code"][-1]["versions"]["numpy"] = "1.0"
    raw["code"][-1]["modules"]["mine"] = "ab" * 32
    raw["data"] = [{"file": "x.npz", "sha256": "cd" * 32}]
    (other / "plan.json").write_text(json.dumps(raw))
    compared = json.loads(dpaudit("compare", strong, other, "--json").out)
    assert compared["code"] == [
        f"modules.mine none -> {'ab' * 30}",
        f"versions.numpy {np.__version__} -> 1.0",
        "the contents of their input files differ",
    ]
    verify = json.loads(dpaudit("verify", strong, "--json").out)
    assert compared["verdicts"][0] == verify["verdict"]
    assert [pair["left"]["verdict"] for pair in compared["pairs"]] == [
        audit["verdict"] for audit in verify["audits"]
    ]
    assert [pair["differs"] for pair in compared["pairs"]] == [True, True]
