"""A gradient canary along one parameter, watched at every step of the training."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from .base import GradientCanary, PublicKnowledge, TrajectoryAdversary
from .likelihood import Projected, Reading

if TYPE_CHECKING:
    import numpy as np


class WatchedDimension(TrajectoryAdversary[GradientCanary]):
    """Biases a random dimension; `subtract: false` leaves the others' sum where it is.

    Subtracting takes about as long as training. It changes nothing in a dimension that the others
    leave alone.
    """

    fixed_gradient: ClassVar[bool] = True  # C e_d
    name: Literal["watched-dimension"] = "watched-dimension"
    subtract: bool = True  # take away the others' gradients first

    def craft(self, public: PublicKnowledge, rng: np.random.Generator) -> GradientCanary:
        direction = public.initial.new_zeros(len(public.initial))
        direction[int(rng.integers(len(direction)))] = public.clip_norm
        return GradientCanary(direction)

    def observer(self, canary: GradientCanary, public: PublicKnowledge, models: int) -> Projected:
        return Projected.along(canary, public, models, Reading(self.period, self.subtract))
