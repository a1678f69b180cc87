"""A gradient canary along one parameter, watched at every step of the training.

Given θ_{t-1} and the batch of the others, step t shows the sum of their clipped gradients, which
is known, the noise, and C e_d where the canary is in and sampled. Along d, less what is known, in
units of C: s_t ~ N(b c_t, σ²) with a coin c_t of chance q. The most powerful test for b adds up

    log(1 - q + q exp((s_t - 1/2) / σ²))

over the steps (Neyman and Pearson), where coins of different steps are independent: exact for
Poisson sampling, and for fixed batches, at q = 1. For one batch an epoch it is close to it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from .base import GradientCanary, PublicKnowledge, TrajectoryAdversary

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


class WatchedDimension(TrajectoryAdversary[GradientCanary]):
    """Biases a random dimension; `subtract: false` leaves the others' sum where it is.

    Subtracting takes about as long as training. It changes nothing in a dimension that the others
    leave alone, and nothing can be subtracted where their batches are secret.
    """

    fixed_gradient: ClassVar[bool] = True  # C e_d
    name: Literal["watched-dimension"] = "watched-dimension"
    subtract: bool = True

    def craft(self, known: PublicKnowledge, rng: np.random.Generator) -> GradientCanary:
        """Picks the dimension d and returns C e_d."""
        direction = known.initial.new_zeros(len(known.initial))
        direction[int(rng.integers(len(direction)))] = known.clip_norm
        return GradientCanary(direction)

    def observer(
        self, canary: GradientCanary, known: PublicKnowledge, models: int
    ) -> LikelihoodRatio:
        """A sum of log likelihood ratios for each model."""
        shown = known.initial.new_zeros(models)
        return LikelihoodRatio(known, int(canary.direction.argmax()), self, shown)


@dataclasses.dataclass
class LikelihoodRatio:
    """What the steps so far say of each model, float [n]."""

    known: PublicKnowledge
    dimension: int
    adversary: WatchedDimension
    shown: Tensor

    def see_update(self, step: int, before: Tensor, update: Tensor) -> None:
        """Adds what `step` shows, where the canary may be in it."""
        import torch

        if step % self.adversary.period:
            return
        known, q = self.known, self.known.sample_rate
        total = update[:, self.dimension] * known.batch_size
        batch = known.batch(step) if self.adversary.subtract else None
        if batch is not None:
            others = known.gradients(before, *batch, clip_norm=known.clip_norm)
            total = total - others[:, self.dimension]
        ratio = (total / known.clip_norm - 0.5) / known.noise_multiplier**2
        if q < 1:
            absent = torch.full_like(ratio, math.log1p(-q))
            ratio = torch.logaddexp(absent, ratio + math.log(q))
        self.shown += ratio

    def scores(self) -> Tensor:
        """The sums."""
        return self.shown.clone()

    def state(self) -> dict[str, Tensor]:
        """The sums."""
        return {"shown": self.shown}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from these."""
        self.shown = state["shown"]
