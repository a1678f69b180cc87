"""Claims as mixtures of coins, the order of mistakes, and the bounds and tests made of it."""

import itertools
import math

import numpy as np
import pytest
from scipy import special

from dpaudit_ray import stats
from dpaudit_ray.stats import gdp, ranking
from dpaudit_ray.stats.curve import Curve, Responses, gaussian
from dpaudit_ray.stats.ranking import (
    Costs,
    Weights,
    distribution,
    from_median,
    ranked_mistakes,
    two_means,
)
from dpaudit_ray.stats.trial_log import Diverged
from tests.long import LONG, long, paired
from tests.stats.reference import drawn_costs, drawn_mistakes, gaussian_trials, randomised_response

approx = pytest.approx

LEVEL = {"delta": 1e-5, "confidence": 0.95}


CLAIMS = [
    gaussian(0.3),
    gaussian(4.0),
    Curve(np.array([1.0]), np.array([1e-3])),
    Curve(np.array([0.0, 1.0, 2.0]), np.array([0.4, 0.05, 1e-6])),
    Curve(np.array([2.0, 0.5, 0.5]), np.array([0.0, 0.2, 0.3])),
]
IDS = ["gaussian", "strong", "point", "three", "unsorted"]


def test_the_sum_of_two_costs_is_a_convolution():
    rng = np.random.default_rng(2)
    one, other = (Costs(first, rng.dirichlet(np.ones(n))) for first, n in ((3, 40), (5, 17)))
    both = one.plus(other)
    assert both.first == 8
    np.testing.assert_allclose(
        both.probabilities, np.convolve(one.probabilities, other.probabilities), atol=1e-15
    )


@pytest.mark.parametrize(
    ("n", "mu"), paired([50, 3000], [0.3, 1.0, 3.0], "another size has this μ")
)
def test_each_bound_on_mu_is_refuted_itself(n, mu):
    """Interpolated between refuted and other values, one in three bounds was not."""
    for seed in range(6):
        scores, members = gaussian_trials(np.random.default_rng(seed), n, mu)
        mistakes = ranked_mistakes(scores, members, mu / 2, Diverged())
        bound = ranking.mu_lower(mistakes, 0.05)
        if bound > 0:
            weights, costs = distribution(n, gaussian(bound))
            assert costs.at_most(weights.cost(mistakes)) < 0.05


def test_the_smallest_costs_and_those_below_rounding_are_dropped():
    kept = Costs(3, np.array([0.1, 0.2, 0.3, 0.4, 0.0, 0.0])).without_smallest(1)
    assert (kept.first, kept.probabilities.tolist()) == (4, [0.2, 0.3, 0.4])


def test_a_diverged_trial_that_tells_nothing_is_the_least_sure():
    """While both worlds diverge alike, any finite score says more."""
    scores, members = np.array([np.inf, 0.005]), np.array([False, True])
    assert ranked_mistakes(scores, members, 0.0, Diverged()).tolist() == [False, True]
    assert ranked_mistakes(scores, members, 0.0, Diverged(9, 1)).tolist() == [False, False]


@pytest.mark.parametrize("curve", CLAIMS, ids=IDS)
def test_a_claim_is_a_mixture_of_coins(curve):
    """δ at each claimed ε, computed from the coins, is what was claimed or implied by the rest."""
    coins = Responses.from_curve(curve)
    assert coins.shares.sum() == approx(1.0)
    assert coins.shares.min() >= 0
    for epsilon, delta in zip(curve.epsilons, curve.deltas, strict=True):
        excess = (1 - coins.mistakes) - math.exp(epsilon) * coins.mistakes
        found = float(coins.shares @ np.maximum(excess, 0.0))
        assert found <= delta + 1e-12
    # No point can be made smaller without another one: the first is met exactly where it binds.
    if len(curve.epsilons) > 10:
        assert found == approx(delta, rel=1e-6)


def test_a_gaussian_claim_errs_like_a_gaussian():
    for mu in (0.01, 1.0, 6.0):
        coins = Responses.from_curve(gaussian(mu))
        assert coins.shares @ coins.mistakes == approx(special.ndtr(-mu / 2), rel=1e-9)


def test_claims_that_no_number_can_hold():
    curves = Curve([800.0], [0.0]), Curve([0.0], [1.0]), *map(gaussian, (40.0, 500.0, 0.0))
    for curve in curves:
        assert Responses.from_curve(curve).shares.sum() == approx(1.0)
        for size in (50, 500):
            assert distribution(size, curve)[1].cumulative[-1] == approx(1.0)


@pytest.mark.parametrize("curve", CLAIMS, ids=IDS)
def test_the_distribution_of_costs_is_exact(curve):
    """Against every way in which five trials fall on levels and err."""
    curve = curve.thinned(5)
    coins, (weights, costs) = (Responses.from_curve(curve), distribution(5, curve))
    each = np.repeat(weights.costs, np.diff(weights.edges))
    chances = np.zeros(int(each.sum()) + 1)
    shares = coins.shares / coins.shares.sum()
    for levels in itertools.combinations_with_replacement(range(len(shares)), 5):
        ways = math.factorial(5)
        for level in set(levels):
            ways //= math.factorial(levels.count(level))
        rates = coins.mistakes[list(levels)]
        for wrong in itertools.product((0, 1), repeat=5):
            chance = ways * np.prod(shares[list(levels)])
            chances[int(each @ wrong)] += chance * np.prod(np.where(wrong, rates, 1 - rates))
    found = np.zeros(costs.first + len(costs.probabilities))
    found[costs.first :] = costs.probabilities
    # Rates of 1/2 are taken for 1/2 - 1e-6, which only makes small costs likelier.
    assert np.abs(found[: len(chances)] - chances).max() < 1e-5
    assert (found.cumsum()[: len(chances)] >= chances.cumsum() - 1e-13).all()


@pytest.mark.parametrize("mu", [0.005, 0.262, 1.0, 3.0, 4.2])
def test_large_groups_are_counted_to_the_first_order_on_the_safe_side(mu, monkeypatch):
    """A cost that has chance alpha by `_linear` has no more by `_transform`, and hardly less.

    A tenth less at 5 %, a fifth at 1e-5: .007 and .05 standard deviations.
    """
    coins = Responses.from_curve(gaussian(mu))
    for size in (200, 700):
        weights = Weights.from_responses(size, coins)
        fast = ranking._costs(weights, coins)
        monkeypatch.setattr(ranking, "_LARGE_GROUP", size + 1)
        exact = ranking._costs(weights, coins)
        monkeypatch.undo()
        for alpha, least in ((0.05, 0.95), (0.01, 0.92), (1e-3, 0.87), (1e-5, 0.8)):
            cost = fast.first + int(np.searchsorted(fast.cumulative, alpha))
            assert least < exact.at_most(cost) / fast.at_most(cost) < 1.003


def test_costs_are_drawn_like_trial_by_trial():
    """Overlaps of levels and ranks, and every trial's own coin, against what is computed.

    Four standard errors of a share of 20,000: 1e-4 for each of eight.
    """
    curve = Curve(np.array([0.0, 0.7, 1.5, 3.0]), np.array([0.35, 0.15, 0.05, 1e-3]))
    coins, size, draws = Responses.from_curve(curve), 60, 20_000
    weights, costs = distribution(size, curve)
    rng = np.random.default_rng(1)
    cost = np.repeat(weights.costs, np.diff(weights.edges))
    overlaps = drawn_costs(weights, coins, draws, rng)
    for found in (overlaps, drawn_mistakes(size, coins, draws, rng) @ cost):
        for q in (0.02, 0.1, 0.5, 0.9):
            at = costs.first + int(np.searchsorted(costs.cumulative, q))
            share = costs.at_most(at)
            error = math.sqrt(share * (1 - share) / draws)
            assert np.mean(found <= at) == approx(share, abs=4 * error)


STUDY = [
    (size, mu)
    for size in ((200, 1000, 5000, 20_000) if LONG else (200, 5000))
    for mu in ((0.05, 0.262, 1.0, 2.0, 4.198) if LONG else (0.262, 4.198))
]
LEVELS = (0.05, 0.01, 1e-3, 1e-4, 1e-5)


def too_many(found: int, draws: int, alpha: float) -> bool:
    """Whether so many of `draws` have a chance below 1e-5 at level `alpha`."""
    return float(special.bdtrc(found - 1, draws, alpha)) < 1e-5 if found else False


@pytest.mark.parametrize(("size", "mu"), STUDY)
def test_rank_errs_at_every_level_no_more_than_it_may(size, mu):
    """Fresh draws of the worst mechanism: 20,000, or 200,000 at length. Flakes: 1e-4 of runs."""
    coins, draws = Responses.from_curve(gaussian(mu)), 200_000 if LONG else 20_000
    weights, costs = distribution(size, gaussian(mu))
    rng = np.random.default_rng(size)
    found = np.concatenate([drawn_costs(weights, coins, draws // 20, rng) for _ in range(20)])
    for alpha in LEVELS:
        limit = costs.first + int(np.searchsorted(costs.cumulative, alpha, side="right")) - 1
        assert not too_many(int((found <= limit).sum()), draws, alpha)


@long("the levels of fewer trials are tested for every size")
def test_rank_errs_in_5_percent_at_5000_trials():
    """From guesses to μ. 4000 audits; 4.3 standard errors, 1e-5."""
    coins, rng, wrong = Responses.from_curve(gaussian(0.262)), np.random.default_rng(8), 0
    for _ in range(4000):
        trials = rng.multinomial(5000, coins.shares / coins.shares.sum())
        group = rng.random(5000) < np.repeat(coins.mistakes, trials)
        wrong += ranking.mu_lower(group, 0.05) > 0.262
    assert 0.035 < wrong / 4000 <= 0.05 + 4.3 * math.sqrt(0.05 * 0.95 / 4000)


def test_rank_of_a_thousand_audits_together_is_hardly_below_that_of_one():
    """A share of 1e-3, 1e-4, ... of the error costs what it does on a normal scale."""
    scores, members = gaussian_trials(np.random.default_rng(9), 1000, 2.0)
    levels = (1 - 0.05 / parts for parts in (1, 200, 201, 1000, 100_000))
    found = [stats.estimate(scores, members, 1e-5, level, "rank").mu_lower for level in levels]
    assert found == sorted(found, reverse=True)
    assert found[1] - found[2] < 1e-3
    assert found[3] > found[0] - 0.25  # 2.2 standard deviations of about .1
    assert found[4] > 1.4


def test_what_a_frequency_may_have_is_looked_for_on_seven_paths():
    """By a loop over ranks: where levels have 0 to 7.5 deviations more trials than their mean."""
    coins = Responses.from_curve(gaussian(1.0))
    weights, turns = Weights.from_responses(100, coins), np.array([0.1, 0.5, 2.0])
    ends, errors = np.cumsum(coins.shares), np.cumsum(coins.shares * coins.mistakes)
    cost, logs = np.repeat(weights.costs, np.diff(weights.edges)), []
    for surer in (0, 1.25, 2.5, 3.75, 5, 6.25, 7.5):
        at = weights.edges / 100
        at = np.maximum.accumulate(at - surer * np.sqrt(at * (1 - at) / 100)) * ends[-1]
        wrong = np.interp(at, np.r_[0, ends], np.r_[0, errors])
        share = np.diff(np.maximum(at, 0))
        rates = [w / s if s > 0 else 0.0 for w, s in zip(np.diff(wrong), share, strict=True)]
        rate = np.repeat(np.clip(rates, 0, 0.5), np.diff(weights.edges))
        factors = 1 - rate + rate * np.exp(-1j * np.outer(turns, cost))
        logs.append(np.log(np.abs(factors)).sum(axis=1) - surer**2 / 2)
    found = ranking._log_bounds(weights, coins, turns, ranking._PATHS)
    np.testing.assert_allclose(found, np.max(logs, axis=0), rtol=1e-9)


def test_no_choice_of_guesses_beats_the_surest_first():
    """An adversary who knows the coins' levels and picks order and guesses as it likes.

    Four ways of doing worse than sorting by level; each must cost stochastically at least as much,
    up to four standard errors of 20,000 draws.
    """
    coins = Responses.from_curve(Curve(np.array([0.0, 1.0, 2.5]), np.array([0.4, 0.12, 1e-3])))
    size, draws = 40, 20_000
    weights = Weights.from_responses(size, coins)
    cost = np.repeat(weights.costs, np.diff(weights.edges))
    rng = np.random.default_rng(3)
    best = np.sort(drawn_costs(weights, coins, draws, rng))
    level = rng.choice(len(coins.shares), p=coins.shares, size=(draws, size))
    right = rng.random((draws, size)) >= coins.mistakes[level]
    noisy = level + rng.normal(size=level.shape)
    reverse = np.where(level == 1, not_first(right, 0.1, rng), right)  # lies on one level
    for order, answers in (
        (np.argsort(noisy, axis=1), right),
        (np.argsort(-level, axis=1), right),
        (np.broadcast_to(np.arange(size), level.shape), right),
        (np.argsort(level, axis=1), reverse),
    ):
        wrong = ~np.take_along_axis(answers, order, axis=1)
        theirs = wrong @ cost
        for q in (0.01, 0.05, 0.25, 0.5):
            at = best[int(q * draws)]
            assert np.mean(theirs <= at) <= q + 4 * math.sqrt(q * (1 - q) / draws) + 0.004


def not_first(right: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    return np.where(rng.random(right.shape) < share, ~right, right)


def test_the_midpoint_needs_no_bits():
    rng = np.random.default_rng(4)
    scores, _ = gaussian_trials(rng, 2000, 6.0)
    assert two_means(scores) == approx(3.0, abs=0.15)
    assert two_means(np.array([np.nan, np.inf, 1.0, 5.0])) == 3.0
    assert math.isnan(two_means(np.array([np.nan])))
    assert two_means(np.array([1e308, -1e308, 1e308, -1e308])) == approx(0.0)
    assert two_means(np.zeros(9)) == 0.0


def test_groups_by_hand():
    """Missed and diverged first, where these tell, then 5 and -4 (right), -1 and 0.5 (wrong)."""
    scores = np.array([5.0, -1.0, 0.5, np.inf, np.nan, -4.0])
    members = np.array([True, True, False, True, False, False])
    found = ranked_mistakes(scores, members, 0.0, Diverged(outside=0, inside=9)).tolist()
    assert found[2:] == [False, False, True, True]
    assert sorted(found[:2]) == [False, True]
    shy = ranked_mistakes(scores, members, 0.0, Diverged())
    assert shy.tolist() == [True, False, False, True, True, False]


at_length = long("as at ε = 2")


@pytest.mark.parametrize(
    ("epsilon", "least"),
    [
        pytest.param(1, 0.58, marks=at_length),
        (2, 1.53),
        pytest.param(4, 3.44, marks=at_length),
        pytest.param(8, 7.25, marks=at_length),
    ],
)
def test_rank_certifies_what_was_asked_for(epsilon, least):
    """Medians of 400 audits of 1000 trials; `accuracy` has .48, 1.45, 3.36 and 7.18.

    The median of 1000 other audits lay .003 to .03 above each, one standard error here is .02 to
    .03, so it is compared with two of them below; errors are within four of 5 %.
    """
    rng, mu, found, plain = np.random.default_rng(5), gdp.mu(epsilon, 1e-5), [], []
    for _ in range(400):
        scores, members = gaussian_trials(rng, 1000, mu)
        found.append(stats.estimate(scores, members, **LEVEL, method="rank").epsilon_lower)
        plain.append(stats.estimate(scores, members, **LEVEL).epsilon_lower)
    assert np.median(found) >= least - 0.05
    assert np.median(found) > np.median(plain) + 0.03
    assert np.mean(np.array(found) > epsilon) <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / 400)


def test_rank_errs_at_its_level_on_what_is_not_gaussian():
    """μ of randomised response, of its only corner, and of one-sided noise, which covers it all.

    150 audits each, or 300 at length; four standard errors above 5 %.
    """
    rng, wrong, audits = np.random.default_rng(6), np.zeros(2), 300 if LONG else 150
    h = np.linspace(-6, 8, 4000)
    missed = 0.3 * special.ndtr(h - 1) + 0.7 * special.ndtr(h)
    truth = [1.0, float(np.max(h - special.ndtri(missed)))]
    for _ in range(audits):
        scores, members = randomised_response(rng, 300, float(special.logit(special.ndtr(0.5))))
        blurred = scores + 1e-3 * rng.normal(size=300)
        shifted = rng.normal(size=300) + np.where(rng.random(300) < 0.3, 1.0, 0.0) * members
        found = [stats.estimate(x, members, **LEVEL, method="rank") for x in (blurred, shifted)]
        wrong += [bound.mu_lower > mu for bound, mu in zip(found, truth, strict=True)]
    assert (wrong <= audits * (0.05 + 4 * math.sqrt(0.05 * 0.95 / audits))).all()


INCREASING = {
    "exponential": np.exp,
    "cube": lambda z: z**3,
    "reciprocal": lambda z: -np.exp(-2 * z),
    "logistic": special.expit,
    "shifted": lambda z: 1e3 * z + 7,
}


@pytest.mark.parametrize("name", INCREASING)
@pytest.mark.parametrize("decimals", [9, 1], ids=["no ties", "ties"])
def test_rank_is_the_same_under_any_increasing_map(name, decimals):
    """Exactly; under `reciprocal` μ = .86 became .51 where centres were means of scores."""
    rng = np.random.default_rng(8)
    scores, members = gaussian_trials(rng, 301, 1.0)
    scores = np.round(scores, decimals)
    scores[rng.random(301) < 0.05] = np.nan
    found, mapped = (stats.make("rank", 301) for _ in range(2))
    found.fold(scores, members)
    mapped.fold(INCREASING[name](scores), members)
    bounds = [state.bound(**LEVEL) for state in (found, mapped)]
    assert bounds[0].mu_lower == bounds[1].mu_lower > 0.3
    assert bounds[1].threshold == approx(float(INCREASING[name](bounds[0].threshold)))


def slow_normal_scores(scores: np.ndarray) -> list[float]:
    """Counts what lies below each finite score, and half of what is equal, one by one."""
    finite = [float(score) for score in scores if np.isfinite(score)]
    away = []
    for score in scores:
        below = sum(other < score for other in finite)
        equal = sum(other == score for other in finite)
        rank = below + (equal + 1) / 2
        away.append(float(special.ndtri(rank / (len(finite) + 1))) if equal else float(score))
    return away


def test_normal_scores_are_quantiles_of_middle_ranks():
    rng = np.random.default_rng(9)
    for n in (0, 1, 2, 30):
        scores = np.round(rng.normal(size=n), 1)
        scores[rng.random(n) < 0.2] = rng.choice([np.nan, np.inf])
        np.testing.assert_allclose(from_median(scores), slow_normal_scores(scores), atol=1e-12)


def test_rank_while_trials_arrive_is_that_of_its_last_look():
    scores, members = gaussian_trials(np.random.default_rng(7), 600, 2.0)
    whole = stats.make("rank", 1000)
    whole.fold(scores, members)
    found = whole.bound(**LEVEL)
    look = math.ceil(1.25 ** math.floor(math.log(600) / math.log(1.25)))
    part = stats.make("rank", 1000)
    part.fold(scores[:look], members[:look])
    assert found.mu_lower == part.bound(**LEVEL).mu_lower > 0
    assert found.trials == 600


def slow_two_means(values: np.ndarray) -> float:
    """Lloyd's iteration as it is defined: two masks and two means a step."""
    centre = (np.median(values) + values.mean()) / 2
    for _ in range(20):
        above = values > centre
        if above.all() or not above.any():
            return float(centre)
        centre = (values[above].mean() + values[~above].mean()) / 2
    return float(centre)


def test_two_means_of_sorted_values_are_those_of_any_order():
    rng = np.random.default_rng(0)
    for _ in range(200):
        n = int(rng.integers(1, 60))
        values = rng.normal(size=n) * rng.choice([1e-3, 1, 1e6]) + rng.choice([0, 5], size=n)
        assert two_means(values) == approx(slow_two_means(values), rel=1e-9, abs=1e-12)
        assert two_means(values) == two_means(rng.permutation(values))
