"""`dpaudit certify`: one page with every term, for runs that are complete and in order."""

import json
import re
import shutil
from pathlib import Path

import pytest

from dpaudit_ray.report import certificate
from tests.command import completed, dpaudit, inline, refused, write_sweep
from tests.report.handed import played, sweep
from tests.report.test_check import change_json

TERMS = (
    "Privacy parameters", "Claim in words", "Unit of privacy", "Neighbouring data sets",
    "Algorithm", "Trust model", "Threat model", "Measured", "Strength", "Trials",
    "Commit of the code", "SHA-256 of plan.json", "SHA-256 of all scores",
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certified")
    completed(inline(write_sweep(folder, sweep()), folder))
    return folder / "handed"


def test_page_has_every_term_and_how_to_check_it(run, tmp_path, monkeypatch):
    monkeypatch.setattr(certificate.shutil, "which", lambda name: None)
    done = completed(dpaudit("certify", run, "--commit", "3f2a9c1", "--output", tmp_path))
    assert done.out == f"{tmp_path / certificate.HTML}\n"
    assert done.err == "dpaudit: no PDF: Chromium is not installed or failed; print the HTML page\n"
    page = (tmp_path / certificate.HTML).read_text()
    for term in TERMS:
        assert re.search(rf"<th>{term}</th><td>[^<]", page), term
    assert "3f2a9c1" in page
    assert "one record" in page
    assert f"dpaudit check {run} --commitment " in page
    assert f"dpaudit check {run} --rerun 1%" in page
    sentence = json.loads(dpaudit("status", run, "--json").out)["verdict"]["sentence"]
    assert sentence in page.replace("&#39;", "'")
    assert not re.search(r"(src|href)=|https?://|<script", page)


def test_digests_are_those_of_the_run_wherever_it_lies(run, tmp_path, monkeypatch):
    monkeypatch.setattr(certificate.shutil, "which", lambda name: None)
    pages = []
    for place in (run, Path(shutil.copytree(run, tmp_path / "copy"))):
        completed(dpaudit("certify", place, "--output", tmp_path))
        pages.append((tmp_path / certificate.HTML).read_text().replace(str(place), "RUN"))
    assert pages[0] == pages[1]


def test_run_that_differs_is_not_certified(run, tmp_path):
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    change_json(copy, "plan.json", lambda plan: plan["audits"][0].update(label="other"))
    line = refused("certify", copy, "--output", tmp_path)
    assert "differs in 1 places; see `dpaudit check" in line
    assert not (tmp_path / certificate.HTML).exists()


def test_run_that_is_not_complete_is_not_certified(tmp_path):
    begun = played(sweep(), tmp_path, 3)
    line = refused("certify", begun, "--output", tmp_path)
    assert line.endswith("has 30 of 120 trials; complete it, then certify it")


@pytest.mark.skipif(
    not any(map(shutil.which, certificate._BROWSERS)), reason="no Chromium is installed"
)
def test_pdf_has_one_page(run, tmp_path):
    done = completed(dpaudit("certify", run, "--output", tmp_path))
    assert done.out == f"{tmp_path / certificate.PDF}\n"
    content = (tmp_path / certificate.PDF).read_bytes()
    assert content.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", content)) == 1
