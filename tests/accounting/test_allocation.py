"""Balls and bins: the claim beside its slow twin, what it reaches, and where others answer."""

import numpy as np
import pytest
from scipy import special

from dpaudit_ray import accounting
from dpaudit_ray.accounting import Adjacency, Sampling, Training
from dpaudit_ray.mechanisms.base import Claimed
from dpaudit_ray.plan import claims
from dpaudit_ray.stats import gdp
from dpaudit_ray.stats.claim_verdict import ClaimTest
from tests.accounting.ask import bound, least_delta
from tests.long import long

BINS = {"sampling": "balls-and-bins"}


@pytest.mark.parametrize(
    ("noise", "steps", "rate", "most"),
    [
        (2.0, 50, 0.1, 1.50),
        pytest.param(0.5, 100, 0.01, 5.41, marks=long("a hundred batches take 10 s")),
    ],
)
def test_what_feldman_and_shenfeld_prove(noise, steps, rate, most):
    """Amplified: below the claim without, 4.98 and 10.0, and not below what they say is needed."""
    upper = bound(noise, steps, 1e-5, rate, "allocation", **BINS).upper
    assert 0.95 * most < upper <= most
    assert bound(noise, steps, 1e-5, rate, "gaussian", **BINS).upper > 1.8 * upper


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_one_epoch_by_drawing_it(epsilon):
    """δ of ten bins at σ = 1, by 400,000 draws of the record's bin, in either direction."""
    rng, bins, noise = np.random.default_rng(1), 10, 1.0
    without = noise * rng.normal(size=(400_000, bins))
    within = without.copy()
    within[np.arange(len(within)), rng.integers(bins, size=len(within))] += 1

    def loss(sums):
        each = sums / noise**2 - 1 / (2 * noise**2)
        return special.logsumexp(each, axis=1) - np.log(bins)

    upper = least_delta(noise, bins, epsilon, 1 / bins, "allocation", **BINS)
    gains = [
        np.maximum(1 - np.exp(epsilon - loss(within)), 0),
        np.maximum(1 - np.exp(epsilon + loss(without)), 0),
    ]
    deltas = [(gain.mean(), gain.std() / 400_000**0.5) for gain in gains]
    assert upper >= max(mean - 4 * error for mean, error in deltas)
    assert upper <= 1.1 * max(mean + 4 * error for mean, error in deltas)


@pytest.mark.parametrize(
    ("training", "other"),
    [
        (Training(2.0, 50, 0.1), "pld"),
        (Training(2.0, 5), "gaussian"),
        (Training(2.0, 50, 0.1, Adjacency.REPLACE, Sampling.BALLS_AND_BINS), "gaussian"),
        (Training(2.0, 60_000, 0.001, sampling=Sampling.BALLS_AND_BINS), "gaussian"),
        (Training(2.0, 50, 0.1, sampling=Sampling.SHUFFLE), "gaussian"),
    ],
)
def test_what_it_does_not_take_goes_to_another(training, other):
    answer = accounting.epsilon_of(training, 1e-5, "allocation")
    assert answer.upper == accounting.epsilon_of(training, 1e-5, other).upper
    assert (answer.accountant, "instead" in answer.note) == (other, True)


def test_a_training_between_both_claims_is_found():
    """ε = 3 in truth, where 1.47 is claimed by allocation, and 4.98 without amplification."""
    rng, claimed = np.random.default_rng(2), Claimed(2.0, 50, 0.1, Sampling.BALLS_AND_BINS)
    members = rng.random(2000) < 0.5
    scores = rng.normal(size=2000) + float(gdp.mu(3.0, 1e-5)) * members
    for accountant, refuted in (("allocation", True), ("gaussian", False)):
        test = ClaimTest(claims.curves(claimed, accountant, 1e-5)(2.0), 2000)
        test.fold(scores, members)
        test.look(now=True)
        assert (test.refuted_after(0.05) is not None) == refuted
