"""Ways in which audit tools were found to break; those that are missing here have other tests."""

import math

import numpy as np
import pytest

from dpaudit_ray import accounting, stats
from dpaudit_ray.stats import budget, one_run, one_run_fdp, threshold_rates
from tests.stats.reference import epsilon_of_counts, gaussian_trials, mu_of_counts, two_worlds

approx = pytest.approx

LEVEL = {"delta": 1e-5, "confidence": 0.95}
MANY_RUN = [n for n, cls in stats.estimators().items() if not (cls.one_run or cls.by_run)]
ONE_RUN = sorted(name for name, cls in stats.estimators().items() if cls.one_run)


def test_01_chance_counts_give_zero():
    # Flipping two upper bounds across the diagonal would give 0.985 here.
    errors, sizes = (10, 10), (20, 20)
    assert epsilon_of_counts(errors, sizes, 0.0, 0.05)[0] == 0
    assert threshold_rates.epsilon_of_rates(0.7, 0.7, 0.0) == 0


def test_02_gdp_shows_nothing_on_null_and_reversed_scores():
    rng = np.random.default_rng(0xBAD5EED)
    members = rng.permutation(np.repeat([False, True], 5000))
    null = rng.normal(size=10_000)
    # |mu| of two upper bounds gave 3.54 on such scores.
    for method in ("gdp", "accuracy", "eps-delta", "anytime", "claim"):
        assert stats.estimate(null, members, **LEVEL, method=method).epsilon_lower == 0
    scores, members = two_worlds(500, -3.0)
    shuffle = rng.permutation(1000)
    for method in MANY_RUN:
        found = stats.estimate(scores[shuffle], members[shuffle], **LEVEL, method=method)
        assert found.epsilon_lower == 0, method
    assert mu_of_counts((450, 450), (500, 500), 0.05)[0] < -2


@pytest.mark.parametrize("delta", [0.0, 1e-5, 1.0])
@pytest.mark.parametrize(("v", "r"), [(0, 0), (0, 50), (50, 50), (1, 1), (25, 50)])
def test_05_one_run_edges(v, r, delta):
    for epsilon in (0.0, 1.0, 50.0):
        assert 0 <= one_run.p_value(v, r, 50, epsilon, delta) <= 1
    found = one_run.epsilon_lower(v, r, 50, delta, 0.95)
    assert 0 <= found < one_run.LARGEST
    assert found == 0 or (v == r and r > 5 and delta < 1)
    assert 0 <= one_run_fdp.mu_lower(v, r, 50, 0.95) < 40


def test_06_no_evidence_is_exactly_zero_and_ceilings_are_known():
    assert one_run_fdp.mu_lower(0, 800, 1000, 0.95) == 0
    assert one_run_fdp.mu_lower(400, 800, 1000, 0.95) == 0
    assert one_run.epsilon_lower(0, 800, 1000, 1e-6, 0.95) == 0
    scores, members = two_worlds(50, 1000.0)
    for method in ("accuracy", "eps-delta"):
        best = stats.power.largest_certifiable(100, **LEVEL, method=method)
        order = np.random.default_rng(1).permutation(100)
        found = stats.estimate(scores[order], members[order], **LEVEL, method=method)
        assert 0 < found.epsilon_lower <= best + 1e-9


def test_08_unequal_worlds_must_not_be_swapped():
    right = epsilon_of_counts((5, 200), (1000, 400), 1e-5, 0.05)[0]
    swapped = epsilon_of_counts((5, 200), (400, 1000), 1e-5, 0.05)[0]
    assert right != approx(swapped, abs=0.1)
    assert mu_of_counts((5, 200), (1000, 400), 0.05)[0] != approx(
        mu_of_counts((5, 200), (400, 1000), 0.05)[0], abs=0.1
    )


def test_09_one_sided_alpha_is_a_two_sided_interval_at_twice_alpha():
    # A bound at `confidence` spends 1 - confidence in all, half of it on either rate.
    scores, members = two_worlds(200, 1.0)
    found = stats.estimate(
        scores, members, 1e-5, 0.9, method="eps-delta", threshold="fixed", value=0.5
    )
    fp, fn = int(np.sum(scores[:200] >= 0.5)), int(np.sum(scores[200:] < 0.5))
    by_hand = threshold_rates.epsilon_of_rates(
        stats.clopper_pearson_upper(fp, 200, 0.05), stats.clopper_pearson_upper(fn, 200, 0.05), 1e-5
    )
    assert found.epsilon_lower == approx(by_hand, rel=1e-12)  # last bits differ by numpy


def test_10_step_counts_are_part_of_a_claim():
    assert (int(90 // 0.04), int(90 / 0.04)) == (2249, 2250)
    fewer = accounting.epsilon(1.5, 2249, 1e-5, 0.04, "prv")
    more = accounting.epsilon(1.5, 2250, 1e-5, 0.04, "prv")
    assert fewer == approx(6.777396, abs=1e-5)
    assert more == approx(6.779132, abs=1e-5)
    with pytest.raises(ValueError, match="steps must be a whole number"):
        accounting.epsilon(1.5, 90 / 0.04, 1e-5, 0.04, "prv")


def test_11_maximum_over_thresholds_is_labelled():
    for name, cls in stats.estimators().items():
        best_of_all = name.startswith("paper")
        assert (cls.status is stats.Status.PAPER) == best_of_all
    # The same error rates at one threshold stay below the uncorrected maximum over all.
    scores, members = gaussian_trials(np.random.default_rng(11), 2000, 1.0)
    uncorrected = stats.estimate(scores, members, **LEVEL, method="paper-gdp").epsilon_lower
    assert stats.estimate(scores, members, **LEVEL, method="gdp").epsilon_lower < uncorrected


def test_12_one_training_is_refused_by_methods_for_many():
    scores, members = gaussian_trials(np.random.default_rng(12), 100, 1.0)
    for method in MANY_RUN:
        with pytest.raises(ValueError, match="takes independent trainings, got 100 scores from 1"):
            stats.estimate(scores, members, **LEVEL, method=method, runs=np.zeros(100))
        stats.estimate(scores, members, **LEVEL, method=method, runs=np.arange(100))
    for method in ONE_RUN:
        stats.estimate(scores, members, **LEVEL, method=method, runs=np.zeros(100))
        stats.estimate(scores, members, **LEVEL, method=method, runs=np.arange(100))
    for method in MANY_RUN:
        with pytest.raises(ValueError, match="got 100 scores from 50; use one-run or several-can"):
            stats.estimate(scores, members, **LEVEL, method=method, runs=np.arange(100) // 2)
    with pytest.raises(ValueError, match="one training per score"):
        stats.estimate(scores, members, **LEVEL, runs=[1, 2])


def test_14_many_tests_share_one_error_budget():
    audit = budget.Budget(0.95, ("accuracy", "eps-delta"), (50, 100, 150, 200, 250))
    assert budget.SweepBudget((audit,)).parts == 10
    assert budget.SweepBudget((audit,)).each == approx(0.995)
    assert budget.SweepBudget((budget.Budget(0.95),)).each == approx(0.95)


def test_14b_averages_of_evidence_need_no_split():
    logs = [math.log(30.0), math.log(0.1), -math.inf]
    assert math.exp(budget.average_evidence(logs)) == approx(30.1 / 3)
