"""Claims as values: each kind against a slow twin, and what is no claim."""

import itertools
import math

import numpy as np
import pytest
from scipy.integrate import quad

from dpaudit_ray.accounting import Claim, Training
from dpaudit_ray.accounting.claim import from_fields
from dpaudit_ray.report.detection import chance_to_refute
from dpaudit_ray.stats import gdp
from dpaudit_ray.stats.claim_verdict import ClaimTest, largest_accuracy
from dpaudit_ray.stats.curve import Responses

KINDS = {
    "pure": {"epsilon": 1.0},
    "approximate": {"epsilon": 1.0, "delta": 1e-3},
    "zero-concentrated": {"rho": 0.1},
    "gaussian": {"mu": 0.5},
    "laplace": {"laplace": 1.0},
    "several laplace": {"laplace": 4.0, "releases": 4},
    "points": {"points": [[1.0, 1e-5], [2.0, 1e-9]]},
    "losses": {"losses": [1.0, -1.0], "chances": [0.7, 0.3 - 1e-3], "releases": 2},
}
TRAINING = {"noise_multiplier": 2.0, "steps": 3}  # its bounds are those of accountants


@pytest.mark.parametrize("fields", KINDS.values(), ids=KINDS)
def test_epsilon_is_the_inverse_of_delta(fields):
    claim = Claim(**fields)
    for delta in (0.01, 0.05, 0.1):
        epsilon = claim.epsilon_at(delta)
        if 0 < epsilon < math.inf:
            assert claim.delta_at(epsilon) == pytest.approx(delta, rel=1e-5)


@pytest.mark.parametrize("fields", KINDS.values(), ids=KINDS)
def test_less_noise_promises_less(fields):
    claim = Claim(**fields)
    strict, weak = claim.weakened(claim.noise).curve, claim.weakened(claim.noise * 0.7).curve
    assert strict.deltas == pytest.approx(claim.curve.deltas)
    assert largest_accuracy(weak) > largest_accuracy(strict)


@pytest.mark.parametrize("fields", [*KINDS.values(), TRAINING])
def test_a_claim_is_read_as_it_was_stored(fields):
    claim = Claim(**fields)
    assert from_fields(claim.as_fields()) == claim


def test_a_plan_of_version_1_states_releases():
    stored = {"noise_multiplier": 2.0, "releases": 3, "adjacency": "replace"}
    assert from_fields(stored) == Training(2.0, 3, adjacency="replace")


def hockey_stick(density, other, epsilon, points):
    """δ at ε of two densities on the line, by quadrature."""

    def excess(x):
        return max(density(x) - math.exp(epsilon) * other(x), 0.0)

    edges = [-60.0, *points, 60.0]
    return sum(quad(excess, *pair)[0] for pair in itertools.pairwise(edges))


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
def test_one_laplace_release_has_the_delta_of_its_densities(scale):
    claim = Claim(laplace=scale)
    for epsilon in (0.0, 0.2, 0.9 / scale, 1.1 / scale):
        exact = hockey_stick(
            lambda x: math.exp(-abs(x - 1) / scale) / (2 * scale),
            lambda x: math.exp(-abs(x) / scale) / (2 * scale),
            epsilon,
            [0.0, (1 + epsilon * scale) / 2, 1.0],
        )
        assert claim.delta_at(epsilon) == pytest.approx(exact, abs=1e-7)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 0.8])
def test_laplace_releases_are_composed_from_above_and_closely(epsilon):
    """The slow twin sums over a fine grid of both outputs, whose midpoints err by 1e-4."""
    scale = 2.0
    claim = Claim(laplace=scale, releases=2)
    edges = np.linspace(-40, 41, 6001)
    x = (edges[1:] + edges[:-1]) / 2
    mass = np.exp(-np.abs(x - 1) / scale) / (2 * scale) * (edges[1] - edges[0])
    loss = (np.abs(x) - np.abs(x - 1)) / scale
    order = np.argsort(loss)
    excess = -np.expm1(epsilon - (loss[order][:, None] + loss[order][None, :]))
    exact = mass[order] @ np.clip(excess, 0, None) @ mass[order]
    assert exact - 2e-4 <= claim.delta_at(epsilon) <= exact + 2e-3


def test_listed_losses_are_composed_from_above_and_closely():
    losses, chances = [1.5, 0.2, -0.7], [0.3, 0.3, 0.39]
    claim = Claim(losses=losses, chances=chances, releases=3)
    for epsilon in (0.0, 0.5, 2.0):
        exact = 1 - 0.99**3
        for picked in itertools.product(range(3), repeat=3):
            chance = math.prod(chances[i] for i in picked)
            exact += chance * max(-math.expm1(epsilon - sum(losses[i] for i in picked)), 0.0)
        assert exact - 1e-9 <= claim.delta_at(epsilon) <= exact + 3e-3


@pytest.mark.parametrize("rho", [0.005, 0.1, 2.0])
def test_zero_concentrated_dp_has_the_delta_of_its_best_order(rho):
    orders = 1 + np.exp(np.linspace(-8, 8, 20_001))
    for epsilon in (rho, 1.0, 4.0):
        logs = (orders - 1) * (orders * rho - epsilon) - np.log(orders - 1)
        logs += orders * np.log1p(-1 / orders)
        found = Claim(rho=rho).delta_at(epsilon)
        assert found <= math.exp(min(logs.min(), 0.0)) * (1 + 1e-6)
        assert found >= float(gdp.delta(epsilon, math.sqrt(2 * rho))), "a Gaussian is ρ-zCDP"


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_laplace_noise_keeps_its_zero_concentrated_claim(scale):
    """A pure ε of 1/b is ε²/2-zCDP (Bun, Steinke 2016, Proposition 1.4)."""
    weaker, exact = Claim(rho=1 / (2 * scale**2)), Claim(laplace=scale)
    for epsilon in np.linspace(0, 1 / scale, 12):
        assert weaker.delta_at(epsilon) >= exact.delta_at(epsilon)


def test_points_promise_the_least_of_each():
    claim = Claim(points=[[1.0, 1e-5], [2.0, 1e-9]])
    parts = [Claim(epsilon=1.0, delta=1e-5), Claim(epsilon=2.0, delta=1e-9)]
    for epsilon in (0.0, 0.7, 1.5, 3.0):
        assert claim.delta_at(epsilon) == min(part.delta_at(epsilon) for part in parts)
    assert claim.epsilon_at(1e-7) == parts[1].epsilon_at(1e-7)


@pytest.mark.parametrize("fields", KINDS.values(), ids=KINDS)
def test_answers_of_the_worst_mechanism_are_right_as_often_as_claimed(fields):
    """50,000 answers at seed 0: a rate is off by .01 once in 10⁵ seeds."""
    curve = Claim(**fields).curve
    rng = np.random.default_rng(0)
    members = rng.random(50_000) < 0.5
    scores = Responses.from_curve(curve).scores(members, rng)
    assert np.mean((scores > 0) == members) == pytest.approx(largest_accuracy(curve), abs=0.01)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "needs one of epsilon, event, laplace"),
        ({"epsilon": 1, "rho": 2}, "got epsilon, rho"),
        ({"rho": 1, "foo": 2}, "a claim by rho does not take foo; it takes rho, unit"),
        ({"losses": [1]}, "a claim by losses needs chances"),
        ({"losses": [1], "chances": [1, 2]}, "chances must be 1 numbers"),
        ({"losses": [1], "chances": [1.5]}, "sum to at most 1, got 1.5"),
        ({"losses": [], "chances": []}, "losses must be a list of numbers, got \\[\\]"),
        ({"mu": -1.0}, "mu must be a number above 0, got -1.0"),
        ({"mu": math.nan}, "mu must be a number above 0, got nan"),
        ({"epsilon": True}, "epsilon must be a number at least 0, got True"),
        ({"epsilon": "1"}, "epsilon must be a number at least 0, got '1'"),
        ({"epsilon": 1, "delta": 1}, "delta must be below 1, got 1"),
        ({"epsilon": 1, "unit": "person"}, "unit must be one of record, user, client, label"),
        ({"points": [1]}, "points must be a list of"),
        ({"laplace": 1, "releases": 0}, "releases must be a whole number of at least 1, got 0"),
        ({"noise_multiplier": "x", "steps": 2}, "in the claim"),
        ([1], "a claim is a mapping such as {epsilon: 1}"),
    ],
)
def test_what_is_no_claim_is_named_with_its_bound(fields, problem):
    with pytest.raises(ValueError, match=problem):
        from_fields(fields)


def test_the_chance_to_notice_less_noise_is_not_overstated_for_zero_concentrated_dp():
    """A Gaussian leaks all that ρ allows, and less at each ε than its curve.

    The share that is found is of 40 audits at seed 0: its standard error is 0.05.
    """
    claim, rng = Claim(rho=0.125), np.random.default_rng(0)
    assert claim.worst_is_gaussian

    def audit(noise):
        members = rng.random(1000) < 0.5
        test = ClaimTest(claim.curve, 1000)
        test.fold(members + 2 * noise * rng.normal(size=1000), members)
        test.look(now=True)
        return test

    said = np.mean([chance_to_refute(audit(1.0), 0.05) for _ in range(4)])
    found = np.mean([audit(0.7).refuted_after(0.05) is not None for _ in range(40)])
    assert said <= found + 0.15
