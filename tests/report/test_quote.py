"""The one ε of an audit: the same wherever it is shown, and never above a claim that stands."""

import dataclasses
import json
import math
import re
from pathlib import Path

import pytest
import yaml

import dpaudit_ray as da
from dpaudit_ray.cli import terminal
from dpaudit_ray.report import detection, page, verdict
from dpaudit_ray.report.quote import quote
from dpaudit_ray.report.tables import Run
from dpaudit_ray.report.verdict import Verdict
from tests.command import dpaudit
from tests.conftest import ROOT
from tests.long import LONG
from tests.report.handed import played
from tests.report.test_multiplicity import LEVEL, SWEEPS, swept


@pytest.mark.parametrize(
    ("curve", "first"),
    [("unknown", "accuracy"), *[("gaussian", "paper-gdp"), ("unknown", "anytime")] * LONG],
)
def test_no_quote_is_above_its_claim_beside_consistent(curve, first, tmp_path, monkeypatch):
    """Of true claims, three audits of two steps; bounds alone are above them in many sweeps.

    All that is not refuted, or above, passes for CONSISTENT: power is taken for granted.
    """
    monkeypatch.setattr(detection, "chance_to_refute", lambda *_: 1.0)
    names = [first, "eps-delta", *({"accuracy", "paper-gdp"} - {first})]
    level = LEVEL | {"record_every": 5, "estimators": names}
    grid = {"mechanism.seed": [0, 1, 2]}
    consistent = unsplit = 0
    for seed in range(SWEEPS // 3):
        run = swept(tmp_path, seed, {"curve": curve}, audit=level, grid=grid)
        answer = verdict.compute_answer(run)
        consistent += answer.verdict is Verdict.CONSISTENT
        unsplit += bool((run.estimates["epsilon_lower"] > run.estimates["epsilon_upper"]).any())
        if answer.verdict is Verdict.CONSISTENT:
            assert not any(audit.quote.above for audit in answer.audits)
        assert answer.quote in [audit.quote for audit in answer.audits]
    assert consistent > SWEEPS / 4
    assert unsplit >= 2, "else nothing is shown"


@pytest.fixture
def bounded(tmp_path: Path) -> Run:
    """An audit of an unknown curve, by four estimators."""
    names = ["accuracy", "eps-delta", "one-run", "paper-gdp"]
    level = LEVEL | {"trials": 100, "estimators": names}
    return swept(tmp_path, 0, {"curve": "unknown"}, audit=level)


def with_bounds(run: Run, estimator: str, **values: object) -> Run:
    table = run.estimates.copy()
    table.loc[table["estimator"] == estimator, list(values)] = list(values.values())
    return dataclasses.replace(run, estimates=table)


@pytest.mark.parametrize(
    ("changed", "refuted", "epsilon", "assumes"),
    [
        ({}, False, None, "assumes Gaussian"),
        ({"status": "if-assumed", "epsilon_lower_together": 1.0}, False, 1.0, "own assumption"),
        ({"status": "if-assumed", "epsilon_lower_together": 99.0}, True, 99.0, "own assumption"),
        ({"status": "if-assumed", "epsilon_lower_together": 99.0}, False, 0.5, "assumption-free"),
        ({"status": "if-independent", "epsilon_lower_together": 1}, 0, 1.0, "assumes independence"),
        ({"status": "if-independent", "epsilon_lower_together": 99}, 0, 0.5, "assumption-free"),
        ({"epsilon_lower_together": 99.0}, False, 0.5, "assumption-free"),
        ({"epsilon_lower_together": 99.0}, True, 0.5, "assumption-free"),
    ],
)
def test_what_is_unproved_is_not_quoted_above_a_claim(bounded, changed, refuted, epsilon, assumes):
    """But for what refutes it; a Gaussian curve of code of the user's own refutes nothing."""
    run = with_bounds(bounded, "accuracy", **changed)
    run = with_bounds(run, "one-run", epsilon_lower_together=0.5)
    shown = quote(run, 0, refuted)
    assert shown.assumes == assumes
    assert epsilon is None or shown.epsilon == epsilon


def test_a_larger_mu_is_quoted_against_gaussian_noise_of_this_package(bounded, monkeypatch):
    mechanism = type(bounded.sweep.cells[0].mechanism)
    monkeypatch.setattr(mechanism, "adds_gaussian_noise", True)
    run = with_bounds(bounded, "accuracy", epsilon_lower_together=99.0)
    assert quote(run, 0).epsilon == 99.0
    assert run.has_bound_above_claim(run.plan.audits[0]), "so it is not CONSISTENT"


def test_without_a_bound_of_the_same_level_nothing_is_quoted(bounded):
    run = with_bounds(bounded, "accuracy", status="paper", epsilon_lower_together=math.nan)
    run = with_bounds(run, "accuracy", epsilon_lower=99.0)
    run = with_bounds(run, "one-run", epsilon_lower_together=math.nan)
    shown = quote(run, 0)
    assert (shown.epsilon, shown.text) == (None, "none")
    assert shown.reason == (
        "the bound of accuracy (as published) exceeds the claim, but does not refute it"
    )
    assert quote(run, 0, refuted=True).text == "none", "a refuted claim makes no curve Gaussian"


def test_it_is_the_same_everywhere(copied):
    place = Path(copied.directory.location)
    result = da.Result(str(place), True)
    answer, card = result.answer, result._repr_html_()
    texts = [audit.quote.text for audit in answer.audits]
    assert answer.quote.text in answer.sentence
    assert len(set(texts)) == 2
    html = " ".join(Path(page.write(copied)).read_text().split())
    assert answer.sentence in html
    assert answer.sentence in card
    for verb, *options in (("status",), ("report", "--format", "table"), ("verify",)):
        out = dpaudit(verb, place, *options).out
        for audit, text in zip(answer.audits, texts, strict=True):
            rows = out.splitlines()
            assert any(row.startswith(audit.label) and f" {text} " in row for row in rows), verb
        assert verb == "report" or answer.sentence in " ".join(out.split())
    for text in texts:
        assert f'<td class="n">{text}</td>' in html
        assert f"<td>{text}</td>" in card
    epsilons = [audit.quote.epsilon for audit in answer.audits]
    status = json.loads(dpaudit("status", place, "--json").out)["verdict"]
    assert status["sentence"] == answer.sentence
    verify = json.loads(dpaudit("verify", place, "--json").out)
    stored = json.loads((place / verdict.FILE).read_text())
    for shown in (status, verify, stored):
        assert [audit["quote"]["epsilon"] for audit in shown["audits"]] == epsilons
        assert shown["verdict"] == answer.verdict == result.verdict()


QUICKSTART = """\
quickstart: eps at delta = 1e-5, 95 % confidence, claims by gaussian
audit                              verdict     trials  eps >=  assumes     claim
biased-dimension choice=simulated  CONSISTENT   2,000  11.202  Gaussian   13.207
                                                               steps
loss                               CONSISTENT   2,000  11.714  assumes    13.207
                                                               Gaussian
Gaussian steps: the bound, like the claim, is for releasing all steps; assumes
  Gaussian: holds if the mechanism's trade-off curve is Gaussian, which is not
  proved
--details shows all other bounds and explains them
CONSISTENT: no violation found. Measured ε ≥ 11.714 of the claimed 13.207 (loss;
  δ = 1e-5, 95 %, assumes Gaussian). 2 of 2 audits would have detected a 30 %
  shortfall in noise.
complete
"""


def test_the_quickstart_as_it_is_printed_at_80_columns(tmp_path, monkeypatch):
    """With scores drawn here, at the last step alone, so that no bit of a training matters."""
    raw = yaml.safe_load((ROOT / "jobs/quickstart.yaml").read_text())
    raw["resources"] = {"pack_size": 200}
    raw["audit"]["record_every"] = 100
    place = played(raw, tmp_path, packs=20, mu=2.4)
    monkeypatch.setattr(terminal, "interactive", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    assert re.sub(r"\x1b\[[0-9;]*m", "", dpaudit("status", place).out) == QUICKSTART
