"""`make gpu` where there is none: it says so, and does the same in small on a CPU."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from jobs.gpu import checks
from jobs.gpu.__main__ import app

ROOT = Path(__file__).resolve().parents[2]
# Neither can be imported: a machine with a GPU needs no more than torch and this package.
WITHOUT = """
import runpy, sys
sys.modules["ray"] = sys.modules["opacus"] = None
sys.argv = ["jobs.gpu", *sys.argv[1:]]
runpy.run_module("jobs.gpu", run_name="__main__")
"""


def test_without_a_gpu_it_says_what_was_not_checked():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    done = CliRunner().invoke(app, [])
    assert done.exit_code == 3
    assert len(done.stdout.splitlines()) == 1
    assert done.stdout.startswith("no GPU here")
    assert "--device cpu" in done.stdout


def test_on_a_cpu_it_does_the_same_in_small_without_ray_and_opacus():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, "--device", "cpu", "--networks", "fcnn"],
        cwd=ROOT, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no GPU was used" in done.stdout
    rows = [line.split("|")[1:-1] for line in done.stdout.splitlines() if line.startswith("|")]
    assert {len(row) for row in rows} == {5}
    kinds = [row[0].strip() for row in rows[2:]]
    assert kinds == [
        "noise as on a CPU",
        "sums against autograd, float64",
        "sums against autograd, float32",
        "a pack, again",
        "a pack, in another process",
        "a model's step, of the matrix product",
        "an audit's ε",
    ]
    assert "0 differ" in done.stdout.splitlines()[-1]


def test_what_differs_is_marked_and_counted(monkeypatch):
    row = checks.Row("a pack, again", "fcnn", "1", "2", good=False)
    monkeypatch.setattr(checks, "every", lambda names, gpu: iter([row]))
    done = CliRunner().invoke(app, ["--device", "cpu"])
    assert done.exit_code == 1
    assert "| a pack, again | fcnn | 1 | 2 | **differs** |" in done.stdout
    assert "1 differ" in done.stdout


def test_a_sum_that_is_wrong_is_found(monkeypatch):
    right = checks.PackedModel.clipped_sums
    monkeypatch.setattr(
        checks.PackedModel, "clipped_sums", lambda *given: right(*given) * (1 + 1e-2)
    )
    monkeypatch.setattr(checks.PackedModel, "settle", lambda *_: None)
    assert not any(row.good for row in checks.exact("fcnn", gpu=False))
