"""Whole audits on a stand-in for a GPU (`standin`): no tensor of two devices meets another.

The same scores as on a CPU with the same noise; and, in a step, nothing that the host waits for.
"""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dpaudit_ray.adversaries.base import Adversary
from dpaudit_ray.data.base import Data, Dataset
from dpaudit_ray.engines import gpu_settings
from dpaudit_ray.engines.cpu import conv_pool
from dpaudit_ray.engines.noise import GpuNoise, coefficients
from dpaudit_ray.engines.packing import packed
from dpaudit_ray.engines.packing.selfcheck import Way
from dpaudit_ray.mechanisms.base import Measured, PartSeeds, Session
from dpaudit_ray.mechanisms.dp_sgd import DpSgd, steps
from dpaudit_ray.mechanisms.dp_sgd import session as sessions
from dpaudit_ray.mechanisms.dp_sgd.session import FrozenSession
from dpaudit_ray.mechanisms.dp_sgd.steps import Insertion
from dpaudit_ray.models.base import Model
from dpaudit_ray.models.networks.blocks import BasicBlock, PreActivationBlock
from dpaudit_ray.plugins import parse
from tests.engines.standin import GPU, StandIn, standing_in
from tests.long import paired

TRIALS, STEPS = 6, 4


class Pictures(Data):
    """Noise in the shape of images, or of a table."""

    name: str = "pictures"
    shape: tuple[int, ...]
    classes: int = 3
    examples: int = 64

    def read(self) -> Dataset:
        rng = np.random.default_rng(11)
        x = rng.normal(size=(self.examples, *self.shape)).astype(np.float32)
        return Dataset(x, np.arange(self.examples, dtype=np.int64) % self.classes)


class Residual(Model):
    """A block of `wrn16` and one of `resnet18`."""

    name: str = "residual"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(
            PreActivationBlock(shape[0], 4, stride=2, groups=1),
            BasicBlock(4, 8, stride=2, groups=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, classes),
        )


class Head(Model):
    """A frozen body and a linear head, as `alexnet` has them."""

    name: str = "head"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Linear(shape[0], classes)

    def body(self, shape: tuple[int, ...]) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), 7), nn.Tanh())


def mechanism(**changed: Any) -> DpSgd:
    settled = {
        "data": Pictures(shape=(9,)),
        "model": "fcnn",
        "steps": STEPS,
        "batch_size": 8,
        "learning_rate": 0.2,
        "clip_norm": 1.0,
        "noise_multiplier": 1.0,
    } | changed
    if not isinstance(settled["model"], Model):
        settled["model"] = parse(Model, settled["model"], "model")
    return DpSgd(**settled)


def opened(asked: DpSgd, adversary: Adversary, gpu: bool) -> Session:
    """With everything that an adversary has prepared before."""
    asked = asked.against(adversary)
    asked.check(adversary)
    known = (adversary, 3, 5, gpu)
    if (before := asked.preparation(adversary)) is None:
        return asked.open(*known)
    seeds = [PartSeeds(3, 100 + part) for part in range(before.parts)]
    parts = tuple(asked.prepare_part(adversary, i, s, gpu) for i, s in enumerate(seeds))
    return asked.open(*known, parts)


def scored(asked: DpSgd, adversary: Adversary, gpu: bool) -> np.ndarray:
    """Of one pack, at two horizons."""
    session, members = opened(asked, adversary, gpu), bits(adversary)
    found = session.run(members, 7, (asked.steps // 2, asked.steps))
    return found.scores if isinstance(found, Measured) else found


def bits(adversary: Adversary) -> np.ndarray:
    return np.arange(TRIALS * adversary.canaries) % 2 == 0


@pytest.fixture(autouse=True)
def one_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's, on both devices."""
    monkeypatch.setattr(steps, "noise_source", GpuNoise)
    monkeypatch.setattr(gpu_settings, "fix_numerics", lambda tf32: None)
    monkeypatch.setattr(gpu_settings, "device", lambda gpu: GPU if gpu else torch.device("cpu"))


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks go by rules, which are checked on a GPU where each of them takes a step."""
    monkeypatch.setattr(packed, "_WAYS", {})  # no other test goes by them
    monkeypatch.setattr(packed, "fastest_right_way", lambda *_: Way())


ADVERSARIES: dict[str, dict[str, Any]] = {
    "random dimension": {"name": "biased-dimension"},
    "noiseless simulation": {"name": "biased-dimension", "choice": "simulated", "period": 2},
    "cosine": {"name": "cosine"},
    "loss": {"name": "loss"},
    "record": {"name": "api-access"},
    "pretrained": {"name": "api-access", "start": "pretrained", "start_steps": 2},
    "query": {"name": "crafted-query", "rehearsals": 4, "ascent": 2},
    "static poison": {"name": "static-poison", "shadows": 2, "ascent": 2},
    "intermediate poison": {"name": "intermediate-poison", "shadows": 2, "ascent": 2},
    "adaptive poison": {"name": "adaptive-poison", "shadows": 2, "ascent": 2},
    "gradient": {"name": "gradient"},
    "watched": {"name": "watched-dimension"},
    "one run": {"name": "one-run", "kind": "dirac", "canaries": 4},
    "directions": {"name": "one-run", "kind": "random", "canaries": 4},
    "records": {"name": "one-run", "kind": "natural", "canaries": 4},
    "replaced": {"name": "one-run", "kind": "mislabelled", "canaries": 4, "adjacency": "replace"},
    "soft": {"name": "malicious-dataset"},
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ADVERSARIES)
def test_every_adversary_scores_as_on_a_cpu(name):
    adversary = parse(Adversary, ADVERSARIES[name], "adversary")
    near = scored(mechanism(), adversary, gpu=False)
    with standing_in():
        far = scored(mechanism(), adversary, gpu=True)
    np.testing.assert_allclose(far, near, rtol=2e-4, atol=2e-5)


TRAININGS: dict[str, dict[str, Any]] = {
    "momentum": {"optimizer": {"name": "momentum"}},
    "adam": {"optimizer": {"name": "adam"}},
    "schedule": {"schedule": {"name": "cosine"}},
    "poisson": {"sampling": {"name": "poisson"}},
    "shuffle": {"sampling": {"name": "shuffle"}},
    "random start": {"model": {"name": "fcnn", "initialization": "random"}},
    "accumulated": {"physical_batch_size": 3},
    "held out": {"held_out": 0.25},
    "views": {"data": Pictures(shape=(3, 8, 8)), "augmentations": 2},
    "frozen body": {"model": Head()},
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("name", "adversary"),
    paired(TRAININGS, ["biased-dimension", "loss"], "every training with both kinds of canary"),
)
def test_every_training_scores_as_on_a_cpu(name, adversary):
    attack = parse(Adversary, adversary, "adversary")
    near = scored(mechanism(**TRAININGS[name]), attack, gpu=False)
    with standing_in():
        far = scored(mechanism(**TRAININGS[name]), attack, gpu=True)
    np.testing.assert_allclose(far, near, rtol=2e-4, atol=2e-5)


def waits(asked: DpSgd, adversary: Adversary) -> dict[str, int]:
    with standing_in() as mode:
        session = opened(asked, adversary, gpu=True)
        coefficients(GPU)  # loaded once in a process
        mode.waits.clear()
        session.run(bits(adversary), 7, (asked.steps,))
        return dict(mode.waits)


# One of each way into a step; what `adaptive poison` crafts for one is looked at before.
KINDS = ("random dimension", "records", "query", "watched")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", [*KINDS, *TRAININGS])
def test_nothing_waits_at_every_step(name):
    """As many waits in eight steps as in four: all are of the pack, none of a step."""
    attack = parse(Adversary, ADVERSARIES.get(name, "biased-dimension"), "adversary")
    options = TRAININGS.get(name, {})
    few, more = (waits(mechanism(**options, steps=n), attack) for n in (STEPS, 2 * STEPS))
    assert few == more


NETWORKS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "fcnn": ("fcnn", (9,)),
    "mlp3": ("mlp3", (9,)),
    "cnn4": ("cnn4", (1, 14, 14)),
    "convnet": ("convnet", (3, 16, 16)),
    "residual": (Residual(), (3, 8, 8)),
}


def one_step(asked: DpSgd, gpu: bool, kind: str, mode: StandIn | None) -> torch.Tensor:
    """θ [3, p] after a step with a canary in two of three models; waits are those of the step."""
    training = asked.training(3, gpu)
    theta = training.initial.repeat(3, 1)
    session = sessions.open_session(training, parse(Adversary, kind, "adversary"), 5)
    assert not isinstance(session, FrozenSession)
    inside = torch.tensor([1.0, 0, 1])
    coins = itertools.repeat(np.ones(3, np.bool_))  # fixed batches have the canary always
    inserted = Insertion(session.canary, inside, 1, coins, training.clip_norm).at(1, theta)
    assert inserted is not None
    _ = inserted.rows  # looked up once for a whole training
    engine = steps.PackedSteps(training.recipe, training.model, 7, theta.device)
    x, y = training.batch(1)
    engine.step(theta.clone(), x, y, inserted)
    if mode is not None:
        mode.waits.clear()
    engine.step(theta, x, y, inserted)
    return theta


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, "loss") for name in NETWORKS), ("mlp3", "cosine"), ("convnet", "cosine")],
)
def test_a_step_of_every_network_waits_for_nothing(name, kind, monkeypatch):
    """By rules on the CPU as well, without loops. Small networks are checked on the GPU, too."""
    monkeypatch.setattr(packed, "_WAYS", {})
    if name in ("cnn4", "convnet"):
        monkeypatch.setattr(packed, "fastest_right_way", lambda *_: Way())
    monkeypatch.setattr(packed, "find_loops", lambda *_: (None, 0))
    monkeypatch.setattr(conv_pool, "merge_pooling", lambda layers, _: layers)
    monkeypatch.setattr(GpuNoise, "fill", lambda _, out: out.fill_(0.01))  # millions of numbers
    model, shape = NETWORKS[name]
    asked = mechanism(model=model, data=Pictures(shape=shape), batch_size=4)
    near = one_step(asked, False, kind, None)
    with standing_in() as mode:
        far = one_step(asked, True, kind, mode)
        waits = dict(mode.waits)
        assert far.device == GPU
        far = far.cpu()
    assert not waits
    moved = (near - near[1]).abs().max()
    assert float((far - near).abs().max()) < 1e-3 * max(1.0, float(moved))


def test_the_stand_in_sees_what_a_gpu_would_not_do():
    """Else the tests above could not fail."""
    with standing_in() as mode:
        far, near = torch.ones(3, device=GPU), torch.arange(3.0)
        with pytest.raises(RuntimeError, match="same device"):
            far + near
        with pytest.raises(RuntimeError, match="same device"):
            far[torch.tensor([0, 1])]
        with pytest.raises(TypeError, match="numpy"):
            far.numpy()
        near.to(GPU, non_blocking=True)
        assert not mode.waits
        near.to(GPU)
        far.copy_(near + 1)
        assert sum(mode.waits.values()) == 2
        mode.waits.clear()
        assert float(far.sum()) == 6
        assert far[far > 0].shape == (3,)
        assert len(far.nonzero()) == 3
        assert sum(mode.waits.values()) >= 3
