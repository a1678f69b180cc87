"""`make gpu` where there is none: it says so, and does the same in small on a CPU."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from jobs.gpu import checks
from jobs.gpu.__main__ import app
from tests.long import long

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
    kinds = list(dict.fromkeys(row[0].strip() for row in rows[2:]))
    assert kinds == [
        "sums against autograd, float64",
        "sums against autograd, float32",
        "an audit's ε",
        "noise as on a CPU",
        "noise, a number",
        "models in a group",
        "convolution",
        "a step in profile",
        "a pack, again",
        "a model's step, of the matrix product",
    ]
    assert "0 differ" in done.stdout.splitlines()[-1]


# On the stand-in for a GPU, where nothing but torch and this package can be imported.
STANDING_IN = """
import sys
for name in ("ray", "opacus", "numba", "llvmlite"):
    sys.modules[name] = None
import torch
from dpaudit_ray.engines import gpu_settings
from jobs.gpu import checks
from tests.engines.standin import GPU, standing_in
gpu_settings.device = lambda gpu: GPU if gpu else torch.device("cpu")
gpu_settings.fix_numerics = lambda tf32: None
torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: 1
checks._TIMED, checks._GROUPS, checks._PACKS, checks._LAYERS = 1 << 10, (4, 8), (1, 4), {}
with standing_in():
    calls = checks.every(("fcnn",), gpu=True, limit=120)
    for row in calls if sys.argv[1] == "whole" else checks.exact("fcnn", gpu=True):
        print(row.what, row.of, row.found, row.good, sep="|", flush=True)
"""


def stood_in(part: str) -> list[list[str]]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", STANDING_IN, part],
        cwd=ROOT, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [line.split("|") for line in done.stdout.splitlines() if line.count("|") == 3]


def test_a_network_is_packed_on_a_stand_in_without_ray_opacus_and_numba():
    assert [row[3] for row in stood_in("exact")] == ["True", "True"]


@long("a minute of operations on the stand-in")
def test_on_a_stand_in_it_runs_whole_without_ray_opacus_and_numba():
    """What torch has for CUDA alone fails there, row by row, and stops nothing."""
    rows = stood_in("whole")
    failed = {(what, of) for what, of, _, good in rows if good == "False"}
    assert failed <= {("memory of a step", "fcnn"), ("a model's step", "networks")}, rows
    assert ("an audit's ε", "fcnn") in {(what, of) for what, of, *_ in rows}
    assert {of for what, of, *_ in rows if what.startswith("sums")} == {
        "fcnn", "a table", "an LSTM", "an encoder"
    }  # fmt: skip


def test_a_check_that_hangs_or_fails_is_a_row(monkeypatch):
    def hanging() -> list[checks.Row]:
        time.sleep(30)
        return []

    def failing() -> list[checks.Row]:
        raise RuntimeError("CUDA error: an | illegal access\nand more")

    last = checks.Row("last", "", "", "", good=True)
    planned = [("hangs", hanging), ("fails", failing), ("last", lambda: [last])]
    monkeypatch.setattr(
        checks, "planned", lambda *_: [checks.Check(name, "", rows) for name, rows in planned]
    )
    hung, broken, done = checks.every(("fcnn",), gpu=False, limit=1)
    assert hung.found == "failed: OutOfTimeError: not done in 1 s"
    assert broken.found == "failed: RuntimeError: CUDA error: an / illegal access"
    assert done == last


def test_what_differs_is_marked_and_counted(monkeypatch):
    row = checks.Row("a pack, again", "fcnn", "1", "2", good=False)
    monkeypatch.setattr(checks, "every", lambda *_: iter([row]))
    done = CliRunner().invoke(app, ["--device", "cpu"])
    assert done.exit_code == 1
    assert "| a pack, again | fcnn | 1 | 2 | **differs** |" in done.stdout
    assert "1 differ" in done.stdout


def test_a_sum_that_is_wrong_is_found(monkeypatch):
    right = checks.PackedModel.clipped_sums
    monkeypatch.setattr(
        checks.PackedModel, "clipped_sums", lambda *given: right(*given) * (1 + 1e-2)
    )
    monkeypatch.setattr(checks.PackedModel, "choose_way", lambda *_: None)
    assert not any(row.good for row in checks.exact("fcnn", gpu=False))
