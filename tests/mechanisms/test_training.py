"""DP-SGD's update against a plain loop, and what adversaries get to see."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from dpaudit_ray import stats
from dpaudit_ray.adversaries.base import Adversary, FinalModelAdversary, SampleCanary
from dpaudit_ray.adversaries.biased_dimension import BiasedDimension
from dpaudit_ray.adversaries.loss import Loss
from dpaudit_ray.engines.noise import CpuNoise
from dpaudit_ray.errors import SpecError
from dpaudit_ray.mechanisms.dp_sgd import DpSgd
from dpaudit_ray.mechanisms.dp_sgd.session import DpSgdSession
from dpaudit_ray.mechanisms.dp_sgd.training import DpSgdTraining
from tests.trainings import along, path


@pytest.fixture
def training(options: DpSgd) -> DpSgdTraining:
    return DpSgdTraining.prepare(options.recipe, seed=1, gpu=False, dtype=torch.float64)


@pytest.mark.parametrize("period", [1, 2, 4])
@pytest.mark.parametrize("kind", ["gradient", "sample"])
def test_update_is_equation_2(training, period, kind):
    """Two models, one with the canary, stepped by hand: noise sigma C on the sum, fixed |B|."""
    x, y = training.example(7)
    gradient = along(training, 5)
    canary = gradient if kind == "gradient" else SampleCanary(x, 1 - y)
    fast = path(training, [0, 1], canary, 9, period)[-1]

    options, noise = training.recipe, CpuNoise(9)
    theta = training.initial.repeat(2, 1)
    for t, batch in enumerate(training.batches, start=1):
        z = torch.empty_like(theta)
        noise.fill(z)
        sums = training.model.clipped_sums(theta, training.x[batch], training.y[batch], 1.0)
        if t % period == 0 and kind == "gradient":
            sums[1] += gradient.direction
        elif t % period == 0:
            sums[1] += training.model.clipped_sums(theta[1:], x, 1 - y, 1.0)[0]
        theta = theta - options.learning_rate / options.batch_size * (
            sums + options.noise_multiplier * options.clip_norm * z
        )
    torch.testing.assert_close(fast, theta, rtol=1e-9, atol=1e-12)
    assert not torch.equal(fast[0], fast[1])


def test_horizons_are_runs_that_end_there(training, options):
    session = DpSgdSession.craft(training, BiasedDimension(), seed=2)
    members = np.array([True, False, True])
    every = session.run(members, 4, (1, 3, 6))
    short = dataclasses.replace(
        training,
        recipe=training.recipe.model_copy(update={"steps": 3}),
        batches=training.batches[:3],
    )
    stopped = DpSgdSession(short, BiasedDimension(), session.canary).run(members, 4, (3,))
    np.testing.assert_array_equal(every[:, 1], stopped[:, 0])


def test_the_same_pack_gives_the_same_scores(training):
    session = DpSgdSession.craft(training, Loss(), seed=2)
    members = np.array([True, False] * 5)
    np.testing.assert_array_equal(session.run(members, 4, (6,)), session.run(members, 4, (6,)))
    assert not np.array_equal(session.run(members, 4, (6,)), session.run(members, 5, (6,)))


def test_simulated_choice_takes_the_dimension_that_moves_least(training):
    """The slow twin: simulate, keep the whole trajectory, rank as Algorithm 3 says."""
    strategies = ("noiseless-per-step", "noiseless-final", "noisy-per-step", "noisy-final")
    for strategy in strategies:
        adversary = BiasedDimension(choice="simulated", strategy=strategy)
        canary = adversary.craft(training, np.random.default_rng(0))
        seed = int(np.random.default_rng(0).integers(2**63))
        noisy = strategy.startswith("noisy")
        path = [t.clone() for t in training.simulate(4 if noisy else 1, noisy, seed)]
        steps = torch.stack(path)
        assert len(steps) == training.recipe.steps + 1
        if strategy.endswith("per-step"):
            moved = (steps[1:] - steps[:-1]).pow(2).sum(dim=(0, 1))
        else:
            moved = (steps[-1] - steps[0]).abs().sum(0)
        chosen = int(canary.direction.argmax())
        assert float(canary.direction[chosen]) == training.clip_norm
        assert float(moved[chosen]) == pytest.approx(float(moved.min()), abs=1e-12)


def test_noiseless_simulation_neither_clips_nor_adds_noise(training):
    theta = training.initial.repeat(1, 1)
    for batch in training.batches:
        sums = training.model.clipped_sums(theta, training.x[batch], training.y[batch], math.inf)
        theta = theta - 0.1 / 64 * sums
    torch.testing.assert_close([*training.simulate(1, False, 0)][-1], theta)


def test_biased_dimension_separates_the_worlds_as_the_claim_says(options):
    """Dead-quiet dimension: the score is N(T C η/B, ...) with mu = sqrt(T)/sigma.

    400 trials at a fixed seed; the estimated mu strays from the truth by 4 standard errors with
    probability 6e-5.
    """
    quiet = options.model_copy(update={"learning_rate": 1e-6, "noise_multiplier": 2.0})
    training = DpSgdTraining.prepare(quiet.recipe, seed=1, gpu=False)
    session = DpSgdSession.craft(training, BiasedDimension(choice="simulated"), seed=3)
    members = np.random.default_rng(5).permutation(400) % 2 == 1
    scores = session.run(members, 77, (6,))[:, 0]
    gap = scores[members].mean() - scores[~members].mean()
    spread = np.sqrt((scores[members].var(ddof=1) + scores[~members].var(ddof=1)) / 2)
    truth = math.sqrt(6) / 2.0
    error = math.sqrt(4 / 400 + truth**2 / 800)
    assert gap / spread == pytest.approx(truth, abs=4 * error)
    assert stats.estimate(scores, members, 1e-5, 0.95).epsilon_lower > 0


def test_loss_canary_is_a_real_example_with_another_label(training):
    canary = Loss(example=11).craft(training, np.random.default_rng(0))
    x, y = training.example(11)
    assert torch.equal(canary.x, x)
    assert int(canary.y) == 1 - int(y)
    with pytest.raises(SpecError, match="the data ends at 568"):
        Loss(example=569).craft(training, np.random.default_rng(0))


def test_no_scorer_can_reach_the_bits_or_the_trajectory():
    """What is handed to `score` has no field beyond the threat model's."""
    from dpaudit_ray.mechanisms.dp_sgd.session import _FinalModels

    assert {f.name for f in dataclasses.fields(_FinalModels)} == {"initial", "final", "model"}
    assert "members" not in FinalModelAdversary.score.__annotations__
    assert issubclass(FinalModelAdversary, Adversary)
