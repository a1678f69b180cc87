"""Shuffled trainings that are reported as Poisson-sampled: more is certified than is reported."""

import math

import numpy as np
import pytest
from scipy import stats as distributions

import dpaudit_ray as da
from jobs.annamalai2024 import shuffled


def test_the_likelihood_ratio_is_that_of_all_places():
    """Against densities, place by place."""
    rng = np.random.default_rng(0)
    for noise in (0.5, 1.0):
        sums = rng.normal(scale=noise, size=7)

        def density(moved, sums=sums, noise=noise):
            places = moved * np.eye(len(sums))
            return distributions.norm.pdf(sums, places, noise).prod(axis=1).mean()

        expected = math.log(density(2.0) / density(1.0))
        assert shuffled.likelihood_ratio(sums, noise) == pytest.approx(expected)


@pytest.mark.parametrize("member", [True, False])
def test_a_trained_layer_shows_the_mechanism(member):
    """300 scores of each are of one distribution, at a level of 1 in 1000; the seeds are fixed."""
    drawn = [
        [release(member, seed, 20, 0.6) for seed in range(300)]
        for release in (shuffled.batched_gaussian, shuffled.trained)
    ]
    assert distributions.ks_2samp(*drawn).pvalue > 1e-3


def test_more_is_certified_than_is_reported(tmp_path):
    """σ = 0.8, 1000 batches: ε = 0.304 is reported, and 2000 trials certify 0.574."""
    noise, batches = 0.8, 1000
    sweep = {
        "name": "reported", "seed": 0, "adversary": "own",
        "mechanism": {
            "name": "function", "path": "jobs.annamalai2024.shuffled:batched_gaussian",
            "options": {"batches": batches, "noise": noise}, "steps": batches,
            "noise_multiplier": noise, "sample_rate": 1 / batches, "isolated": False,
        },
        "audit": {"trials": 2000, "estimators": ["one-run"], "accountants": ["pld"], "delta": 1e-5},
    }  # fmt: skip
    run = da.run(sweep, storage_path=str(tmp_path), executor="inline")
    (bound,), (claim,) = run.estimates.epsilon_lower, run.estimates.claim_pld
    assert bound > 1.5 * claim > 0.45
