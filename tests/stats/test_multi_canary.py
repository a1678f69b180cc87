"""Several canaries in a training: what their scores may and may not be taken for."""

import math

import numpy as np
import pytest
from scipy import special

from dpaudit_ray import stats
from dpaudit_ray.stats import Status, curve, e_process, gdp
from dpaudit_ray.stats.claim_verdict import ClaimTest, RunTest, largest_accuracy
from tests.long import LONG
from tests.stats.reference import several_canaries

approx = pytest.approx

LEVEL = {"delta": 1e-5, "confidence": 0.95}
MU = 1.0
CANARIES = 20


def alike(rng: np.random.Generator, runs: int, mu: float = MU) -> tuple[np.ndarray, np.ndarray]:
    """All canaries of a run are the same one: they share the noise, and so their luck."""
    bits = rng.random((runs, CANARIES)) < 0.5
    hit = rng.random((runs, 1)) < special.ndtr(mu / 2)
    return np.where(bits == hit, 1.0, -1.0).ravel(), bits.ravel()


def test_canaries_that_are_all_the_same_keep_the_level_by_run_and_not_pooled():
    """1000 audits of 100 runs (DPAUDIT_LONG; else 200). At 5 %, more than 85 errors of 1000 come
    once in a million; a pooled bound errs in about four of ten, and is asked about before."""
    rng, audits = np.random.default_rng(1), 1000 if LONG else 200
    by_run = pooled = 0
    for _ in range(audits):
        scores, bits = alike(rng, 100)
        runs = np.repeat(np.arange(100), CANARIES)
        found = stats.estimate(scores, bits, **LEVEL, method="several-canaries", runs=runs)
        by_run += found.mu_lower > MU
        with pytest.raises(ValueError, match="pass runs=, which training run each score came from"):
            stats.estimate(scores, bits, **LEVEL)
        said = stats.estimate(scores, bits, **LEVEL, runs=np.arange(len(scores)))
        pooled += said.mu_lower > MU
    assert by_run <= 0.085 * audits
    assert pooled >= 0.2 * audits


def test_the_threshold_of_a_run_comes_from_runs_before_it():
    """By hand, run after run."""
    rng = np.random.default_rng(5)
    bits = rng.random((60, 4)) < 0.5
    scores = rng.normal(size=bits.shape) + bits
    shares = []
    for run in range(60):
        before, known = scores[:run].ravel(), bits[:run].ravel()
        if run * 4 < 20 or known.all() or not known.any():
            continue
        middle = (before[known].mean() + before[~known].mean()) / 2
        shares.append(((scores[run] > middle) == bits[run]).mean())
    rate = e_process.mean_lower(shares, 0.05)
    found = several_canaries(scores, bits)
    assert found.mu_lower == approx(2 * special.ndtri(rate), abs=1e-9)


def test_a_run_without_output_guessed_nothing():
    rng = np.random.default_rng(6)
    scores, bits = alike(rng, 80, 6.0)
    full, missed = (stats.make("several-canaries", 80, canaries=CANARIES) for _ in range(2))
    full.fold(scores, bits)
    missed.fold(scores[:1200], bits[:1200])
    missed.miss(bits[1200:1300])
    missed.fold(scores[1300:], bits[1300:])
    assert missed.bound(**LEVEL).mu_lower < full.bound(**LEVEL).mu_lower - 0.2
    assert missed.bound(**LEVEL).trials == 1600


def test_who_is_given_runs_wants_them_whole_and_in_order():
    scores, bits = alike(np.random.default_rng(7), 10)
    for runs in (np.arange(200) % 10, np.minimum(np.arange(200) // 20, 8)):
        with pytest.raises(ValueError, match="as many scores from every training run"):
            stats.estimate(scores, bits, **LEVEL, method="several-canaries", runs=runs)


def test_one_run_methods_take_several_trainings_of_several_canaries_as_one():
    """Together they are one mechanism of all bits, (ε, δ)-DP in each of them."""
    scores, bits = alike(np.random.default_rng(8), 40, 4.0)
    found = [
        stats.estimate(scores, bits, **LEVEL, method="one-run", runs=runs)
        for runs in (np.repeat(np.arange(40), CANARIES), np.zeros(800))
    ]
    assert found[0] == found[1]
    assert found[0].status is Status.CERTIFIED


def test_a_true_claim_stands_where_canaries_are_alike_and_a_pooled_test_refutes_it():
    """300 audits of 60 runs at 5 %: more than 30 alarms come once in 10,000 such tests."""
    rng = np.random.default_rng(9)
    alarms, pooled = 0, 0
    for number in range(300):
        scores, bits = alike(rng, 60)
        test = RunTest(curve.gaussian(MU), 1200, CANARIES)
        test.fold(scores, bits)
        test.look(now=True)
        alarms += test.refuted_after(0.05) is not None
        if number < 40:
            wrong = ClaimTest(curve.gaussian(MU), 1200)
            wrong.fold(scores, bits)
            wrong.look(now=True)
            pooled += wrong.refuted_after(0.05) is not None
    assert alarms <= 30
    assert pooled >= 8


def test_the_e_process_of_runs_has_all_of_the_error():
    """The bar is log(1 / .05); with .3 of the error it was log(1 / .015)."""
    rng = np.random.default_rng(12)
    test = RunTest(curve.gaussian(1.0), 1200, CANARIES)
    for _ in range(60):
        bits = rng.random(CANARIES) < 0.5
        test.fold(rng.normal(size=CANARIES) + 2.5 * bits, bits)
        test.look()
        if test.best >= math.log(1 / 0.05):
            break
    assert test.best < math.log(1 / 0.015)
    assert test.refuted_after(0.05) == test.trials
    bar = math.exp(-test.best)
    assert test.refuted_after(bar * 1.001) == test.trials
    assert test.refuted_after(bar * 0.999) is None
    # Its mean is refuted at the same level as the claim that has this mean.
    assert test.effective_noise(lambda noise: curve.gaussian(1 / noise), 1.0, 0.05) is not None


def test_a_false_claim_is_refuted_and_the_noise_found():
    rng = np.random.default_rng(10)
    bits = rng.random((400, CANARIES)) < 0.5
    scores = rng.normal(size=bits.shape) + 2.0 * bits
    test = RunTest(curve.gaussian(1.0), bits.size, CANARIES)
    for run in range(400):
        test.fold(scores[run], bits[run])
        test.look()
    after = test.refuted_after(0.05)
    assert after is not None
    assert after % CANARIES == 0
    assert after < 400 * CANARIES / 2
    noise = test.effective_noise(lambda noise: curve.gaussian(1 / noise), 1.0, 0.05)
    assert noise == approx(0.5, rel=0.15)
    assert noise > 0.5
    assert test.share_found(0.7, 0.05, 20) == 1.0


@pytest.mark.parametrize(
    ("mu", "right", "shares"),
    [(0.2, 0.5, [0, 0, 0]), (0.2, 0.6, [1.0, 0.54, 0.16]), (2.5, 1.0, [1, 1, 0])],
)
def test_imagined_audits_are_as_accurate_as_their_noise_makes_them(mu, right, shares):
    """Of 50 audits each, drawn by a fixed seed: worse than a coin, some right, and all right."""
    test, rng = RunTest(curve.gaussian(mu), 60 * CANARIES, CANARIES), np.random.default_rng(3)
    for _ in range(60):
        bits = rng.random(CANARIES) < 0.5
        test.fold(np.where(rng.random(CANARIES) < right, bits, ~bits) * 1.0, bits)
    assert [test.share_found(noise, 0.05, 50) for noise in (0.7, 1.0, 1.3)] == shares


def test_the_largest_accuracy_of_a_gaussian_claim_is_its_own():
    assert largest_accuracy(curve.gaussian(1.3)) == approx(float(special.ndtr(0.65)), rel=1e-6)
    epsilons = np.linspace(0, 5, 20)
    pure = curve.Curve(epsilons, np.asarray(gdp.delta(epsilons, 1.3)))
    assert largest_accuracy(pure) == approx(float(special.ndtr(0.65)), rel=1e-6)
