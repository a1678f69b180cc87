"""What an ε is called: certified only where nothing is assumed that is not known."""

import dataclasses
import math
from typing import ClassVar

import numpy as np
import pytest

from dpaudit_ray import stats
from dpaudit_ray.stats import Status, TradeOff, base, multi_canary
from dpaudit_ray.stats.lower_bound import Estimate
from dpaudit_ray.stats.threshold_rates import EpsDelta
from tests.stats.reference import (
    gaussian_trials,
    laplace_trials,
    randomised_response,
    several_canaries,
)

LEVEL = {"delta": 1e-5, "confidence": 0.95}
METHODS = stats.estimators()
BY_MU = tuple(name for name, cls in METHODS.items() if cls.status is Status.IF_GAUSSIAN)
WITH_CURVE = ("accuracy", "anytime", "group-sequential")


@pytest.mark.parametrize("method", sorted(METHODS))
def test_an_epsilon_read_off_a_mu_is_not_certified(method):
    scores, members = gaussian_trials(np.random.default_rng(1), 300, 2.0)
    found = stats.estimate(scores, members, **LEVEL, method=method)
    if found.status.holds:
        by_mu = not math.isnan(found.mu_lower)
        assert found.status is (Status.IF_GAUSSIAN if by_mu else Status.CERTIFIED)
        assert found.curve_free == math.isnan(found.mu_lower)
    assert (found.status is Status.IF_GAUSSIAN) == (METHODS[method].status is Status.IF_GAUSSIAN)


@pytest.mark.parametrize("method", BY_MU)
def test_a_known_curve_certifies_what_was_converted_through_it(method):
    scores, members = gaussian_trials(np.random.default_rng(1), 300, 2.0)
    ask = {**LEVEL, "method": method}
    assumed = stats.estimate(scores, members, **ask)
    known = stats.estimate(scores, members, **ask, trade_off="gaussian")
    assert (assumed.status, known.status) == ("if-gaussian", "certified")
    assert dataclasses.replace(known, status=assumed.status) == assumed
    assert not known.curve_free
    assert assumed.given(TradeOff.UNKNOWN) == assumed


@pytest.mark.parametrize("method", WITH_CURVE)
def test_any_curve_needs_no_knowledge(method):
    scores, members = gaussian_trials(np.random.default_rng(1), 300, 2.0)
    found = stats.estimate(scores, members, **LEVEL, method=method, curve="any")
    assert found.status is Status.CERTIFIED
    assert found.curve_free
    assert found.given(TradeOff.GAUSSIAN) == found


@pytest.mark.parametrize("method", ["paper-gdp", "paper-eps-delta"])
def test_knowing_the_curve_certifies_no_other_method(method):
    scores, members = gaussian_trials(np.random.default_rng(1), 300, 2.0)
    found = stats.estimate(scores, members, **LEVEL, method=method, trade_off="gaussian")
    assert found.status is METHODS[method].status
    assert not found.status.holds


def test_several_canaries_and_coupled_worlds_bound_a_mu():
    rng = np.random.default_rng(2)
    outside = rng.normal(size=200)
    pairs = multi_canary.coupled_worlds(outside, outside + 1, **LEVEL)
    bits = rng.random((60, 4)) < 0.5
    many = several_canaries(rng.normal(size=(60, 4)) + 2 * bits, bits)
    assert {pairs.status, many.status} == {Status.IF_GAUSSIAN}


@pytest.mark.parametrize("draw", [laplace_trials, randomised_response])
def test_what_is_called_certified_is_below_the_truth_where_the_curve_is_not_gaussian(draw):
    """ε = 2: the conversion gives 6.4 to 11.7; the chance that one of 3 bounds errs is below .15,
    and the seed is fixed."""
    scores, members = draw(np.random.default_rng(3), 3000, 2.0)
    found = [
        stats.estimate(scores, members, **LEVEL, method=name)
        for name in ("accuracy", "gdp", "claim", "eps-delta", "eps-delta-anytime")
    ]
    wrong = {estimate.status for estimate in found if estimate.epsilon_lower > 2.0}
    assert wrong == {Status.IF_GAUSSIAN}


def test_a_method_cannot_declare_its_conversion_certified():
    class Bold(EpsDelta):
        def bound(self, delta, confidence):
            return self._estimate(3.0, 1.0, (delta, confidence), 0)

    assert Bold.status is Status.CERTIFIED
    assert Bold(planned=1).bound(1e-5, 0.95).status is Status.IF_GAUSSIAN


def test_a_trade_off_is_one_of_three():
    with pytest.raises(ValueError, match="must be one of gaussian, claimed, unknown, got 'any'"):
        stats.estimate([1.0], [1], **LEVEL, trade_off="any")


def shown(method: str, epsilon: float, mu: float = math.nan, status=Status.CERTIFIED) -> Estimate:
    return Estimate(method, status, epsilon, mu, 1e-5, 0.95, 100)


def test_the_bound_without_assumption_is_chosen_by_method_never_by_its_value():
    weak, strong = shown("eps-delta", 0.5), shown("eps-delta-anytime", 2.0)
    converted = shown("accuracy", 9.0, mu=2.0)  # certified, because its curve is known
    assert base.curve_free([converted, strong, weak]) is weak
    assert base.curve_free([strong, converted]) is strong
    assert base.curve_free([shown("exact", 1.0), converted]).method == "exact"
    assert base.curve_free([converted, shown("paper-eps-delta", 3.0, status="paper")]) is None
    for one_run in (False, True):
        method = METHODS[base.curve_free_method(one_run)]
        assert method.one_run  # of independent trainings, or of the canaries of one
        assert method(planned=10).bound(1e-5, 0.95).curve_free
    assert not stats.make("accuracy", 10).bound(1e-5, 0.95).curve_free
    assert stats.make("accuracy", 10, curve="any").bound(1e-5, 0.95).curve_free


@dataclasses.dataclass
class Needy(EpsDelta):
    """Has an option without a default."""

    needle: float = dataclasses.field(kw_only=True)
    name: ClassVar[str] = "needy"


def test_an_option_without_a_default_is_asked_for(monkeypatch):
    monkeypatch.setattr(stats.base, "estimators", lambda: METHODS | {"needy": Needy})
    with pytest.raises(ValueError, match="needle must be given; needy has no default for it"):
        stats.make("needy", planned=10)
    assert stats.make("needy", planned=10, needle=1.0).needle == 1.0
