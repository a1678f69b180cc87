"""A pack of trainings against one adversary, under what its threat model lets it see."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..adversaries.base import Canary, FinalModelAdversary, TrajectoryAdversary
from .packed import PackedModel
from .training import Training

Scores = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class _Released:
    """Final models as a hidden-state adversary sees them."""

    initial: Tensor
    final: Tensor
    model: PackedModel

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """Loss of every final model on examples x [m, ...], y [m]: float [n, m]."""
        return self.model.losses(self.final, x, y)

    def gradients(self, x: Tensor, y: Tensor) -> Tensor:
        """Gradient of the summed loss of these examples under every final model, float [n, p]."""
        return self.model.clipped_sums(self.final, x, y, math.inf)


@dataclasses.dataclass(frozen=True)
class FinalModelSession:
    """DP-SGD against an adversary that sees only where training ended."""

    training: Training
    adversary: FinalModelAdversary[Any]
    canary: Canary

    @classmethod
    def craft(
        cls, training: Training, adversary: FinalModelAdversary[Any], seed: int
    ) -> FinalModelSession:
        """Crafts the canary; refuses one whose gradient breaks the sensitivity of the claim."""
        canary = adversary.craft(training, np.random.default_rng(seed))
        return cls(training, adversary, training.within_claim(canary))

    def run(self, members: npt.NDArray[np.bool_], seed: int, horizons: tuple[int, ...]) -> Scores:
        """See `Session.run`. Every horizon is judged alone, from θ_0 and θ there."""
        training = self.training
        inside = torch.from_numpy(members).to(training.initial)
        scores = np.empty((len(members), len(horizons)))
        column = {step: i for i, step in enumerate(horizons)}
        path = training.run(inside, seed, self.canary, self.adversary.period)
        for step, theta in enumerate(path):
            if step in column:
                released = _Released(training.initial, theta, training.model)
                observed = self.adversary.score(self.canary, released)
                scores[:, column[step]] = observed.double().cpu().numpy()
        return scores


@dataclasses.dataclass(frozen=True)
class TrajectorySession:
    """DP-SGD against an adversary that watches every step."""

    training: Training
    adversary: TrajectoryAdversary[Any]
    canary: Canary

    @classmethod
    def craft(
        cls, training: Training, adversary: TrajectoryAdversary[Any], seed: int
    ) -> TrajectorySession:
        """See `FinalModelSession.craft`."""
        canary = adversary.craft(training, np.random.default_rng(seed))
        return cls(training, adversary, training.within_claim(canary))

    def run(self, members: npt.NDArray[np.bool_], seed: int, horizons: tuple[int, ...]) -> Scores:
        """See `Session.run`. A score at a horizon is that of the steps up to there."""
        inside = torch.from_numpy(members).to(self.training.initial)
        observer = self.adversary.observer(self.canary, self.training, len(members))
        scores = np.empty((len(members), len(horizons)))
        column = {step: i for i, step in enumerate(horizons)}
        path = self.training.run(inside, seed, self.canary, self.adversary.period)
        before = next(path).clone()
        for step, theta in enumerate(path, start=1):
            observer.see(step, before, theta)
            if step in column:
                scores[:, column[step]] = observer.scores().double().cpu().numpy()
            before.copy_(theta)
        return scores
