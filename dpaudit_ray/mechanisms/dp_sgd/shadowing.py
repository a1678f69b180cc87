"""Shadow models of an adversary: where their records come from, and their trainings, in parts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ...adversaries.shadows import PER_PART, Shadowed
from ...data.base import Dataset
from ...engines.packing.samplewise import placed
from ...engines.rules.losses import losses
from ...errors import SpecError
from ...seeds import derive
from ..base import Arrays
from .division import check_like

if TYPE_CHECKING:
    from .training import DpSgdTraining

Records = tuple[Tensor, Tensor]


def records(training: DpSgdTraining, adversary: Shadowed) -> Records | None:
    """What its shadows are trained on: x [m, ...] and y [m]; None where nothing is in reserve."""
    if adversary.shadow_data is None:
        return training.reserved
    return training.loaded(adversary.shadow_data.load())


def check(adversary: Shadowed, data: Dataset, batch_size: int) -> None:
    """Holds `shadow_data` against the private data.

    Raises:
        SpecError: too few records, of another kind, or private ones among them.
    """
    if adversary.shadow_data is None:
        return
    name, other = adversary.shadow_data.name, adversary.shadow_data.load()
    check_like(data, other, "adversary.shadow_data", name)
    if len(other.y) < batch_size:
        raise SpecError(
            "adversary.shadow_data",
            f"{name} has {len(other.y)} records, fewer than a batch of {batch_size}; give more",
        )
    private = {row.tobytes() for row in data.x}
    shared = sum(row.tobytes() in private for row in other.x)
    if shared and not adversary.allow_overlap:
        raise SpecError(
            "adversary.shadow_data",
            f"{shared} of the {len(other.y)} records of {name} are private ones too; give others, "
            "or set adversary.allow_overlap: true",
        )


def check_reserve(records: int, batch_size: int) -> None:
    """Raises SpecError where so few records are in reserve that no shadow can be trained."""
    if records < batch_size:
        raise SpecError(
            "mechanism.reserved",
            f"leaves {records} records to shadow models, fewer than a batch of {batch_size}; "
            "raise it, or lower mechanism.batch_size",
        )


def part(training: DpSgdTraining, adversary: Shadowed, number: int, seed: int) -> Arrays:
    """The final models of one pack of shadows: theta, float [at most PER_PART, p]."""
    own = records(training, adversary)
    if own is None:
        raise SpecError(
            "mechanism.reserved", "is needed by this adversary's shadow models; give a share"
        )
    first = number * PER_PART
    models = min(PER_PART, adversary.shadows - first)
    elsewhere = training.elsewhere(*own, derive("shadow batches", seed))
    nobody = torch.zeros(models, dtype=training.initial.dtype, device=training.initial.device)
    *_, last = elsewhere.run(nobody, seed, None, 1)
    return {"theta": last.cpu().numpy().copy()}


def together(parts: tuple[Arrays, ...], like: Tensor) -> Tensor:
    """All shadows, float [shadows, p], of the dtype and on the device of `like`."""
    joined = np.concatenate([each["theta"] for each in parts])
    return torch.from_numpy(joined).to(like)


def check_floating(x: Tensor) -> None:
    """Raises SpecError for examples of whole numbers, which cannot be moved along a gradient."""
    if not x.is_floating_point():
        raise SpecError(
            "adversary.name",
            "crafts an example by its gradient, but the network takes whole numbers, which have "
            "none; use loss or biased-dimension",
        )


def input_gradient(
    training: DpSgdTraining, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor | None
) -> Tensor:
    """Gradient by the examples x [m, ...] of their summed loss, over `theta`, float [n, p].

    The models' mean, or their sum with `weights` [n]. By autograd on the module itself, one model
    after another.
    """
    check_floating(x)
    total = torch.zeros_like(x)
    for row, weight in zip(theta, [1.0] * len(theta) if weights is None else weights, strict=True):
        with placed(training.module, row), torch.enable_grad():
            moved = x.clone().requires_grad_()
            loss = losses(training.module(moved), y).sum()
            total += weight * torch.autograd.grad(loss, moved)[0]
    return total / len(theta) if weights is None else total


@dataclasses.dataclass(frozen=True)
class Shadows:
    """What a shadowed adversary has beside public knowledge: `theta` float [s, p], and records."""

    theta: Tensor
    records: Records
