"""The page "Audit any mechanism": its examples give the verdicts that it prints."""

import re
from pathlib import Path

import pytest
import yaml

from tests.command import completed, dpaudit
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "any-mechanism.md").read_text()
EXAMPLES = re.findall(r"```python\n# (\w+)\.py\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
FEWER = 20_000  # trials: the page has more


@pytest.mark.parametrize(("name", "code", "printed"), EXAMPLES, ids=[e[0] for e in EXAMPLES])
def test_example_gives_the_verdict_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    name: str, code: str, printed: str,
) -> None:  # fmt: skip
    if "diffprivlib" in code:
        pytest.importorskip("diffprivlib", reason="diffprivlib needs an older scikit-learn")
    monkeypatch.chdir(tmp_path)
    exec(re.sub(r"trials=[\d_]{6,}", f"trials={FEWER}", code), {"__name__": name})
    verdict = printed.split(":")[0]
    assert capsys.readouterr().out.startswith(f"{verdict}:")


def test_sweep_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (module,) = re.findall(r"```python\n(# my_release\.py\n.*?)```", PAGE, re.DOTALL)
    (tmp_path / "my_release.py").write_text(module)
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    sweep = yaml.safe_load(text)
    sweep["adversary"] = {"name": "learned", "fit": FEWER, "search": 1000}
    sweep["audit"]["trials"] = FEWER
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    done = dpaudit("run", "sweep.yaml", "--executor", "inline")
    completed(done)
    assert "VIOLATION" not in done.out
