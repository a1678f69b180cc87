"""A pack, trained and told by a digest: `python -m jobs.gpu.packs NETWORK cuda|cpu`."""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpaudit_ray.adversaries.base import GradientCanary
from dpaudit_ray.data.base import Data, Dataset
from dpaudit_ray.forecast.bench import WORKLOADS
from dpaudit_ray.mechanisms.dp_sgd.recipe import Recipe
from dpaudit_ray.mechanisms.dp_sgd.training import DpSgdTraining
from dpaudit_ray.models.base import Model
from dpaudit_ray.plugins import parse

STEPS, MODELS = 3, 8


class Noise(Data):
    """Normal numbers in the shape of a workload, its classes in turn."""

    name: str = "noise"
    network: str
    examples: int

    def read(self) -> Dataset:
        """The same on every call."""
        return Dataset(*examples(self.network, self.examples))


def examples(network: str, count: int) -> tuple[Any, Any]:
    """x float32 [count, ...] and y int64 [count]."""
    work = WORKLOADS[network]
    x = np.random.default_rng(1).normal(size=(count, *work.shape)).astype(np.float32)
    return x, np.arange(count, dtype=np.int64) % work.classes


def trained(network: str, gpu: bool) -> Tensor:
    """θ of a pack with a canary in half of its models, on the CPU."""
    batch = 32
    recipe = Recipe(
        data=Noise(network=network, examples=2 * batch),
        model=parse(Model, network, "model"),
        steps=STEPS,
        batch_size=batch,
        learning_rate=0.1,
        clip_norm=1.0,
        noise_multiplier=1.0,
    )
    training = DpSgdTraining.prepare(recipe, seed=0, gpu=gpu)
    direction = torch.zeros_like(training.initial)
    direction[0] = recipe.clip_norm
    inside = (torch.arange(MODELS) % 2).to(training.initial)
    *_, last = training.run(inside, 5, GradientCanary(direction), 1)
    return last.cpu()


def digest(theta: Tensor) -> str:
    """Returns a digest of all bits of a tensor."""
    return hashlib.sha256(theta.contiguous().numpy().tobytes()).hexdigest()[:16]


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(digest(trained(sys.argv[1], sys.argv[2] == "cuda")))
