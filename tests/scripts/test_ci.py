"""What CI systems are given: the GitHub Action's steps and the hook of pre-commit."""

import os
import subprocess
import sys

import pytest
import yaml

from tests.conftest import ROOT

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
AUDIT = ACTION["runs"]["steps"][-1]


@pytest.fixture
def action(tmp_path):
    """Runs the action's step with a `dpaudit` that notes its arguments and ends as it is told."""
    program = tmp_path / "bin/dpaudit"
    program.parent.mkdir()
    said = 'printf "%s\\n" "$@" > called; echo the verdict; exit "$ENDS"'
    program.write_text(f"#!/bin/bash\n{said}\n")
    program.chmod(0o755)

    def run(ends, **inputs):
        given = {name: entry.get("default", "") for name, entry in ACTION["inputs"].items()}
        environment = {
            name: given[value.split(".")[1].split()[0]] if "inputs." in value else value
            for name, value in AUDIT["env"].items()
        } | {name.upper(): value for name, value in inputs.items()}
        path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
        summary = str(tmp_path / "summary.md")
        extra = {"PATH": path, "ENDS": str(ends), "GITHUB_STEP_SUMMARY": summary}
        # GitHub calls the shell of a step so.
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", AUDIT["run"]]
        done = subprocess.run(command, cwd=tmp_path, env=environment | extra, check=False)
        return done.returncode, (tmp_path / "called").read_text().splitlines()

    return run


@pytest.mark.parametrize(
    ("ends", "conclusive", "code"),
    [(0, "true", 0), (1, "true", 1), (1, "false", 1), (5, "true", 5), (5, "false", 0)],
)
def test_the_action_ends_as_the_audit_does(action, tmp_path, ends, conclusive, code):
    returned, called = action(ends, script="train.py:main", conclusive=conclusive)
    assert returned == code
    assert called == ["audit", "train.py:main", "--budget", "10min", "--junit", "dpaudit.xml"]
    assert (tmp_path / "summary.md").read_text() == "```text\nthe verdict\n```\n"


def test_arguments_of_the_action_reach_the_script_as_words(action):
    _, called = action(0, script="train.py", arguments="--epochs 1 --name 'a b' *.py $HOME")
    assert called[-8:] == ["dpaudit.xml", "--", "--epochs", "1", "--name", "a b", "*.py", "$HOME"]


def test_inputs_of_the_action_are_never_run(action, tmp_path):
    _, called = action(0, script="train.py:main; touch broken", delta="$(touch broken)")
    assert called[1] == "train.py:main; touch broken"
    assert called[called.index("--delta") + 1] == "$(touch broken)"
    assert not (tmp_path / "broken").exists()
    assert "${{" not in AUDIT["run"]


def test_the_hook_calls_a_verb_that_is_there():
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    program, verb = hook["entry"].split()
    command = [sys.executable, "-m", "dpaudit_ray", verb, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert program == "dpaudit"
    assert "--budget" in done.stdout
