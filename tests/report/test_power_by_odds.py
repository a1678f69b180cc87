"""Power of audits whose scores are log odds: said against found, where few outputs reveal much."""

import numpy as np
import pytest

import dpaudit_ray as da
from dpaudit_ray.report import detection
from dpaudit_ray.stats.claim_verdict import ClaimTest
from dpaudit_ray.stats.curve import Curve
from tests.long import long

INFORMATIVE = 0.3  # share of outputs that differ between the inputs
CLAIM = Curve(np.array([1.0]), np.array([0.0]))


def audit(trials: int, epsilon: float, seed: int, sharpness: float = 1.0) -> ClaimTest:
    """An audit of randomised answers that most people do not give."""
    rng = np.random.default_rng(seed)
    members = rng.random(trials) < 0.5
    is_informative = rng.random(trials) < INFORMATIVE
    is_right = rng.random(trials) < 1 / (1 + np.exp(-epsilon))
    signs = np.where(members == is_right, 1.0, -1.0)
    test = ClaimTest(CLAIM, trials, log_odds=True, delta=0.0)
    test.fold(signs * is_informative * epsilon * sharpness, members)
    test.look(now=True)
    return test


def test_audit_of_rare_but_sure_answers_has_power():
    """The rate of right guesses is .57, as of a claim of 0.3: that said 0 %."""
    assert detection.chance_to_refute(audit(4000, 1.0, seed=1), 0.05) == 1.0


def test_loose_claim_and_uninformative_scores_have_no_power():
    assert detection.chance_to_refute(audit(4000, 0.5, seed=1), 0.05) == 0.0
    reversed_scores = audit(4000, 1.0, seed=1, sharpness=-1.0)
    assert len(reversed_scores.fitted_odds()) == 0
    assert detection.chance_to_refute(reversed_scores, 0.05) == 0.0


def test_scores_that_are_too_sure_are_fitted():
    odds = audit(20_000, 1.0, seed=2, sharpness=3.0).fitted_odds()
    assert np.abs(odds).max() == pytest.approx(1.0, abs=0.1)


@long("two hundred audits are simulated fifty times")
@pytest.mark.parametrize("trials", [800, 1200])
def test_said_power_is_the_share_found(trials, monkeypatch):
    """Differences were up to .01; the share found has a standard error of .05."""
    monkeypatch.setattr(detection, "SIMULATIONS", 50)
    said = np.mean(
        [detection.chance_to_refute(audit(trials, 1.0, seed), 0.05) for seed in range(4)]
    )
    weaker = 1 / detection.ALTERNATIVE
    tests = (audit(trials, weaker, seed) for seed in range(100, 200))
    found = np.mean([test.refuted_after(0.05) is not None for test in tests])
    assert 0.05 < found < 0.999
    assert said == pytest.approx(found, abs=0.2)


def test_healthy_local_randomiser_is_consistent(tmp_path):
    def two_bits(value, rng, n):
        bits = np.arange(4) == value
        flips = rng.random((n, 4)) < 1 / (1 + np.exp(0.5))
        return bits ^ flips

    result = da.audit(
        two_bits, pairs=[(0, 1)], claim={"epsilon": 1}, trials=10_000, storage_path=tmp_path
    )
    assert result.verdict() == "CONSISTENT", result.answer.sentence


def test_long_audit_is_simulated_with_no_more_trials_than_its_power_takes(monkeypatch):
    simulated = []

    def recorded(test, odds, looks, trials, alpha, required=0.0):
        simulated.append(trials)
        return share(test, odds, looks, trials, alpha, required)

    share = detection._share_by_odds
    monkeypatch.setattr(detection, "_share_by_odds", recorded)
    monkeypatch.setattr(f"{__name__}.INFORMATIVE", 0.01)
    assert detection.chance_to_refute(audit(1_000_000, 1.0, seed=1), 0.05) == 1.0
    assert simulated == [2_000, 20_000, 200_000]
