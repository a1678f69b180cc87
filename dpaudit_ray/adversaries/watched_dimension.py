"""A gradient canary along one parameter, observed at every step of the training run."""

from typing import TYPE_CHECKING, Literal

from .base import GradientCanary, PublicKnowledge, TrajectoryAdversary
from .likelihood import Projected, Reading

if TYPE_CHECKING:
    from numpy.random import Generator


class WatchedDimension(TrajectoryAdversary[GradientCanary]):
    """Biases a random dimension; with `subtract: false` scores contain the other gradients.

    Subtraction takes about as long as training. It changes nothing if other gradients have no part
    in the dimension.
    """

    fixed_gradient = True  # C e_d
    name: Literal["watched-dimension"] = "watched-dimension"
    subtract: bool = True  # first subtract the gradients of all other examples

    def craft(self, public: PublicKnowledge, rng: "Generator") -> GradientCanary:
        """Puts the whole clipping norm on one random parameter."""
        direction = public.initial.new_zeros(len(public.initial))
        dimension = int(rng.integers(len(direction)))
        direction[dimension] = public.clip_norm
        return GradientCanary(direction)

    def observer(self, canary: GradientCanary, public: PublicKnowledge, models: int) -> Projected:
        reading = Reading(self.period, self.subtract)
        return Projected.for_direction(canary, public, models, reading)
