"""Guesses on many independent trainings: the argument, the choice of guesses, and what they show.

Errors are counted as in `test_coverage`; these bounds err in 2 to 4 %, so no new seed fails.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import integrate, special

from dpaudit_ray import stats
from dpaudit_ray.stats import gdp, one_run, unmasking
from tests.costs import cost_of, peak_bytes_of
from tests.long import LONG
from tests.stats.reference import allowed, gaussian_trials, randomised_response

DELTA = 1e-5
LEVEL = {"delta": DELTA, "confidence": 0.95}
Draw = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]


def certified(scores: np.ndarray, members: np.ndarray, delta: float = DELTA) -> float:
    runs = np.arange(len(scores))
    return stats.estimate(scores, members, delta, 0.95, "one-run", runs=runs).epsilon_lower


def subsampled(rng: np.random.Generator, trials: int) -> tuple[np.ndarray, np.ndarray]:
    """N(0, .5²), shifted by 1 in three of ten in-runs: ε = 8.23 at δ = 1e-5."""
    members = rng.random(trials) < 0.5
    shift = members & (rng.random(trials) < 0.3)
    return 0.5 * rng.normal(size=trials) + shift, members


def gaussian_of_mu_1(rng: np.random.Generator, trials: int) -> tuple[np.ndarray, np.ndarray]:
    return gaussian_trials(rng, trials, 1.0)


def told(
    rng: np.random.Generator, trials: int, epsilon: float, delta: float
) -> tuple[np.ndarray, np.ndarray]:
    """Randomised response that tells its bit with probability δ, by scores of their own."""
    scores, members = randomised_response(rng, trials, epsilon)
    tells = rng.random(trials) < delta
    return np.where(tells, np.where(members, 2.0, -1.0), scores), members


def rarely_in(
    rng: np.random.Generator, trials: int, epsilon: float
) -> tuple[np.ndarray, np.ndarray]:
    """Says "in" in half of the in-runs, and e^-ε times as often in out-runs; else nothing."""
    members = rng.random(trials) < 0.5
    chance = np.where(members, 0.5, 0.5 * math.exp(-epsilon))
    return (rng.random(trials) < chance).astype(float), members


# --- the argument ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trials", "delta"), [(1, 0.5), (40, 0.1), (300, 1e-3), (5, 0.0), (9, 1.0)]
)
def test_trainings_that_tell_are_counted_by_their_sum(trials, delta):
    def beyond(k: int) -> float:
        return sum(
            math.comb(trials, i) * delta**i * (1 - delta) ** (trials - i)
            for i in range(k + 1, trials + 1)
        )

    found, spent = one_run.most_revealed(trials, delta, 0.05)
    twin = next(k for k in range(trials + 1) if beyond(k) <= 0.0025)
    assert found == twin
    assert spent == pytest.approx(beyond(twin), abs=1e-12)


def test_bound_is_where_the_chance_of_so_many_crosses():
    found = one_run.independent_epsilon_lower(180, 200, 1000, 1e-3, 0.95)
    k, spent = one_run.most_revealed(1000, 1e-3, 0.05)

    def chance(epsilon: float) -> float:
        p = special.expit(epsilon)
        terms = [
            math.comb(200 - k, i) * p**i * (1 - p) ** (200 - k - i) for i in range(180 - k, 201 - k)
        ]
        return sum(terms) + spent

    assert chance(found - 1e-6) < 0.05 < chance(found + 1e-6)
    assert one_run.independent_epsilon_lower(0, 0, 0, 0.0, 0.95) == 0
    assert one_run.independent_epsilon_lower(100, 200, 1000, 1e-3, 0.95) == 0
    # Without δ it is Theorem 3.1 without δ; with δ it pays far less.
    plain = one_run.independent_epsilon_lower(180, 200, 1000, 0.0, 0.95)
    assert plain == pytest.approx(one_run.epsilon_lower(180, 200, 1000, 0.0, 0.95), abs=1e-8)
    assert found > one_run.epsilon_lower(180, 200, 1000, 1e-3, 0.95) + 0.3


def worst_error(
    rejects: Callable[[int, int], bool], trials: int, epsilon: float, delta: float
) -> float:
    """Exact error of a test when the number of guesses may depend on how many were told."""
    tell = np.arange(40)
    chance = [math.comb(trials, k) * delta**k * (1 - delta) ** (trials - k) for k in tell]
    worst = np.zeros(len(tell))
    for guesses in [*range(1, 50), *range(50, trials + 1, 25)]:
        least = next((v for v in range(guesses + 1) if rejects(v, guesses)), None)
        if least is None:
            continue
        sure = np.minimum(tell, guesses)
        errors = np.minimum(guesses - least, guesses - sure)
        worst = np.maximum(worst, special.bdtr(errors, guesses - sure, special.expit(-epsilon)))
    return float(np.dot(chance, worst))


@pytest.mark.parametrize(("trials", "epsilon", "delta"), [(500, 0.0, 0.01), (300, 1.0, 0.02)])
def test_no_choice_of_how_many_to_guess_errs_more_often(trials, epsilon, delta):
    # The slow twin of the argument: whoever picks the guesses knows who was told.
    def bound(v: int, r: int) -> bool:
        return one_run.independent_epsilon_lower(v, r, trials, delta, 0.95) > epsilon

    assert worst_error(bound, trials, epsilon, delta) <= 0.05


# --- the choice -----------------------------------------------------------------------------------


def test_posterior_by_quadrature():
    rng = np.random.default_rng(2)
    seen = rng.integers(0, 4, size=30)
    ramps = unmasking.Groups.from_scores(np.arange(30.0)).ramps
    inside = rng.binomial(seen, special.expit(2 * ramps[2]))
    total, evidence = np.zeros(30), 0.0
    favour = np.exp(unmasking._FAVOUR[: len(ramps), 0])
    level, rise = np.meshgrid(np.linspace(-8, 8, 161), np.linspace(-30, 30, 401), indexing="ij")
    for ramp, share in zip(ramps, favour, strict=True):
        odds = level[..., None] + rise[..., None] * ramp
        log = (inside * odds - seen * np.logaddexp(0, odds)).sum(-1)
        mass = share * np.exp(log - level**2 / 8 - rise**2 / 128)
        evidence += integrate.trapezoid(integrate.trapezoid(mass))
        weighted = mass[..., None] * special.expit(odds)
        total += integrate.trapezoid(integrate.trapezoid(weighted, axis=1), axis=0)
    groups = unmasking.Groups.from_scores(np.arange(30.0))
    found, fit = groups.chance_in(np.append(inside, 0), np.append(seen, 0))
    np.testing.assert_allclose(found[:-1], total / evidence, atol=0.03)
    assert found[-1] == 0.5  # diverged trials, of which none was seen
    again, _ = groups.chance_in(np.append(inside, 0), np.append(seen, 0), fit)
    np.testing.assert_allclose(again, found, atol=1e-3)


def test_groups_keep_equal_scores_and_diverged_trials_together():
    rng = np.random.default_rng(3)
    scores = np.round(rng.normal(size=3000), 2)
    scores[[5, 7, 2000]] = [np.nan, np.inf, -np.inf]
    groups = unmasking.Groups.from_scores(scores)
    assert len(groups.size) <= unmasking.GROUPS + 1
    assert groups.size.sum() == 3000
    assert sorted(groups.order) == list(range(3000))
    last = -math.inf
    for start, size in zip(groups.start[:-1], groups.size[:-1], strict=True):
        trials = groups.order[start : start + size]
        assert np.all(np.diff(trials) > 0)  # in trial order
        assert scores[trials].min() > last
        last = scores[trials].max()
    assert list(groups.order[groups.start[-1] :]) == [5, 7, 2000]


@pytest.mark.parametrize("seed", range(5))
def test_bits_that_are_judged_have_no_part_in_the_choice(seed):
    rng = np.random.default_rng(seed)
    scores, members = gaussian_trials(rng, 400, 1.0)
    scores = np.round(scores, 1)
    scores[rng.random(400) < 0.05] = np.nan

    def chosen(bits: np.ndarray) -> tuple[set[int], np.ndarray]:
        masks = unmasking.Masks(scores, bits, 20)
        masks.adaptive(0.05, 1, 3)
        groups, known = masks._groups, masks._revealed
        looked = [groups.order[s : s + k] for s, k in zip(groups.start, known, strict=True)]
        return set(np.concatenate(looked).tolist()), masks._chance

    looked, chance = chosen(members)
    assert set(range(20)) <= looked
    assert len(looked) < 390
    masked = np.array(sorted(set(range(400)) - looked))
    for _ in range(5):
        other = members.copy()
        other[masked] = rng.random(len(masked)) < 0.5
        again, same = chosen(other)
        assert again == looked
        np.testing.assert_array_equal(same, chance)


def test_counts_by_the_loop_over_masked_trials():
    scores, members = gaussian_trials(np.random.default_rng(4), 500, 1.5)
    scores[::50] = np.nan
    masks = unmasking.Masks(scores, members, 25)
    judged = masks.adaptive(0.05)
    groups = masks._groups
    right = guesses = 0
    lowest = math.inf
    for group, (start, size) in enumerate(zip(groups.start, groups.size, strict=True)):
        for trial in groups.order[start + masks._revealed[group] : start + size]:
            says_in = masks._chance[group] > 0.5
            guesses += 1
            right += bool(says_in == members[trial])
            if says_in and np.isfinite(scores[trial]):
                lowest = min(lowest, scores[trial])
    assert (judged.right, judged.guesses, judged.threshold) == (right, guesses, lowest)
    some = unmasking.Masks(scores, members, 25).fixed(100)
    assert some.guesses == 100
    assert unmasking.Masks(scores, members, 25).fixed(9999).guesses == 475


# --- what is certified ----------------------------------------------------------------------------

CORNER = 0.01
MECHANISMS: dict[str, tuple[Draw, float, float]] = {  # draw, δ, true ε at δ
    "nothing": (lambda rng, n: gaussian_trials(rng, n, 0.0), DELTA, 0.0),
    "gaussian": (lambda rng, n: gaussian_trials(rng, n, float(gdp.mu(2.0, DELTA))), DELTA, 2.0),
    "response": (lambda rng, n: randomised_response(rng, n, 1.0), DELTA, 1.0),
    "corner": (lambda rng, n: told(rng, n, 1.0, CORNER), CORNER, 1.0),
    "corner-0": (lambda rng, n: told(rng, n, 0.0, CORNER), CORNER, 0.0),
    "one-sided": (lambda rng, n: rarely_in(rng, n, 2.0), DELTA, 2.0),
    "subsampled": (subsampled, DELTA, 8.2334),
}


AGAIN = ("nothing", "response")  # as "corner-0" and "corner"


@pytest.mark.parametrize("mechanism", [m for m in MECHANISMS if LONG or m not in AGAIN])
def test_error_is_at_most_its_level(mechanism):
    # The longest form (2000 audits, R = 100 to 5000) is jobs/studies/coverage.yaml.
    draw, delta, truth = MECHANISMS[mechanism]
    rng, wrong, repetitions = np.random.default_rng(5), 0, 250 if LONG else 150
    for _ in range(repetitions):
        wrong += certified(*draw(rng, 300), delta) > truth + 1e-3
    assert wrong <= allowed(repetitions)


def test_error_on_the_mean_of_gaussian_trainings():
    rng, wrong, options = np.random.default_rng(6), 0, LEVEL | {"method": "one-run-fdp"}
    for _ in range(100):
        found = stats.estimate(*gaussian_trials(rng, 300, 1.0), **options, runs=np.arange(300))
        wrong += found.mu_lower > 1.0
    assert wrong <= allowed(100)


def test_a_few_trainings_that_diverge_in_one_world_are_a_leak():
    rng = np.random.default_rng(9)
    for world in (True, False):
        scores, members = gaussian_trials(rng, 2000, 0.0)
        scores[(members == world) & (rng.random(2000) < 0.05)] = np.nan
        assert certified(scores, members) > 1.0


def test_a_chance_of_a_half_is_no_sign():
    """Of diverged trials, where none is known: all are taken for "out"."""
    members = np.arange(40) % 4 > 0
    judged = unmasking.Masks(np.full(40, np.inf), members, 0).fixed(40)
    assert (judged.right, judged.guesses) == (10, 40)


def test_failures_that_depend_on_the_bit_certify_nothing_false():
    """300 audits of randomised response that raises on 40 % of its misses; errs far below 5 %."""
    rng, wrong = np.random.default_rng(12), 0
    for _ in range(300):
        scores, members = randomised_response(rng, 300, 1.0)
        lost = ((scores == 1) != members) & (rng.random(300) < 0.4)
        wrong += stats.assumption_free(scores, members, **LEVEL, missed=lost).epsilon_lower > 1.0
    assert wrong <= allowed(300)


def test_the_bound_beside_every_other():
    scores, members = subsampled(np.random.default_rng(13), 1000)
    found = stats.assumption_free(scores, members, **LEVEL)
    same = stats.estimate(scores, members, **LEVEL, method="one-run", runs=np.arange(1000))
    assert found == same
    assert found.curve_free
    few = stats.assumption_free(scores[:40], members[:40], **LEVEL, planned=1000)
    assert few.epsilon_lower == 0
    with pytest.raises(ValueError, match="one flag per score, got shape"):
        stats.assumption_free(scores, members, **LEVEL, missed=[True])
    assert stats.assumption_free(scores, members, 0.0, 0.95).epsilon_lower >= found.epsilon_lower
    with pytest.raises(ValueError, match=r"delta must lie in \(0, 1\), got 1"):
        stats.assumption_free(scores, members, 1.0, 0.95)


def test_what_the_trials_are_is_no_option_of_a_users():
    for method in ("one-run", "one-run-fdp"):
        assert stats.option_names(stats.estimators()[method]) == ["guesses"]


@pytest.mark.parametrize("method", ["one-run", "one-run-fdp"])
@pytest.mark.parametrize("kind", [subsampled, gaussian_of_mu_1])
def test_bound_costs_as_many_calls_with_ten_times_the_trainings(method, kind):
    """Calls, since a test of time fails on a busy machine; the bound took 50 ms at most."""
    costs = []
    for trainings in (10_000, 100_000):
        state = stats.make(method, trainings, independent=True)
        state.fold(*kind(np.random.default_rng(15), trainings))
        costs.append(cost_of(lambda state=state: state.bound(**LEVEL)))
    few, many = costs
    assert many.calls < 1.5 * few.calls
    assert many.peak_bytes < 60 * 100_000


def test_millions_of_trials_are_grouped_in_little_memory() -> None:
    scores = np.random.default_rng(0).normal(size=100_000)
    most = peak_bytes_of(lambda: unmasking.Groups.from_scores(scores))
    assert most < 36 * len(scores)  # 30 were measured, and 48 with 64-bit places


def laplace_with_rare(rng, trials, chance):
    """Laplace noise at ε = 1, and a score that only members have, with this chance."""
    members = rng.random(trials) < 0.5
    scores = members + rng.laplace(size=trials)
    scores[members & (rng.random(trials) < chance)] = 40.0
    return scores, members


@pytest.mark.parametrize(("trials", "chance", "least"), [(30_000, 0.05, 1.5), (10**6, 5e-4, 1.5)])
def test_event_that_only_members_have_is_certified_though_it_is_rare(trials, chance, least):
    """Ramps alone gave .95 to 1.04; with rates of the ends' own, 20 seeds gave 1.72 or more."""
    state = stats.make("one-run", trials, independent=True)
    state.fold(*laplace_with_rare(np.random.default_rng(7), trials, chance))
    assert state.bound(delta=0.0, confidence=0.95).epsilon_lower > least


def test_groups_at_both_ends_are_halved_down_to_few_scores():
    rng = np.random.default_rng(0)
    for trials in (1000, 16_383, 10**6):
        size = unmasking.Groups.from_scores(rng.normal(size=trials)).size[:-1]
        assert size.sum() == trials
        assert size.max() <= trials / unmasking.GROUPS + 1
        if trials == 10**6:
            assert 60 <= size[0] <= 130
            assert 60 <= size[-1] <= 130
        else:
            assert size.min() >= trials // unmasking.GROUPS
