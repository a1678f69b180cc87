"""The one answer of a run: right in four kinds of runs, the same wherever it is shown."""

import dataclasses
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbconvert.preprocessors import ExecutePreprocessor

import dpaudit_ray as da
from dpaudit_ray.errors import StorageError
from dpaudit_ray.orchestration.aggregation import Aggregation
from dpaudit_ray.plan import outcomes
from dpaudit_ray.plan.model import Pack
from dpaudit_ray.plan.outcomes import Failure
from dpaudit_ray.report import page, verdict, words
from dpaudit_ray.report.figures import whole_run
from dpaudit_ray.report.tables import Run, overview
from dpaudit_ray.report.verdict import Verdict
from dpaudit_ray.storage.run_directory import RunDirectory
from tests.command import dpaudit
from tests.report.handed import made_up_run

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
    return rebuilt(made_up_run(sweep, folder, mu, seed=1))


def rebuilt(run: Run) -> Run:
    """With estimates of the scores that are there."""
    run.directory.set_complete(False)
    Aggregation.rebuild(run.directory).flush()
    return Run.open(run.directory.location)


def test_a_healthy_run(sweep, tmp_path):
    found = verdict.current(run_of(sweep, tmp_path, CLAIMED))
    assert found.verdict is Verdict.CONSISTENT
    assert found.sentence == (
        f"CONSISTENT: no violation found. Measured ε ≥ {found.quote.text} of the claimed 9.997 "
        "(δ = 1e-5, 95 %, assumes Gaussian). This audit would have detected a 30 % shortfall in "
        "noise."
    )
    assert found.help == ()
    assert found.judged == TRIALS


def test_a_broken_run(sweep, tmp_path):
    found = verdict.current(run_of(sweep, tmp_path, 2 * CLAIMED))
    assert found.verdict is Verdict.VIOLATION
    said = re.search(r"refuted after (\d+) of 600 trials: no more private than with a noise mult"
                     r"iplier of ([\d.]+) where 0.5 is claimed", found.sentence)  # fmt: skip
    assert said, found.sentence
    assert 0.25 <= float(said[2]) < 0.5
    assert "more audits" not in found.sentence
    assert "seed" in found.help[0]


def test_a_weak_audit_says_what_would_help(sweep, tmp_path):
    sweep["mechanism"]["noise_multiplier"] = 1.0
    weak = run_of(sweep, tmp_path / "few", 0.84)
    found = verdict.current(weak)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert re.search(
        r"[\d,]+ trials would detect .* `--set name=.* --set audit.trials=\d+`", found.help[0]
    )
    for verb, hints in (("status", found.help), ("verify", found.help[:1])):
        told = " ".join(dpaudit(verb, tmp_path / "few").out.split()).split("next step: ")[1:]
        assert len(told) == len(hints)
        assert all(map(str.startswith, told, hints))
    assert "<code>--set name=" in Path(page.write(weak)).read_text()
    blind = verdict.current(run_of(sweep, tmp_path / "blind", 0.0))
    assert "in noise is 0 %" in blind.sentence
    (hint,) = blind.help
    assert hint.startswith("a stronger adversary: ")
    sweep["mechanism"]["noise_multiplier"] = 0.05
    found = verdict.current(run_of(sweep, tmp_path / "huge", 10.0))
    assert (
        "more noise or fewer steps: so large a claim needs more than 9,600 trials" in found.help[0]
    )


def test_a_partial_run(sweep, tmp_path):
    run = run_of(sweep, tmp_path, 1.0)
    (tmp_path / f"scores/{run.plan.audits[0].id}/200-299.parquet").unlink()
    found = verdict.current(rebuilt(run))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "500 of 600 trials are done, 200 of them usable before a gap" in found.sentence
    assert found.sentence.endswith("(δ = 1e-5, not final: 95 % holds only after all trials).")
    assert found.help == ("`dpaudit run` with the same sweep file resumes the run",)


def test_a_failed_run(sweep, tmp_path):
    run = run_of(sweep, tmp_path, CLAIMED)
    for file in (tmp_path / "scores").rglob("*.parquet"):
        file.unlink()
    failures = [
        Failure(Pack(0, first, first + 99), "ValueError", "ValueError: no <b>", "line 1\nline 2")
        for first in range(0, TRIALS, 100)
    ]
    record = outcomes.Record(run.directory, run.plan)
    record.set_failed(failures[:1])
    begun = verdict.current(rebuilt(run))
    assert "100 of 600 trials failed: ValueError: no <b>" in begun.sentence
    assert begun.help[0] == "`dpaudit run` with the same sweep file resumes the run"
    record.set_failed(failures)
    found = verdict.current(failed := rebuilt(run))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "600 of 600 trials failed: ValueError: no <b>" in found.sentence
    assert found.sentence.endswith("No ε can be quoted: nothing has been measured yet.")
    (help_line,) = found.help
    assert "dpaudit run --retry-failed" in help_line
    html = Path(page.write(failed)).read_text()
    section = html.partition('id="failed"')[2].partition('id="audits"')[0]
    assert "ValueError: no &lt;b&gt;" in section
    assert "line 1\nline 2" in section


def test_an_audit_that_its_rule_has_ended(sweep, tmp_path):
    """Its trials are all there are: nothing goes on, and nothing is said to."""
    sweep["audit"]["stop_when"] = {"within": 0.9}
    result = da.run(sweep, storage_path=str(tmp_path), executor="inline")
    run = Run.open(result.location)
    (ended,) = outcomes.decided(run.directory, run.sweep, run.plan).values()
    found = result.answer
    assert ended < TRIALS
    assert found.verdict is Verdict.INCONCLUSIVE
    assert f"`stop_when` ended it after {ended} of 600 trials" in found.sentence
    assert not any("resumes" in line for line in found.help)


def test_no_trial_bounds_nothing(sweep, tmp_path):
    """Not even 0, and nothing is said of densities that nobody computed."""
    run = made_up_run(sweep, tmp_path, 0.0, seed=1)
    for file in (tmp_path / "scores").rglob("*.parquet"):
        file.unlink()
    run = rebuilt(run)
    (row,) = overview(run)
    assert row["epsilon_lower"] != row["epsilon_lower"]
    assert row["status"] == ""
    assert verdict.current(run).sentence == (
        "INCONCLUSIVE: no violation found, but no trials are done. No ε can be quoted: nothing "
        "has been measured yet."
    )
    html = Path(page.write(run)).read_text()
    assert "no trial was run" not in html
    assert "No trials have finished yet" in html


def test_it_is_computed_once_for_the_same_trials(sweep, tmp_path, monkeypatch):
    run = run_of(sweep, tmp_path, CLAIMED)
    found = verdict.current(run)
    monkeypatch.setattr(verdict, "judge", lambda *_, **__: pytest.fail("computed again"))
    again = Run.open(str(tmp_path))
    assert verdict.current(again) == verdict.current_or_stored(again) == found
    monkeypatch.undo()
    stored = tmp_path / verdict.FILE
    whole = json.loads(stored.read_text())
    edited = json.dumps(whole | {"verdict": "VIOLATION", "sentence": "VIOLATION: all is lost"})
    before = json.dumps(whole | {"of": "another version"})
    for damaged in ("", "3", '"x"', "[]", "{}", before, edited):
        stored.write_text(damaged)
        assert verdict.stored_answer(again) is None
        assert verdict.current(again) == found


def test_a_forged_answer_is_not_believed(sweep, tmp_path):
    """Whoever writes `verdict.json` has not this user's seal."""
    run = run_of(sweep, tmp_path, 2 * CLAIMED)
    found, stored = verdict.current(run), tmp_path / verdict.FILE
    sealed = json.loads(stored.read_text())
    forged = sealed | {"verdict": "CONSISTENT", "sentence": "CONSISTENT: every claim holds"}
    for seal in (sealed.get("seal", ""), hashlib.sha256(b"").hexdigest(), None, "é\ud800"):
        stored.write_text(json.dumps(forged | {"seal": seal}))
        told_by_status = json.loads(dpaudit("status", tmp_path, "--json").out)["verdict"]
        assert told_by_status["verdict"] == "VIOLATION"
    stored.write_text(json.dumps(forged))
    assert "every claim holds" not in Path(page.write(Run.open(str(tmp_path)))).read_text()
    assert json.loads(stored.read_text())["sentence"] == found.sentence


def test_where_deriving_takes_long_another_users_answer_is_not_shown(sweep, tmp_path, monkeypatch):
    said = verdict.current(run_of(sweep, tmp_path, CLAIMED)).sentence
    monkeypatch.setattr(verdict, "QUICK_TRIALS", TRIALS - 1)
    assert said in one_line(dpaudit("status", tmp_path).out)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    shown = one_line(dpaudit("status", tmp_path).out)
    assert said not in shown
    assert "too many trials to judge here; run `dpaudit verify" in shown
    assert json.loads(dpaudit("status", tmp_path, "--json").out)["verdict"] is None


def test_other_scores_of_as_many_trials_are_judged_anew(sweep, tmp_path):
    """Estimates that are there stay the same: they are not what the answer rests on alone."""
    before = verdict.current(run_of(sweep, tmp_path / "run", CLAIMED))
    run_of(sweep, tmp_path / "other", 2 * CLAIMED)
    for file in (tmp_path / "other/scores").rglob("*.parquet"):
        file.replace(tmp_path / "run" / file.relative_to(tmp_path / "other"))
    after = verdict.current(Run.open(str(tmp_path / "run")))
    assert (before.verdict, after.verdict) == (Verdict.CONSISTENT, Verdict.VIOLATION)


def test_who_may_not_write_is_told_all_the_same(sweep, tmp_path, monkeypatch):
    run = run_of(sweep, tmp_path, CLAIMED)
    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "write_json", lambda *_: (_ for _ in ()).throw(StorageError()))
        assert verdict.current_or_stored(run) == verdict.current(run)
        assert not (tmp_path / verdict.FILE).exists()
    (tmp_path / "home").write_text("no folder")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home" / "x"))
    assert verdict.current_or_stored(run) == verdict.current(run), (
        "a home without a key costs time only"
    )
    assert verdict.stored_answer(run) is None


def test_it_is_computed_anew_where_what_it_rests_on_has_changed(sweep, tmp_path):
    """What is complete, what bounds say, and of which audits it is."""
    run = run_of(sweep, tmp_path, CLAIMED)
    run.directory.set_complete(False)
    assert verdict.current(Run.open(str(tmp_path))).verdict is Verdict.CONSISTENT
    assert "dpaudit run" in verdict.current(Run.open(str(tmp_path))).help[0]
    run.directory.set_complete(True)
    complete = Run.open(str(tmp_path))
    assert verdict.current(complete).help == ()
    assert verdict.stored_answer(complete) is not None
    raised = complete.estimates.assign(epsilon_lower_together=99.0)
    assert verdict.stored_answer(dataclasses.replace(complete, estimates=raised)) is None
    named = dataclasses.replace(complete.plan.audits[0], label="another")
    plan = dataclasses.replace(complete.plan, audits=(named,))
    assert verdict.stored_answer(dataclasses.replace(complete, plan=plan)) is None


def test_a_bound_above_its_claim_is_never_beside_consistent(sweep, tmp_path, monkeypatch):
    """Bounds and the test of the claim spend their errors apart, so they may differ."""
    run = run_of(sweep, tmp_path, CLAIMED)
    monkeypatch.setattr(Run, "has_bound_above_claim", lambda *_: True)
    found = verdict.current(run)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "does not refute it" in found.sentence
    assert "never CONSISTENT" in words.ABOVE


@pytest.mark.parametrize(
    ("mu", "kind"), [(1.5 * CLAIMED, "above its claim"), (1.0, "assumes Gaussian")]
)
def test_a_bar_above_its_claim_looks_otherwise(sweep, mu, kind, tmp_path):
    bounds = whole_run.bounds_table(run_of(sweep, tmp_path, mu))
    assert whole_run.last_bounds(bounds)["kind"].tolist() == [kind]


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_a_page_of_many_audits_is_small(sweep, tmp_path):
    """A twentieth of 2 MB for each of them."""
    sweep["grid"] = {"mechanism.noise_multiplier": [1, 1.5, 2, 2.5, 3, 3.5]}
    sweep["audit"]["trials"] = 100
    html = Path(page.write(run_of(sweep, tmp_path, 0.5))).read_text()
    assert len(html) < 6 * 1e5
    assert html.count('<details class="audit"') == html.count('<td><a href="#') == 6
    assert 'id="filter"' in html


def test_a_notebook_shows_progress_verdict_and_errors_in_a_line(light, tmp_path):
    shown = (
        f"import dpaudit_ray as da\nresult = da.run({light!r}, {str(tmp_path)!r}, 'inline')\nresult"
    )
    sources = [shown, "da.run(5)", "result.plot()"]
    sources += ["import matplotlib.pyplot as plt\nplt.plot([1, 2])"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in sources])
    ExecutePreprocessor(allow_errors=True, timeout=400).preprocess(book)
    first, second, third, fourth = (cell["outputs"] for cell in book["cells"])
    shown = ["".join(each["data"].get("text/html", "")) for each in first if "data" in each]
    assert "180 of 180 trials" in shown[0]
    assert "INCONCLUSIVE" in shown[1]
    assert "<table" in shown[1]
    (error,) = second
    assert error["traceback"] == [
        "SpecError: sweep: is a int; give a sweep file's path, its content or a Sweep"
    ]
    assert "Axes" in "".join(third[0]["data"]["text/plain"])
    assert "image/png" in third[1]["data"]
    assert "image/png" in fourth[1]["data"]  # a figure of the user's own, after that
