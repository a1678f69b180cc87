"""Any split of the stream gives the same bound, and at little cost."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from dpaudit_ray import stats
from dpaudit_ray.stats import e_process, guess_count_bound
from tests.costs import cost_of
from tests.stats.reference import SINGLE, gaussian_trials

EVERY = sorted(SINGLE)
OPTIONS = {
    "eps-delta": [{}, {"threshold": "holdout"}, {"threshold": "fixed", "value": 0.5}],
    "accuracy": [{}, {"curve": "any"}],
    "group-sequential": [{}, {"looks": 7, "spending": "pocock"}],
    "one-run": [{}, {"guesses": 100}, {"independent": True}, {"independent": True, "guesses": 100}],
    "one-run-fdp": [{}, {"independent": True}],
    "several-canaries": [{}, {"canaries": 3}, {"canaries": 20}],
}
SETTINGS = [
    pytest.param(name, options, id=f"{name}-{i}")
    for name in EVERY
    for i, options in enumerate(OPTIONS.get(name, [{}]))
]


def trials() -> tuple[np.ndarray, np.ndarray]:
    scores, members = gaussian_trials(np.random.default_rng(1), 1000, 1.5)
    scores[[3, 40, 41, 500]] = [np.nan, np.inf, -np.inf, np.nan]
    return scores + 1e6, members  # an offset shows sums that were taken in another order


@pytest.mark.parametrize(("name", "options"), SETTINGS)
@pytest.mark.parametrize("size", [1, 37])
def test_any_split_gives_the_same_bound(name, options, size):
    scores, members = trials()
    whole, split = (stats.make(name, 1000, **options) for _ in range(2))
    whole.fold(scores, members)
    for first in range(0, 1000, size):
        split.fold(scores[first : first + size], members[first : first + size])
        if first % 111 == 0:
            split.bound(1e-5, 0.9)  # looking changes nothing
    for level in ((1e-5, 0.95), (1e-3, 0.8)):
        found, expected = (dataclasses.astuple(state.bound(*level)) for state in (split, whole))
        np.testing.assert_equal(found, expected)
        assert split.bound(*level).trials == 1000


@pytest.mark.parametrize(("name", "options"), SETTINGS)
def test_every_prefix_has_an_estimate(name, options):
    scores, members = trials()
    state = stats.make(name, 1000, **options)
    for first, end in itertools.pairwise((0, 0, 1, 2, 3, 20, 41, 200)):
        state.fold(scores[first:end], members[first:end])
        found = state.bound(1e-5, 0.95)
        assert 0 <= found.epsilon_lower < math.inf
        assert end or found.epsilon_lower == 0
        assert found.trials == end


def test_an_anytime_bound_keeps_the_best_of_its_looks():
    """Its twin looks after every trial; the score of a look may miss the best one by a little."""
    rng = np.random.default_rng(3)
    members = rng.random(600) < 0.5
    scores = rng.normal(size=600) + np.where(np.arange(600) < 300, 2.0, 0.0) * members
    state, looks = stats.make("anytime", 600), []
    for i in range(600):
        state.fold(scores[i : i + 1], members[i : i + 1])
        looks.append(state.bound(1e-5, 0.95).epsilon_lower)
    assert looks == sorted(looks)
    fresh = [e_process.anytime_lower(h, n, 0.05) for h, n in guesses_after_each(scores, members)]
    kept = stats.gdp.mu(looks[-1], 1e-5)
    assert kept == pytest.approx(guess_count_bound.mu_from_accuracy(max(fresh)), abs=0.01)
    assert kept > guess_count_bound.mu_from_accuracy(fresh[-1]) + 0.2


def guesses_after_each(scores, members):
    counter = guess_count_bound.GuessCounter()
    for i in range(len(scores)):
        counter.fold(scores[i : i + 1], members[i : i + 1])
        yield counter.hits, counter.guesses


MANY_RUN = sorted(name for name, cls in SINGLE.items() if not cls.one_run)


@pytest.mark.parametrize("method", MANY_RUN)
def test_bound_after_a_pack_costs_little(method):
    """Some 20 ms: a call of a Python function takes a third of a microsecond."""
    scores, members = gaussian_trials(np.random.default_rng(2), 5000, 2.0)
    state = stats.make(method, 5000)
    costs = []
    for first in range(0, 4950, 50):
        state.fold(scores[first : first + 50], members[first : first + 50])
        if first % 450 == 0 and first >= 4000:
            costs.append(cost_of(lambda: state.bound(1e-5, 0.95)))
    assert max(cost.calls for cost in costs) < 60_000
    assert max(cost.peak_bytes for cost in costs) < 2**19


@pytest.mark.parametrize("method", MANY_RUN)
def test_million_scores_cost_as_many_calls_as_a_hundred_thousand(method):
    costs = []
    for trials in (100_000, 1_000_000):
        scores, members = gaussian_trials(np.random.default_rng(3), trials, 1.0)

        def estimate(scores=scores, members=members):
            state = stats.make(method, len(scores), canaries=100)  # where a method asks for them
            state.fold(scores, members)
            state.bound(1e-5, 0.95)

        costs.append(cost_of(estimate))
    few, many = costs
    assert many.calls < 1.5 * few.calls
    assert many.peak_bytes < 80 * 1_000_000  # `rank` takes 67, for normal scores of all
