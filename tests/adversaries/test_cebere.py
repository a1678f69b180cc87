"""The adversaries of Cebere et al.: what they insert, and what they make of what is released."""

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from dpaudit_ray.adversaries.base import GradientCanary
from dpaudit_ray.adversaries.biased_dimension import BiasedDimension
from dpaudit_ray.adversaries.cosine import Cosine
from dpaudit_ray.adversaries.loss import Loss
from dpaudit_ray.mechanisms.dp_sgd.session import DpSgdSession
from dpaudit_ray.mechanisms.dp_sgd.training import DpSgdTraining
from tests.trainings import gradient, opened, path


@pytest.fixture
def training(tiny: dict) -> DpSgdTraining:
    return opened(tiny, "cosine", torch.float64).training


def test_cosine_is_minus_the_cosine_of_each_model():
    rng = np.random.default_rng(0)
    initial, final, g = rng.normal(size=5), rng.normal(size=(3, 5)), rng.normal(size=5)
    released = SimpleNamespace(initial=torch.tensor(initial), final=torch.tensor(final))
    scores = Cosine().score(GradientCanary(torch.tensor(g)), released)
    for score, theta in zip(scores, final, strict=True):
        twin = sum(a * b for a, b in zip(theta - initial, g, strict=True))
        twin /= math.dist(theta, initial) * math.hypot(*g)
        assert float(score) == pytest.approx(-twin, rel=1e-12)


def test_cosine_inserts_all_that_the_claim_allows_in_any_direction(training):
    """Coordinates of 400 unit vectors have mean 0 and variance 1/p; z of 4.5, 1 seed in 2,000."""
    rng = np.random.default_rng(0)
    drawn = [Cosine().craft(training, rng).direction for _ in range(400)]
    rows = torch.stack(drawn) / training.clip_norm
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(400, dtype=torch.float64))
    p = rows.shape[1]
    assert float(rows.mean(0).abs().max()) < 4.5 / math.sqrt(400 * p)
    assert float((rows**2).mean()) == pytest.approx(1 / p)


@pytest.mark.parametrize("adversary", [Cosine(), BiasedDimension()], ids=lambda a: a.name)
def test_scores_are_higher_where_the_canary_is_in(training, adversary):
    """With little noise every "in" lies above every "out"."""
    quiet = dataclasses.replace(
        training, recipe=training.recipe.model_copy(update={"noise_multiplier": 1e-3})
    )
    session = DpSgdSession.craft(quiet, adversary, seed=3)
    members = np.arange(12) % 2 == 0
    scores = session.run(members, 8, (training.recipe.steps,))[:, 0]
    assert scores[members].min() > scores[~members].max()


def test_the_norm_of_the_canary_is_that_of_its_own_gradient(training):
    """The slow twin asks autograd, model by model. It is not clipped."""
    adversary = Loss(statistic="gradient-norm", example=7)
    session = DpSgdSession.craft(training, adversary, seed=3)
    members = np.array([True, False])
    steps = (1, training.recipe.steps)
    scores = session.run(members, 8, steps)
    thetas = path(training, members, session.canary, 8)
    for column, step in enumerate(steps):
        for i, theta in enumerate(thetas[step]):
            norm = gradient(training, theta, session.canary.x, session.canary.y).norm()
            assert -scores[i, column] == pytest.approx(float(norm), rel=1e-9)
    plain = DpSgdSession.craft(training, Loss(example=7), seed=3).canary
    assert torch.equal(plain.x, session.canary.x)
    assert torch.equal(plain.y, session.canary.y)


@pytest.mark.parametrize("strategy", ["noiseless-per-step", "noiseless-final"])
def test_an_unknown_start_counts_as_movement(strategy):
    """Two trainings of three parameters: the starts are 2, 0.1, 0 and 1, -0.1, 0."""
    adversary = BiasedDimension(choice="simulated", strategy=strategy, simulations=2)
    ran = []

    def simulate(runs: int, noisy: bool, seed: int) -> list[Tensor]:
        ran.append(runs)
        start = torch.tensor([[2.0, 0.1, 0.0], [1.0, -0.1, 0.0]])[:runs]
        return [start + torch.tensor([0.0, a, b]) for a, b in ((0, 0), (0.01, 0.5), (0.02, 0.4))]

    for initial, least in (([0.0, 0.0, 0.0], 1), ([2.0, 0.1, 0.0], 0)):
        public = SimpleNamespace(initial=torch.tensor(initial), clip_norm=1.0, simulate=simulate)
        assert int(adversary.craft(public, np.random.default_rng(0)).direction.argmax()) == least
    assert ran == [2, 1], "they are all alike from one start only"


@pytest.mark.parametrize("scheme", ["kaiming", "xavier"])
def test_biases_start_at_zero_and_so_are_found(tiny, scheme):
    """A weight's θ_0 varies by about 0.5, a parameter's way in six steps is a tenth of it."""
    random = tiny["mechanism"]["model"] | {"initialization": "random", "scheme": scheme}
    training = opened(tiny, "cosine", torch.float64, model=random).training
    named = training.module.named_parameters()
    names = [name for name, parameter in named for _ in range(parameter.numel())]
    for seed in range(5):
        rng = np.random.default_rng(seed)
        direction = BiasedDimension(choice="simulated").craft(training, rng).direction
        assert names[int(direction.argmax())].endswith("bias")
