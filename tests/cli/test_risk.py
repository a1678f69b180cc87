"""`dpaudit risk`: what a claim allows, in numbers and words."""

import json
import math

import pytest

from dpaudit_ray import accounting
from dpaudit_ray.stats import gdp
from tests.command import completed, dpaudit, inline, refused, write_sweep
from tests.conftest import ROOT


def test_a_pure_claim_allows_what_a_randomised_response_shows():
    found = json.loads(dpaudit("risk", "--epsilon", "1", "--json").out)["any mechanism"]
    odds = math.exp(1)
    assert found["accuracy"] == pytest.approx(odds / (1 + odds))
    assert found["members"]["0.01"] == pytest.approx(odds * 0.01)
    assert found["beliefs"]["0.01"] == pytest.approx(odds / 99 / (1 + odds / 99))


def test_gaussian_noise_of_the_same_epsilon_allows_less():
    found = json.loads(dpaudit("risk", "--epsilon", "8", "--delta", "1e-5", "--json").out)
    mu = float(gdp.mu(8.0, 1e-5))
    allowed = found["Gaussian noise"]["members"]["0.01"]
    assert allowed == pytest.approx(float(gdp.true_positive_rate(0.01, mu)), rel=0.01)
    assert allowed < found["any mechanism"]["members"]["0.01"]


def test_it_is_said_in_words_and_drawn(tmp_path):
    picture = tmp_path / "risk.png"
    done = dpaudit("risk", "--epsilon", "8", "--delta", "1e-5", "--figure", picture)
    assert done.code == 0, done
    assert "is right in at most 99.97 %" in " ".join(done.out.split())
    assert "with a probability of δ = 1e-5 for each record, no belief" in " ".join(done.out.split())
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ((), "takes one of --epsilon, --rho, --mu, a run and a claim file, got none"),
        (("--epsilon", "1", "--mu", "1"), "got --epsilon, --mu"),
        (("claim.yaml", "--mu", "1"), "got claim.yaml, --mu"),
        (("missing.toml",), "cannot read sweep file missing.toml"),
        (("missing",), "missing is no run directory"),
        (("--rho", "-1"), "--rho must be a number above 0, got -1.0"),
        (("--epsilon", "1", "--delta", "1"), "--delta must be below 1, got 1.0"),
    ],
)
def test_what_is_no_claim_is_refused_in_a_line(options, problem):
    assert problem in refused("risk", *options)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("claim.yaml", "{epsilon: 8, delta: 1.0e-5}"),
        ("claim.yml", "claim: {epsilon: 8, delta: 1.0e-5}"),
        ("claim.toml", "epsilon = 8\ndelta = 1e-5"),
        ("nested.toml", "[claim]\nepsilon = 8\ndelta = 1e-5"),
    ],
)
def test_a_file_states_a_claim(tmp_path, name, text):
    file = tmp_path / name
    file.write_text(text)
    assert dpaudit("risk", file) == dpaudit("risk", "--epsilon", "8", "--delta", "1e-5")


def test_the_file_of_the_page_states_a_claim(tmp_path):
    page = (ROOT / "docs" / "read-the-answer.md").read_text()
    file = tmp_path / "claim.toml"
    file.write_text(page.partition("```toml\n")[2].partition("```")[0])
    assert "right in at most 73.11 %" in " ".join(dpaudit("risk", file).out.split())


def test_a_training_has_the_risk_of_its_accountant(tmp_path):
    file = tmp_path / "claim.yaml"
    file.write_text("{noise_multiplier: 1.0, steps: 4}")
    found = json.loads(completed(dpaudit("risk", file, "--delta", "1e-5", "--json")).out)
    odds = math.exp(accounting.epsilon(1.0, 4, 1e-5))
    assert found["any mechanism"]["beliefs"]["0.5"] == pytest.approx(odds / (1 + odds))
    without_delta = json.loads(completed(dpaudit("risk", file, "--json")).out)
    assert without_delta["any mechanism"]["beliefs"]["0.5"] == 1


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("claim.toml", "epsilon = ", "claim.toml: not valid TOML"),
        ("claim.yaml", "{epsilon: 1, rho: 1}", "claim.yaml: a claim needs one of"),
        ("claim.yaml", "claim: 3", "claim.yaml: a claim is a mapping such as {epsilon: 1}, got 3"),
    ],
)
def test_a_file_that_states_no_claim_is_refused(tmp_path, name, text, problem):
    file = tmp_path / name
    file.write_text(text)
    assert problem in refused("risk", file)


SWEEP = {
    "name": "few",
    "seed": 1,
    "mechanism": {
        "name": "landscape",
        "steps": 1,
        "batch_size": 1,
        "noise_multiplier": 1.0,
        "clip_norm": 1.0,
        "gradient": "constant",
    },
    "adversary": {"name": "landscape"},
    "audit": {"trials": 200, "delta": 1e-5},
}


def test_a_run_has_the_risks_of_its_claim_and_of_its_measured_epsilon(tmp_path):
    inline(write_sweep(tmp_path, SWEEP), tmp_path)
    run = tmp_path / "few"
    found = json.loads(completed(dpaudit("risk", run, "--json")).out)
    (risks,) = found.values()
    assert risks["claimed"]["accuracy"] == pytest.approx(
        float(gdp.delta(0.0, 1.0) + 1) / 2, abs=1e-3
    )
    measured = json.loads(dpaudit("verify", run, "--json").out)["audits"][0]["quote"]["epsilon"]
    odds = math.exp(measured)
    assert risks["measured"]["beliefs"]["0.5"] == pytest.approx(odds / (1 + odds))

    picture = tmp_path / "risk.png"
    shown = completed(dpaudit("risk", run, "--figure", picture))
    assert "no smaller ε holds for the mechanism" in " ".join(shown.out.split())
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_each_audit_of_a_run_has_its_risks_and_no_common_figure(tmp_path):
    grid = {"mechanism.noise_multiplier": [1.0, 2.0]}
    inline(write_sweep(tmp_path, {**SWEEP, "grid": grid}), tmp_path)
    found = json.loads(completed(dpaudit("risk", tmp_path / "few", "--json")).out)
    first, second = (risks["claimed"]["accuracy"] for risks in found.values())
    assert first > second
    problem = refused("risk", tmp_path / "few", "--figure", tmp_path / "risk.png")
    assert "--figure: draws one audit, but" in problem
