"""Many kinds of networks through two full steps: exact, or warned of and exact, or refused."""

import logging

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpaudit_ray.adversaries.base import GradientCanary, SampleCanary
from dpaudit_ray.data.base import Data, Dataset
from dpaudit_ray.engines.noise import CpuNoise
from dpaudit_ray.engines.packing import conversion
from dpaudit_ray.errors import SpecError
from dpaudit_ray.mechanisms.dp_sgd import DpSgd
from dpaudit_ray.mechanisms.dp_sgd.network import network
from dpaudit_ray.mechanisms.dp_sgd.training import DpSgdTraining
from dpaudit_ray.models.base import Model
from dpaudit_ray.seeds import derive
from tests.engines.networks import BATCH, CASES, Kind, Outcome, slow_clipped_sum
from tests.long import paired

STEPS = 2


class Network(Model):
    """One of `networks`, by name."""

    name: str = "network"
    network: str

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return CASES[self.network].make()


class Drawn(Data):
    """Two batches of standard normals, or of six tokens."""

    name: str = "drawn"
    network: str

    def read(self) -> Dataset:
        rng, case = np.random.default_rng(5), CASES[self.network]
        shape = (STEPS * BATCH, *case.kind.value)
        tokens = case.kind is Kind.TOKENS
        x = rng.integers(0, 6, size=shape) if tokens else rng.normal(size=shape)
        classes = 2 if self.network == "one-output" else 3
        return Dataset(x.astype(np.float32), np.arange(len(x)) % classes)


def prepared(name: str) -> DpSgdTraining:
    numbers = {"learning_rate": 0.5, "clip_norm": 0.7, "noise_multiplier": 0.5}
    data, model = Drawn(network=name), Network(network=name)
    options = DpSgd(data=data, model=model, steps=STEPS, batch_size=BATCH, **numbers)
    return DpSgdTraining.prepare(options.recipe, seed=1, gpu=False, dtype=torch.float64)


def by_hand(
    training: DpSgdTraining, inside: Tensor, canary: GradientCanary | SampleCanary
) -> Tensor:
    options, noise, shape = training.recipe, CpuNoise(9), tuple(training.x.shape[1:])
    drawn = derive("initialization", 1, options.seed)
    # The user's module, built again and touched by nobody.
    module = network(options.model, shape, training.classes, drawn).double()
    theta = training.initial.repeat(len(inside), 1)
    for batch in training.batches:
        z = torch.empty_like(theta)
        noise.fill(z)
        sums = options.noise_multiplier * options.clip_norm * z
        for i, row in enumerate(theta):
            x, y = training.x[batch], training.y[batch]
            sums[i] += slow_clipped_sum(module, row, x, y, options.clip_norm)
            if inside[i] and isinstance(canary, GradientCanary):
                sums[i] += canary.direction
            elif inside[i]:
                sums[i] += slow_clipped_sum(module, row, canary.x, canary.y, options.clip_norm)
        theta = theta - options.learning_rate / options.batch_size * sums
    return theta


def crafted(training: DpSgdTraining, kind: str) -> GradientCanary | SampleCanary:
    if kind == "example":
        x, y = training.example(3)
        return SampleCanary(x, (y + 1) % training.classes)
    direction = torch.zeros_like(training.initial)
    direction[len(direction) // 2] = training.clip_norm
    return GradientCanary(direction)


@pytest.mark.parametrize(
    ("name", "kind"),
    paired(CASES, ["direction", "example"], "every network with both kinds of canary"),
)
def test_a_network_is_exact_or_refused(name, kind, caplog):
    case = CASES[name]
    conversion.warn_of_slow_way.cache_clear()
    with caplog.at_level(logging.WARNING):
        if case.outcome is Outcome.REFUSED:
            with pytest.raises(SpecError) as error:
                prepared(name)
            assert case.said in str(error.value)
            assert "\n" not in str(error.value)
            return
        training = prepared(name)
    said = [record.getMessage() for record in caplog.records]
    assert bool(said) is (case.outcome is Outcome.SLOW), said
    assert case.said in "".join(said)
    alone = training.model._alone
    if name.startswith("ways-"):  # by rules, or by `vmap` over models; never example by example
        assert alone is None or alone.mapped > 1
    if name.startswith(("ways-bare", "ways-in-place", "ways-named", "ways-attention-")):
        assert (alone is None) is (case.outcome is Outcome.EXACT)
    if name.startswith("ways-with-the-batch"):
        assert training.model._passes.mapped
    inside = torch.tensor([1.0, 0, 1, 0, 1], dtype=torch.float64)
    before = training.x.clone()
    canary = crafted(training, kind)
    *_, found = (theta.clone() for theta in training.run(inside, 9, canary, 1))
    expected = by_hand(training, inside, canary)
    scale = (expected - training.initial).abs().amax(1, keepdim=True)
    assert float(((found - expected).abs() / scale).max()) < 1e-10
    assert torch.equal(training.x, before)
