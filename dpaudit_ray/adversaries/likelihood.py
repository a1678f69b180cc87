"""The likelihood of what steps show, to an adversary that knows its canary's gradient.

Given θ_{t-1} and the batch of the others, step t shows the sum of their clipped gradients, which is
known, the noise, and g* where the canary is in and sampled. Along g*, less what is known, in units
of C: s_t ~ N(b c_t, σ²) for |g*| = C, with a coin c_t of chance q. The most powerful test for b
adds up log(1 - q + q exp((s_t - 1/2) / σ²)) over the steps (Neyman and Pearson), where coins of
different steps are independent: exact for Poisson sampling, and for fixed batches, at q = 1; close
for one batch an epoch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from .base import GradientCanary, PublicKnowledge

if TYPE_CHECKING:
    from torch import Tensor

Statistic = Literal["likelihood-ratio", "sum"]


@dataclasses.dataclass(frozen=True)
class Reading:
    """A reading of steps: which of them have the canary, and what is added up of them.

    With `subtract`, the others' clipped sum is computed and taken away: about a training's cost.
    """

    period: int
    subtract: bool = True
    statistic: Statistic = "likelihood-ratio"

    def score(self, shown: Tensor, public: PublicKnowledge) -> Tensor:
        """What a step adds that shows `shown` along the canary, in units of C, any shape."""
        if self.statistic == "sum":
            return shown
        return sampled_ratio((shown - 0.5) / public.noise_multiplier**2, public.sample_rate)


def sampled_ratio(ratio: Tensor, q: float) -> Tensor:
    """Log likelihood ratio of a step that has the canary at chance `q`, from that of q = 1."""
    import torch

    if q == 1:
        return ratio
    return torch.logaddexp(torch.full_like(ratio, math.log1p(-q)), ratio + math.log(q))


@dataclasses.dataclass
class Sums:
    """Base of observers that add up what steps show: [n], or [n, m] of several canaries."""

    shown: Tensor  # what the steps so far have shown of each trial, added up

    def scores(self) -> Tensor:
        """The sum so far, float [n] or [n, m]: a copy, since later steps add to it in place."""
        return self.shown.clone()

    def state(self) -> dict[str, Tensor]:
        return {"shown": self.shown}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.shown = state["shown"]


@dataclasses.dataclass
class Projected(Sums):
    """An observer: what each model shows along a canary of norm C, summed over the steps so far."""

    public: PublicKnowledge
    reading: Reading
    indices: Tensor  # [k]
    weights: Tensor  # [k], the canary's entries over C

    @classmethod
    def along(
        cls, canary: GradientCanary, public: PublicKnowledge, models: int, reading: Reading
    ) -> Projected:
        """An observer of `models` trainings that have not begun, along the canary."""
        indices = canary.direction.nonzero()[:, 0]
        weights = canary.direction[indices] / public.clip_norm
        return cls(public.initial.new_zeros(models), public, reading, indices, weights)

    def see_update(self, step: int, before: Tensor, update: Tensor) -> None:
        if step % self.reading.period:
            return
        total = self._part(update) * self.public.batch_size
        if self.reading.subtract:
            batch, clip_norm = self.public.batch(step), self.public.clip_norm
            total = total - self._part(self.public.gradients(before, *batch, clip_norm=clip_norm))
        self.shown += self.reading.score(total / self.public.clip_norm, self.public)

    def _part(self, gradients: Tensor) -> Tensor:
        return (gradients[:, self.indices] * self.weights).sum(1)
