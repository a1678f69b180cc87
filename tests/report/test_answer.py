"""The one answer of a run: right in four kinds of runs, the same wherever it is shown."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dpaudit_ray as da
from dpaudit_ray.errors import SpecError
from dpaudit_ray.orchestration.aggregation import Aggregation
from dpaudit_ray.plan import decisions, failures
from dpaudit_ray.plan.failures import Failure
from dpaudit_ray.plan.model import Pack
from dpaudit_ray.report import answer, groups, overviews, page, verdict, words
from dpaudit_ray.report.answer import Answer
from dpaudit_ray.report.tables import Run, overview
from dpaudit_ray.report.verdict import Verdict
from tests.command import dpaudit
from tests.report.made_up import made_up_run

TRIALS = 600
CLAIMED = 2.0  # μ of one release at noise .5


@pytest.fixture
def sweep(light: dict) -> dict[str, Any]:
    light["audit"] |= {"trials": TRIALS, "record_every": 6}
    light["mechanism"]["noise_multiplier"] = 0.5
    light["grid"] = {}
    light["resources"]["pack_size"] = 100
    return light


def run_of(sweep: dict[str, Any], folder: Path, mu: float) -> Run:
    """A finished run whose worlds are μ apart."""
    made_up_run(sweep, folder, mu, seed=1)
    Aggregation.rebuild(Run.open(str(folder)).directory).flush()
    return Run.open(str(folder))


def test_a_healthy_run(sweep: dict[str, Any], tmp_path: Path) -> None:
    found = answer.of(run_of(sweep, tmp_path, CLAIMED))
    assert found.verdict is Verdict.CONSISTENT
    assert found.sentence.startswith("CONSISTENT: no claim is refuted, and with 0.7 of the claimed")
    assert found.help == ()
    assert found.judged == TRIALS


def test_a_broken_run(sweep: dict[str, Any], tmp_path: Path) -> None:
    found = answer.of(run_of(sweep, tmp_path, 2 * CLAIMED))
    assert found.verdict is Verdict.VIOLATION
    said = re.search(r"refuted after (\d+) of 600 trials: no more private than with noise mult"
                     r"iplier ([\d.]+) where 0.5 is claimed", found.sentence)  # fmt: skip
    assert said, found.sentence
    assert 0.25 <= float(said[2]) < 0.5
    assert "seed" in found.help[0]


def test_a_weak_audit_says_what_would_help(sweep: dict[str, Any], tmp_path: Path) -> None:
    sweep["mechanism"]["noise_multiplier"] = 1.0
    found = answer.of(run_of(sweep, tmp_path / "few", 0.8))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert re.search(r"more trials: about [\d,]+ \(`--set audit.trials=\d+`\)", found.help[0])
    blind = answer.of(run_of(sweep, tmp_path / "blind", 0.0))
    assert "with a chance of 0%" in blind.sentence
    assert not any("more trials" in line for line in blind.help)


def test_a_partial_run(sweep: dict[str, Any], tmp_path: Path) -> None:
    run = run_of(sweep, tmp_path, CLAIMED)
    before = answer.keep(run)
    (tmp_path / f"scores/{run.plan.audits[0].id}/200-299.parquet").unlink()
    run.directory.set_complete(False)
    Aggregation.rebuild(run.directory).flush()
    found = answer.of(Run.open(str(tmp_path)))
    assert before.verdict is Verdict.CONSISTENT
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "500 of 600 trials are done, 200 of them usable before a gap" in found.sentence
    assert found.help == ("`dpaudit run` with the same sweep file goes on",)


def test_a_failed_run(sweep: dict[str, Any], tmp_path: Path) -> None:
    run = run_of(sweep, tmp_path, CLAIMED)
    audit = run.plan.audits[0].id
    for first in range(0, TRIALS, 100):
        (tmp_path / f"scores/{audit}/{first}-{first + 99}.parquet").unlink()
    failed_packs = [Pack(0, first, first + 99) for first in range(0, TRIALS, 100)]
    why = ("ValueError", "ValueError: no <b>", "line 1\nline 2")
    failures.write(run.directory, [Failure(pack, *why) for pack in failed_packs[:1]])
    begun = Run.open(str(tmp_path))
    begun.directory.set_complete(False)
    assert "100 of 600 trials failed, and 0 are done" in answer.of(begun).sentence
    assert answer.of(begun).help[0] == "`dpaudit run` with the same sweep file goes on"
    failures.write(run.directory, [Failure(pack, *why) for pack in failed_packs])
    run.directory.set_complete(False)
    Aggregation.rebuild(run.directory).flush()
    failed = Run.open(str(tmp_path))
    found = answer.of(failed)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "600 of 600 trials failed, and 0 are done" in found.sentence
    assert "dpaudit run --retry-failed" in found.help[0]
    html = Path(page.write(failed)).read_text()
    section = html.partition('id="failed"')[2].partition('id="audits"')[0]
    assert "ValueError: no &lt;b&gt;" in section
    assert "line 1\nline 2" in section


def test_an_audit_that_its_rule_has_ended(sweep: dict[str, Any], tmp_path: Path) -> None:
    """Its trials are all there are: nothing goes on, and nothing is said to."""
    sweep["audit"]["stop_when"] = {"within": 0.9}
    result = da.run(sweep, storage_path=str(tmp_path), executor="inline")
    run = Run.open(result.location)
    (ended,) = decisions.decided(run.directory, run.sweep).values()
    found = result.answer
    assert ended < TRIALS
    assert found.verdict is Verdict.INCONCLUSIVE
    assert f"`stop_when` ended it after {ended} of 600 trials" in found.sentence
    assert not any("goes on" in line for line in found.help)


def test_no_trial_bounds_nothing(sweep: dict[str, Any], tmp_path: Path) -> None:
    """Not even 0, and nothing is said of densities that nobody computed."""
    made_up_run(sweep, tmp_path, 0.0, seed=1)
    run = Run.open(str(tmp_path))
    for file in (tmp_path / "scores").rglob("*.parquet"):
        file.unlink()
    Aggregation.rebuild(run.directory).flush()
    run = Run.open(str(tmp_path))
    (row,) = overview(run)
    assert row["epsilon_lower"] != row["epsilon_lower"]
    assert row["status"] == ""
    assert answer.of(run).sentence == "INCONCLUSIVE: no claim is refuted, but not run"
    html = Path(page.write(run)).read_text()
    assert "no trial was run" not in html
    assert "there is nothing to show" in html


def test_it_is_computed_once_for_the_same_trials(
    sweep: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(sweep, tmp_path, CLAIMED)
    found = answer.keep(run)
    monkeypatch.setattr(verdict, "of", lambda *_, **__: pytest.fail("computed again"))
    again = Run.open(str(tmp_path))
    assert answer.of(again) == answer.quick(again) == found
    monkeypatch.undo()
    stored = tmp_path / answer.FILE
    whole = json.loads(stored.read_text())
    edited = json.dumps(whole | {"verdict": "VIOLATION", "sentence": "VIOLATION: all is lost"})
    assert answer.sound(again.directory)
    for damaged in ("", "3", '"x"', "[]", "{}", '{"of": 1}', edited):
        stored.write_text(damaged)
        assert answer.kept(again) is None
        assert answer.of(again) == found
        assert not answer.sound(again.directory)


def test_it_is_computed_anew_where_what_it_rests_on_has_changed(
    sweep: dict[str, Any], tmp_path: Path
) -> None:
    """What is complete, what bounds say, and of which audits it is."""
    run = run_of(sweep, tmp_path, CLAIMED)
    run.directory.set_complete(False)
    assert answer.keep(Run.open(str(tmp_path))).verdict is Verdict.CONSISTENT
    assert "dpaudit run" in answer.of(Run.open(str(tmp_path))).help[0]
    run.directory.set_complete(True)
    complete = Run.open(str(tmp_path))
    assert answer.of(complete).help == ()
    answer.keep(complete)
    assert answer.kept(complete) is not None
    raised = complete.estimates.assign(epsilon_lower_together=99.0)
    assert answer.kept(dataclasses.replace(complete, estimates=raised)) is None
    named = dataclasses.replace(complete.plan.audits[0], label="another")
    plan = dataclasses.replace(complete.plan, audits=(named,))
    assert answer.kept(dataclasses.replace(complete, plan=plan)) is None


def test_a_bound_above_its_claim_is_never_beside_consistent(
    sweep: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounds and the test of the claim spend their errors apart, so they may differ."""
    run = run_of(sweep, tmp_path, CLAIMED)
    monkeypatch.setattr(Run, "above", lambda *_: True)
    found = answer.of(run)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "does not refute it" in found.sentence
    assert "never CONSISTENT" in words.ABOVE


@pytest.mark.parametrize(("mu", "kind"), [(1.5 * CLAIMED, "above its claim"), (1.0, "if-gaussian")])
def test_a_bar_above_its_claim_looks_otherwise(
    sweep: dict[str, Any], mu: float, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(overviews, "_bars", lambda axes, ys, means, kinds: drawn.extend(kinds))
    overviews.bars_figure(groups.panels(run_of(sweep, tmp_path, mu)))
    assert drawn == [kind]


def test_it_is_the_same_everywhere(
    sweep: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(sweep, tmp_path, 2 * CLAIMED)
    said = answer.of(run).sentence
    status = dpaudit("status", tmp_path)
    assert one_line(said) in one_line(status.out)
    assert json.loads(dpaudit("status", tmp_path, "--json").out)["verdict"]["sentence"] == said
    assert one_line(said) in one_line(Path(page.write(run)).read_text())
    result = da.Result(str(tmp_path), True)
    assert result.answer.sentence == said
    assert result.verdict() is Verdict.VIOLATION
    assert dpaudit("verify", tmp_path).code == 1
    assert said in result._repr_html_()


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_a_page_of_twenty_audits_is_small(sweep: dict[str, Any], tmp_path: Path) -> None:
    sweep["grid"] = {"mechanism.noise_multiplier": [1 + i / 10 for i in range(20)]}
    sweep["audit"] |= {"trials": 200, "record_every": 6}
    run = run_of(sweep, tmp_path, 0.5)
    html = Path(page.write(run)).read_text()
    assert len(html) < 2e6
    assert html.count('<details class="audit"') == 20
    assert all(f'href="#{audit.id}"' in html for audit in run.plan.audits)


NOTEBOOK = """
import dpaudit_ray as da
result = da.run({sweep!r}, storage_path={folder!r}, executor="inline")
result
"""


def test_a_notebook_shows_progress_verdict_and_errors_in_a_line(
    light: dict, tmp_path: Path
) -> None:
    cells = [NOTEBOOK.format(sweep=light, folder=str(tmp_path)), "da.run(5)", "result.plot()"]
    source = {
        "cells": [
            {"cell_type": "code", "id": str(i), "metadata": {}, "outputs": [],
             "execution_count": None, "source": cell}
            for i, cell in enumerate(cells)
        ],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "", "language": "python"}},
        "nbformat": 4, "nbformat_minor": 5,
    }  # fmt: skip
    book = tmp_path / "book.ipynb"
    book.write_text(json.dumps(source))
    subprocess.run(
        [sys.executable, "-m", "nbconvert", "--to", "notebook", "--execute", "--allow-errors",
         "--inplace", str(book)],
        check=True, capture_output=True, timeout=400,
    )  # fmt: skip
    first, second, third = (cell["outputs"] for cell in json.loads(book.read_text())["cells"])
    shown = ["".join(each["data"].get("text/html", "")) for each in first if "data" in each]
    assert "180 of 180 trials" in shown[0]
    assert "INCONCLUSIVE" in shown[1]
    assert "<table" in shown[1]
    (error,) = second
    assert error["traceback"] == [
        "SpecError: sweep: is a int; give a sweep file's path, its content or a Sweep"
    ]
    assert "image/png" in third[0]["data"]


def test_what_is_no_sweep_is_told(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is a int"):
        da.run(5, storage_path=str(tmp_path))  # type: ignore[arg-type]


def test_tab_completion_finds_the_api() -> None:
    assert {"run", "Result", "stats", "accounting"} <= set(dir(da))
    assert {"answer", "verdict", "plot", "report", "failures"} <= set(dir(da.Result))
    assert Answer.__doc__
