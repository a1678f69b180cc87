"""Scripts that cannot be audited: exit 2 and one line that says what to do; and one that can."""

import importlib.util
import json
import math
import os
import re
import time
from pathlib import Path

import pytest

from dpaudit_ray.cli import script_verb
from dpaudit_ray.errors import ScriptError, SpecError
from dpaudit_ray.isolation import Sandbox
from dpaudit_ray.report.verdict import Verdict
from dpaudit_ray.scripts.script_audit import Audit, Options, parse_duration
from dpaudit_ray.scripts.script_runs import LocalRunner, Target
from dpaudit_ray.testing import assert_private
from tests.command import dpaudit

HEAD = """
import sys, time
import torch
from torch import nn
from dpaudit_ray.opacus import audited
from dpaudit_ray.releases import audited_step

def train(noise=4.0, promised=4.0):
    model = nn.Linear(2000, 1)
    for _ in range(40):
        noisy = audited_step(
            lambda rows: [rows[0].sum(0) / rows[0].flatten(1).norm(dim=1).max().clamp(min=1)],
            lambda: [noise * torch.randn(1, 2000)],
            per_example=[torch.zeros(8, 1, 2000)], noise_multiplier=promised, max_grad_norm=1.0,
        )
        with torch.no_grad():
            model.weight -= 0.01 * noisy[0]
    return model
"""
GOOD = """
@audited(delta=1e-5)
def main():
    return train()

@audited(delta=1e-5)
def half():
    return train(noise=2.0)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_room: Sandbox) -> Path:
    """A file for a script, in the folder that the command is run in."""
    assert one_room
    monkeypatch.chdir(tmp_path)
    return tmp_path / "own_training.py"


def refused(*arguments: str) -> str:
    """The line that says why, in no more than a screen of others."""
    outcome = dpaudit("audit", *arguments)
    assert outcome.code == 2, outcome
    (said,) = [line for line in outcome.err.splitlines() if line.startswith("dpaudit: ")]
    assert "File " not in outcome.out
    assert len(outcome.err) < 10_000
    return said.removeprefix("dpaudit: ")


BAD_COMMANDS = {
    "nowhere.py:main": "there is no script nowhere.py; write path/to/script.py[:function]",
    "nowhere.ipynb": "there is no script nowhere.ipynb; write path/to/script.py[:function]",
    "own_training.py:": "'' is not a function name; write own_training.py:main",
    "own_training.py:a_b+": "'a_b+' is not a function name",
    "own_training.py:main --layers 3": "--layers: is '3'; name some of 0,1,2",
    "own_training.py:main --delta 2": "--delta: must lie between 0 and 1, got 2; write it as",
    "own_training.py:main --delta 1e-3%": "--delta: must be a number, got '1e-3%'; see dpaudit",
    "own_training.py:main --memory 0": "--memory: must be at least 0.1, got '0'; see dpaudit audit",
    "own_training.py:main --budget soon": "'soon'; write a time as 90s, 10min, 1.5h or 2d",
    ".": "`dpaudit verify .` judges a run",
    "training": "training is not a script; write path/to/script.py or script.py:function",
}


@pytest.mark.parametrize("command", BAD_COMMANDS)
def test_commands_that_name_no_script_or_no_such_option(script, command):
    script.write_text(HEAD + GOOD)
    assert BAD_COMMANDS[command] in refused(*command.split())


IMPORTED = """
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset

def main():
    model = nn.Linear(4, 2)
    PrivacyEngine(accountant="rdp").make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(torch.ones(32, 4)), batch_size=8),
        noise_multiplier=1.0, max_grad_norm=1.0,
    )

main()
"""

# The rest of the script, and what is said of it.
UNUSABLE = {
    "no such function": ("", "own_training.py has no function 'main'; it has "),
    "arguments": ("def main(lr): ...", "main in own_training.py needs arguments"),
    "raises, after megabytes": (
        "def main():\n    print('x' * 10**7)\n    raise RuntimeError('no data at ~/data')",
        "own_training.py:main raised RuntimeError: no data at ~/data (own_training.py, line 21); "
        "run it without the audit first",
    ),
    "exits": ("def main():\n    sys.exit(3)", "own_training.py:main raised SystemExit: 3"),
    "dies": ("import os\ndef main():\n    os._exit(3)", "ended with exit status 3"),
    "no Python": ("def main(:", "own_training.py is no Python script"),
    "never private": (
        "def main():\n    return nn.Linear(2, 1)",
        "own_training.py:main took no private step: it calls neither make_private nor",
    ),
    "plain training": (
        "def main():\n    model = nn.Linear(2, 1)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    for _ in range(3):\n        model(torch.ones(2)).backward()\n"
        "        optimizer.step()",
        "own_training.py:main never calls make_private, and 3 steps have no noise that this ",
    ),
    "trained by its import": (
        IMPORTED,
        "own_training.py trains when it is imported; audit the file: dpaudit audit own_training.py",
    ),
    "no δ": ("def main():\n    return train()", "--delta: is missing"),
    "no step": (
        "def main():\n    time.sleep(60)",
        "no step ended within the budget of 1 s; give a longer --budget",
    ),
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_scripts_that_cannot_be_audited(script, kind):
    rest, said = UNUSABLE[kind]
    script.write_text(HEAD + rest)
    delta = () if kind == "no δ" else ("--delta", "1e-5")
    budget = "1s" if kind == "no step" else "30min"
    assert said in refused("own_training.py:main", "--budget", budget, *delta)


def test_a_script_without_a_violation(script):
    """One run decides; pages are written; the old spelling names the new one."""
    script.write_text(HEAD + GOOD)
    options = ["--budget", "30min", "--layers", "0", "--junit", "out.xml"]
    outcome = dpaudit("verify", "own_training.py:main", *options)
    assert outcome.code == 0, outcome
    assert outcome.err.startswith("`dpaudit verify own_training.py:main` is now `dpaudit audit ")
    for said in (
        "CONSISTENT own_training.py:main: no violation found",
        "Strength noise 4 % too small in all steps, or ",
        "Not checked in this script data before training",
        "how the custom loop forms per-example gradients",
    ):
        assert said in " ".join(outcome.out.split())
    assert (script.parent / "own_training-main-audit.html").exists()
    junit = (script.parent / "out.xml").read_text()
    assert 'failures="0"' in junit
    assert 'name="verdict" value="CONSISTENT: own_training.py:main: no violation found' in junit


def test_a_function_of_a_notebook(script):
    """What is for IPython does nothing; a finding names cell and line."""
    notebook = script.with_suffix(".ipynb")
    cells = [
        {"cell_type": "markdown", "source": ["# Training"]},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "!pip list\n", HEAD]},
        {"cell_type": "code", "source": GOOD},
    ]
    notebook.write_text(json.dumps({"cells": cells}))
    with pytest.raises(AssertionError, match=r"step 1 \(own_training.ipynb, cell 2:13\): expected"):
        assert_private(f"{notebook}:half", budget="30min", layers=(0,))


def test_progress_moves_whatever_goes_on(monkeypatch, capsys):
    """In a log, a line every few seconds."""
    monkeypatch.setattr(script_verb, "_LINE_SECONDS", 0.05)
    with script_verb._progress(60.0) as tell:
        for text in ("inspecting one run", "testing steps: 0 of 10 trials"):
            tell(text)
            time.sleep(0.5)
    lines = capsys.readouterr().err.splitlines()
    for text in ("inspecting one run", "testing steps: 0 of 10 trials"):
        assert sum(bool(re.fullmatch(rf"{text} \(<?\ds of 1m 00s\)", line)) for line in lines) > 2


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10min", 600), ("1.5h", 5400), ("2 d", 172_800)]
)
def test_budgets_are_times(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "10", "min", "-3h", "0s", "1e3s", "1h30", "nan h", "9" * 400 + "d"]
)
def test_other_budgets_are_refused(text):
    with pytest.raises(SpecError, match="write a time as 90s, 10min"):
        parse_duration(text)


def test_assert_private(script):
    """Half the noise raises, with the finding; so does less than the accountant says."""
    script.write_text(HEAD + GOOD)
    with pytest.raises(AssertionError, match="noise multiplier of 4"):
        assert_private(f"{script}:half", budget="30min", layers=(0,))
    options = Options(1800.0, (0,), silenced={"DPA003": "half is enough here"})
    target = Target(script, "half")
    found = Audit(target, LocalRunner(target), options, lambda _: None).verdict()
    assert found.verdict is not Verdict.VIOLATION
    assert ("DPA003", "half is enough here") in {
        (item.code, item.silenced) for item in found.findings
    }
    kept = assert_private(f"{script}:main", budget=1800, layers=(0,))
    assert kept.verdict is Verdict.CONSISTENT
    with pytest.raises(AssertionError, match=r"epsilon=0\.1"):
        assert_private(f"{script}:main", budget=1800, layers=(0,), epsilon=0.1)
    with pytest.raises(AssertionError, match=r"run inspection \(layer 0\) was excluded"):
        assert_private(f"{script}:main", budget=1, layers=(1,))
    for main in (lambda: None, os.getcwd):
        with pytest.raises(SpecError, match="no function at the top of a file"):
            assert_private(main)
    with pytest.raises(SpecError, match=r"name it as path/to/script\.py:function"):
        assert_private("training")


GIVEN = """
@audited(delta=1e-5)
def main():
    for _ in range(40):
        audited_step(
            [torch.zeros(1, 2000)], [4.0 * torch.randn(1, 2000)], noise_multiplier=4.0,
            per_example=[torch.zeros(8, 1, 2000)], max_grad_norm=1.0,
        )
        time.sleep(0.05)
"""


@pytest.mark.parametrize(
    ("budget", "why"),
    [(1800, "the noise cannot be drawn again"), (1, "the budget ended the run after step")],
)
def test_what_was_not_seen_is_no_violation_and_a_run_that_was_cut_claims_nothing(
    budget, why, script
):
    script.write_text(HEAD + GIVEN)
    found = assert_private(f"{script}:main", budget=budget, layers=(0,), conclusive=False)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert not found.findings
    assert any(why in line for line in found.help)
    inspected = "were inspected" in " ".join(look.said for look in found.looks)
    assert (math.isnan(found.claim), inspected) == (budget == 1, budget != 1)


def test_training_without_noise_violates_a_claim_and_is_no_usage_error(script):
    """Code with noise that the audit does not know is shown how to make it visible."""
    plain = (
        "import torch\n\n\ndef main():\n    model = torch.nn.Linear(2, 1)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    for _ in range(3):\n        model(torch.ones(2)).backward()\n"
        "        optimizer.step()\n"
    )
    script.write_text(plain)
    claim = {"delta": 1e-5, "epsilon": 3.0, "budget": "30min", "layers": (0,)}
    with pytest.raises(AssertionError, match="3 steps of SGD, none with noise"):
        assert_private(f"{script}:main", **claim)
    script.write_text(plain + "    noise = torch.randn(2)\n")
    with pytest.raises(ScriptError, match=r"audited_release\(records="):
        assert_private(f"{script}:main", **claim)


TYPED = """
import pathlib
import jax
import jax.numpy as jnp
from dpaudit_ray.releases import audited_release

@audited_release(records=["x"], noise_multiplier=1.0, max_grad_norm=1.0, key="key")
def noisy(x, key):
    x = x / jnp.maximum(1, jnp.linalg.norm(x, axis=1, keepdims=True))
    return x.sum(0) + jax.random.normal(key, (2000,))

@audited(delta=1e-5)
def main():
    runs = pathlib.Path(__file__).with_suffix(".runs")  # each run has another key, always the same
    runs.open("a").write("1")
    key = jax.random.key(runs.stat().st_size, impl="rbg")
    for step in range(5):
        noisy(jnp.ones((8, 2000)), jax.random.fold_in(key, step))
"""


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_typed_keys_of_jax(script):
    script.write_text(HEAD + TYPED)
    found = assert_private(f"{script}:main", budget=1800, layers=(0,), conclusive=False)
    assert not found.findings
    assert {look.name: look.done for look in found.looks}["noise and clipping"]


def test_options_are_keys():
    """The table of the zoo keeps verdicts by target and options."""
    assert len({Options(), Options(silenced={"DPA001": "known"}), Options(seed=1)}) == 3
