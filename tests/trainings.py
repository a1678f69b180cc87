"""Trainings by DP-SGD as tests open them, what they show, and slow twins of what they compute."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpaudit_ray.adversaries.base import Canary, GradientCanary
from dpaudit_ray.engines.rules.losses import classification_losses
from dpaudit_ray.mechanisms.dp_sgd import DpSgd, session
from dpaudit_ray.mechanisms.dp_sgd.training import DpSgdTraining
from dpaudit_ray.sweep import spec

PRECISE = torch.float64


def cell(tiny: dict[str, Any], adversary: Any, **mechanism: Any) -> tuple[DpSgd, Any]:
    """The mechanism and the adversary of a sweep of one audit."""
    raw = {**tiny, "mechanism": tiny["mechanism"] | mechanism, "adversary": adversary, "grid": {}}
    (only,) = spec.from_raw(raw).cells
    assert isinstance(only.mechanism, DpSgd)
    return only.mechanism, only.adversary


def opened(
    tiny: dict[str, Any], adversary: Any, dtype: torch.dtype = torch.float32, **mechanism: Any
) -> Any:
    """DP-SGD against this adversary, from seed 3; shadows and canary from seeds of their own."""
    options, against = cell(tiny, adversary, **mechanism)
    training = DpSgdTraining.prepare(options.recipe, 3, gpu=False, dtype=dtype)
    prepared = ()
    if (plan := against.shadow_plan) is not None:
        shadows = session.train_shadows
        prepared = tuple(shadows(training, plan, i, seed=11 + i) for i in range(plan.parts))
    return session.open_session(training, against, 4, prepared)


def path(
    training: DpSgdTraining, inside: Any, canary: Canary | None, seed: int = 5, period: int = 1
) -> list[Tensor]:
    """θ_0 to θ_T [n, p], copies; `inside` are numbers or bits, [n] or [n, m]."""
    coins = torch.as_tensor(inside).to(training.initial)
    return [theta.clone() for theta in training.run(coins, seed, canary, period)]


def along(training: DpSgdTraining, place: int) -> GradientCanary:
    """C along one parameter."""
    direction = torch.zeros_like(training.initial)
    direction[place] = training.clip_norm
    return GradientCanary(direction)


def shown(session: Any, bits: np.ndarray, seed: int = 5) -> list[tuple[int, Tensor, Tensor]]:
    """Returns what an observer gets at every step: its number, θ before it, and the update."""
    training, seen = session.training, list[tuple[int, Tensor, Tensor]]()
    inside = torch.from_numpy(bits).to(training.initial)
    path = training.run(
        inside,
        seed,
        session.canary,
        1,
        lambda *step: seen.append((step[0], *map(torch.clone, step[1:]))),
    )
    list(path)
    return seen


def loss(training: DpSgdTraining | nn.Module, row: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Computes the loss of all these examples in one model [p], by plain autograd."""
    module = training if isinstance(training, nn.Module) else training.module
    named = dict(module.named_parameters())
    parts = torch.split(row, [one.numel() for one in named.values()])
    values = {k: one.view(named[k].shape) for k, one in zip(named, parts, strict=True)}
    return classification_losses(torch.func.functional_call(module, values, (x,)), y).sum()


def gradient(training: DpSgdTraining | nn.Module, row: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Computes the gradient of that loss by all parameters, float [p]."""
    leaf = row.clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(training, leaf, x, y), leaf)
    return found
