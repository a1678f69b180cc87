"""`dpaudit check` on runs of strangers, altered at random: an answer, and nothing of theirs is run.

The same alterations on every run of the suite; `make long` draws others, and more of them.
"""

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.command import dpaudit
from tests.fuzz.altering import EVIL, RANDOM, altered, snapshot
from tests.long import LONG
from tests.report.handed import LANDSCAPE, played, sweep

FILES = [
    *("plan.json", "sweep.yaml", "estimates.parquet", "outcomes.json"),
    *("machines.json", "scores/*/0-7.parquet", "scores/*/24-31.parquet"),
]
AUDIT = {"trials": 32, "delta": 1e-5, "record_every": 2, "estimators": ["accuracy", "eps-delta"]}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run with packs that failed and trials that were missed, and one without trials."""
    folder = tmp_path_factory.mktemp("runs")
    sampled = sweep("sampled", audit=AUDIT, resources={"pack_size": 8})
    exact = sweep("exact", audit=AUDIT, mechanism=LANDSCAPE | {"backend": "exact"})
    made = played(sampled, folder, 8, missed=True), played(exact, folder, 0)
    for run in made:
        (run / "machines.json").write_text('{"a": ["b"]}')
    return made


@settings(RANDOM, max_examples=400 if LONG else 20)
@given(st.data(), st.integers(0, 1), st.sampled_from(FILES))
def test_a_run_that_is_checked(runs, tmp_path_factory, data, which, name):
    place = tmp_path_factory.mktemp("here")
    (place / "own_evil.py").write_text(EVIL)
    run = Path(shutil.copytree(runs[which], place / "run"))
    files = sorted(run.glob(name)) or [run / "plan.json"]
    file = data.draw(st.sampled_from(files))
    file.write_bytes(altered(file.read_bytes(), file.name, data.draw))
    before = snapshot(place)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        outcome = dpaudit("check", run)
    assert snapshot(place) == before
    assert outcome.code in {0, 2}, outcome
    assert "Traceback" not in outcome.err, outcome.err
    assert not {"\x1b", "\u202e"} & {*outcome.out, *outcome.err}
    if outcome.code == 0:
        assert "in order as far as it goes" in outcome.out or which == 1
    else:
        assert outcome.out.startswith("not what it says") != outcome.err.startswith("dpaudit: ")
