"""What each mechanism knows of its trade-off curve, and whether that is so."""

from typing import Any

import pytest

from dpaudit_ray.stats import TradeOff, gdp
from dpaudit_ray.sweep import spec
from dpaudit_ray.sweep.cell import Cell


def cell(raw: dict[str, Any], adversary: Any = None) -> Cell:
    (only,) = spec.from_raw({**raw, "grid": {}, "adversary": adversary or raw["adversary"]}).cells
    return only


def curve_of(found: Cell) -> TradeOff:
    return found.mechanism.trade_off(found.adversary, found.horizons[-1])


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
    raw = {**tiny, "mechanism": tiny["mechanism"] | options}
    assert curve_of(cell(raw, adversary)) is TradeOff(curve)


LANDSCAPE: dict[str, Any] = {
    "name": "land",
    "mechanism": {
        "name": "landscape", "steps": 4, "batch_size": 4, "noise_multiplier": 1.0,
        "backend": "exact",
    },
    "adversary": "landscape",
    "audit": {"trials": 10, "delta": 1e-5, "record_every": 1},
}  # fmt: skip


@pytest.mark.parametrize("gradient", ["threshold", "linear", "constant"])
def test_a_landscape_is_gaussian_where_mu_gives_its_true_epsilon(gradient):
    raw = {**LANDSCAPE, "mechanism": LANDSCAPE["mechanism"] | {"gradient": gradient}}
    found = cell(raw)
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
    mechanism = {"name": "function", "path": "a:b", "steps": 4, "noise_multiplier": 2.0}
    audit = {"trials": 10, "delta": 1e-5}
    raw = {"name": "own", "mechanism": mechanism, "adversary": "own", "audit": audit}
    assert curve_of(cell(raw)) is TradeOff.UNKNOWN
    stated = cell({**raw, "mechanism": mechanism | {"curve": "gaussian"}})
    assert curve_of(stated) is TradeOff.GAUSSIAN
