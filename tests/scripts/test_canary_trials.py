"""Steps and whole runs as trials: scores, and what the test says of them."""

import dataclasses
import math
import re

import numpy as np
import pytest

from dpaudit_ray.scripts import canary_trials
from dpaudit_ray.scripts.protocol import Claim, Trial
from dpaudit_ray.scripts.script_findings import ALPHA, Weight

DELTAS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
# 100 steps at a noise multiplier of 1 and a rate of 0.02, as Opacus' PRV accountant has them.
HISTORY = ((1.0, 0.02, 100),)
CLAIM = Claim("prv", HISTORY, DELTAS, (0.02, 0.31, 0.66, 1.0, 1.37))


def trial(score: float, noise: float, rate: float) -> Trial:
    return Trial(member=False, score=score, noise=noise, rate=rate)


def steps(noise: float, count: int, seed: int) -> canary_trials.CanaryTrials:
    """Trials of steps whose noise is this, where 1 is promised."""
    rng = np.random.default_rng(seed)
    layer = canary_trials.step_trials(1.0, count)
    for _ in range(count // 100):
        members = rng.random(100) < 0.5
        scores = rng.normal(size=100) * noise + members
        layer.fold([float(x) for x in scores], [bool(x) for x in members])
    return layer


def test_trials_as_they_should_be():
    """40 audits at a level of 0.02: four alarms or more come once in 150 such tests."""
    assert sum(bool(steps(1.0, 300, seed).judge(300).findings) for seed in range(40)) <= 3
    # Gaussian noise is not all that the claim of a run allows.
    assert sum(bool(runs(12, 1.0, seed).judge(12).findings) for seed in range(40)) <= 3


@pytest.mark.parametrize("noise", [0.5, 1.0])
def test_what_is_measured_is_above_the_claim_where_that_is_refuted(noise):
    """Verdict and bound are one test, so that they have one error."""
    layer = steps(noise, 400, seed=1)
    kinds = [(f.layer, f.weight, f.seen[:40]) for f in layer.judge(300).findings]
    told = (1, Weight.VIOLATION, "too many correct guesses: refuted after ")
    assert kinds == ([told] if noise < 1 else [])
    measured = layer.measured(2.3, 1e-5)
    assert measured.claimed == pytest.approx(4.377, abs=1e-3)  # of one Gaussian step
    assert (measured.epsilon > measured.claimed) is (layer.refuted is not None) is (noise < 1)
    assert measured.epsilon > 1


def perfect(layer: canary_trials.CanaryTrials) -> canary_trials.CanaryTrials:
    """With as many runs as it plans, all of them guessed right."""
    for number in range(layer.planned):
        layer.fold([float(number % 2)], [bool(number % 2)])
    return layer


def test_what_is_measured_of_runs():
    """Fourteen right guesses of fourteen show an ε of 1 at this level; an ε nobody claims, none."""
    layer = perfect(canary_trials.run_trials((CLAIM,), 14))
    measured = layer.measured(1.37, 1e-5)
    # All right with a chance of (e^ε / (1 + e^ε))^14 at most: 0.02 at ε = 1.13.
    assert 0.7 < measured.epsilon < 1.14
    assert (measured.claimed, measured.assumes) == (1.37, "nothing")
    assert layer.measured(math.nan, 1e-5) is None


def test_bounds_of_runs_are_rarely_above_the_truth():
    """Randomised response with ε = 1, its bits as scores; bounds have an error of 0.02.

    At that error, more than 5 of 100 would be wrong with 1.5 % of the seeds.
    """
    rng = np.random.default_rng(1)
    claim = dataclasses.replace(CLAIM, deltas=(1e-5,), epsilons=(1.5,))
    wrong = 0
    for _ in range(100):
        layer = canary_trials.run_trials((claim,), 60)
        members = rng.random(60) < 0.5
        answers = members ^ (rng.random(60) > 1 / (1 + math.exp(-1)))
        layer.fold(list(answers + rng.random(60) / 100), list(members))
        wrong += layer.measured(1.5, 1e-5).epsilon > 1
    assert wrong <= 5


def test_too_few_steps_are_not_complete():
    judged = steps(1.0, 100, seed=0).judge(300)
    words = r"100 steps, \d\d with the canary: no evidence against "
    words += "a noise multiplier of 1; "
    assert re.fullmatch(words + "300 would detect 0.7 times the noise", judged.looks[0].said)
    assert not judged.complete


def test_steps_without_an_outcome_count_as_wrong_guesses():
    layer = canary_trials.step_trials(1.0, 20)
    for _ in range(20):
        layer.miss(True)
    assert layer.count == 20
    assert not layer.judge(20).findings


def test_how_many_steps_are_needed():
    """More noise hides a canary better (at 8, 12,975 are needed)."""
    assert (canary_trials.steps_needed(0.6), canary_trials.steps_needed(1.0)) == (225, 338)


def test_the_score_of_a_run_is_the_logarithm_of_its_likelihood_ratio():
    rows = [trial(score, 1.5, 0.1) for score in (-1.0, 0.3, 2.5)]
    ratio = 1.0
    for one in rows:
        without = math.exp(-(one.score**2) / (2 * 1.5**2))
        with_it = math.exp(-((one.score - 1) ** 2) / (2 * 1.5**2))
        ratio *= 0.9 + 0.1 * with_it / without
    assert canary_trials.run_score(rows) == pytest.approx(math.log(ratio))
    always = trial(0.9, 0.8, 1.0)
    assert canary_trials.run_score([always]) == pytest.approx((2 * 0.9 - 1) / (2 * 0.8**2))
    # Without clipping, a canary is a thousand times too long.
    far = [trial(score, 0.5, 0.02) for score in (1e3, -1e3)]
    assert math.isfinite(canary_trials.run_score(far))


def runs(count: int, apart: float, seed: int) -> canary_trials.CanaryTrials:
    """Whole runs of 100 steps whose canary shows `apart` times as much as it may."""
    rng = np.random.default_rng(seed)
    layer = canary_trials.run_trials((CLAIM,), count)
    assert layer is not None
    for _ in range(count):
        member = bool(rng.random() < 0.5)
        drawn = member & (rng.random(100) < 0.02)
        scores = rng.normal(size=100) + apart * drawn
        rows = [trial(float(score), 1.0, 0.02) for score in scores]
        layer.fold([canary_trials.run_score(rows)], [member])
    return layer


def test_runs_that_give_the_canary_away():
    needed = canary_trials.runs_needed(runs(1, 1.0, 0).curve)
    assert 5 <= needed <= 30
    (one,) = runs(4 * needed, 50.0, seed=1).judge(needed).findings
    assert (one.layer, one.weight) == (2, Weight.VIOLATION)
    assert "ε = 0.31 at δ = 0.01" in one.expected


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_perfect_guesses_of_as_many_runs_as_needed_refute(epsilon):
    claims = (Claim("prv", HISTORY, (1e-5,), (epsilon,)),)
    needed = canary_trials.runs_needed(canary_trials.run_trials(claims, 10).curve)
    assert perfect(canary_trials.run_trials(claims, needed)).judge(needed).findings
    # Half as many cannot: their chance under the claim is more than the level.
    chance = (math.exp(epsilon) / (1 + math.exp(epsilon))) ** (needed // 2)
    assert chance > ALPHA[2]


def test_claims_of_several_accountants():
    """Those of the same records add up; of other records the largest counts."""
    layer = canary_trials.run_trials((CLAIM, CLAIM), 10)
    assert list(layer.curve.epsilons) == [2 * e for e in CLAIM.epsilons]
    assert list(layer.curve.deltas) == [2 * d for d in CLAIM.deltas]
    others = Claim("prv", HISTORY, DELTAS, (0.01, 0.2, 0.5, 0.9, 1.5), data=1)
    layer = canary_trials.run_trials((CLAIM, others), 10)
    assert list(layer.curve.epsilons) == [0.02, 0.31, 0.66, 1.0, 1.5]
    assert list(layer.curve.deltas) == list(DELTAS)
    assert canary_trials.run_trials((), 10) is None
    unknown = Claim("custom", HISTORY, (1e-5,), (None,))
    assert canary_trials.run_trials((unknown,), 10) is None
