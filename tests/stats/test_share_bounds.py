"""Bounds on a mean share: against slow twins, and by the exact law of small samples."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from dpaudit_ray.stats import share_bounds
from dpaudit_ray.stats.share_bounds import betting_lower, binomial_lower, binomial_p_value, evidence


def wealth_twin(hits, sizes, rate):
    """Multiplies each gambler's wealth unit by unit."""
    stakes = [math.sin((number + 0.5) * math.pi / 32) ** 2 for number in range(16)]
    total = 0.0
    for stake, wealth in [*((stake, 1 / 48) for stake in stakes), (1.0, 2 / 3)]:
        for hit, size in zip(hits, sizes, strict=True):
            wealth *= 1 + stake * (hit - rate * size) / (rate * max(sizes))
        total += wealth
    return total


@pytest.mark.parametrize("many", [100, 1])
def test_evidence_is_the_product_of_all_bets(monkeypatch, many):
    monkeypatch.setattr(share_bounds, "_MANY", many)  # equal units are counted, or not
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 4, 30).astype(float)
    hits = rng.binomial(sizes.astype(int), 0.4).astype(float)
    for rate in (0.1, 0.3, 0.9):
        twin = wealth_twin(hits, sizes, rate)
        assert math.exp(evidence(hits, sizes, rate)) == pytest.approx(twin, rel=1e-9)
    low = betting_lower(hits, sizes, 0.05)
    assert wealth_twin(hits, sizes, low) == pytest.approx(20, rel=1e-6)
    assert 0.1 < low < hits.sum() / sizes.sum()


@pytest.mark.parametrize("rates", [(0.3, 0.3, 0.3, 0.3), (0.9, 0.05, 0.2, 0.05), (1, 1, 0, 0)])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (4, 1, 2, 1)])
def test_expected_wealth_is_at_most_one_if_units_differ(rates, sizes):
    """Exactly: over all outcomes of four units that have all hits or none."""
    sizes = np.array(sizes, float)
    mean = float(sizes @ rates / sizes.sum())
    expected = 0.0
    for outcome in itertools.product((0, 1), repeat=4):
        chance = math.prod(p if hit else 1 - p for p, hit in zip(rates, outcome, strict=True))
        expected += chance * math.exp(evidence(sizes * outcome, sizes, mean))
    assert expected <= 1 + 1e-12


def test_the_p_value_of_a_sum_is_above_the_binomial_one_by_e_at_most():
    for units, rate in ((1, 0.4), (2, 0.1), (9, 0.5), (50, 0.02), (50, 0.76), (1000, 0.9)):
        for total in range(math.ceil(units * rate + 1e-9), units + 1):
            exact = stats.binom.sf(total - 1, units, rate)
            bound = binomial_p_value(total, units, rate)
            assert exact - 1e-12 <= bound <= min(math.e * exact, 1) + 1e-12


@pytest.mark.parametrize("alpha", [0.2, 0.025])
def test_bounds_of_an_auc_err_by_its_exact_law(alpha):
    """All outcomes of three members and four others, whose scores have three values."""
    outcomes = (
        list(itertools.product(range(3), repeat=3)),
        list(itertools.product(range(3), repeat=4)),
    )
    pairs = [np.sign(np.subtract.outer(range(3), range(3))) / 2 + 0.5]
    aucs = np.array([[pairs[0][np.ix_(a, b)].mean() for b in outcomes[1]] for a in outcomes[0]])
    lows = {value: binomial_lower(3 * value, 3, alpha) for value in np.unique(aucs)}
    bounds = np.vectorize(lows.get)(aucs)
    rng = np.random.default_rng(1)
    for concentration in (0.2, 1.0) * 20:
        laws = rng.dirichlet([concentration] * 3, 2)
        truth = laws[0] @ pairs[0] @ laws[1]
        chances = [laws[world][np.array(outcomes[world])].prod(axis=1) for world in (0, 1)]
        assert chances[0] @ (bounds > truth + 1e-9) @ chances[1] <= alpha


def test_few_or_empty_units_show_nothing():
    one, none, all_hit = np.ones(1), np.zeros(5), np.ones(5)
    assert betting_lower(one, one, 0.05) == binomial_lower(1, 1, 0.05) == 0
    assert betting_lower(none, all_hit, 0.05) == binomial_lower(0, 5, 0.05) == 0
    assert betting_lower(np.eye(5)[0], np.eye(5)[0], 0.05) == 0  # four units have no score
    assert evidence(none, none, 0.5) == -math.inf
    # The boldest alone, and the exact bound.
    assert (0.05 * 2 / 3) ** 0.2 < betting_lower(all_hit, all_hit, 0.05) < 0.05**0.2
    assert binomial_lower(5, 5, 0.05) == pytest.approx(0.05**0.2, abs=1e-9)
