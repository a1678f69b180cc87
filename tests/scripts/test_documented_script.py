"""The script that README and docs show is audited as they say."""

import pytest

from tests.command import completed, dpaudit
from tests.test_readme import GUIDE, blocks


@pytest.mark.usefixtures("one_room")
def test_script_example_is_audited(tmp_path, monkeypatch):
    """Its first layer; `jobs/zoo` has all of them run."""
    short, example = (block for block in blocks("python") if "# train.py" in block)
    assert example.startswith(short)  # that of the README
    (tmp_path / "train.py").write_text(example)
    assert GUIDE.count("\ndpaudit audit train.py:main --budget 10min\n") == 2
    monkeypatch.chdir(tmp_path)
    done = completed(dpaudit("audit", "train.py:main", "--budget", "2min", "--layers", "0"))
    assert "CONSISTENT  train.py:main: no violation found" in done.out
    assert "Strength   noise 5 % too small in all steps, or " in done.out
    assert (tmp_path / "train-main-audit.html").exists()
