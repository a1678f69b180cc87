"""What each mechanism knows of its trade-off curve, and whether that is so."""

import pytest

from dpaudit_ray.stats import TradeOff, gdp
from dpaudit_ray.sweep import spec
from tests.mechanisms.test_landscape import sweep
from tests.plan.failing import of_function
from tests.trainings import cell


@pytest.mark.parametrize(
    ("adversary", "options", "curve"),
    [
        ("biased-dimension", {}, "gaussian"),
        ({"name": "biased-dimension", "period": 2}, {}, "unknown"),
        ("loss", {}, "unknown"),
        ("watched-dimension", {}, "gaussian"),
        ("biased-dimension", {"sampling": "poisson"}, "claimed"),
        ("loss", {"sampling": "poisson"}, "unknown"),
        ("biased-dimension", {"sampling": "shuffle"}, "unknown"),
    ],
)
def test_dp_sgd_is_gaussian_for_a_fixed_gradient_in_every_step(adversary, options, curve, tiny):
    """Or of its claim's own curves, where steps are sampled and the others' batches are known."""
    tiny["audit"]["accountants"] = ["rdp"]
    mechanism, attack = cell(tiny, adversary, **options)
    assert mechanism.trade_off(attack, 6) is TradeOff(curve)


@pytest.mark.parametrize("gradient", ["threshold", "linear", "constant"])
def test_a_landscape_is_gaussian_where_mu_gives_its_true_epsilon(gradient):
    raw = sweep(backend="exact", steps=4, batch_size=4, gradient=gradient)
    if gradient == "linear":
        raw["mechanism"]["width"] = 2.0  # to find one takes a scan
    (found,) = spec.from_raw(raw, overrides={"audit.record_every": 1}).cells
    exact = found.mechanism.exact(found.adversary, found.horizons, 1e-5)
    for step in found.horizons:
        converted, true = exact[step]
        alike = abs(converted.epsilon_lower - true.epsilon_lower) < 1e-4
        curve = found.mechanism.trade_off(found.adversary, step)
        assert (curve is TradeOff.GAUSSIAN) == (step == 1 or gradient == "constant")
        assert alike or curve is TradeOff.UNKNOWN, (gradient, step)
        assert converted.status == "if-gaussian"
        assert true.status == "certified"
        certified = converted.given(curve).status == "certified"
        assert certified == (curve is TradeOff.GAUSSIAN)
    if gradient == "threshold":
        assert exact[4][0].epsilon_lower > exact[4][1].epsilon_lower + 0.1
    assert exact[1][1].epsilon_lower == pytest.approx(gdp.epsilon(1.0, 1e-5), abs=1e-4)


def test_of_a_function_only_its_user_knows_the_curve():
    for stated, curve in (({}, TradeOff.UNKNOWN), ({"curve": "gaussian"}, TradeOff.GAUSSIAN)):
        (found,) = spec.from_raw(of_function("own", {}, 10, path="a:b", **stated)).cells
        assert found.mechanism.trade_off(found.adversary, 4) is curve
