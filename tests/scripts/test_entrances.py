"""How a script is started: files with arguments, notebooks, frameworks of command lines, processes.

Nearly all tests run a script once under watch, without inspecting its steps: that takes no second.
"""

import importlib.util
import json
import os
import re
import sys
import venv
from pathlib import Path

import pytest

from dpaudit_ray.errors import ScriptError
from dpaudit_ray.isolation import Limits, Sandbox
from dpaudit_ray.scripts import claims, script_runs
from dpaudit_ray.scripts.interpreters import Interpreter
from dpaudit_ray.scripts.protocol import Marks, RunRequest, StepInspection, entries_of
from dpaudit_ray.scripts.script_runs import EndedRun, Target
from tests.command import dpaudit
from tests.conftest import ROOT
from tests.long import long

HEAD = """
import sys
import torch
from dpaudit_ray.opacus import audited
from dpaudit_ray.releases import audited_step

def train(steps):
    for _ in range(steps):
        audited_step(
            [torch.zeros(3)], lambda: [torch.randn(3)], noise_multiplier=1.0, max_grad_norm=1.0
        )
    return torch.zeros(3)
"""

GUIDE = ROOT / "docs/audit-your-script.md"

# Library, script, and arguments with which the file trains three steps; `main` trains two.
FRAMEWORKS = {
    "argparse": (
        """
import argparse

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2)
    train(parser.parse_args().steps)

if __name__ == "__main__":
    main()
""",
        "--steps 3",
    ),
    "click": (
        """
import click

@click.command()
@click.option("--steps", default=2)
@audited(delta=1e-5)
def main(steps):
    return train(steps)

if __name__ == "__main__":
    main()
""",
        "--steps 3",
    ),
    "typer": (
        """
import typer

def main(steps: int = typer.Option(2)):
    return train(steps)

if __name__ == "__main__":
    typer.run(main)
""",
        "--steps 3",
    ),
    "fire": (
        """
import fire

def main(steps=2):
    train(steps)

if __name__ == "__main__":
    fire.Fire(main)
""",
        "--steps=3",
    ),
    "absl": (
        """
from absl import app, flags

STEPS = flags.DEFINE_integer("steps", 2, "how many")

def main(argv):
    assert len(argv) == 1, argv
    train(STEPS.value)

if __name__ == "__main__":
    app.run(main)
""",
        "--steps=3",
    ),
    "hydra": (
        """
import hydra

@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config):
    train(config.steps)

if __name__ == "__main__":
    main()
""",
        "steps=3",
    ),
}


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file for a script, in the folder that it is run in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/config.yaml").write_text("steps: 2\n")
    return tmp_path / "own_entrance.py"


@pytest.fixture
def run(warm: Sandbox, script: Path):
    """Runs a target once under watch, in the script's folder as a command line would."""
    home = os.fspath(script.parent)

    def start(text: str, *arguments: str, inspects: bool = False) -> EndedRun:
        target = Target.from_text(text, arguments=arguments)
        assert target is not None
        request = RunRequest(seed=0, inspects=inspects)
        return script_runs.run_once(InFolder(warm, home), target, request, Limits(1800), 1)

    return start


class InFolder:
    """A sandbox whose calls begin in a folder: the server's own is that of the first test."""

    def __init__(self, sandbox: Sandbox, folder: str):
        self._sandbox, self._folder = sandbox, folder

    def call(self, target, argument, limits):
        wrapped = {"folder": self._folder, "target": target, "argument": argument}
        return self._sandbox.call("tests.scripts.plainly:in_folder", wrapped, limits)


def steps(run: EndedRun) -> list[int]:
    assert run.ended.how == "returned", (run.ended.message, run.ended.output)
    return list(run.result.steps)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_command_line_takes_arguments_and_its_function_needs_none(run, script, framework):
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    text, arguments = FRAMEWORKS[framework]
    script.write_text(HEAD + text)
    assert steps(run("own_entrance.py", *arguments.split())) == [3]
    assert steps(run("own_entrance.py:main")) == [2]


TYPER_APP = """
import typer
app = typer.Typer()

@app.command()
@audited(delta=0.25)
def train_it(steps: int = 2):
    return train(steps)
"""


def test_an_app_of_typer_is_called_and_has_the_marks_of_its_command(run, script):
    script.write_text(HEAD + TYPER_APP)
    ended = run("own_entrance.py:app")
    assert steps(ended) == [2]
    assert ended.result.marks.delta == 0.25


def test_a_function_behind_a_wrapper_still_needs_its_arguments(run, script):
    script.write_text(
        "import functools\ndef own(f):\n    @functools.wraps(f)\n    def call(*a, **k):\n"
        "        return f(*a, **k)\n    return call\n\n@own\ndef main(rate): ...\n"
    )
    said = run("own_entrance.py:main").ended.message
    assert "main in own_entrance.py needs arguments (missing a required argument: 'rate')" in said
    assert "give them defaults, or audit the whole file" in said


MAIN = (
    HEAD
    + """
import inspect, os, pickle, typing
import beside_entrance

class Net(torch.nn.Linear):
    def forward(self, x: "Tensor") -> "Net": ...

Tensor = torch.Tensor

if __name__ == "__main__":
    assert sys.modules["__main__"].Net is Net
    assert type(pickle.loads(pickle.dumps(Net(1, 1)))) is Net
    assert inspect.getsource(Net).startswith("class Net")
    assert typing.get_type_hints(Net.forward) == {"x": torch.Tensor, "return": Net}
    assert sys.path[0] == os.path.dirname(__file__) == os.path.dirname(sys.argv[0])
    assert sys.argv[1:] == ["a b", "--delta", "-x"]
    assert open("conf/config.yaml").read() == "steps: 2\\n"
    assert beside_entrance.NAME == "é"
    train(1)
"""
)


def test_a_file_runs_as_the_main_module(run, script):
    (script.parent / "beside_entrance.py").write_text('NAME = "é"\n')
    script.write_text(MAIN)
    assert steps(run("own_entrance.py", "a b", "--delta", "-x")) == [1]


@pytest.mark.parametrize(
    ("end", "how"),
    [
        ("sys.exit()", "returned"),
        ("sys.exit(0)", "returned"),
        ("sys.exit(torch.zeros(3))", "returned"),  # as absl does with what a function returns
        ("sys.exit(3)", "raised"),
        ("sys.exit('no data')", "raised"),
        ("sys.exit('')", "raised"),
    ],
)
def test_an_exit_is_a_normal_end_unless_it_says_otherwise(run, script, end, how):
    script.write_text(f"{HEAD}\ntrain(1)\n{end}\n")
    assert run("own_entrance.py").ended.how == how


MARKED = (
    HEAD
    + """
@audited(delta=0.5)
def other():
    return train(9)

@audited(delta=0.25, epsilon=2.0, public="table")
def main():
    return {"table": train(1)}

if __name__ == "__main__":
    main()
"""
)


def test_a_file_has_the_marks_of_the_function_that_it_calls(run, script):
    script.write_text(MARKED)
    ended = run("own_entrance.py")
    assert steps(ended) == [1]
    assert ended.result.marks == Marks(0.25, 2.0, ("table",))
    assert run("own_entrance.py:other").result.marks.delta == 0.5


TOP = """
import argparse
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, required=True)
options = parser.parse_args()
x = torch.randn(256, 8)
data = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=32)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
engine = PrivacyEngine(accountant="rdp")
model, optimizer, data = engine.make_private(
    module=model, optimizer=optimizer, data_loader=data, noise_multiplier=1.0, max_grad_norm=1.0
)
for _ in range(options.epochs):
    for inputs, labels in data:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
"""
ASKS = "print('spent', engine.get_epsilon(1e-5))\n"


def test_training_at_the_top_of_a_file_is_audited(script, one_room):
    """No line is changed: δ is the one that the script asks its engine for."""
    (script.parent / "train.py").write_text(TOP + ASKS)
    (command,) = re.findall("^dpaudit (audit train.py --budget .*)$", GUIDE.read_text(), re.M)
    verb, file, *options = command.split()
    outcome = dpaudit(verb, file, "--layers", "0", *options)
    assert outcome.code in (0, 5), outcome  # so few steps may leave it open
    assert "train.py --epochs 1" in outcome.out
    assert "at δ = 1e-5, by the script's accountant (rdp)" in " ".join(outcome.out.split())
    assert (script.parent / "train-audit.html").exists()


def test_a_file_without_a_delta_is_refused(script, one_room):
    script.write_text(HEAD + "train(1)\n")
    outcome = dpaudit("audit", script, "--budget", "30min")
    assert outcome.code == 2
    assert "--delta: is missing" in outcome.err


def test_a_file_that_only_defines_functions_is_told_how_to_name_one(script, one_room):
    script.write_text(HEAD)
    outcome = dpaudit("audit", script, "--delta", "1e-5", "--budget", "30min")
    assert outcome.code == 2
    said = "if one of its functions trains, name it: own_entrance.py:FUNCTION"
    assert said in " ".join(outcome.err.split())


@pytest.mark.parametrize("verb", ["audit", "verify"])
def test_arguments_of_a_function_are_refused(script, verb):
    script.write_text(HEAD)
    outcome = dpaudit(verb, "own_entrance.py:train", "--", "--steps", "1 2", "--debug")
    assert outcome.code == 2
    said = "own_entrance.py:train takes no arguments; audit the file: own_entrance.py -- --steps"
    assert f"{said} '1 2' --debug" in outcome.err
    assert "Traceback" not in outcome.err  # --debug is the script's


NOTEBOOK = [
    "%matplotlib inline\n!pip list\nfiles = !ls\nsum?",
    "%%bash\nls | wc",
    "%%time\nvalue = (7\n  % 4)",
    HEAD,
    "import inspect\nassert 'audited_step' in inspect.getsource(train)\ndisplay(value)",
    "assert open('beside.txt').read() == 'found'",
    "if __name__ == '__main__':\n    train(value)",
]


def test_all_cells_of_a_notebook_run_in_its_folder(run, script):
    folder = script.parent / "notebooks"
    folder.mkdir()
    (folder / "beside.txt").write_text("found")
    cells = [{"cell_type": "code", "source": text.splitlines(keepends=True)} for text in NOTEBOOK]
    cells.insert(1, {"cell_type": "markdown", "source": ["# Title"]})
    (folder / "own.ipynb").write_text(json.dumps({"cells": cells}))
    ended = run("notebooks/own.ipynb")
    assert steps(ended) == [3]
    assert ended.ended.output == "3\n"
    ended = run("notebooks/own.ipynb:train")
    assert "train in own.ipynb needs arguments" in ended.ended.message


# What starts processes, and how a run without steps of its own names it.
PROCESSES = {
    "torch.multiprocessing": (
        "import torch.multiprocessing as mp\nmp.start_processes(train, (), 2, start_method='fork')",
        "2 ForkProcess of torch.multiprocessing.spawn, own_entrance.py:14",
    ),
    "processes": (
        "import multiprocessing as mp\nfor _ in range(3):\n"
        "    mp.get_context('fork').Process(target=train, args=(2,)).start()",
        "3 ForkProcess of __main__, own_entrance.py:15",
    ),
    "a pool": (
        "import multiprocessing as mp\n"
        "with mp.get_context('fork').Pool(2) as pool:\n    pool.map(train, [1, 2])",
        "2 ForkProcess of multiprocessing.pool, own_entrance.py:14",
    ),
    "subprocess": (
        "import subprocess\nsubprocess.run([sys.executable, 'one.py'])\n"
        "subprocess.run(['true'])\nsubprocess.run([sys.executable, '-c', ''])",
        "1 python one.py, own_entrance.py:14",
    ),
    "Popen": (
        "import subprocess\nsubprocess.Popen(args='torchrun --help', shell=True, stderr=-3).wait()",
        "1 torchrun, own_entrance.py:14",
    ),
    "os.system": (
        "import os\nos.system('python3 -u one.py')",
        "1 python3 -u one.py, own_entrance.py:14",
    ),
}


@pytest.mark.parametrize("kind", PROCESSES)
def test_processes_that_a_script_starts_are_named(run, script, kind):
    start, said = PROCESSES[kind]
    script.write_text(HEAD + start + "\n")
    ended = run("own_entrance.py")
    assert steps(ended) == []
    with pytest.raises(ScriptError) as refused:
        script_runs.require_usable(Target(script), ended, 60.0)
    said = f"took no private step itself: processes that it starts ({said}) were not observed"
    assert said in str(refused.value)


def test_one_process_of_torch_is_watched(run, script):
    start = "import torch.multiprocessing as mp\nmp.spawn(lambda rank, n: train(n), (4,))"
    script.write_text(f"{HEAD}{start}\n")
    ended = run("own_entrance.py")
    assert steps(ended) == [4]
    assert not ended.result.processes


LOADER = (
    TOP.replace("batch_size=32", "batch_size=32, num_workers=1")
    + """
import subprocess
subprocess.run(["git", "--version"])
"""
)


def test_workers_of_a_loader_and_other_programs_are_no_trainings(run, script):
    script.write_text(LOADER)
    ended = run("own_entrance.py", "--epochs", "1")
    assert sum(steps(ended)) == 8
    assert not ended.result.processes


FORKED = (
    HEAD
    + """
import os
child = os.fork()
if child:
    os.waitpid(child, 0)
    train(1)
else:
    train(5)
"""
)


def test_a_forked_child_writes_into_no_record(run, script):
    """The child returns from the script, too, and must not pass for it."""
    script.write_text(FORKED)
    ended = run("own_entrance.py", inspects=False)
    assert steps(ended) == [1]
    ended = run("own_entrance.py", inspects=True)
    assert {entry.step for entry in entries_of(ended.record, StepInspection)} == {0}


def test_a_private_run_that_starts_others_is_no_complete_one(script, one_room):
    script.write_text(f"{HEAD}import os\ntrain(30)\nos.system('python3 one.py')\n")
    outcome = dpaudit("audit", script, "--layers", "0", "--delta", "1e-5", "--budget", "30min")
    assert outcome.code == 5, outcome
    said = "processes that it starts (1 python3 one.py, own_entrance.py:15) were not observed"
    assert said in " ".join(outcome.out.split())


DEEP = """
import copy
values = (n for n in range(3))
for _ in range(20):
    values = [values]
copy.deepcopy(values)
"""


def test_the_users_line_is_named_however_deep_the_error(run, script):
    script.write_text(DEEP)
    ended = run("own_entrance.py").ended
    assert "cannot pickle 'generator' object" in ended.message
    assert ended.place == "own_entrance.py, line 6"


def test_other_interpreters_that_cannot_be_used(script, tmp_path):
    script.write_text(HEAD)
    text, old, empty = tmp_path / "text", tmp_path / "old", tmp_path / "empty"
    text.write_text("no program")
    old.write_text("""#!/bin/sh\necho '[false, "3.9.1", []]'\n""")
    old.chmod(0o755)
    venv.create(empty, symlinks=True)
    unusable = {
        tmp_path / "nowhere": "which does not run as Python 3; name environment/bin/python",
        text: "text, which does not run as Python 3",
        Path("/bin/true"): "true, which does not run as Python 3",
        old: "--python: is Python 3.9.1, but audits need 3.11 or newer; create a newer env",
        empty / "bin/python": "which has no torch and numpy; install what the script needs",
    }
    for program, said in unusable.items():
        outcome = dpaudit("audit", "own_entrance.py", "--python", program)
        assert outcome.code == 2
        assert said in outcome.err
        assert outcome.err.count("\n") == 1


def test_an_interpreter_is_for_this_machine(script):
    script.write_text(HEAD)
    options = ("--python", sys.executable, "--address", "127.0.0.1:1")
    outcome = dpaudit("audit", "own_entrance.py", *options)
    assert outcome.code == 2
    assert "--python: is for runs on this machine; leave out --address" in outcome.err


# What torch imports, and what Opacus does beside it.
TORCH = (
    *("torch", "torchgen", "functorch", "numpy", "numpy.libs", "typing_extensions.py", "sympy"),
    *("mpmath", "networkx", "jinja2", "markupsafe", "filelock", "fsspec", "setuptools"),
)
OPACUS = ("opacus", "scipy", "scipy.libs", "opt_einsum")


def environment(folder: Path, names: tuple[str, ...]) -> str:
    """An environment of its own with these packages of this one; its interpreter."""
    venv.create(folder, symlinks=True)
    installed = Path(importlib.util.find_spec("torch").origin).parents[1]
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in names:
        if (installed / name).exists():
            (packages / name).symlink_to(installed / name)
    return str(folder / "bin/python")


def test_a_script_runs_in_an_environment_without_opacus(script, tmp_path, monkeypatch):
    """It has torch and numpy alone, so its loop is counted there, and judged here."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    python = environment(tmp_path / "own", TORCH)
    script.write_text(
        f"{HEAD}import importlib.util\nfor name in ('ray', 'pydantic', 'scipy', 'psutil', 'opacus'"
        ", 'tests'):\n    assert importlib.util.find_spec(name) is None, name\n"
        "print(sys.prefix)\ntrain(3)\n"
    )
    target = Target(script, delta=1e-5, python=Interpreter.for_script(python, script))
    assert "torch" in target.python.imports
    with script_runs.sandbox_for(target) as sandbox:
        ended = script_runs.run_once(
            sandbox, target, RunRequest(seed=0, inspects=True), Limits(1800), 1
        )
    assert steps(ended) == [3]
    assert ended.ended.output == f"{tmp_path / 'own'}\n"
    result = script_runs.require_usable(target, ended, 60.0)
    assert claims.events_of(result) == ((1.0, 1.0, 3),)


@long("the same with an audit of a script that uses Opacus: 40 s")
def test_an_audit_by_another_interpreter(script, tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    python = environment(tmp_path / "own", TORCH + OPACUS)
    script.write_text(TOP + ASKS)
    options = ("--layers", "0", "--budget", "30min", "--python", python, "--", "--epochs", "12")
    outcome = dpaudit("audit", script, *options)
    assert outcome.code == 0, outcome
    assert "96 of 96 steps" in outcome.out
