"""Scripts that README and docs show are audited as they say."""

import re

import pytest

from tests.command import completed, dpaudit
from tests.test_readme import GUIDE, README, blocks

BROKEN, MENDED = (block for block in blocks("python") if "# train.py" in block)


def test_scripts_differ_by_the_loader_alone():
    assert MENDED.startswith(BROKEN.replace("in data:", "in loader:"))
    assert GUIDE.count("\ndpaudit audit train.py:main --budget 10min\n") == 2


@pytest.mark.usefixtures("one_room")
def test_script_example_is_audited(tmp_path, monkeypatch):
    """Its first layer; `jobs/zoo` has all of them run."""
    (tmp_path / "train.py").write_text(MENDED)
    monkeypatch.chdir(tmp_path)
    done = completed(dpaudit("audit", "train.py:main", "--budget", "2min", "--layers", "0"))
    assert "CONSISTENT  train.py:main: no violation found" in done.out
    assert "Strength   noise 5 % too small in all steps, or " in done.out
    assert (tmp_path / "train-main-audit.html").exists()


@pytest.mark.usefixtures("one_room")
def test_broken_script_is_a_violation_as_printed(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(BROKEN)
    monkeypatch.chdir(tmp_path)
    done = dpaudit("audit", "train.py:main", "--budget", "2min", "--layers", "0")
    assert done.code == 1
    (printed,) = re.findall(r"```text\n(VIOLATION.*?)```", README, re.DOTALL)
    assert printed in done.out  # as with all layers, since the first one ends the audit
