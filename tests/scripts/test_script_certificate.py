"""`dpaudit certify PAGE.html`: one page on a script's audit, from the page that the audit left."""

import dataclasses
import re

import pytest

from dpaudit_ray.report import certificate
from dpaudit_ray.scripts import script_certificate, verdict_files
from dpaudit_ray.scripts.script_findings import AuditedCode, Measured
from tests.command import completed, dpaudit, refused
from tests.scripts.test_script_findings import BAD, WARNED, verdict

CODE = AuditedCode(
    command="dpaudit audit train.py:main --seed 7 --delta 1e-5",
    seed=7,
    sources={"train.py": "ab" * 32, "nets/mlp.py": "cd" * 32},
    versions={"dpaudit": "1", "torch": "2.15"},
)
STEP = Measured(1, "one step", 2.08, 4.38, 1e-5, "Gaussian noise")
TERMS = (
    "Privacy parameters", "Claim in words", "Unit of privacy", "Neighbouring data sets",
    "Algorithm", "Trust model", "Threat model", "Measured", "Findings", "Checked", "Not done",
    "Trials", "False alarms", "Commit of the code", "Versions", "SHA-256 of train.py",
    "Modules next to it", "SHA-256 of the audit's record",
)  # fmt: skip


@pytest.fixture
def page(tmp_path):
    audited = verdict(WARNED, code=CODE, measured=(STEP,), unchecked=("class weights <3>",))
    path = tmp_path / "train-main-audit.html"
    path.write_text(verdict_files.html(audited), encoding="utf-8")
    return path


def test_certificate_of_a_script_has_every_term(page, tmp_path, monkeypatch):
    monkeypatch.setattr(certificate.shutil, "which", lambda name: None)
    completed(dpaudit("certify", page, "--commit", "3f2a9c1", "--output", tmp_path))
    written = (tmp_path / certificate.HTML).read_text().replace("&#39;", "'")
    for term in TERMS:
        assert re.search(rf"<th>{term}</th><td>[^<]", written), term
    for text in ("3f2a9c1", "ab" * 32, CODE.command, "The seed, 7,", "class weights &lt;3&gt;"):
        assert text in written
    assert "CONSISTENT: train.py:main: no violation found" in written
    assert not re.search(r"(src|href)=|https?://|<script", written)


@pytest.mark.parametrize("claim", [1.4367, float("nan")])
def test_page_keeps_the_whole_record(tmp_path, claim):
    audited = verdict(BAD, code=CODE, claim=claim, ratios=((1, 0.5),))
    path = tmp_path / "page.html"
    path.write_text(verdict_files.html(audited), encoding="utf-8")
    content = script_certificate.of_page(path, "")
    assert content.verdict == "VIOLATION"
    assert content.identity["Commit of the code"] == "not stated"
    again = dataclasses.replace(audited, output=audited.output + "!")
    path.write_text(verdict_files.html(again), encoding="utf-8")
    term = "SHA-256 of the audit's record"
    assert script_certificate.of_page(path, "").identity[term] != content.identity[term]


@pytest.mark.parametrize("text", ["", "<p>report</p>", '<pre hidden id="audit">{"a": 1}</pre>'])
def test_page_without_a_record_is_refused(tmp_path, text):
    path = tmp_path / "page.html"
    path.write_text(text)
    assert "has no record of an audit; write it with `dpaudit audit" in refused("certify", path)
    assert "cannot read" in refused("certify", tmp_path / "none.html")
