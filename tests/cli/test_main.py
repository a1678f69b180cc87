"""What the shell completes, how long it waits, and when lines of a job were written."""

import os
import re
import subprocess
import sys
import time
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
    out, _, heavy = timed(folder=tmp_path, _DPAUDIT_COMPLETE="complete_bash", **asked)
    assert (out.split(), heavy) == (expected, "")


def test_help_takes_little_more_than_typer_and_rich(tmp_path):
    """Half a second, or a fifth of one above what these two take by themselves on a slow core."""
    used, theirs = [], []
    for words in (("--help",), ("run", "--help"), ()):
        shown, seconds, heavy = timed(*words, folder=tmp_path)
        assert (heavy, "Usage: dpaudit" in shown) == ("", True)
        used.append(seconds)
        began = time.perf_counter()
        libraries = "import typer, typer.rich_utils, typer._adapters, rich.markdown"
        subprocess.run([sys.executable, "-c", libraries], check=True)
        theirs.append(time.perf_counter() - began)
    assert min(used) < max(0.5, min(theirs) + 0.2)


def test_completion_is_shown_and_installed(tmp_path):
    """By the shell's name; else Typer looks for the shell that called, and tests have none."""
    home = {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "true"}
    shown, *_ = timed("--show-completion", "bash", folder=tmp_path, **home)
    assert "_DPAUDIT_COMPLETE=complete_bash" in shown
    timed("--install-completion", "bash", folder=tmp_path, **home)
    assert (tmp_path / ".bash_completions/dpaudit.sh").read_text().strip() == shown.strip()


@pytest.mark.parametrize("job", [True, False])
def test_lines_of_a_job_begin_with_the_time(job):
    environment = os.environ | ({"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"} if job else {})
    command = [sys.executable, "-m", "dpaudit_ray", "status", "nowhere"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    time = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d " if job else ""
    assert re.fullmatch(f"{time}dpaudit: .*nowhere is .+\n", done.stderr)
