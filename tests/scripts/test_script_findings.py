"""What is left of a script's audit: pages for people and for CI, from hostile text too."""

import dataclasses
import json
import re
from xml.etree import ElementTree

import pytest

from dpaudit_ray.errors import SpecError, StorageError
from dpaudit_ray.report.verdict import Verdict
from dpaudit_ray.scripts import unchecked, verdict_files
from dpaudit_ray.scripts.finding_kinds import parse_reasons
from dpaudit_ray.scripts.protocol import RunResult, StartedProcesses
from dpaudit_ray.scripts.script_findings import (
    CheckOutcome,
    Finding,
    Measured,
    ScriptVerdict,
    Weight,
)

HOSTILE = "a|b\n<script>alert(1)</script> `x` *y* [z](http://w) \x1b[31m \x00"
BAD = Finding(
    0,
    "noise",
    Weight.VIOLATION,
    "step 1 (train.py:7)",
    "σ = 1",
    f"σ = 0.5, {HOSTILE}",
    "more noise",
    "DPA003",
)
ALONE = Finding(0, "seeds", Weight.VIOLATION, "generator", "none", "42", code="DPA043")
WARNED = Finding(0, "updates", Weight.WARNING, "SGD, 5 steps", "private updates", "others")


def verdict(*findings: Finding, **more: object) -> ScriptVerdict:
    looks = (
        CheckOutcome(0, "noise", True, "9 steps replayed"),
        CheckOutcome(0, "sampling", True, "100 draws"),
        CheckOutcome(2, "runs", False, "too few"),
    )
    broken = any(one.weight is Weight.VIOLATION for one in findings)
    outcome = Verdict.VIOLATION if broken else Verdict.CONSISTENT
    counts = {"runs": 7, "step_trials": 400, "run_trials": 0, "seconds": 12.3}
    plain = ScriptVerdict(
        "train.py:main", outcome, 1.4367, 1e-5, "prv", findings, looks, (), **counts,
        output="epoch 1: <b>loss</b>",
    )  # fmt: skip
    return dataclasses.replace(plain, **more)


def parsed(found: ScriptVerdict) -> ElementTree.Element:
    return ElementTree.fromstring(verdict_files.junit(found))


def test_junit_has_a_case_per_check_and_the_failures():
    suite = parsed(verdict(BAD, ALONE, WARNED))
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert set(cases) == {"noise", "sampling", "runs", "seeds"}
    assert [suite.get(count) for count in ("tests", "failures", "skipped")] == ["4", "2", "1"]
    assert "σ = 0.5" in cases["noise"].find("failure").text
    assert cases["seeds"].find("failure") is not None
    assert cases["sampling"].find("failure") is None
    assert "too few" in cases["runs"].find("skipped").get("message")
    assert cases["noise"].get("classname") == "run inspection"
    kept = parsed(verdict(WARNED))
    assert kept.get("failures") == "0"
    assert not list(kept.iter("failure"))


def test_the_page_has_the_findings_and_runs_nothing():
    page = verdict_files.html(verdict(BAD, WARNED))
    for shown in ("VIOLATION", "more noise", "SGD, 5 steps", "&lt;script&gt;", "&lt;b&gt;loss"):
        assert shown in page
    for hostile in ("<script>", "\x1b", "http-equiv", "src="):
        assert hostile not in page
    # A tab that the script printed is a tab.
    printed = verdict_files.html(verdict(output="step\tloss\x1b[0m"))
    assert "step\tloss\\x1b[0m" in printed


def test_the_page_has_a_picture_of_noise_by_step():
    """The line of 1 is 60 below the top; what is far above it is drawn at 1.4."""
    page = verdict_files.html(verdict(ratios=((1, 1.0), (11, 0.5), (21, 9.0))))
    assert re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', page) == [
        ("40.0", "60.0"),
        ("335.0", "105.0"),
        ("630.0", "24.0"),
    ]
    assert "step 21</text>" in page
    assert "<circle" not in verdict_files.html(verdict())


def test_sarif_has_a_rule_and_a_place_for_each_finding():
    run = json.loads(verdict_files.sarif(verdict(BAD, ALONE)))["runs"][0]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["DPA003", "DPA043"]
    first, second = run["results"]
    assert (first["ruleId"], first["level"]) == ("DPA003", "error")
    place = first["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]) == ("train.py", {"startLine": 7})
    assert "region" not in second["locations"][0]["physicalLocation"]
    assert "\x1b" not in first["message"]["text"]


def test_a_silenced_finding_stays_with_its_reason_and_does_not_count():
    silenced = dataclasses.replace(ALONE, silenced="a <test> run")
    seen = verdict(silenced, verdict=Verdict.CONSISTENT)
    assert (seen.violations, silenced.label, BAD.label) == ((), "Silenced", "Violation")
    page = verdict_files.html(seen)
    assert "Silenced because</dt><dd>a &lt;test&gt; run" in page
    assert 'class="finding bad"' not in page
    suite = parsed(seen)
    values = {one.get("name"): one.get("value") for one in suite.iter("property")}
    assert values["silenced DPA043"] == f"a <test> run: {silenced}"
    assert suite.get("failures") == "0"
    results = json.loads(verdict_files.sarif(verdict(silenced, BAD)))["runs"][0]["results"]
    suppression = {"kind": "external", "justification": "a <test> run"}
    assert [one.get("suppressions") for one in results] == [[suppression], None]


@pytest.mark.parametrize("text", ["DPA043", "DPA043= ", "DPA43=two digits", "seeds=a test run"])
def test_a_finding_is_silenced_by_its_code_with_a_reason_only(text):
    assert parse_reasons(["DPA043= a test run", "DPA044=a=b"]) == {
        "DPA043": " a test run",
        "DPA044": "a=b",
    }
    with pytest.raises(SpecError, match="write code and reason: DPA044='a test run'"):
        parse_reasons([text])


def test_a_code_that_no_finding_has_is_not_silenced():
    with pytest.raises(SpecError, match="is 'DPA999=why', but no finding has that code"):
        parse_reasons(["DPA999=why"])


def test_a_script_without_a_claim():
    unseen = verdict(claim=float("nan"), verdict=Verdict.INCONCLUSIVE, help=("release: cut",))
    assert unseen.headline == "train.py:main could not be checked completely: release: cut"
    assert unseen.claim_text.startswith("none at δ = 1e-5")
    assert unseen.headline in verdict_files.html(unseen)


def test_measured_bounds_are_beside_the_claim():
    measured = Measured(2, "whole run", 0.5, 1.4367, 1e-5, "nothing")
    seen = verdict(measured=(measured,), sentence="noise 5 % too small", composed=1.4)
    assert seen.headline == "train.py:main: no violation found"
    assert seen.claim_text == "ε <= 1.44 at δ = 1e-5, prv; recomputed: 1.4 by PLD"
    text = "whole run: ε >= 0.5, accounted 1.44 (δ = 1e-5, 98 %, assumes nothing)"
    values = {one.get("name"): one.get("value") for one in parsed(seen).iter("property")}
    assert values == {
        "verdict": f"CONSISTENT: {seen.headline}",
        "claim": seen.claim_text,
        "run test": text,
    }
    page = verdict_files.html(seen).replace("&gt;", ">").replace("&lt;", "<")
    assert text in page
    assert "noise 5 % too small" in page
    assert str(dataclasses.replace(measured, epsilon=0.0)).startswith("whole run: no ε above 0")
    plain = json.loads(json.dumps(dataclasses.asdict(dataclasses.replace(seen, findings=(BAD,)))))
    assert (plain["verdict"], plain["measured"][0]["epsilon"]) == ("CONSISTENT", 0.5)
    assert (plain["findings"][0]["look"], plain["findings"][0]["code"]) == ("noise", "DPA003")


def test_a_check_that_cannot_apply_is_told_from_one_that_is_not_done():
    undone = CheckOutcome(0, "promise", False, "no ε was stated", applies=False)
    assert undone.line == "cannot apply: no ε was stated"
    assert dataclasses.replace(undone, applies=True).line == "not done: no ε was stated"


def test_files_are_written_or_the_reason_told(tmp_path):
    verdict_files.write(tmp_path / "new/page.html", "text")
    assert (tmp_path / "new/page.html").read_text() == "text"
    with pytest.raises(StorageError, match="cannot write"):
        verdict_files.write(tmp_path, "text")


def test_hints_of_what_is_not_checked_name_the_first_line(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("x = 1\n# print(x)\nprint(x)\nprint(x)\nweights = class_weight(y)\n")
    lines = unchecked.unchecked_in(script, RunResult(made=1), False)
    assert lines[3:] == ("printed or written values (train.py:3)", "class weights (train.py:5)")
    processes = (StartedProcesses("torchrun", "train.py:3", 4),)
    *_, started = unchecked.unchecked_in(script, RunResult(made=1, processes=processes), False)
    assert started == "processes that it starts (4 torchrun, train.py:3) were not observed"
    (custom,) = set(unchecked.unchecked_in(tmp_path / "none.py", RunResult(), False)) - set(lines)
    assert "custom loop" in custom


def test_scaling_is_no_hint_where_the_preparation_was_followed(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("x = x / x.std(0)\n")
    hints = [
        unchecked.unchecked_in(script, RunResult(made=1), follows) for follows in (False, True)
    ]
    assert "scaling by the records (train.py:1)" in hints[0]
    assert not any("scaling by the records" in hint for hint in hints[1])


def test_a_busy_machine_is_named():
    assert verdict().effort == "7 runs in 12 s"
    waited = dataclasses.replace(verdict(), waited=8.0).effort
    assert waited == "7 runs in 12 s; runs waited 8 s for a processor, as this machine is busy"
