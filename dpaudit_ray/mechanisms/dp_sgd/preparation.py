"""Preparation of shadow models: trainings of an adversary's own, in parts, before any trial."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch import Tensor

from ...adversaries.base import ShadowPlan
from ...errors import SpecError
from ...seeds import derive
from ..base import Arrays
from .training import DpSgdTraining

Records = tuple[Tensor, Tensor]  # x [m, ...] and y [m]


@dataclasses.dataclass(frozen=True)
class Shadows:
    """What a shadowed adversary has beside public knowledge: models, float [s, p], and records."""

    theta: Tensor
    records: Records


def train_shadows(training: DpSgdTraining, plan: ShadowPlan, part: int, seed: int) -> Arrays:
    """Trains one pack of shadows; returns their final models: theta, float [at most 16, p]."""
    records = _records(training, plan)
    elsewhere = training.elsewhere(*records, derive("shadow batches", seed))
    models = plan.models_of(part)
    nobody = torch.zeros(models, dtype=training.initial.dtype, device=training.initial.device)
    *_, last = elsewhere.run(nobody, seed, None, 1)
    return {"theta": last.cpu().numpy().copy()}


def load_shadows(training: DpSgdTraining, plan: ShadowPlan, parts: tuple[Arrays, ...]) -> Shadows:
    """All shadows of a plan, of the dtype and on the device of the training."""
    joined = np.concatenate([part["theta"] for part in parts])
    theta = torch.from_numpy(joined).to(training.initial)
    return Shadows(theta, _records(training, plan))


def _records(training: DpSgdTraining, plan: ShadowPlan) -> Records:
    """What shadows are trained on. Raises SpecError where nothing is in reserve for them."""
    if plan.data is not None:
        return training.loaded(plan.data.load())
    if training.reserved is None:
        raise SpecError(
            "mechanism.reserved", "is needed by this adversary's shadow models; give a share"
        )
    return training.reserved
