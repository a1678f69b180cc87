"""What is left of a script's audit: pages for people and for CI, from hostile text too."""

import dataclasses
import json
from xml.etree import ElementTree

import pytest

from dpaudit_ray.errors import StorageError
from dpaudit_ray.report.verdict import Verdict
from dpaudit_ray.scripts import script_findings
from dpaudit_ray.scripts.script_findings import Finding, Look, Measured, ScriptVerdict, Weight

HOSTILE = "a|b\n<script>alert(1)</script> `x` *y* [z](http://w) \x1b[31m \x00"
BAD = Finding(0, "noise", Weight.VIOLATION, "step 1", "σ = 1", f"σ = 0.5, {HOSTILE}", "more noise")
ALONE = Finding(0, "seeds", Weight.VIOLATION, "generator", "none", "42")
WARNED = Finding(0, "updates", Weight.WARNING, "SGD, 5 steps", "private updates", "others")


def verdict(*findings: Finding, **more: object) -> ScriptVerdict:
    looks = (
        Look(0, "noise", True, "9 steps looked into"),
        Look(0, "sampling", True, "100 draws"),
        Look(2, "runs", False, "too few"),
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
    return ElementTree.fromstring(script_findings.junit(found))


def test_junit_has_a_case_per_look_and_the_failures():
    suite = parsed(verdict(BAD, ALONE, WARNED))
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert set(cases) == {"noise", "sampling", "runs", "seeds"}
    assert [suite.get(count) for count in ("tests", "failures", "skipped")] == ["4", "2", "1"]
    assert "σ = 0.5" in cases["noise"].find("failure").text
    assert cases["seeds"].find("failure") is not None
    assert cases["sampling"].find("failure") is None
    assert "too few" in cases["runs"].find("skipped").get("message")
    assert cases["noise"].get("classname") == "L0 one run looked into"
    kept = parsed(verdict(WARNED))
    assert kept.get("failures") == "0"
    assert not list(kept.iter("failure"))


def test_the_page_has_the_findings_and_runs_nothing():
    page = script_findings.html(verdict(BAD, WARNED))
    for shown in ("VIOLATION", "more noise", "SGD, 5 steps", "&lt;script&gt;", "&lt;b&gt;loss"):
        assert shown in page
    for hostile in ("<script>", "\x1b", "http-equiv", "src="):
        assert hostile not in page
    # A tab that the script printed is a tab.
    printed = script_findings.html(verdict(output="step\tloss\x1b[0m"))
    assert "step\tloss\\x1b[0m" in printed


def test_a_claim_that_nobody_makes():
    unseen = verdict(claim=float("nan"), verdict=Verdict.INCONCLUSIVE)
    assert unseen.headline.endswith("not seen whole, so nothing is said of its ε at δ = 1e-5.")
    assert unseen.headline in script_findings.html(unseen)


def test_what_was_measured_stands_beside_the_claim():
    measured = Measured(2, "the run", 0.5, 1.4367, 1e-5, "nothing")
    seen = verdict(measured=(measured,), sentence="Every one of 9 steps.")
    assert seen.headline == "train.py:main keeps ε = 1.44 (δ = 1e-5, prv). Every one of 9 steps."
    said = "measured ε >= 0.5 for the run, claimed 1.44 (δ = 1e-5, 98 %, assumes nothing)"
    values = {one.get("name"): one.get("value") for one in parsed(seen).iter("property")}
    assert values == {"verdict": f"CONSISTENT: {seen.headline}", "L2": said}
    assert said in script_findings.html(seen).replace("&gt;", ">")
    plain = json.loads(json.dumps(dataclasses.asdict(dataclasses.replace(seen, findings=(BAD,)))))
    assert (plain["verdict"], plain["measured"][0]["epsilon"]) == ("CONSISTENT", 0.5)
    assert plain["findings"][0]["look"] == "noise"


def test_files_are_written_or_the_reason_told(tmp_path):
    script_findings.write(tmp_path / "new/page.html", "text")
    assert (tmp_path / "new/page.html").read_text() == "text"
    with pytest.raises(StorageError, match="cannot write"):
        script_findings.write(tmp_path, "text")
