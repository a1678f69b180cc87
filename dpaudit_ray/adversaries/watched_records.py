"""Records with a wrong label, observed at every step along the gradient that they add to it.

Given θ_{t-1}, step t releases a known sum, noise N(0, σ²C² I), and the canary's clipped gradient
g_t if it is in and sampled. Of the release less the known sum, r_t, the log likelihood ratio is
(⟨r_t, g_t⟩ - |g_t|² / 2) / (σC)², or its mixture over the canary's coin (Neyman and Pearson).
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import NonNegativeInt, PositiveFloat

from ..errors import SpecError
from .base import PublicKnowledge, SampleCanary, TrajectoryAdversary
from .likelihood import Sums
from .loss import mislabelled

if TYPE_CHECKING:
    from numpy.random import Generator
    from torch import Tensor


class WatchedRecords(TrajectoryAdversary[SampleCanary]):
    """Adds a copy of an example with a wrong label, and subtracts the others' gradients.

    If the unit is a user or a client, the copy is of all its records. Features are multiplied by
    `scale`: long gradients use all of the clipping norm.
    """

    name: Literal["watched-records"] = "watched-records"
    example: NonNegativeInt | None = None  # index of the copied example; a random one by default
    scale: PositiveFloat = 1.0  # of the copy's features

    @property
    def needs_classes(self) -> bool:
        return True

    def craft(self, public: PublicKnowledge, rng: "Generator") -> SampleCanary:
        """Returns the mislabelled copy. Raises SpecError if noise is correlated."""
        if public.strategy is not None:
            raise SpecError(
                "mechanism.noise", "is correlated; use adversary.name: watched-dimension"
            )
        canary = mislabelled(public, rng, self.example)
        x = canary.x if self.scale == 1 else canary.x * self.scale
        return SampleCanary(x, canary.y)

    def observer(self, canary: SampleCanary, public: PublicKnowledge, models: int) -> "Along":
        zeros = public.initial.new_zeros(models)
        return Along(zeros, None, public, canary, self.period)


@dataclass
class Along(Sums):
    """An observer that adds up log likelihood ratios along the canary's gradients."""

    public: PublicKnowledge
    canary: SampleCanary
    period: int  # steps from one insertion to the next

    def see_update(self, step: int, before: "Tensor", update: "Tensor") -> None:
        """Adds the evidence in one step, if it may have the canary.

        Args:
            step: number of the step, from 1.
            before: θ_{t-1}, float [n, p].
            update: the step's release, its noisy mean gradient, float [n, p].
        """
        import torch

        public = self.public
        if step % self.period:  # canaries enter at multiples of the period
            return
        x, y = public.batch(step)
        known_sum = public.gradients(before, x, y, clip_norm=public.clip_norm)
        canary = self.canary
        canary_gradient = public.gradients(before, canary.x, canary.y, clip_norm=public.clip_norm)
        remainder = update * public.batch_size - known_sum  # noise, and perhaps the canary
        variance = (public.noise_multiplier * public.clip_norm) ** 2
        # Log likelihood ratio of N(canary_gradient, variance) against N(0, variance).
        ratio = (canary_gradient * (remainder - canary_gradient / 2)).sum(1) / variance
        q = public.sample_rate
        if q < 1:  # the step has the canary with probability q: log(1 - q + q e^ratio)
            not_sampled = torch.full_like(ratio, math.log1p(-q))
            ratio = torch.logaddexp(not_sampled, ratio + math.log(q))
        self.total += ratio
