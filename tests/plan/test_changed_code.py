"""A run is of one version of the code: another one is refused with what has changed."""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dpaudit_ray.plan import provenance
from dpaudit_ray.plan.provenance import Code
from tests.command import Outcome, contents, inline, write_sweep
from tests.plan.failing import of_function

TRAIN = """
import numpy as np
from own_package.noise import drawn


def train(member: bool, seed: int) -> float:
    return float(member + drawn(seed))
"""
NOISE = """
import numpy as np


def drawn(seed):
    import own_lazy
    return 2.0 * np.random.default_rng(seed).normal() + own_lazy.NOTHING
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where one works, with a training of one's own that imports more."""
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package/__init__.py").write_text("")
    (tmp_path / "own_package/noise.py").write_text(NOISE)
    (tmp_path / "own_train.py").write_text(TRAIN)
    (tmp_path / "own_lazy.py").write_text("NOTHING = 0.0\n")
    (tmp_path / "own_other.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    forget()
    yield tmp_path
    forget()


def forget() -> None:
    """As in a new process."""
    for name in [name for name in sys.modules if name.partition(".")[0].startswith("own_")]:
        del sys.modules[name]


@pytest.fixture
def sweep(folder: Path) -> Path:
    audit = {"trials": 40, "estimators": ["accuracy", "eps-delta", "paper-gdp"]}
    how = {"path": "own_train:train", "curve": "gaussian", "isolated": False}
    return write_sweep(folder, of_function("own", audit, 10, **how))


def run(sweep: Path, *more: str) -> Outcome:
    forget()
    return inline(sweep, sweep.parent / "runs", *more)


def plan(sweep: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((sweep.parent / "runs/own/plan.json").read_text())
    return found


def digest_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def changed(folder: Path) -> None:
    """The noise that a module far from the training draws is halved."""
    file = folder / "own_package/noise.py"
    file.write_text(file.read_text().replace("2.0", "1.0"))


EXTENDED = ("--set", "audit.trials=80")


def test_a_plan_records_what_the_trials_depend_on(sweep, folder):
    assert run(sweep).code == 0
    (code,) = plan(sweep)["code"]
    files = {
        "own_train": "own_train.py",
        "own_package": "own_package/__init__.py",
        "own_package.noise": "own_package/noise.py",
        "own_lazy": "own_lazy.py",
    }
    assert code["modules"] == {name: digest_of(folder / file) for name, file in files.items()}
    packages = {"dpaudit", "torch", "numba", "numpy", "opacus", "ray", "python"}
    assert set(code["versions"]) == packages
    assert "unknown" not in code["versions"].values()
    assert code["device"] == provenance.device() != ""


@pytest.mark.parametrize("more", [EXTENDED, ()])
def test_other_code_is_refused(more, sweep):
    """Also where the run is complete: it is not what this code gives."""
    assert run(sweep).code == 0
    before = contents(sweep.parent / "runs")
    (code,) = plan(sweep)["code"]
    changed(sweep.parent)
    outcome = run(sweep, *more)
    new = digest_of(sweep.parent / "own_package/noise.py")
    old = code["modules"]["own_package.noise"]
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.splitlines() == [
        f"dpaudit: {sweep.parent}/runs/own was run with other code, in which comments count too "
        f"(own_package/noise.py has SHA-256 {old[:12]}... there, SHA-256 {new[:12]}... here); "
        "restore it, or use a new name and a new seed"
    ]
    assert contents(sweep.parent / "runs") == before


def test_a_run_of_which_nothing_was_computed_takes_the_code_as_it_is(sweep, folder):
    assert run(sweep).code == 0
    for file in (folder / "runs/own/scores").rglob("*.parquet"):
        file.unlink()
    changed(folder)
    outcome = run(sweep)
    assert outcome.code == 0, outcome.err
    (code,) = plan(sweep)["code"]
    assert code["modules"]["own_package.noise"] == digest_of(folder / "own_package/noise.py")


def test_another_version_of_a_package_is_refused_where_trials_are_left(sweep, monkeypatch):
    assert run(sweep).code == 0
    here = provenance.installed_versions()
    monkeypatch.setattr(
        provenance, "installed_versions", lambda: here | {"torch": "9.9", "ray": "8.8"}
    )
    assert run(sweep).code == 0, "complete: nothing is computed"
    outcome = run(sweep, *EXTENDED)
    assert outcome.code == 2
    assert f"was run with other code (torch {here['torch']} there, 9.9 here)" in outcome.err
    monkeypatch.setattr(provenance, "installed_versions", lambda: here | {"ray": "8.8"})
    monkeypatch.setattr(provenance, "device", lambda gpu=False: "Abacus")
    outcome = run(sweep, *EXTENDED)
    assert outcome.code == 0
    assert f"continues elsewhere (ray {here['ray']} there, 8.8 here; " in outcome.err
    assert "Abacus here): last bits may differ" in outcome.err


def test_modules_are_compared_by_name():
    modules = {"a": "1", "b": "1", "c": "1"}, {"a": "1", "b": "2", "d": "1"}
    grave, harmless = provenance.changes(*(Code(digests, {}, "") for digests in modules))
    assert harmless == []
    assert grave == [
        "b has SHA-256 1... there, SHA-256 2... here",
        "c has SHA-256 1... there, no file here",
        "d has no file there, SHA-256 1... here",
    ]
