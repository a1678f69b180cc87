"""DP-SGD's update against a plain loop, and what adversaries of every kind get to see of a pack."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from dpaudit_ray.adversaries.base import (
    Canary,
    ChangingCanary,
    FinalModel,
    FinalModelAdversary,
    GradientCanary,
    PublicKnowledge,
    SampleCanary,
    TrajectoryAdversary,
)
from dpaudit_ray.adversaries.biased_dimension import BiasedDimension
from dpaudit_ray.adversaries.loss import Loss
from dpaudit_ray.engines.noise import CpuNoise
from dpaudit_ray.errors import SpecError
from dpaudit_ray.mechanisms.dp_sgd import DpSgd
from dpaudit_ray.mechanisms.dp_sgd.session import DpSgdSession, _FinalModels
from dpaudit_ray.mechanisms.dp_sgd.training import DpSgdTraining
from tests.trainings import along, path


def opened(options: DpSgd, dtype: torch.dtype = torch.float64) -> DpSgdTraining:
    return DpSgdTraining.prepare(options.recipe, seed=1, gpu=False, dtype=dtype)


@pytest.fixture
def training(options: DpSgd) -> DpSgdTraining:
    return opened(options)


@pytest.mark.parametrize(("period", "kind"), [(1, "gradient"), (2, "sample"), (4, "gradient")])
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


def test_loss_canary_is_a_real_example_with_another_label(training):
    canary = Loss(example=11).craft(training, np.random.default_rng(0))
    x, y = training.example(11)
    assert torch.equal(canary.x, x)
    assert int(canary.y) == 1 - int(y)
    with pytest.raises(SpecError, match="the data ends at 568"):
        Loss(example=569).craft(training, np.random.default_rng(0))


def test_no_scorer_can_reach_the_bits_or_the_trajectory():
    """What is handed to `score` has no field beyond the threat model's."""
    assert {f.name for f in dataclasses.fields(_FinalModels)} == {"initial", "final", "model"}
    assert "members" not in FinalModelAdversary.score.__annotations__


class LeastMoved(ChangingCanary):
    """Pushes, in every model, the coordinate that has the smallest value just then."""

    def __init__(self, clip_norm: float) -> None:
        self.clip_norm = clip_norm
        self.seen: list[tuple[int, Tensor]] = []

    def at(self, step: int, theta: Tensor) -> GradientCanary:
        self.seen.append((step, theta.clone()))
        direction = torch.zeros_like(theta)
        direction[torch.arange(len(theta)), theta.abs().argmin(1)] = self.clip_norm
        return GradientCanary(direction)


class Watcher:
    """Notes what it sees, and may then work on it as if it were its own."""

    def __init__(self, rude: bool) -> None:
        self.steps: list[tuple[int, Tensor, Tensor]] = []
        self.rude = rude

    def see(self, step: int, before: Tensor, after: Tensor) -> None:
        self.steps.append((step, before.clone(), after.clone()))
        if self.rude:
            before.fill_(1)
            after.sub_(before)

    def scores(self) -> Tensor:
        return torch.stack([after[:, 0] for _, _, after in self.steps]).sum(0)


class Watching(TrajectoryAdversary[Canary]):
    name: str = "watching"
    rude: bool = False

    def craft(self, known: PublicKnowledge, rng: np.random.Generator) -> ChangingCanary:
        return LeastMoved(known.clip_norm)

    def observer(self, canary: Canary, known: PublicKnowledge, models: int) -> Watcher:
        watcher = Watcher(self.rude)
        object.__setattr__(self, "_watcher", watcher)
        return watcher


def test_a_changing_canary_sees_the_models_and_joins_those_it_is_in(training, options):
    canary = LeastMoved(training.clip_norm)
    inside = torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64)
    thetas, quiet = (path(training, coins, canary, period=2) for coins in (inside, 0 * inside))
    half = len(canary.seen) // 2
    assert [step for step, _ in canary.seen[:half]] == list(range(2, options.steps + 1, 2))
    for step, theta in canary.seen[:half]:
        assert torch.equal(theta, thetas[step - 1])
    moved = (thetas[2] - quiet[2]) * options.batch_size / options.learning_rate
    expected = -inside[:, None] * LeastMoved(training.clip_norm).at(2, thetas[1]).direction
    torch.testing.assert_close(moved, expected, rtol=1e-9, atol=1e-9)
    with pytest.raises(SpecError, match="above the clip norm"):
        path(training, [1, 1], LeastMoved(training.clip_norm * 1.01))


def test_a_trajectory_adversary_sees_every_step_of_every_model(training, options):
    adversary = Watching()
    session = DpSgdSession.craft(training, adversary, seed=3)
    members = np.array([True, False, True])
    middle = options.steps // 2
    scores = session.run(members, 8, (middle, options.steps))
    thetas = path(training, members, LeastMoved(training.clip_norm), seed=8)
    steps = adversary._watcher.steps
    assert [step for step, _, _ in steps] == list(range(1, options.steps + 1))
    for step, before, after in steps:
        assert torch.equal(before, thetas[step - 1])
        assert torch.equal(after, thetas[step])
    expected = sum(theta[:, 0] for theta in thetas[1 : middle + 1])
    np.testing.assert_array_equal(scores[:, 0], expected.numpy())


@pytest.mark.parametrize("scheme", ["default", "xavier"])
def test_an_unknown_start_differs_by_trial_and_is_not_shown(options, scheme):
    model = options.model.model_copy(update={"initialization": "random", "scheme": scheme})
    hidden = options.model_copy(update={"model": model})
    training = opened(hidden)
    starts = training.starts(4, seed=6)
    assert len({tuple(row.tolist()) for row in starts}) == 4
    assert torch.equal(starts, training.starts(4, seed=6))
    assert torch.equal(starts[:2], training.starts(2, seed=6))

    class Start(InPlace):
        def score(self, canary: GradientCanary, observed: FinalModel) -> Tensor:
            assert not observed.initial.any(), "nothing about θ_0 is given away"
            return observed.final[:, 3]

    session = DpSgdSession.craft(training, Start(), seed=3)
    assert np.isfinite(session.run(np.array([True, False]), 8, (options.steps,))).all()


class Two(Loss):
    """Two examples, each by a coin of its own."""

    name: str = "test_sessions:Two"  # type: ignore[assignment]

    @property
    def canaries(self) -> int:
        return 2

    def craft(self, known: PublicKnowledge, rng: np.random.Generator) -> SampleCanary:
        first, second = known.example(0), known.example(1)
        return SampleCanary(torch.cat([first[0], second[0]]), torch.cat([first[1], second[1]]))

    def score(self, canary: SampleCanary, observed: FinalModel) -> torch.Tensor:
        return -observed.losses(canary.x, canary.y)


def test_each_dimension_is_moved_by_its_own_bit(options):
    """Noise of a millionth: every score says its bit, and nothing of the others."""
    quiet = options.model_copy(update={"noise_multiplier": 1e-6})
    session = quiet.open(BiasedDimension(count=3), 1, 2, gpu=False)
    members = np.random.default_rng(3).random(12) < 0.5
    scores = session.run(members, 5, (options.steps,))[:, 0].reshape(4, 3)
    nobody = session.run(np.zeros(12, dtype=bool), 5, (options.steps,))[:, 0].reshape(4, 3)
    step = options.learning_rate * options.clip_norm / options.batch_size * options.steps
    moved = (scores - nobody) / step
    assert np.allclose(moved, members.reshape(4, 3), atol=0.2)


def test_too_many_canaries_and_too_few_scores_are_refused(options):
    size = len(options.training(0, gpu=False).initial)
    with pytest.raises(SpecError, match=f"but the model has {size} parameters"):
        options.open(BiasedDimension(count=size + 1), 1, 2, gpu=False)

    class Short(Two):
        def score(self, canary: SampleCanary, observed: FinalModel) -> torch.Tensor:
            return super().score(canary, observed)[:, 0]

    session = DpSgdSession.craft(options.training(1, gpu=False), Short(), 2)
    with pytest.raises(SpecError, match=r"shape \(2, 2\), one for each canary"):
        session.run(np.array([True, False, True, True]), 5, (options.steps,))


@pytest.mark.parametrize("engine", ["packed", "opacus"])
def test_a_step_with_its_canary_is_rounded_once(options, engine):
    """Half a unit in the last place at most; a canary added afterwards would make it a whole."""
    change = {"engine": engine, "noise_multiplier": 1e-9, "learning_rate": 1e-5, "steps": 1}
    training = DpSgdTraining.prepare(options.model_copy(update=change).recipe, seed=1, gpu=False)
    size = len(training.initial)
    direction = torch.full((size,), training.clip_norm / math.sqrt(size))
    found = path(training, [1], GradientCanary(direction))[-1]
    batch = training.batches[0]
    theta = training.initial[None]
    sums = training.model.clipped_sums(theta, training.x[batch], training.y[batch], 1.0)
    rate = training.recipe.learning_rate / training.recipe.batch_size
    exact = theta.double() - rate * (sums.double() + direction.double())
    unit = torch.from_numpy(np.spacing(theta.abs().numpy())).double()
    error = (found.double() - exact).abs() / unit
    assert float(error.max()) < 0.51


def test_canaries_that_no_claim_covers_are_refused(training):
    class Several(Loss):
        def craft(self, known: PublicKnowledge, rng: np.random.Generator) -> SampleCanary:
            return SampleCanary(training.x[:2], training.y[:2])

    with pytest.raises(SpecError, match="crafted 2 examples with 2 labels for 1 secret bit"):
        DpSgdSession.craft(training, Several(), 0)
    with pytest.raises(SpecError, match="crafted 0 examples"):
        training.check_claim(SampleCanary(training.x[:0], training.y[:0]))
    training.check_claim(SampleCanary(training.x[:1], training.y[:1]))
    with pytest.raises(SpecError, match="each bit takes"):
        training.check_claim(GradientCanary(torch.zeros(3)))
    with pytest.raises(SpecError, match="above the clip norm"):
        training.check_claim(GradientCanary(torch.full_like(training.initial, 1.0)))
    for entry in (1e16, math.nan):
        with pytest.raises(SpecError, match="has no norm in float32"):
            training.check_claim(SampleCanary(training.x[:1] * 0 + entry, training.y[:1]))
    canary = Changing(SampleCanary(training.x[:2], training.y[:2]))
    with pytest.raises(SpecError, match="2 examples"):
        list(training.run(torch.ones(3), 5, canary, 1))
    list(training.run(torch.ones(3, 2), 5, canary, 1))  # a secret bit for each


@dataclasses.dataclass
class Changing(ChangingCanary):
    canary: GradientCanary | SampleCanary

    def at(self, step: int, theta: Tensor) -> GradientCanary | SampleCanary:
        theta.fill_(7)
        return self.canary


@pytest.mark.parametrize("engine", ["packed", "opacus"])
@pytest.mark.parametrize("entry", [1.0, 1e20, math.nan])
def test_who_has_no_canary_does_not_feel_it(options, engine, entry):
    """Bit for bit: a row beyond 1.8e19 has a square beyond float32, and 0 times that is NaN."""
    changed = options.model_copy(update={"engine": engine})
    training = DpSgdTraining.prepare(changed.recipe, seed=1, gpu=False)
    inside = [0, 1, 0]
    for canary in (
        SampleCanary(training.x[:1] * 0 + entry, training.y[:1]),
        GradientCanary(torch.full_like(training.initial, 0.01)),
    ):
        found, alone = (path(training, inside, one)[-1] for one in (canary, None))
        assert torch.equal(found[[0, 2]], alone[[0, 2]])
        assert entry != 1 or not torch.equal(found[1], alone[1])


class InPlace(FinalModelAdversary[GradientCanary]):
    """Works on all that it is given as if it were its own."""

    name: str = "in-place"
    rude: bool = False

    def craft(self, known: PublicKnowledge, rng: np.random.Generator) -> GradientCanary:
        direction = torch.zeros_like(known.initial)
        direction[3] = known.clip_norm
        if self.rude:
            known.initial.fill_(9)
            known.example(2)[0].fill_(9)
        return GradientCanary(direction)

    def score(self, canary: GradientCanary, observed: FinalModel) -> Tensor:
        moved = -(observed.final[:, 3] - observed.initial[3])
        if self.rude:
            observed.final.sub_(observed.initial).abs_()
            observed.initial.zero_()
        return moved


@pytest.mark.parametrize("kind", [InPlace, Watching])
def test_an_adversary_that_works_in_place_changes_no_training(options, kind):
    members, scores = np.arange(6) % 2 == 0, []
    for rude in (False, True):
        training = DpSgdTraining.prepare(options.recipe, seed=1, gpu=False)
        session = DpSgdSession.craft(training, kind(rude=rude), 0)
        scores.append(session.run(members, 8, (1, 3, 6)))
    np.testing.assert_array_equal(*scores)
    canary = GradientCanary(torch.full_like(training.initial, 0.01))
    ends = (path(training, [1, 1, 1], inserted)[-1] for inserted in (canary, Changing(canary)))
    assert torch.equal(*ends), "nor does a canary that does so"


@pytest.mark.parametrize(
    "scores", [1.5, None, np.zeros(4), torch.tensor(2.0), torch.zeros(1), torch.zeros(4, 1)]
)
def test_what_is_no_score_for_each_trial_is_refused(training, scores):
    """None is spread over trials."""

    class Odd(InPlace):
        def score(self, canary: GradientCanary, observed: FinalModel) -> Tensor:
            return scores  # type: ignore[return-value]

    session = DpSgdSession.craft(training, Odd(), 0)
    with pytest.raises(SpecError, match=r"the scores of Odd are .* of shape \(4,\), one"):
        session.run(np.ones(4, dtype=np.bool_), 8, (6,))
