"""Pairs that share their noise: the bound by its loop, its level, and what it shows.

Errors of a bound are counted over 200 audits at 5 %: more than 21 have a chance of 1e-3.
"""

import math

import numpy as np
import pytest
from scipy import special

from dpaudit_ray import stats
from dpaudit_ray.stats import e_process, gdp
from dpaudit_ray.stats.claim_verdict import RunTest
from dpaudit_ray.stats.curve import Curve
from dpaudit_ray.stats.paired import PairOutcomes

DELTA = 1e-5
LEVEL = {"delta": DELTA, "confidence": 0.95}
MAPS = {"-exp(-2z)": lambda z: -np.exp(-2 * z), "reversed": lambda z: -z}


def pairs(rng, number, mu, shared=1.0, each=1):
    """Gaussian scores and opposite bits, [number * 2 * each]; `shared` of their variance."""
    first = rng.random((number, 1, each)) < 0.5
    bits = np.concatenate([first, ~first], axis=1)
    own = rng.normal(size=bits.shape)
    common = np.broadcast_to(rng.normal(size=first.shape), bits.shape)
    noise = math.sqrt(shared) * common + math.sqrt(1 - shared) * own
    return (noise + mu * bits).ravel(), bits.ravel()


def lower(scores, members, each=1, curve="gaussian"):
    runs = np.arange(len(scores)) // (2 * each)
    found = stats.estimate(scores, members, **LEVEL, method="paired", runs=runs, curve=curve)
    return found.epsilon_lower


@pytest.mark.parametrize("each", [1, 3])
def test_outcomes_by_their_loop(each):
    """Rank by rank, with scores that tie, are reversed and diverge."""
    rng = np.random.default_rng(each)
    scores, members = pairs(rng, 180 // each, 1.5, 0.6, each)
    scores = -np.round(scores, 1)
    scores[rng.random(len(scores)) < np.where(members, 0.1, 0.02)] = np.nan
    state, size, seen = PairOutcomes(2 * each), 2 * each, 0
    state.fold(scores, members)
    shares, due = [], math.ceil(20 / size) * size
    for first in range(0, len(scores), size):
        if first == due:
            seen, due = first, 2 * due
        if not seen:
            continue
        worlds = [
            [s for s, m in zip(scores[:seen], members[:seen], strict=True) if m == w]
            for w in (1, 0)
        ]
        lost = [sum(math.isnan(s) for s in world) for world in worlds]

        def ramp(score, worlds=worlds, lost=lost):
            if math.isnan(score):
                return 0.5 + 0.5 * np.sign(lost[0] - lost[1])
            place = 0.0
            for world in worlds:
                finite = [s for s in world if not math.isnan(s)]
                below = sum(s < score for s in finite) + sum(s <= score for s in finite)
                place += float(special.ndtri((below + 1) / (2 * len(finite) + 2))) / 2
            return min(max(0.5 + place / 0.75, 0.0), 1.0)

        def right(score, member, flip):
            phi = ramp(score)
            phi = 1 - phi if flip and not math.isnan(score) else phi
            return phi if member else 1 - phi

        finite = [
            right(s, m, False)
            for s, m in zip(scores[:seen], members[:seen], strict=True)
            if not math.isnan(s)
        ]
        flip = np.mean(finite) < 0.5
        here = slice(first, first + size)
        shares.append(
            np.mean([right(s, m, flip) for s, m in zip(scores[here], members[here], strict=True)])
        )
    np.testing.assert_allclose(state.outcomes(), shares, atol=1e-12)
    assert state.skipped * size == math.ceil(20 / size) * size


@pytest.mark.parametrize(("epsilon", "least"), [(0.5, 0.35), (1.0, 0.75), (2.0, 1.55)])
def test_what_a_thousand_trainings_show(epsilon, least):
    """Of 100 audits of 500 pairs the means are .368, .784 and 1.605, give or take .003 to .012."""
    mu, rng = gdp.mu(epsilon, DELTA), np.random.default_rng(3)
    assert np.mean([lower(*pairs(rng, 500, mu)) for _ in range(25)]) >= least


@pytest.mark.parametrize(
    ("shared", "tails"), [(1.0, "gaussian"), (0.5, "gaussian"), (0.0, "gaussian"), (0.5, "cauchy")]
)
def test_level(shared, tails):
    """Randomised response at ε = 1 beside noise that is shared, or Gaussian at its worst case."""
    rng, wrong = np.random.default_rng(4), 0
    mu = 0.8
    for _ in range(200):
        scores, members = pairs(rng, 150, mu, shared)
        if tails == "cauchy":  # a map that is not monotone shows less, never more
            scores = np.tan(scores)
        wrong += lower(scores, members) > gdp.epsilon(mu, DELTA)
    assert wrong <= 21


def test_level_at_the_best_look():
    """The bound of 100 pairs, read after every twentieth of them: its largest value counts."""
    rng, wrong, mu = np.random.default_rng(5), 0, 0.8
    limit = gdp.epsilon(mu, DELTA)
    for _ in range(200):
        scores, members = pairs(rng, 100, mu)
        state, best = stats.make("paired", 200), 0.0
        for first in range(0, 200, 40):
            state.fold(scores[first : first + 40], members[first : first + 40])
            best = max(best, state.bound(**LEVEL).epsilon_lower)
        wrong += best > limit
    assert wrong <= 21


@pytest.mark.parametrize("each", [1, 4])
@pytest.mark.parametrize("mapped", MAPS)
def test_scores_are_read_by_their_order(mapped, each):
    scores, members = pairs(np.random.default_rng(6), 400, 1.2, 0.9, each)
    plain, other = lower(scores, members, each), lower(MAPS[mapped](scores), members, each)
    assert plain > 1.5
    assert other == pytest.approx(plain, rel=1e-9 if mapped != "reversed" else 0.02)


@pytest.mark.parametrize("size", [1, 7, 64, 300])
def test_any_split_gives_the_same_bound(size):
    scores, members = pairs(np.random.default_rng(7), 150, 1.0)
    whole, parts = stats.make("paired", 300), stats.make("paired", 300)
    whole.fold(scores, members)
    for first in range(0, 300, size):
        parts.fold(scores[first : first + size], members[first : first + size])
    assert parts.bound(**LEVEL) == whole.bound(**LEVEL)


def test_a_pair_without_output_counts_as_wrong():
    scores, members = pairs(np.random.default_rng(8), 300, 1.5)
    state, clean = stats.make("paired", 600), lower(scores, members)
    for first in range(0, 600, 2):
        part = slice(first, first + 2)
        if first % 20 == 0:
            state.miss(members[part])
        else:
            state.fold(scores[part], members[part])
    assert 0 < state.bound(**LEVEL).epsilon_lower < clean


def test_a_world_that_always_diverges_is_a_leak():
    _, members = pairs(np.random.default_rng(9), 300, 0.0)
    for world in (True, False):
        assert lower(np.where(members == world, np.nan, 0.0), members, curve="any") > 2


def test_bits_that_are_no_pairs_are_refused():
    scores, members = pairs(np.random.default_rng(10), 50, 1.0)
    members[0] = ~members[0]
    with pytest.raises(ValueError, match="each canary must be in one training of its pair"):
        lower(scores, members)
    with pytest.raises(ValueError, match="even number of trials, got 3"):
        PairOutcomes(3)


def test_a_claim_is_held_against_pairs():
    epsilons = np.linspace(0.0, 12.0, 61)
    scores, members = pairs(np.random.default_rng(11), 500, 1.0)
    for claimed, refuted in ((0.7, True), (1.0, False)):
        curve = Curve(epsilons, np.asarray(gdp.delta(epsilons, claimed)))
        test = RunTest(curve, 1000, 2, in_pairs=True)
        test.fold(scores, members)
        test.look(now=True)
        assert (test.refuted_after(0.05) is not None) == refuted


def test_the_mean_of_outcomes_is_at_most_the_best_accuracy():
    """For any ramp: the expectation over 200,000 pairs, within four standard errors."""
    scores, members = pairs(np.random.default_rng(12), 200_000, 1.0, 0.5)
    state = PairOutcomes(2)
    state.fold(scores, members)
    outcomes = state.outcomes()
    error = outcomes.std() / math.sqrt(len(outcomes))
    assert outcomes.mean() <= special.ndtr(0.5) + 4 * error
    assert e_process.mean_lower(outcomes, 0.05) > 0.66
