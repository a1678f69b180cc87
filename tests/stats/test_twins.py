"""A slow, obvious twin for every fast formula."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, optimize, special

from dpaudit_ray import stats
from dpaudit_ray.stats import (
    claim,
    e_process,
    error_rates,
    gdp,
    group_sequential,
    label,
    one_run,
    one_run_fdp,
    profile,
    threshold_rates,
)
from dpaudit_ray.stats.claim import Portfolio
from dpaudit_ray.stats.curve import Curve
from tests.stats.reference import epsilon_of_counts, gaussian_trials, laplace_trials, two_worlds

approx = pytest.approx


def binomial(k: int, n: int, p: float) -> float:
    return math.comb(n, k) * p**k * (1 - p) ** (n - k)


def tail(k: int, n: int, p: float) -> float:
    return sum(binomial(i, n, p) for i in range(k, n + 1))


# --- bounds on rates -----------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "n", "alpha"), [(1, 9, 0.05), (7, 40, 0.01), (38, 40, 0.3)])
def test_clopper_pearson_is_the_root_of_a_binomial_tail(k, n, alpha):
    lower = optimize.brentq(lambda p: tail(k, n, p) - alpha, 0, 1, xtol=1e-13)
    upper = optimize.brentq(lambda p: 1 - tail(k + 1, n, p) - alpha, 0, 1, xtol=1e-13)
    assert stats.clopper_pearson_lower(k, n, alpha) == approx(lower, abs=1e-10)
    assert stats.clopper_pearson_upper(k, n, alpha) == approx(upper, abs=1e-10)


@pytest.mark.parametrize(("mu", "epsilon"), [(0.3, 0.1), (1.0, 1.5), (2.5, 4.0)])
def test_gaussian_delta_is_the_hockey_stick_integral(mu, epsilon):
    def excess(x: float) -> float:
        return max(
            math.exp(-((x - mu) ** 2) / 2) - math.exp(epsilon) * math.exp(-(x**2) / 2), 0.0
        ) / math.sqrt(2 * math.pi)

    start = epsilon / mu + mu / 2
    twin = integrate.quad(excess, start, start + 12, epsabs=1e-13)[0]
    assert gdp.delta(epsilon, mu) == approx(twin, rel=1e-8)
    assert gdp.epsilon(mu, twin) == approx(epsilon, abs=1e-7)
    assert gdp.mu(epsilon, twin) == approx(mu, abs=1e-7)


def test_epsilon_of_rates_by_search():
    rng = np.random.default_rng(0)
    for fpr, fnr in rng.random((20, 2)) * 0.5:
        found = threshold_rates.epsilon_of_rates(fpr, fnr, 0.01)

        def allowed(e: float, a: float = fpr, b: float = fnr) -> bool:
            return a + math.exp(e) * b >= 0.99 and b + math.exp(e) * a >= 0.99

        twin = next(e for e in np.arange(0, 12, 1e-3) if allowed(e))
        assert found == approx(twin, abs=2e-3)
    # Flipping two upper bounds across the diagonal would give 0.985 here.
    assert epsilon_of_counts((10, 10), (20, 20), 0.0, 0.05)[0] == 0
    assert threshold_rates.epsilon_of_rates(0.7, 0.7, 0.0) == 0


def test_a_bound_spends_half_of_its_error_on_either_rate():
    scores, members = two_worlds(200, 1.0)
    fixed = {"method": "eps-delta", "threshold": "fixed", "value": 0.5}
    found = stats.estimate(scores, members, 1e-5, 0.9, **fixed)
    errors = np.sum(scores[:200] >= 0.5), np.sum(scores[200:] < 0.5)
    rates = (stats.clopper_pearson_upper(int(k), 200, 0.05) for k in errors)
    by_hand = threshold_rates.epsilon_of_rates(*rates, 1e-5)
    assert found.epsilon_lower == approx(by_hand, rel=1e-12)  # last bits differ by numpy


def test_best_threshold_of_large_worlds_is_lost_in_no_block(monkeypatch):
    scores, members = laplace_trials(np.random.default_rng(1), 6000, 1.5)
    for method in ("paper-gdp", "paper-eps-delta"):
        bounds = []
        for most in (math.inf, 1024, 5):
            monkeypatch.setattr(threshold_rates, "_MOST_BLOCKS", most)
            bounds.append(stats.estimate(scores, members, 1e-5, 0.95, method))
        assert bounds[0] == bounds[1] == bounds[2]


def test_few_thresholds_are_some_of_all_with_both_ends():
    scores, members = gaussian_trials(np.random.default_rng(3), 5000, 1.0)
    worlds = threshold_rates.Worlds.from_scores(scores, members)
    every = worlds.midpoints()
    assert worlds.midpoints(4999).tolist() == every.tolist()
    few = worlds.midpoints(400)
    assert 300 < len(few) <= 400
    assert np.isin(few, every).all()
    assert few[:9].tolist() == every[:9].tolist()
    assert few[-9:].tolist() == every[-9:].tolist()
    assert np.diff(np.searchsorted(every, few)).max() <= 26, "evenly in between"


@pytest.mark.parametrize(("a", "b", "x"), [(30.0, 40.0, 0.6), (101.0, 5001.0, 0.5)])
def test_the_tail_of_a_beta_distribution_by_integration(a, b, x):
    """Far beyond where the probability itself underflows, too: relative to the density at x."""

    def growth(t: float) -> float:
        return (a - 1) * math.log(t / x) + (b - 1) * math.log1p((x - t) / (1 - x))

    rest, _ = integrate.quad(lambda t: math.exp(growth(t)), x, 1 - 1e-12, points=[x + 0.01])
    density = (a - 1) * math.log(x) + (b - 1) * math.log1p(-x) - special.betaln(a, b)
    assert e_process._log_beta_tail(a, b, x) == approx(density + math.log(rest), rel=1e-6)
    assert math.isfinite(e_process._log_beta_tail(50_600.0, 20_400.0, 0.99))


def test_algorithm_4_by_its_loop():
    scores, members = gaussian_trials(np.random.default_rng(2), 200, 1.0)
    best = -math.inf
    pooled = np.sort(scores)
    for h in (pooled[:-1] + pooled[1:]) / 2:
        fp = int(np.sum((scores >= h) & ~members))
        fn = int(np.sum((scores < h) & members))
        alpha = stats.clopper_pearson_upper(fp, int((~members).sum()), 0.025)
        beta = stats.clopper_pearson_upper(fn, int(members.sum()), 0.025)
        best = max(best, -special.ndtri(alpha) - special.ndtri(beta))
    found = stats.estimate(scores, members, 1e-5, 0.95, "paper-gdp")
    assert found.mu_lower == approx(best, abs=1e-12)


# --- simultaneous levels -----------------------------------------------------------------------


def test_miss_probability_of_two_by_integration():
    level = 0.1
    u0, u1 = special.betaincinv(1, 2, 1 - level), special.betaincinv(2, 1, 1 - level)
    # P(V1 <= u0 and V2 <= u1) over 0 < V1 < V2 < 1 with density 2.
    inside = 2 * integrate.quad(lambda v1: u1 - v1, 0, min(u0, u1))[0]
    assert error_rates.miss_probability(2, level) == approx(1 - inside, abs=1e-12)


@pytest.mark.parametrize("n", [7, 60])
def test_miss_probability_by_simulation(n):
    # 40000 draws at .025: standard error .0008; five of them are allowed (flake rate 1e-6).
    level = error_rates.local_level(n, 0.025)
    bounds = special.betaincinv(np.arange(1, n + 1), np.arange(n, 0, -1), 1 - level)
    draws = np.sort(np.random.default_rng(3).random((40_000, n)), axis=1)
    missed = np.mean(np.any(draws > bounds, axis=1))
    assert missed == approx(0.025, abs=0.004)


def test_blocks_of_the_triangular_system_do_not_show(monkeypatch):
    whole = error_rates.miss_probability(300, 1e-3)
    monkeypatch.setattr(error_rates, "_BLOCK", 17)
    assert error_rates.miss_probability(300, 1e-3) == approx(whole, rel=1e-12)


def test_local_levels_fall_with_size():
    # What makes the level of a larger audit valid for a partial one.
    sizes = [1, 2, 3, 5, 10, 11, 50, 51, 300, 1000]
    levels = [error_rates.local_level(n, 0.025) for n in sizes]
    assert all(a > b for a, b in itertools.pairwise(levels))


# --- sequential bounds ---------------------------------------------------------------------------


def test_mixture_by_quadrature():
    for hits, trials, p in ((8, 10, 0.5), (60, 100, 0.55)):

        def ratio(x: float, s=hits, t=trials, q=p) -> float:
            return (x / q) ** s * ((1 - x) / (1 - q)) ** (t - s)

        twin = integrate.quad(ratio, p, 1, epsabs=0)[0] / (1 - p)
        found = e_process.log_mixture(p, hits, trials)
        assert found == approx(math.log(twin), abs=1e-7)


def test_group_sequential_boundaries_by_enumeration():
    looks, alpha, p = [4, 7, 10], 0.2, 0.55
    spent = group_sequential.spend(np.array(looks) / 10, alpha, "pocock")
    outcomes = np.array(list(itertools.product([0, 1], repeat=10)))
    chance = np.prod(np.where(outcomes == 1, p, 1 - p), axis=1)
    hits = np.cumsum(outcomes, axis=1)
    alive = np.ones(len(outcomes), dtype=bool)
    crossed = 0.0
    for index, n in enumerate(looks):
        now = hits[:, n - 1]
        boundary = next(
            c for c in range(n + 2)
            if chance[alive & (now >= c)].sum() <= spent[index] - crossed + 1e-15
        )  # fmt: skip
        for s in range(n + 1):
            seen = [(m, min(s, m)) for m in looks[:index]] + [(n, s)]
            refuted = group_sequential._excess(p, seen, spent[: index + 1]) <= 1e-15
            assert refuted == (s >= boundary), (n, s, boundary)
        crossed += chance[alive & (now >= boundary)].sum()
        alive &= now < boundary
    assert 0 < crossed <= alpha


@pytest.mark.parametrize("spending", ["obrien-fleming", "pocock"])
def test_spending_functions_spend_it_all(spending):
    spent = group_sequential.spend(np.linspace(0.02, 1, 50), 0.05, spending)
    assert 0 < spent[0] < spent[-1] == approx(0.05)
    assert np.all(np.diff(spent) > 0)


def test_betting_by_its_loop():
    rng = np.random.default_rng(4)
    values = rng.beta(6, 3, size=60)

    def best_wealth(m: float) -> float:
        best, purses = 0.0, [1.0, 1.0]
        states = [[weight, weight / 2, weight / 4] for _, weight in e_process.GAMBLERS]
        for x in values:
            for g, (share, _) in enumerate(e_process.GAMBLERS):
                n, total, squares = states[g]
                mean, variance = total / n, squares / n
                edge = mean - m
                stake = min(max(edge / (variance + edge**2), 0.0), share / m)
                purses[g] *= 1 + stake * (x - m)
                after = (total + x) / (n + 1)
                states[g] = [n + 1, total + x, squares + (x - after) ** 2]
            best = max(best, sum(purses) / 2)
        return best

    lower = e_process.mean_lower(values, 0.05)
    assert 0.5 < lower < values.mean()
    assert best_wealth(lower) == approx(20, rel=1e-6)
    assert best_wealth(lower - 0.01) > 20


def test_wagers_by_their_loop():
    """Every slot trial by trial: three ways of guessing, one that takes diverged trials as well,
    and one for these alone; a diverged trial is guessed by what diverged before it."""
    scores, members = gaussian_trials(np.random.default_rng(6), 200, 1.5)
    scores[[10, 40, 77, 150]] = [np.nan, np.nan, -np.inf, np.inf]
    table = claim.Wagers()
    table.fold(scores[:180], members[:180])
    table.miss(members[180:])
    epsilon, delta, k = 0.7, 0.01, len(claim.OFFSETS)
    log_wealth = np.zeros((4 * k + 1, len(claim.STAKES)))
    centre = spread = math.nan
    for i in range(32, 200):
        if i in (32, 64, 128):
            good = np.isfinite(scores[:i])
            x, b = scores[:i][good], members[:i][good]
            centre = (x[b].mean() + x[~b].mean()) / 2
            spread = math.sqrt((b.sum() * x[b].var() + (~b).sum() * x[~b].var()) / len(b))
        lost = ~np.isfinite(scores[:i])
        guess_lost = np.sum(lost & members[:i]) >= np.sum(lost & ~members[:i])
        for slot in range(4 * k + 1):
            side, offset = divmod(slot, k)
            cut = claim.OFFSETS[offset] * spread
            guess = None
            if not np.isfinite(scores[i]):
                guess = guess_lost if side >= 3 else None
            elif side in (0, 2, 3) and scores[i] >= centre + cut:
                guess = True
            elif side in (1, 2, 3) and scores[i] < centre - cut:
                guess = False
            wrong = i >= 180 or (guess is not None and guess != members[i])
            right = not wrong and guess is not None
            payoff = float(right) - math.exp(epsilon) * float(wrong)
            mean = delta * (1.0 if side in (2, 3) else 0.5)
            stake = claim.STAKES / (math.exp(epsilon) + mean)
            log_wealth[slot] += np.log1p(stake * (payoff - mean))
    stakes = claim.ConstantStakes([epsilon], [delta])
    np.testing.assert_allclose(stakes.log_wealth(table.counts)[0], log_wealth, atol=1e-9)


def test_claim_evidence_by_its_average():
    """Four quarters: plain guessing, constant stakes, diverged trials, what was learnt."""
    scores, members = gaussian_trials(np.random.default_rng(7), 300, 1.0)
    scores[::9] = np.nan
    state = stats.make("claim", 300)
    state.fold(scores, members)
    curve = claim.gaussian(0.5)
    table = claim.Wagers()
    table.fold(scores, members)
    few = curve.thinned(12)
    stakes = claim.ConstantStakes(few.epsilons, few.deltas)
    wealth = np.exp(stakes.log_wealth(table.counts))
    hits, misses = (
        table.counts @ claim.WINS[claim.PLAIN],
        table.counts @ claim.LOSSES[claim.PLAIN],
    )
    rate = special.ndtr(0.25)
    plain = integrate.quad(lambda p: p**hits * (1 - p) ** misses, rate, 1, epsabs=0)[0]
    plain /= (1 - rate) * rate**hits * (1 - rate) ** misses
    learnt = math.exp(Portfolio(curve).log_wealth(table.epochs))
    twin = (plain + wealth.mean() + wealth[:, -1, -3:].mean() + learnt) / 4
    assert math.exp(state.evidence(curve)) == approx(twin, rel=1e-6)


def test_no_bet_before_both_worlds_were_seen():
    table = claim.Wagers()
    table.fold(np.zeros(200), np.ones(200, dtype=np.bool_))
    assert table.counts.sum() == 0
    table.fold(np.zeros(200), np.arange(200) % 2 == 0)
    assert table.counts.sum() > 0


def test_portfolio_by_its_loop():
    """Wealth trial by trial, each epoch betting the mixture learnt on those before."""
    scores, members = gaussian_trials(np.random.default_rng(17), 400, 2.0)
    table, curve = claim.Wagers(), claim.gaussian(0.6)
    table.fold(scores, members)
    portfolio = Portfolio(curve)
    wealth, past = np.ones(2), np.zeros(claim.OUTCOMES, dtype=np.int64)
    for counts in table.epochs:
        mixture_ = portfolio.mixture(past)
        assert (mixture_ > 0).all()
        for outcome in np.repeat(np.arange(claim.OUTCOMES), counts):
            wealth *= 1 + np.array([0.4, 1.0]) * (mixture_[outcome] - 1)
        past += counts
    assert portfolio.log_wealth(table.epochs) == approx(math.log(wealth.mean()))
    assert wealth.mean() > 10


# --- one run -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("v", "r", "m", "epsilon", "delta"),
    [(1, 1, 5, 0.0, 0.01), (7, 10, 20, 0.5, 1e-3), (40, 60, 60, 2.0, 1e-4), (3, 30, 90, 1.0, 0.1)],
)
def test_one_run_p_value_by_its_sums(v, r, m, epsilon, delta):
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    worst = max(
        sum(binomial(k, r, q) for k in range(max(v - i, 0), v)) / i for i in range(1, m + 1)
    )
    twin = min(1.0, tail(v, r, q) + 2 * m * delta * worst)
    assert one_run.p_value(v, r, m, epsilon, delta) == approx(twin, rel=1e-9)


def test_one_run_fdp_by_its_recursion():
    v, r, m, level = 88, 100, 400, 0.05

    def refuted(mu: float) -> bool:
        rho, eta = level * v / m, level * (r - v) / m
        for i in reversed(range(v)):
            new = max(eta, special.ndtr(special.ndtri(rho) - mu))
            rho = min(1.0, rho + i / (r - i) * (new - eta))
            eta = new
        return rho + eta > r / m

    found = one_run_fdp.mu_lower(v, r, m, 1 - level)
    assert refuted(found - 1e-6)
    assert not refuted(found + 1e-6)


def test_one_run_order_statistics_by_simulation():
    # 20000 runs of a probability near .2: standard error .003, five of them allowed.
    rng, mu, m, r = np.random.default_rng(8), 0.8, 60, 20
    bits = rng.random((20_000, m)) < 0.5
    scores = rng.normal(size=bits.shape) + np.where(bits, mu / 2, -mu / 2)
    order = np.argsort(-np.abs(scores), axis=1)[:, :r]
    wrong = np.take_along_axis((scores > 0) != bits, order, axis=1).sum(axis=1)
    found = one_run_fdp.gaussian_p_value(3, r, m, mu)
    assert found == approx(np.mean(wrong <= 3), abs=0.015)


def test_balanced_guesses_by_hand():
    scores = np.array([5.0, 1.0, -3.0, np.nan, 2.0, 0.0])
    members = np.array([True, True, False, True, False, False])
    # the NaN first and wrong, then 5 in, -3 out, 2 in, 0 out, 1 in
    expected = [(0, 1), (1, 2), (2, 3), (2, 4), (3, 5), (4, 6)]
    split = (one_run.balanced(scores, guesses) for guesses in range(1, 7))
    assert [one_run.hits_of(scores, members, *kinds) for kinds in split] == expected


# --- everything else -----------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [None, [3.0, 2.5, 9.0]])
def test_label_bounds_by_simulation(whole):
    # A million noisy gradients: standard error .0005 at most, eight of them allowed.
    rng = np.random.default_rng(11)
    features = rng.normal(size=(5, 3))
    p, y = np.array([0.7, 0.2, 0.5]), np.array([1, 0, 1])
    clip, sigma = 0.5, 1.3
    found = label.bounds(features, p, y, clip, sigma, 1e-5, whole)
    norms = np.linalg.norm(features, axis=0) if whole is None else np.array(whole)

    def total(labels: np.ndarray) -> np.ndarray:
        scale = np.minimum(1, clip / (norms * np.abs(p - labels)))
        return (features * (p - labels) * scale).sum(axis=1)

    noise = sigma * clip * rng.normal(size=(1_000_000, 5))
    solve = np.linalg.pinv(features)
    for record in range(3):
        flipped = y.copy()
        flipped[record] = 1 - y[record]
        for labels, expected in ((y, found.hit), (flipped, found.false_hit)):
            coefficient = ((total(labels) + noise) @ solve.T)[:, record]
            # The true label is what is named when the coefficient has its sign.
            named = coefficient < 0 if y[record] == 1 else coefficient > 0
            # other records shift the sum but not this coefficient
            assert np.mean(named) == approx(expected[record], abs=0.004)
        assert (total(y) @ solve.T)[record] * (1 - 2 * y[record]) > 0


def solved(features, gradient):
    inverse, is_determined = label.solver(features.T @ features)
    return np.where(is_determined, inverse @ (features.T @ gradient), np.nan)


def test_label_coefficients_are_residuals_where_the_system_determines_them():
    rng = np.random.default_rng(15)
    features, residuals = rng.normal(size=(6, 4)), rng.normal(size=4)
    features[:, 1] = 0  # a dead neuron
    features = np.c_[features, features[:, 2]]  # two records alike
    residuals = np.r_[residuals, 0.5]
    found = solved(features, features @ residuals)
    np.testing.assert_allclose(found[[0, 3]], residuals[[0, 3]], atol=1e-9)
    assert np.isnan(found[[1, 2, 4]]).all()
    wide = rng.normal(size=(3, 5))  # more records than weights: nothing is determined
    assert np.isnan(solved(wide, wide @ np.ones(5))).all()


def test_label_bounds_grow_like_harmonic_numbers():
    harmonic = np.cumsum(1 / np.arange(1, 4001))
    for size, batches in ((50, 15), (50, 80), (1, 3)):
        expected = harmonic[size * batches - 1] / harmonic[size - 1]
        assert label.growth(size, batches) == approx(expected, rel=1e-12)
    with pytest.raises(ValueError, match="at least 1, got 50 records and 0 batches"):
        label.growth(50, 0)


def test_label_mu_dominates_the_published_bound():
    rng = np.random.default_rng(12)
    for _ in range(20):
        features = rng.normal(size=(6, 4))
        whole = np.linalg.norm(features, axis=0) * rng.uniform(1, 5, 4)
        asked = (features, rng.random(4), rng.integers(0, 2, 4), 1.0, 0.8, 1e-5)
        found = label.bounds(*asked, whole if rng.random() < 0.5 else None)
        assert np.all(found.mu_direction <= found.mu + 1e-12)
        assert np.all(found.mu <= 2 / 0.8 + 1e-12)
        published = np.fmax(found.epsilon, found.epsilon_complement)
        assert np.all(published <= label.epsilon(found.mu_direction, 1e-5) + 1e-9)


def test_profile_by_its_loop():
    scores, members = gaussian_trials(np.random.default_rng(14), 300, 1.5)
    sizes = (int((~members).sum()), int(members.sum()))
    ordered, bounds = np.sort(scores), []
    for h in (ordered[1:] + ordered[:-1])[::-1] / 2:
        errors = int(np.sum((scores >= h) & ~members)), int(np.sum((scores < h) & members))

        def rates(tail: float, counts=errors) -> list[float]:
            levels = [error_rates.local_level(n, tail) for n in sizes]
            each = zip(counts, sizes, levels, strict=True)
            return [stats.clopper_pearson_upper(*one) for one in each]

        rights = [n - k for k, n in zip(errors, sizes, strict=True)]
        low, high = (-special.ndtri(rates(0.0125, counts)).sum() for counts in (errors, rights))
        bounds.append((low, -high))
    found, twin = profile.mu_profile(scores, members, 0.95), np.array(bounds).T
    np.testing.assert_allclose([found.lower, found.upper], twin, atol=1e-9)


def test_curves_of_a_shared_calibration_are_valid_and_hardly_wider(monkeypatch):
    # 564 is what a report takes for 1000 trials: 4 deviations more than half of them.
    rng = np.random.default_rng(16)
    scores, members = gaussian_trials(rng, 1000, 1.0)
    own, shared = (profile.mu_profile(scores, members, 0.95, size=size) for size in (0, 564))
    assert np.all((shared.lower <= own.lower) & (shared.upper >= own.upper))
    finite = np.isfinite(own.lower)
    assert np.max((own.lower - shared.lower)[finite]) < 0.02
    monkeypatch.setattr(error_rates, "EXACT_LIMIT", 600)
    beyond = profile.mu_profile(scores, members, 0.95, size=10**6)
    assert np.all(beyond.lower <= shared.lower)
    assert beyond.lower.max() > 0


def test_mu_profile_knows_gaussian_from_response():
    rng = np.random.default_rng(15)
    scores, members = gaussian_trials(rng, 3000, 1.0)
    found = profile.mu_profile(scores, members, 0.95)
    assert found.gaussian
    middle = np.abs(found.fpr - 0.3).argmin()
    assert found.lower[middle] < 1.0 < found.upper[middle]
    assert np.all(found.lower <= found.upper)
    # Half a bit told at random, then blurred: the same accuracy everywhere, no Gaussian curve.
    told = np.where(rng.random(3000) < 0.8, members, ~members) + 1e-3 * rng.normal(size=3000)
    assert not profile.mu_profile(told, members, 0.95).gaussian


def test_claimed_roc_is_the_gaussian_one():
    epsilons = np.linspace(0, 12, 4001)
    fpr = np.array([0.0, 0.01, 0.1, 0.5, 0.9, 1.0])
    found = Curve(epsilons, gdp.delta(epsilons, 1.3)).true_positive_rate(fpr)
    np.testing.assert_allclose(found[1:-1], gdp.true_positive_rate(fpr[1:-1], 1.3), atol=1e-5)
    assert found[-1] == 1
