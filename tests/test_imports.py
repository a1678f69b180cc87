"""What a sweep file may run: nothing is called before it was looked at, and --trust limits it."""

import concurrent.futures
import gc
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpaudit_ray import imports, plugins
from dpaudit_ray.imports import Trust
from dpaudit_ray.models.base import Model
from dpaudit_ray.orchestration import submission
from tests.command import changed, completed, dpaudit, inline, refused, write_sweep
from tests.plan.failing import of_function

OWN = """
import functools, os, subprocess
from os import system
from pathlib import Path
import torch
from torch import nn
from torch.hub import load_state_dict_from_url
from own_parts import helped
from dpaudit_ray.accounting import Training
from dpaudit_ray.adversaries.loss import Loss
from dpaudit_ray.mechanisms.landscape import Landscape

class Walk(Landscape):
    name: str = "own_names:Walk"

    def claimed(self, adversary, horizon):
        return Training(3.0, horizon)

class Louder(Loss):
    name: str = "louder"
    gain: float = 1.0

class Plain:
    def __init__(self, **options):
        Path("called").touch()

def train(member, seed, noise=2.0):
    return float(member) + seed % 7 * 1e-3

def numbers() -> int:
    Path("called").touch()

def says(**options) -> nn.Module:
    return nn.Linear(30, 1)

def leaves(member, seed):
    raise SystemExit(1)

part = functools.partial(train, noise=1.0)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where one works, with modules of one's own."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "own_names.py").write_text(OWN)
    (here / "own_parts.py").write_text("def helped(member, seed):\n    return 0.5\n")
    (here / "own_leaves.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(here)
    yield here
    for name in ("own_names", "own_parts", "own_leaves", "colorsys2"):
        sys.modules.pop(name, None)


def function(path: str, **more: Any) -> dict[str, Any]:
    """A sweep over a training of one's own."""
    stated = {"path": path, "steps": 1, "noise_multiplier": 2.0}
    stated["isolated"] = False  # a process for each trial takes seconds
    return of_function("own", {"trials": 20}, 20, **stated | more)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("subprocess:Popen", "is of Python's own library"),
        ("antigravity:fly", "is of Python's own library"),
        ("own_names:system", "is no function or class of that module, but of posix"),
        ("own_names:subprocess.Popen", "is no function or class of that module, but of subprocess"),
        ("own_names:load_state_dict_from_url", "no function or class of that module, but of torch"),
        ("own_names:part", "is no function or class of that module, but of functools"),
        ("own_names:Plain", "own_names:Plain gives a Plain, no torch.nn.Module"),
        ("own_names:numbers", "own_names:numbers gives a int, no torch.nn.Module"),
        ("torch.hub:load", "is installed code; call it from a function of your own"),
        ("torch.nn:Parameter", "torch.nn:Parameter gives a Parameter, no torch.nn.Module"),
        ("numpy:array", "is installed code"),
    ],
)
def test_no_network_is_made_by_what_may_be_anything_else(path, problem, tiny, folder):
    options = {"args": "touch called", "shell": True}
    model = {"name": "module", "path": path, "options": options}
    file = write_sweep(folder, changed(tiny, "mechanism.model", model))
    before = set(folder.iterdir())
    line = refused("plan", file)
    assert line.startswith("mechanism.model.path: ")
    assert problem in line
    assert {f.name for f in set(folder.iterdir()) - before} <= {"__pycache__"}, "it was called"


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("own_names:says", {}),
        ("torch.nn:Linear", {"in_features": 30, "out_features": 1}),
        ("torchvision.models:squeezenet1_0", {"num_classes": 1}),
    ],
)
def test_what_says_that_it_is_a_network_is_called(path, options, folder):
    with imports.trusting(Trust()):
        assert callable(imports.network(path, "key"))
        shape = (3, 224, 224) if "torchvision" in path else (30,)
        raw = {"name": "module", "path": path, "options": options}
        assert plugins.parse(Model, raw, "model").build(shape, 2) is not None


@pytest.mark.parametrize(
    ("path", "options", "problem"),
    [
        ("subprocess:run", {}, "mechanism.path: 'subprocess:run' is of Python's own library"),
        ("own_names:train", {"nois": 1}, "mechanism.options: own_names:train does not take"),
        ("own_names:numbers", {}, "mechanism.options: own_names:numbers does not take (member,"),
        ("numpy.random:seed", {}, "mechanism."),
        ("torch.hub:load", {}, "mechanism.path: torch.hub:load is installed code; call it from"),
        ("own_leaves:train", {}, "mechanism.path: cannot import 'own_leaves:train' (1); mend this"),
    ],
)
def test_no_training_is_what_may_be_anything_else(path, options, problem, folder):
    line = refused("plan", write_sweep(folder, function(path, options=options)))
    assert line.startswith(problem), line


@pytest.mark.parametrize(("name", "code", "said"), [("helped", 0, ""), ("leaves", 3, "SystemExit")])
def test_a_training_of_ones_own_may_be_another_modules_and_fails_where_it_leaves_python(
    name, code, said, folder
):
    outcome = inline(write_sweep(folder, function(f"own_names:{name}")), folder / "runs")
    assert outcome.code == code
    assert said in outcome.err


@pytest.mark.parametrize("verb", ["run", "plan"])
def test_only_what_is_trusted_is_imported(verb, folder):
    file = write_sweep(folder, function("own_names:train"))
    more = ("--executor", "inline") if verb == "run" else ()
    line = refused(verb, file, "--trust", "other,own", *more)
    assert line == (
        "mechanism.path: 'own_names:train' is of a module that is not trusted (trusted: other, "
        "own); read its code, then add it: --trust other,own,own_names"
    )
    assert "own_names" not in sys.modules
    assert not (folder / "runs").exists()
    assert refused(verb, file, "--trust", "", *more).count("trusted: none") == 1
    assert refused(verb, file, "--trust", "a b", *more) == (
        "--trust: takes names of modules, such as a,b.c, got 'a b'"
    )
    assert dpaudit(verb, file, "--trust", "other, own_names", *more).code == 0


def test_trust_is_for_a_module_and_what_lies_below_it():
    trust = Trust.parse("a,b.c")
    assert [trust.allows(name) for name in ("a", "a.x", "ab", "b", "b.c", "b.c.d", "b.cd")] == [
        True, True, False, False, True, True, False,
    ]  # fmt: skip
    assert Trust.parse(None).allows("a")
    assert not Trust.parse(None, reads=True).allows("a")


def test_plan_says_what_code_the_sweep_runs(folder):
    outcome = completed(dpaudit("plan", write_sweep(folder, function("own_names:train"))))
    said = " ".join(outcome.out.split())
    assert "runs code: own_names (" in said
    assert "own_parts (" in said
    assert "--trust" in said


def test_a_folder_does_not_give_a_module_in_place_of_an_installed_one(tiny, folder):
    """Verbs that run look there last, verbs that read do not."""
    (folder / "jsonschema.py").write_text("raise SystemExit(1)")
    (folder / "xdist2.py").write_text("raise SystemExit(1)")
    file = write_sweep(folder, function("jsonschema:validate"))
    assert "cannot import" not in refused("plan", file)
    assert inline(write_sweep(folder, changed(tiny, "audit.trials", 10)), folder / "runs").code == 0
    before = list(sys.path)
    for verb in ("status", "verify"):
        assert dpaudit(verb, folder / "runs/tiny").code in (0, 5)
    assert sys.path == before


@pytest.mark.parametrize("kind", ["adversary", "mechanism"])
def test_verbs_that_read_import_nothing(kind, tiny, light, folder):
    """And say the same as where the class of one's own is imported, or is gone."""
    louder = {"name": "own_names:Louder", "gain": 2.0, "period": 2}
    raw = tiny | {"adversary": louder, "grid": {}} if kind == "adversary" else light
    raw["mechanism"]["name"] = "dp-sgd" if kind == "adversary" else "own_names:Walk"
    changed(raw, "audit.trials", 20)
    assert inline(write_sweep(folder, raw), folder / "runs").code == 0
    run, said = folder / "runs/tiny", {}
    verbs = [("status",), ("status", "--json"), ("report",), ("report", "--format", "table"),
             ("verify", "--json")]  # fmt: skip
    for trust in ("trusted", "none", "gone"):
        sys.modules.pop("own_names", None)
        sys.modules.pop("own_parts", None)
        if trust == "gone":
            (folder / "own_names.py").unlink()
        more = ["--trust", "own_names"] * (trust == "trusted")
        said[trust] = [dpaudit(*verb, run, *more) for verb in verbs]
        assert ("own_names" in sys.modules) == (trust == "trusted")
    assert said["gone"] == said["none"]
    # Without the code, no curve is known to be Gaussian.
    unknown, known = '"assumes_other_curve": true', '"assumes_other_curve": false'
    expected = [outcome.out.replace(known, unknown) for outcome in said["trusted"]]
    assert [o.out.replace(known, unknown) for o in said["none"]] == expected
    assert [o.code for o in said["none"]] == [o.code for o in said["trusted"]] == [0, 0, 0, 0, 5]
    assert {outcome.err for outcome in said["trusted"]} == {""}
    assert {outcome.err for outcome in said["none"]} == {
        "dpaudit: claims and other values that need code in own_names are read from plan.json; "
        "--trust own_names runs that code\n"
    }
    assert "fingerprint" in (run / "report.html").read_text()


def test_a_network_that_is_not_imported_tells_nothing_of_the_claim(tiny, folder):
    del tiny["grid"]
    changed(tiny, "mechanism.model", {"name": "module", "path": "own_names:says"})
    assert inline(write_sweep(folder, changed(tiny, "audit.trials", 20)), folder / "runs").code == 0
    del sys.modules["own_names"]
    outcome = dpaudit("verify", folder / "runs/tiny")
    assert (outcome.code, outcome.err) == (5, "")
    assert "own_names" not in sys.modules


def test_a_job_is_trusted_with_as_much(folder, monkeypatch):
    jobs: list[str] = []
    cluster = SimpleNamespace(
        submit=lambda job: jobs.append(job.entrypoint), stop_command=lambda submission: "stop"
    )
    monkeypatch.setattr(submission, "JobsClient", lambda *_: cluster)
    write_sweep(folder, function("own_names:train"))
    where = ("--address", "http://127.0.0.1:8265", "--storage-path", "/shared/runs", "--no-wait")
    assert dpaudit("submit", "sweep.yaml", *where, "--trust", "own_names").code == 0
    assert jobs[0].endswith("--storage-path /shared/runs --trust own_names")
    assert jobs[0].startswith("python -m dpaudit_ray run sweep.yaml ")
    assert dpaudit("submit", "sweep.yaml", *where, "--python", "/opt/a b/bin/python").code == 0
    assert jobs[1].startswith("'/opt/a b/bin/python' -m dpaudit_ray run sweep.yaml ")
    assert "not trusted" in refused("submit", "sweep.yaml", *where, "--trust", "other")
    assert "own_names" not in sys.modules


def test_sources_are_parsed_by_many_threads():
    # A callback of the garbage collector lets other threads go on in the midst of a parse.
    def callback(*_: object) -> None:
        for _each in range(50):
            pass

    source = Path(imports.__file__)
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.callbacks.append(callback)
    gc.set_threshold(50)
    sys.setswitchinterval(1e-6)
    try:
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda _: imports.imported_names("x", source), range(50)))
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*threshold)
        gc.callbacks.remove(callback)
    assert found == [found[0]] * 50
