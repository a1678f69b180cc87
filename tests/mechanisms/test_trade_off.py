"""What each mechanism knows of its trade-off curve, and whether that is so."""

from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from dpaudit_ray.adversaries.base import GradientCanary, TrajectoryAdversary
from dpaudit_ray.errors import SpecError
from dpaudit_ray.stats import TradeOff, gdp
from dpaudit_ray.sweep import spec
from dpaudit_ray.sweep.cell import Cell


class _LikelihoodRatio:
    """Sums what each step shows of the canary, knowing the sum of all other gradients."""

    def __init__(self, canary: GradientCanary, training: Any, models: int) -> None:
        self._unit = canary.direction / canary.direction.norm()
        self._training, self._shown = training, torch.zeros(models)

    def see(self, step: int, before: Any, after: Any) -> None:
        options, training = self._training.recipe, self._training
        rate = options.learning_rate / options.batch_size
        batch = training.batches[step - 1]
        x, y = training.x[batch], training.y[batch]
        others = training.model.clipped_sums(before, x, y, options.clip_norm)
        self._shown += ((before - after) / rate - others) @ self._unit

    def scores(self) -> Any:
        return self._shown.clone()


class Watcher(TrajectoryAdversary[GradientCanary]):
    """The best test there is on the whole trajectory, of one gradient in all trials."""

    name: str = f"{__name__}:Watcher"
    fixed_gradient: ClassVar[bool] = True

    def craft(self, known: Any, rng: Any) -> GradientCanary:
        direction = known.initial.new_zeros(len(known.initial))
        direction[-1] = known.clip_norm
        return GradientCanary(direction)

    def observer(self, canary: Any, known: Any, models: int) -> Any:
        return _LikelihoodRatio(canary, known._training, models)


def cell(raw: dict[str, Any], adversary: Any = None) -> Cell:
    (only,) = spec.from_raw({**raw, "grid": {}, "adversary": adversary or raw["adversary"]}).cells
    return only


def curve_of(found: Cell) -> TradeOff:
    return found.mechanism.trade_off(found.adversary, found.horizons[-1])


@pytest.mark.parametrize(
    ("adversary", "options", "curve"),
    [
        ("biased-dimension", {}, "gaussian"),
        ({"name": "biased-dimension", "choice": "simulated"}, {}, "gaussian"),
        ({"name": "biased-dimension", "period": 2}, {}, "unknown"),
        ("loss", {}, "unknown"),
        ("cosine", {}, "unknown"),
        (Watcher.model_fields["name"].default, {}, "gaussian"),
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


def test_the_likelihood_ratio_of_a_trajectory_is_exactly_gaussian(tiny):
    """Six steps, σ = 2: given θ_{t-1}, what a step shows is N(b, σ²), whatever the data do.

    The statistic has mean 6 b and variance 24, and normal tails: 800 trials, four standard errors;
    the seed is fixed.
    """
    found = cell(tiny, Watcher.model_fields["name"].default)
    session = found.mechanism.open(found.adversary, seed=0, craft_seed=1, gpu=False)
    members = np.arange(800) % 2 == 0
    shown = session.run(members, 7, (6,))[:, 0]
    residual = (shown - 6 * members) / np.sqrt(24)
    for world in (members, ~members):
        assert abs(residual[world].mean()) < 4 / np.sqrt(400)
        assert abs(residual[world].var() - 1) < 4 * np.sqrt(2 / 400)
    assert abs((residual**4).mean() - 3) < 4 * np.sqrt(96 / 800)


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
    with pytest.raises(SpecError, match=r"mechanism\.curve: must be 'gaussian' or 'unknown'"):
        cell({**raw, "mechanism": mechanism | {"curve": "laplace"}})
