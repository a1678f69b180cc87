"""What an observer of updates sees, and that a watched dimension shows all that theory allows."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats
from torch import Tensor

from dpaudit_ray.adversaries.base import Canary, PublicKnowledge
from dpaudit_ray.adversaries.watched_dimension import WatchedDimension
from dpaudit_ray.mechanisms.dp_sgd.training import DpSgdTraining
from tests.trainings import gradient, loss, opened

Floats = npt.NDArray[np.float64]
WATCHED = "watched-dimension"


def in_theory(q: float, noise: float, steps: int, member: bool, seed: int) -> Floats:
    """20,000 draws of the score where nothing but the canary and the noise is in the way."""
    rng = np.random.default_rng(seed)
    coins = (rng.random((20_000, steps)) < q) & member
    shown = coins + noise * rng.normal(size=coins.shape)
    return np.log(1 - q + q * np.exp((shown - 0.5) / noise**2)).sum(1)


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "momentum", "schedule": "cosine"},
        {"optimizer": "adam", "physical_batch_size": 100},
    ],
    ids=["momentum", "adam"],
)
def test_the_score_is_the_likelihood_ratio_whatever_the_optimizer(options, tiny):
    """Poisson at q = .28, σ = 1, 20 steps: 300 trials of each world against draws of the formula.

    A right score is rejected in 1 % of seeds, in either world; this one is fixed.
    """
    sizes = {"steps": 20, "batch_size": 160, "noise_multiplier": 1.0, "sampling": "poisson"}
    session = opened(tiny, WATCHED, **sizes, **options)
    members = np.arange(600) % 2 == 0
    scores = session.run(members, 5, (20,))[:, 0]
    for member in (True, False):
        expected = in_theory(160 / 569, 1.0, 20, member, seed=int(member))
        assert stats.ks_2samp(scores[members == member], expected).pvalue > 0.01


def test_at_fixed_batches_it_is_a_sum(tiny):
    """Σ (s_t - 1/2) / σ² has mean ± T / 2σ² and variance T / σ²; within 4 standard errors."""
    session = opened(tiny, WATCHED, optimizer="adam")
    members = np.arange(800) % 2 == 0
    scores = session.run(members, 5, (3, 6))
    for column, steps in enumerate((3, 6)):
        residual = scores[:, column] - np.where(members, 1, -1) * steps / 8
        assert abs(residual.mean()) < 4 * np.sqrt(steps / 4 / 800)
        assert abs(residual.var() / (steps / 4) - 1) < 4 * np.sqrt(2 / 800)


def test_steps_without_the_canary_say_nothing(tiny):
    every = opened(dict(tiny), {"name": "watched-dimension", "period": 3})
    scores = every.run(np.array([True, False]), 5, (2, 3, 5, 6))
    assert (scores[:, 0] == 0).all()
    assert (scores[:, 1] == scores[:, 2]).all()
    assert (scores[:, 2] != scores[:, 3]).all()


def test_the_others_stay_in_where_they_are_not_subtracted(tiny):
    """They blur a dimension that they move, by far more than this noise does."""
    members = np.zeros(200, np.bool_)
    spread = {}
    for subtract in (True, False):
        adversary = {"name": "watched-dimension", "subtract": subtract}
        session = opened(dict(tiny), adversary, noise_multiplier=0.05, sampling="fixed")
        session.canary.direction.copy_(moving(session.training))
        spread[subtract] = np.abs(session.run(members, 5, (6,)) + 6 * 0.5 / 0.05**2).max()
    assert spread[True] < 6 * 6 / 0.05 < spread[False]


def moving(training: DpSgdTraining) -> Tensor:
    """C along the dimension that the others push most in the first step."""
    first = training.x[training.batches[0]], training.y[training.batches[0]]
    found = training.sums(training.initial[None], *first, training.clip_norm)[0].abs()
    return torch.eye(len(found))[int(found.argmax())] * training.clip_norm


class Asking(WatchedDimension):
    """Keeps what it sees, and asks what it may."""

    name: str = f"{__name__}:Asking"

    def observer(self, canary: Canary, known: PublicKnowledge, models: int) -> Any:
        object.__setattr__(self, "_asked", Asked(known, models))
        return self._asked


class Asked:
    def __init__(self, known: PublicKnowledge, models: int) -> None:
        self.known, self.models = known, models
        self.updates: list[tuple[int, Tensor, Tensor]] = []
        self.seen: list[tuple[int, Tensor, Tensor]] = []

    def see_update(self, step: int, before: Tensor, update: Tensor) -> None:
        self.updates.append((step, before, update.clone()))
        update.zero_()  # a copy: the training does not feel it

    def see(self, step: int, before: Tensor, after: Tensor) -> None:
        assert self.updates[-1][0] == step
        self.seen.append((step, before.clone(), after.clone()))

    def scores(self) -> Tensor:
        return torch.zeros(self.models)


@pytest.mark.parametrize("engine", ["packed", "opacus"])
def test_an_observer_of_updates_sees_what_moves_the_models(engine, tiny):
    session = opened(tiny, Asking.model_fields["name"].default, engine=engine, schedule="cosine")
    session.run(np.array([True, False]), 5, (6,))
    asked = session.adversary._asked
    assert [step for step, _, _ in asked.updates] == [1, 2, 3, 4, 5, 6]
    for (step, before, update), (_, start, after) in zip(asked.updates, asked.seen, strict=True):
        assert torch.equal(before, start)
        rate = session.training.recipe.rate(step)
        torch.testing.assert_close(after, before - rate * update, rtol=1e-5, atol=1e-6)


def test_an_observer_may_ask_for_losses_and_gradients_at_any_theta(tiny):
    session = opened(tiny, Asking.model_fields["name"].default, sampling="poisson")
    session.run(np.array([True, False]), 5, (6,))
    asked, training = session.adversary._asked, session.training
    known: PublicKnowledge = asked.known
    theta = torch.randn(3, len(known.initial), generator=torch.Generator().manual_seed(0))
    x, y = known.batch(4)
    assert torch.equal(x, training.x[training.batches[3]])
    for row, losses, whole, clipped in zip(
        theta, known.losses(theta, x, y), known.gradients(theta, x, y),
        known.gradients(theta, x, y, clip_norm=0.1), strict=True,
    ):  # fmt: skip
        each = [loss(training, row, x[i : i + 1], y[i : i + 1]) for i in range(len(y))]
        torch.testing.assert_close(losses, torch.stack(each).detach(), rtol=1e-5, atol=1e-6)
        slow = gradient(training, row, x, y)
        torch.testing.assert_close(whole, slow, rtol=1e-4, atol=1e-4)
        assert float(clipped.norm()) <= 0.1 * len(y) + 1e-5
    assert (known.batch_size, known.noise_multiplier) == (64, 2.0)
    assert known.sample_rate == 64 / 569
