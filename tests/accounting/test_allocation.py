"""Balls and bins: the claim beside its slow twin, what it reaches, and where others answer."""

from typing import Any

import numpy as np
import pytest
from scipy import special

from dpaudit_ray import accounting
from dpaudit_ray.accounting import Adjacency, Sampling, Training
from dpaudit_ray.errors import SpecError
from dpaudit_ray.plan import claims
from dpaudit_ray.stats import gdp
from dpaudit_ray.stats.claim_verdict import ClaimTest
from dpaudit_ray.sweep.spec import from_raw
from dpaudit_ray.sweep.yamlfile import parse_yaml
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


def balls_and_bins(tiny: dict[str, Any], **audit: Any) -> dict[str, Any]:
    tiny["mechanism"]["sampling"] = "balls-and-bins"
    tiny["audit"] = {key: tiny["audit"][key] for key in ("trials", "delta")} | audit
    tiny.pop("grid", None)
    return tiny


def test_a_sweep_of_balls_and_bins_claims_what_is_proven(tiny):
    sweep = from_raw(balls_and_bins(tiny))
    assert [cell.audit.accountants for cell in sweep.cells] == [["allocation"]]
    again = from_raw(parse_yaml(sweep.canonical(), "sweep.yaml"))
    assert again.cells == sweep.cells
    assert again.fingerprint == sweep.fingerprint


def test_accountants_that_are_named_stay(tiny):
    for names in (["gaussian"], ["pld", "allocation"]):
        (cell,) = from_raw(balls_and_bins(tiny, accountants=names)).cells
        assert cell.audit.accountants == names


@pytest.mark.parametrize(
    ("sampling", "accountant"), [("fixed", "gaussian"), ("shuffle", "gaussian"), ("poisson", "prv")]
)
def test_a_sweep_without_accountants_has_one_for_its_batches(tiny, sampling, accountant):
    tiny = balls_and_bins(tiny)
    tiny["mechanism"]["sampling"] = sampling
    sweep = from_raw(tiny)
    assert sweep.cells[0].audit.accountants == [accountant]
    assert claims.claimed_epsilons(sweep.cells[0])[accountant][-1] > 0


def test_each_point_of_a_grid_has_the_accountant_of_its_batches(tiny):
    tiny = balls_and_bins(tiny) | {"grid": {"mechanism.sampling": ["shuffle", "balls-and-bins"]}}
    found = [cell.audit.accountants for cell in from_raw(tiny).cells]
    assert found == [["gaussian"], ["allocation"]]


def test_a_sweep_that_was_recorded_before_keeps_its_accountant(tiny):
    """Its fingerprint tells that `gaussian` was the default; another one is refused as ever."""
    named = from_raw(balls_and_bins(tiny, accountants=["gaussian"]))
    unnamed = balls_and_bins(tiny) | {"fingerprint": named.fingerprint, "version": "1.0.0"}
    (cell,) = from_raw(unnamed).cells
    assert cell.audit.accountants == ["gaussian"]
    with pytest.raises(SpecError, match="it was edited, or written"):
        from_raw(unnamed | {"fingerprint": "0" * 16})


def test_a_training_between_both_claims_is_found():
    """ε = 3 in truth, where 1.47 is claimed by allocation, and 4.98 without amplification."""
    rng = np.random.default_rng(2)
    claimed = Training(2.0, 50, 0.1, sampling=Sampling.BALLS_AND_BINS)
    members = rng.random(2000) < 0.5
    scores = rng.normal(size=2000) + float(gdp.mu(3.0, 1e-5)) * members
    for accountant, refuted in (("allocation", True), ("gaussian", False)):
        test = ClaimTest(claims.curves(claimed, accountant, 1e-5)(2.0), 2000)
        test.fold(scores, members)
        test.look(now=True)
        assert (test.refuted_after(0.05) is not None) == refuted
