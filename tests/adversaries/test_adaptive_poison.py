"""Adaptive poison: what it inserts, step by step, and that a pack computes it right."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpaudit_ray.adversaries.adaptive_poison import AdaptiveCanary
from dpaudit_ray.adversaries.base import GradientCanary
from dpaudit_ray.errors import SpecError
from dpaudit_ray.mechanisms.dp_sgd.session import PublicView
from dpaudit_ray.models.base import Model
from tests.trainings import PRECISE, gradient, loss, opened, path

ADAPTIVE = {"name": "adaptive-poison", "shadows": 3, "ascent": 10}


class Tied(nn.Module):
    """One layer that is held twice, and whose parameters are read through a list as well."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(30, 30), nn.Linear(30, 1)
        self.second = self.first
        self.behind = [self.first.weight, self.first.bias]

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.second(torch.tanh(self.first(x))))
        return self.out(torch.tanh(nn.functional.linear(x, *self.behind)))


class TiedModel(Model):
    name: str = f"{__name__}:TiedModel"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return Tied()


class Convolved(Model):
    """A tiny network on records as images of 5 x 6."""

    name: str = f"{__name__}:Convolved"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        convolved = nn.Sequential(nn.Conv2d(1, 3, 2), nn.Softplus(), nn.MaxPool2d(2))
        return nn.Sequential(nn.Unflatten(1, (1, 5, 6)), *convolved, nn.Flatten(), nn.Linear(12, 2))


MODELS = {
    "fcnn": "fcnn",
    "mlp3": {"name": "mlp3", "width": 16},
    "convolved": Convolved.model_fields["name"].default,
}


_OPENED: dict[str, Any] = {}


def shared(tiny: dict, model: str) -> Any:
    """Opened once, in float64, for tests that only ask."""
    if model not in _OPENED:
        _OPENED[model] = opened(tiny, ADAPTIVE, PRECISE, model=MODELS[model])
    return _OPENED[model]


def twin(session: Any, step: int, theta: Tensor) -> tuple[Tensor, Tensor]:
    """Crafter 3 with its sign put right, for one model [p]: the example, the clipped gradient.

    Plain autograd on the module itself, through parameters that took a step.
    """
    training, options, query = session.training, session.adversary, session.canary.query
    others = training.reserved[0]
    low, high = others.min(0).values[None], others.max(0).values[None]
    rate = training.recipe.rate(step) * options.look_ahead
    x = torch.zeros_like(query.x).clamp(low, high)
    for _ in range(options.inner):
        x = x.clone().requires_grad_()
        leaf = theta.clone().requires_grad_()
        own = loss(training, leaf, x, query.y)
        (step_on,) = torch.autograd.grad(own, leaf, create_graph=True)
        later = loss(training, leaf - rate * step_on, query.x, query.y)
        (slope,) = torch.autograd.grad(later, x)
        x = (x - options.inner_rate * (high - low) * slope.sign()).clamp(low, high).detach()
    found = gradient(training, theta, x, query.y)
    return x, found * min(1.0, training.clip_norm / float(found.norm()))


def test_what_is_inserted_is_as_long_as_the_claim_allows(tiny, tmp_path):
    """In 180,000 parameters a float32 norm is off by more than the claim leaves room for."""
    x = np.random.default_rng(0).normal(size=(64, 446)).astype(np.float32)
    np.savez(tmp_path / "wide.npz", x=x, y=np.arange(64) % 3)
    recipe = {"clip_norm": 0.01, "reserved": 0.5, "batch_size": 16, "steps": 2}
    recipe |= {"data": {"name": "npz", "path": str(tmp_path / "wide.npz")}}
    attack = {"name": "adaptive-poison", "shadows": 1, "inner": 1}
    del tiny["audit"]["record_every"]
    session = opened(tiny, attack, model={"name": "mlp3", "width": 300}, **recipe)
    training = session.training
    theta = training.initial + 0.03 * torch.randn(8, len(training.initial))
    inserted = session.canary.at(1, theta).direction
    np.testing.assert_allclose(inserted.double().norm(dim=1), 0.01, rtol=1e-7)
    for allowed in (inserted, inserted * (0.01 / inserted.norm(dim=1, keepdim=True))):
        training.check_claim(GradientCanary(allowed))
    with pytest.raises(SpecError, match="above the clip norm"):
        training.check_claim(GradientCanary(1.0001 * inserted))


@pytest.mark.parametrize("model", MODELS)
def test_a_pack_crafts_what_each_model_alone_would(model, tiny):
    session = shared(tiny, model)
    draw = torch.Generator().manual_seed(0)
    spread = 0.3 * torch.randn(4, len(session.training.initial), generator=draw, dtype=PRECISE)
    theta = session.training.initial + spread
    examples, canary = session.canary.examples(2, theta), session.canary.at(2, theta)
    assert float(canary.direction.norm(dim=1).min()) > 0.01
    for own_x, direction, row in zip(examples, canary.direction, theta, strict=True):
        x, gradient = twin(session, 2, row)
        torch.testing.assert_close(own_x[None], x, rtol=0, atol=1e-6)
        torch.testing.assert_close(direction, gradient, rtol=0, atol=1e-6)
    assert len({tuple(one.flatten().tolist()) for one in examples}) > 1, "each has its own"


def test_a_network_that_torch_func_takes_for_another_is_refused(tiny):
    tied = {"model": TiedModel.model_fields["name"].default}
    session = opened(tiny, ADAPTIVE, PRECISE, **tied)
    with pytest.raises(SpecError, match=r"torch\.func, which does not run Tied as it is"):
        session.canary.at(1, session.training.initial[None])


def test_looking_ahead_is_a_derivative(tiny):
    """Central differences of the query's loss after the step, by every feature."""
    session = shared(tiny, "mlp3")
    training, query = session.training, session.canary.query

    def later(x: Tensor) -> float:
        stepped = training.initial - 2.0 * gradient(training, training.initial, x, query.y)
        return float(loss(training, stepped, query.x, query.y))

    x, small = query.x * 0.5, 1e-5
    moved = small * torch.eye(30, dtype=PRECISE)
    slopes = [(later(x + one) - later(x - one)) / (2 * small) for one in moved]
    found = PublicView(training).look_ahead(training.initial[None], x, query.y, query, 2.0)
    np.testing.assert_allclose(found[0], slopes, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("engine", ["packed", "opacus"])
def test_trainings_without_it_are_those_of_anybody(engine, tiny):
    """What joins the others depends on no bit; each gets its own, clipped, and no other."""
    session = opened(tiny, ADAPTIVE, noise_multiplier=1e-6, engine=engine, model=MODELS["mlp3"])
    training = session.training
    nobody, one = (path(training, [0, bit, 0], session.canary, 9) for bit in (0, 1))
    assert torch.equal(nobody[-1][[0, 2]], one[-1][[0, 2]])
    first = one[1][1] - nobody[1][1]
    step = training.recipe.rate(1) / training.recipe.batch_size
    expected = -step * session.canary.at(1, training.initial[None]).direction[0]
    torch.testing.assert_close(first, expected, rtol=1e-3, atol=1e-7)


def test_a_diverged_model_is_left_alone_and_examples_stay_in_range(tiny):
    session = opened(tiny, ADAPTIVE | {"inner_rate": 1.0})
    others = session.training.reserved[0]
    found = session.canary.examples(1, session.training.initial * torch.tensor([[1.0], [-1.0]]))
    assert ((found >= others.amin(0)) & (found <= others.amax(0))).all()
    theta = session.training.initial.repeat(3, 1)
    theta[1] = torch.nan
    theta[2] = 1e30
    found = session.canary.at(1, theta).direction
    assert found.isfinite().all()
    assert (found[1] == 0).all()
    assert float(found[0].norm()) > 0


def test_it_is_crafted_for_those_alone_that_a_step_samples(tiny, monkeypatch):
    """Whoever is in; what they get is what they would have got beside all others."""
    asked: list[int] = []
    at = AdaptiveCanary.at

    def counted(self: AdaptiveCanary, step: int, theta: Tensor) -> Any:
        asked.append(len(theta))
        return at(self, step, theta)

    monkeypatch.setattr(AdaptiveCanary, "at", counted)
    poisson = {"sampling": "poisson", "batch_size": 28, "steps": 12}
    session = opened(tiny, ADAPTIVE, PRECISE, **poisson)
    members = np.arange(6) % 2 == 0
    some = session.run(members, 5, (12,))
    assert session.canary.public.sample_rate < 0.2
    assert len(asked) < 12
    assert max(asked) < 6
    often = list(asked)
    session.run(~members, 5, (12,))
    assert asked == often * 2, "it does not depend on who is in"
    monkeypatch.setattr(AdaptiveCanary, "memoryless", False)
    whole = session.run(members, 5, (12,))
    assert asked[len(often) * 2 :] == [6] * 12
    np.testing.assert_allclose(some, whole, rtol=1e-9)


def test_it_tells_the_worlds_apart(tiny):
    """Hardly any noise, ten times C: the query's loss is lower in every one of 8 trainings."""
    loud = {"noise_multiplier": 1e-3, "clip_norm": 10.0, "model": MODELS["mlp3"]}
    session = opened(tiny, ADAPTIVE, **loud)
    assert len(session.canary.query.y) == 1
    scores = session.run(np.arange(16) < 8, 5, (6,))[:, 0]
    assert min(scores[:8]) > max(scores[8:])
