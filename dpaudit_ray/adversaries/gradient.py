"""The gradient attack (Nasr et al. 2021, section IV-E, Crafter 4 and Distinguisher 3).

A watermark of norm C on the 2n parameters that training changes least, with alternating signs. The
score is a sum over the steps of a function of each step's part along it. The paper chooses the
parameters in the audited run; here a simulation does, so that every trial inserts the same
gradient. The printed score is the plain sum; with sampling, the most powerful one is the mixture's
log likelihood ratio.
"""

import itertools
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ..errors import SpecError
from ..plugins import Count
from .base import GradientCanary, PublicKnowledge, TrajectoryAdversary
from .likelihood import Projected, Reading, Statistic

if TYPE_CHECKING:
    from numpy.random import Generator
    from torch import Tensor

# Defaults of options.
_PARAMETERS = 64  # number of parameters that are marked
_STEPS = 10  # number of simulated steps that choose the parameters


class Watermarked(TrajectoryAdversary[GradientCanary]):
    """Marks `parameters` (2n) of the model; by default 64, or as many as it has.

    `subtract` is as in `watched-dimension`. `statistic` is the likelihood ratio of all that is
    known, or the paper's `sum`.
    """

    fixed_gradient = True
    parameters: int | None = Field(default=None, ge=2)  # marked ones; 64 or all
    subtract: bool = True  # first subtract the gradients of all other examples
    statistic: Statistic = "likelihood-ratio"  # this is summed over the steps

    def check_size(self, parameters: int) -> None:
        """Raises SpecError if more parameters are marked than the model has, or an odd number."""
        if self.parameters is None:  # the default fits any model
            return
        if self.parameters > parameters or self.parameters % 2:
            raise SpecError(
                "adversary.parameters",
                f"is {self.parameters}, but the model has {parameters} and half of them go up, "
                f"half down; use an even number of at most {parameters - parameters % 2}",
            )

    @property
    def reading(self) -> Reading:
        """The steps that have the canary, and their scores."""
        return Reading(self.period, self.subtract, self.statistic)

    def observer(self, canary: GradientCanary, public: PublicKnowledge, models: int) -> Projected:
        """Returns an observer of each step's projection on the watermark."""
        return Projected.for_direction(canary, public, models, self.reading)

    def watermark(self, public: PublicKnowledge, movement: "Tensor") -> GradientCanary:
        """Crafts a gradient of norm C on the parameters that change least.

        Args:
            public: states C.
            movement: how much each parameter changes, float [p].
        """
        size = len(movement)
        count = self.parameters or min(_PARAMETERS, size - size % 2)  # an even number
        indices = movement.sort(stable=True).indices[:count]
        direction = movement.new_zeros(size)
        direction[indices] = public.clip_norm / count**0.5
        direction[indices[1::2]] *= -1
        return GradientCanary(direction)


class Gradient(Watermarked):
    """Marks the parameters that change least in the first steps of a simulation, by default 10."""

    name: Literal["gradient"] = "gradient"
    observe: Count | None = None  # simulated steps to choose by; 10

    def craft(self, public: PublicKnowledge, rng: "Generator") -> GradientCanary:
        """Marks the parameters that a simulated training without noise changes least."""
        import torch

        path = public.simulate(1, noisy=False, seed=int(rng.integers(2**63)))
        steps = self.observe or _STEPS
        models = [theta[0] for theta in itertools.islice(path, steps + 1)]
        movement = torch.stack(models).diff(dim=0).abs().sum(0)
        return self.watermark(public, movement)
