"""What the shell completes, asked as a shell asks; and how long it waits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# A process's own time, so that a busy machine does not fail it.
TIMED = """
import resource, sys
from dpaudit_ray.cli import main as cli
sys.argv = ["dpaudit", *sys.argv[1:]]
try:
    cli.main()
finally:
    used = resource.getrusage(resource.RUSAGE_SELF)
    heavy = {"torch", "ray", "pandas", "scipy", "numpy", "pyarrow", "matplotlib"} & set(sys.modules)
    sys.stderr.write(f"{used.ru_utime + used.ru_stime} {' '.join(sorted(heavy))}")
"""


def timed(*words: str, folder: Path, **variables: str) -> tuple[str, float, str]:
    """Output, seconds, and heavy modules that were loaded."""
    done = subprocess.run(
        [sys.executable, "-c", TIMED, *words], cwd=folder, capture_output=True, text=True,
        env=os.environ | variables, check=False, timeout=400,
    )  # fmt: skip
    seconds, _, heavy = done.stderr.splitlines()[-1].partition(" ")
    return done.stdout, float(seconds), heavy


def completed(line: str, folder: Path) -> list[str]:
    """What bash would offer for the last word of `line`."""
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    out, _, heavy = timed(folder=folder, **asked, _DPAUDIT_COMPLETE="complete_bash")
    assert not heavy
    return out.split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With two sweep files and a run directory."""
    top = tmp_path_factory.mktemp("completion")
    (top / "jobs").mkdir()
    (top / "jobs/one.yaml").write_text(
        "mechanism: {steps: 1, data: {name: x}}\naudit: {trials: 1}\n"
    )
    (top / "two.yaml").write_text("[")
    (top / "notes.txt").touch()
    (top / "runs/one").mkdir(parents=True)
    (top / "runs/other").mkdir()
    for mark in ("plan.json", "sweep.yaml"):
        (top / "runs/one" / mark).touch()
    return top


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("dpaudit st", ["status"]),
        ("dpaudit plan ", ["two.yaml", "jobs/one.yaml"]),
        ("dpaudit plan jo", ["jobs/one.yaml"]),
        ("dpaudit status ", ["runs/one"]),
        ("dpaudit verify runs/o", ["runs/one"]),
        ("dpaudit report notes", []),
        ("dpaudit run jobs/one.yaml --set me", ["mechanism.steps=", "mechanism.data.name="]),
        ("dpaudit run two.yaml --set me", []),
        ("dpaudit run none.yaml --set me", []),
        ("dpaudit list ad", ["adversaries"]),
    ],
)
def test_the_shell_completes(line: str, expected: list[str], folder: Path) -> None:
    found = completed(line, folder)
    assert sorted(found) == sorted(expected) if "plan " in line else found == expected


@pytest.mark.parametrize("words", [("--help",), ("status", "--help"), ("run", "--help"), ()])
def test_help_takes_less_than_half_a_second(words: tuple[str, ...], folder: Path) -> None:
    runs = [timed(*words, folder=folder) for _ in range(2)]
    assert min(seconds for _, seconds, _ in runs) < 0.5
    assert {heavy for *_, heavy in runs} == {""}
    assert "Usage: dpaudit" in runs[0][0]


def test_completion_is_shown_and_installed(tmp_path: Path) -> None:
    """By the shell's name; else Typer looks for the shell that called, and tests have none."""
    home = {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "true"}
    shown, *_ = timed("--show-completion", "bash", folder=tmp_path, **home)
    assert "_DPAUDIT_COMPLETE=complete_bash" in shown
    timed("--install-completion", "bash", folder=tmp_path, **home)
    assert (tmp_path / ".bash_completions/dpaudit.sh").read_text().strip() == shown.strip()


def test_a_shell_that_nobody_knows_is_no_violation(tmp_path: Path) -> None:
    """Typer ends with 1, which is what `verify` ends with alone."""
    command = [sys.executable, "-m", "dpaudit_ray", "--show-completion", "tenex"]
    environment = os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "true"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert (done.returncode, done.stdout) == (2, "")
