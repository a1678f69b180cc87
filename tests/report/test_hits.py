"""Hit rates in the report: the estimator's own count, with an interval and the claim's limit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special

from dpaudit_ray import accounting
from dpaudit_ray.plan.prefix import Trials
from dpaudit_ray.report.hits import HitRate
from dpaudit_ray.stats.guess_count_bound import GuessCounter


def trials(n: int, mu: float, missed: float = 0.0) -> Trials:
    rng = np.random.default_rng(1)
    members = rng.random(n) < 0.5
    lost = rng.random(n) < missed
    scores = np.where(lost, math.nan, rng.normal(size=n) + mu * members)[:, None]
    return Trials((1,), members, scores, lost, {})


def test_a_perfect_attack_on_a_gaussian_reaches_the_limit() -> None:
    """Its rate Φ(μ/2) is (1 + δ(0)) / 2 of the Gaussian curve. Fixed seed; misses 1 time in 20."""
    mu = 1.0
    most = (1 + accounting.delta_of(accounting.Training(1 / mu, 1), 0.0).upper) / 2
    assert most == pytest.approx(special.ndtr(mu / 2), abs=1e-6)
    found = HitRate.of(trials(20_000, mu), 0.95, most)
    assert found.low < most < found.high
    assert found.rate == pytest.approx(most, abs=0.01)


def test_missed_trials_are_wrong_guesses_in_their_place() -> None:
    """As the estimator folds them, one by one."""
    known = trials(300, 2.0, missed=0.1)
    counter = GuessCounter()
    for missed, score, member in zip(known.missed, known.scores[:, 0], known.members, strict=True):
        if missed:
            counter.miss(1)
        else:
            counter.fold(np.array([score]), np.array([member]))
    found = HitRate.of(known, 0.95, math.nan)
    assert (found.hits, found.guesses) == (counter.hits, counter.guesses)
    assert HitRate.of(trials(5, 1.0), 0.95, math.nan) is None
