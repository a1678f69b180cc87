"""What the shell completes, what that loads, and when lines of a job were written."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

# Time depends on what else the machine does; what is loaded does not, and takes nearly all of it.
LOADED = """
import sys
from dpaudit_ray.cli import main as cli
sys.argv = ["dpaudit", *sys.argv[1:]]
try:
    cli.main()
finally:
    sys.stderr.write(" ".join(sorted({name.partition(".")[0] for name in sys.modules})))
"""
HEAVY = {"torch", "ray", "pandas", "scipy", "numpy", "pyarrow", "matplotlib", "yaml"}


def loaded(*words: str, folder: Path, **variables: str) -> tuple[str, set[str]]:
    """Returns what a command prints, and the packages that it has loaded."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *words], cwd=folder, capture_output=True, text=True,
        env=os.environ | variables, check=False, timeout=400,
    )  # fmt: skip
    return done.stdout, set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("dpaudit st", ["status"]),
        ("dpaudit list ad", ["adversaries"]),
        ("dpaudit report --format h", ["html"]),
        ("dpaudit plan ", []),  # bash, zsh and fish complete files where there is nothing else
    ],
)
def test_the_shell_completes_and_waits_for_nothing_heavy(line, expected, tmp_path):
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    out, packages = loaded(folder=tmp_path, _DPAUDIT_COMPLETE="complete_bash", **asked)
    assert (out.split(), packages & HEAVY) == (expected, set())


@pytest.mark.parametrize("words", [("--help",), ("run", "--help")])
def test_help_loads_nothing_heavy(words, tmp_path):
    shown, packages = loaded(*words, folder=tmp_path)
    assert "Usage: dpaudit" in shown
    assert packages & HEAVY == set()


def test_completion_is_shown_and_installed(tmp_path):
    """By the shell's name; else Typer looks for the shell that called, and tests have none."""
    home = {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "true"}
    shown, _ = loaded("--show-completion", "bash", folder=tmp_path, **home)
    assert "_DPAUDIT_COMPLETE=complete_bash" in shown
    loaded("--install-completion", "bash", folder=tmp_path, **home)
    assert (tmp_path / ".bash_completions/dpaudit.sh").read_text().strip() == shown.strip()


@pytest.mark.parametrize("job", [True, False])
def test_lines_of_a_job_begin_with_the_time(job):
    environment = os.environ | ({"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"} if job else {})
    command = [sys.executable, "-m", "dpaudit_ray", "status", "nowhere"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    time = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d " if job else ""
    assert re.fullmatch(f"{time}dpaudit: .*nowhere is .+\n", done.stderr)
