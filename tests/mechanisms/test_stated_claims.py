"""A function whose claim is stated: ε, (ε, δ), ρ, μ, Laplace noise, points and losses."""

from typing import Any

import numpy as np
import pytest

from tests.command import changed, completed, dpaudit, inline, refused, write_sweep


def count(member: bool, seed: int, scale: float = 1.0) -> float:
    """A count with Laplace noise: its ε is 1 / scale."""
    return member + np.random.default_rng(seed).laplace(0, scale)


def response(member: bool, seed: int, right: float = 0.731) -> float:
    """A randomised response, by default of ε = 1."""
    is_right = np.random.default_rng(seed).random() < right
    return float(member == is_right)


def sweep(claim: Any, delta: float = 0, path: str = "count", **mechanism: Any) -> dict[str, Any]:
    stated = {"name": "function", "path": f"tests.mechanisms.test_stated_claims:{path}"}
    return {
        "name": "stated",
        "seed": 1,
        "mechanism": {**stated, "isolated": False, "claim": claim, **mechanism},
        "adversary": {"name": "own"},
        "audit": {"trials": 4000, "delta": delta},
    }


TRUE = {
    "pure": ({"epsilon": 1}, 0),
    "approximate": ({"epsilon": 1, "delta": 1e-6}, 1e-6),
    "zero-concentrated": ({"rho": 0.5}, 1e-6),
    "laplace": ({"laplace": 1.0}, 0),
    "points": ({"points": [[1, 1e-5], [1.2, 0]]}, 0),
}


@pytest.mark.parametrize(("claim", "delta"), TRUE.values(), ids=TRUE)
def test_a_true_claim_is_not_refuted_and_approached(tmp_path, claim, delta):
    done = inline(write_sweep(tmp_path, sweep(claim, delta)), tmp_path / "runs")
    completed(done)
    assert "no violation found" in done.out
    bound = float(done.out.split("Measured ε ≥ ")[1].split()[0])
    assert 0.7 < bound < 1, "of ε = 1 in truth"
    checked = dpaudit("check", tmp_path / "runs" / "stated")
    assert checked.code == 0, checked


def test_a_pure_claim_is_judged_without_any_delta(tmp_path):
    done = inline(write_sweep(tmp_path, sweep({"epsilon": 1})), tmp_path / "runs")
    assert "CONSISTENT: no violation found" in done.out
    assert "(δ = 0, 95 %,\n  assumption-free)" in done.out
    assert "claims by stated" in done.out


@pytest.mark.parametrize("path", ["count", "response"])
def test_a_broken_promise_is_a_violation_in_the_words_of_the_claim(tmp_path, path):
    options = {"count": {"scale": 0.6}, "response": {"right": 0.83}}[path]
    raw = sweep({"epsilon": 1}, path=path, options=options)
    done = inline(write_sweep(tmp_path, raw), tmp_path / "runs")
    assert "VIOLATION: the claim is refuted after" in done.out
    assert ", above the claimed 1.000 (δ = 0" in " ".join(done.out.split())
    assert dpaudit("verify", tmp_path / "runs" / "stated").code == 1


def test_an_epsilon_that_is_stated_as_gaussian_releases_is_told_apart(tmp_path):
    """Laplace noise of ε = 1 is no Gaussian of ε = 1 at 1e-5, and promises none."""
    raw = sweep(None, 1e-5, noise_multiplier=3.7306, steps=1)
    done = inline(write_sweep(tmp_path, raw), tmp_path / "runs")
    words = " ".join(done.out.split())
    assert "as Gaussian releases, the claim is refuted (its ε = 1 at δ = 1e-5" in words
    assert "if you claim only its ε, state it: `mechanism.claim: {epsilon: 1" in words


REFUSED = {
    "two claims": (sweep({"epsilon": 1}, steps=2), "mechanism.steps: is of Gaussian releases"),
    "no claim": (sweep(None), "mechanism.steps: is required, or `claim` in its place"),
    "no epsilon": (sweep({"rho": 0.1}), "audit.delta: is 0, where ρ = 0.1 claims no ε"),
    "smaller delta": (sweep({"epsilon": 1, "delta": 1e-5}, 1e-6), "audit.delta: is 1e-6, where"),
    "gaussian at 0": (
        sweep(None, noise_multiplier=1.0, steps=1),
        "audit.delta: is 0, where Gaussian noise claims no ε",
    ),
}


@pytest.mark.parametrize(("raw", "problem"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_claimed_is_refused_in_a_line(tmp_path, raw, problem):
    assert problem in refused("plan", write_sweep(tmp_path, raw))


def test_estimators_and_accountants_of_other_claims_are_refused(tmp_path):
    raw = sweep({"epsilon": 1})
    raw["audit"]["estimators"] = ["accuracy"]
    assert "use one-run, eps-delta" in refused("plan", write_sweep(tmp_path, raw))
    raw = sweep({"epsilon": 1}, 1e-6)
    raw["audit"]["accountants"] = ["pld"]
    problem = "audit.accountants: is pld, but the mechanism states its claim, ε = 1; leave it out"
    assert problem in refused("plan", write_sweep(tmp_path, raw))


def test_a_plan_forecasts_what_the_claim_allows(tmp_path):
    planned = dpaudit("plan", write_sweep(tmp_path, sweep({"epsilon": 1})))
    assert planned.code == 0, planned
    assert "claim 1.000" in planned.out or " 1.000 " in planned.out


def test_a_stated_claim_stops_a_run_by_its_verdict(tmp_path):
    raw = sweep({"epsilon": 1}, options={"scale": 0.5})
    raw["audit"]["stop_when"] = {"verdict": True}
    done = inline(write_sweep(tmp_path, raw), tmp_path / "runs")
    assert "VIOLATION" in done.out
    assert "of 4,000 trials" in done.out


def test_gaussian_releases_may_be_stated_as_a_claim(tmp_path):
    """ε of one release with noise 1 at δ = 1e-5 is 4.377 (Balle, Wang 2018)."""
    raw = sweep({"noise_multiplier": 1.0, "steps": 1}, 1e-5)
    planned = dpaudit("plan", write_sweep(tmp_path, raw))
    assert " 4.377 " in planned.out, planned


def test_what_a_claim_protects_is_in_the_words_of_the_verdict(tmp_path):
    claim = {"epsilon": 1, "unit": "user"}
    few = changed(sweep(claim), "audit.trials", 400)
    done = inline(write_sweep(tmp_path, few), tmp_path / "runs")
    run = tmp_path / "runs" / "stated"
    assert "The claim is for each user." in " ".join(completed(done).out.split())
    completed(dpaudit("report", run))
    assert "The claim is for each user." in (run / "report.html").read_text()
    risk = completed(dpaudit("risk", run, "--trust", "tests")).out
    assert "who knows all other users and" in " ".join(risk.split())
    assert completed(dpaudit("check", run, "--trust", "tests"))
