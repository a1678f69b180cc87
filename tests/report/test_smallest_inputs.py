"""Every verb that reads a run, on the smallest runs of each kind and on examples of the docs."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit_ray.forecast import forecast
from dpaudit_ray.sweep.yamlfile import parse_yaml
from tests.command import dpaudit, write_sweep
from tests.conftest import ROOT
from tests.long import LONG, long

LIGHT = {"name": "landscape", "steps": 2, "batch_size": 1, "noise_multiplier": 2.0}
DP_SGD = {
    "name": "dp-sgd",
    "data": {"name": "breast_cancer"},
    "model": {"name": "fcnn"},
    "steps": 2,
    "batch_size": 8,
    "learning_rate": 0.1,
    "clip_norm": 1.0,
    "noise_multiplier": 2.0,
}
AUDIT = {"trials": 4, "delta": 1e-5, "estimators": ["accuracy", "eps-delta"]}


def light(**audit: Any) -> dict[str, Any]:
    return {"mechanism": LIGHT, "adversary": "landscape", "audit": AUDIT | audit}


def trained(adversary: Any, audit: dict[str, Any], **mechanism: Any) -> dict[str, Any]:
    return {"mechanism": DP_SGD | mechanism, "adversary": adversary, "audit": AUDIT | audit}


def canaries(number: int, estimator: str) -> dict[str, Any]:
    adversary = {"name": "one-run", "canaries": number, "kind": "dirac"}
    return trained(adversary, {"trials": number, "estimators": [estimator]})


SMALLEST = {
    "one trial": light(trials=1),
    "two trials": light(trials=2),
    "delta near 0": light(delta=1e-300),
    "delta near 1": light(delta=0.999),
    "every estimator that looks": light(estimators=["anytime", "group-sequential", "rank"]),
    "one step": light() | {"mechanism": LIGHT | {"steps": 1}},
    "exact": light() | {"mechanism": LIGHT | {"backend": "exact"}},
    "tiny claim": light() | {"mechanism": LIGHT | {"noise_multiplier": 1e5}},
    "huge claim": light() | {"mechanism": LIGHT | {"noise_multiplier": 0.01}},
    "pairs": light(trials=2, paired=True, estimators=["paired"]),
    "one canary of one training run": canaries(1, "one-run"),
    "ten canaries of one training run": canaries(10, "order-statistics"),
    "one loss": trained("loss", {"trials": 1}),
    "held out": trained("loss", {}, held_out={"name": "breast_cancer", "records": 60}),
    "one reference model": trained(
        {"name": "reference-models", "records": 4},
        {"estimators": ["one-run"]},
        batch_size=300,
    ),
}
MORE = {
    "poisson": trained("watched-dimension", {}, sampling="poisson"),
    "balls and bins": trained("watched-dimension", {}, sampling="balls-and-bins"),
    "gradient": trained("gradient", {}),
}
SWEEPS = SMALLEST | MORE if LONG else SMALLEST


def fences(page: str) -> list[dict[str, Any]]:
    """Returns the sweep files that a page of the docs shows."""
    text = (ROOT / "docs" / page).read_text()
    blocks = re.findall(r"^```yaml[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    parsed = (parse_yaml(block, page) for block in blocks)
    return [raw for raw in parsed if isinstance(raw, dict) and {"mechanism", "audit"} <= raw.keys()]


EXAMPLES = {
    "quickstart": (
        ROOT / "jobs/quickstart.yaml",
        ["audit.trials=6", "mechanism.steps=3", "audit.record_every=1"],
    ),
}


PYTHON_VALUE = r"(?<!=)\b(nan|NaN|None)\b"  # labels of audits may have clip_norm=None


def read_with_every_verb(location: str) -> None:
    """Runs each verb that reads a run; none ends with a traceback or prints a Python value."""
    for words in (
        ("status",),
        ("status", "--details"),
        ("report",),
        ("report", "--format", "table"),
        ("verify",),
        ("check",),
        ("compare", location),
    ):
        shown = dpaudit(words[0], location, *words[1:])
        assert shown.code in (0, 1, 5), (words, shown)
        assert "Traceback" not in shown.err
        assert not re.search(PYTHON_VALUE + r"|\binf\b", shown.out), (words, shown.out)
    status = dpaudit("status", location, "--json")
    assert status.code == 0
    json.loads(status.out)
    page = (Path(location) / "report.html").read_text()
    text = re.sub(r"<script.*?</script>|<style.*?</style>|<[^>]*>", " ", page, flags=re.DOTALL)
    assert not re.search(PYTHON_VALUE, text)


@pytest.fixture(autouse=True)
def two_simulated_audits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans simulate two audits in place of ten: their powers are not what is tested."""
    monkeypatch.setattr(forecast, "_SIMULATIONS", 2)


def run_and_read(sweep: Path, folder: Path, *options: str) -> None:
    plan = dpaudit("plan", sweep, "--storage-path", folder, *options)
    assert plan.code == 0, plan
    assert not re.search(PYTHON_VALUE, plan.out), plan.out
    done = dpaudit("run", sweep, "--storage-path", folder, "--executor", "inline", *options)
    assert done.code in (0, 1, 5), done
    (location,) = folder.iterdir()
    read_with_every_verb(str(location))


@pytest.mark.parametrize("kind", SWEEPS)
def test_every_verb_reads_the_smallest_run(kind, tmp_path):
    sweep = {"name": "smallest", "seed": 3} | SWEEPS[kind]
    run_and_read(write_sweep(tmp_path, sweep), tmp_path / "runs")


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_verb_reads_an_example(name, tmp_path):
    file, changes = EXAMPLES[name]
    options = [part for change in changes for part in ("--set", change)]
    run_and_read(file, tmp_path / "runs", *options)


@pytest.mark.parametrize(
    ("page", "changes"),
    [
        ("sweep-file.md", {"trials": 4, "record_every": 1}),
        ("one-training.md", {}),
    ],
)
def test_every_verb_reads_a_sweep_file_of_the_docs(page, changes, tmp_path):
    for number, raw in enumerate(fences(page)):
        raw["mechanism"]["steps"] = 30
        raw["audit"] |= changes | {"accountants": ["rdp"]}  # others take seconds
        folder = tmp_path / str(number)
        folder.mkdir()
        run_and_read(write_sweep(folder, raw), folder / "runs")


@long("each of two functions is imported anew for every verb")
def test_every_verb_reads_the_functions_of_the_docs(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    page = "audit-your-training-code.md"
    text = (ROOT / "docs" / page).read_text()
    for name, code in re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", text, re.M | re.S):
        (tmp_path / name).write_text(code)
    training, attack = fences(page)
    for raw in (training, attack):
        raw["audit"]["trials"] = 4
        run_and_read(write_sweep(tmp_path, raw), tmp_path / "runs" / raw["name"])


@long("reference models alone take a minute")
def test_every_verb_reads_the_reference_models_of_the_docs(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.random((60, 64)).astype(np.float32)
    np.savez(tmp_path / "digits.npz", x=images, y=np.arange(60) % 10)
    (raw,) = fences("membership.md")
    raw["mechanism"] |= {"steps": 6, "batch_size": 10}
    raw["adversary"] |= {"records": 40, "period": 6}
    raw["audit"] |= {"trials": 4 * 40}
    run_and_read(write_sweep(tmp_path, raw), tmp_path / "runs")
