"""The gradient attack (Nasr et al. 2021, section IV-E, Crafter 4 and Distinguisher 3).

A watermark of norm C on the 2n parameters that training moves least, with alternating signs, and
the sum over the steps of what each shows along it. The paper chooses the parameters while the
audited training runs; here in a simulation, so that every trial inserts the same gradient. The
printed score is the plain sum; with sampling the exact one is the mixture's log likelihood ratio.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from ..errors import SpecError
from .base import GradientCanary, PublicKnowledge, TrajectoryAdversary
from .likelihood import Projected, Reading, Statistic

if TYPE_CHECKING:
    from torch import Tensor

_USUAL, _OBSERVED = 64, 10  # parameters, and steps, where the sweep does not say


class Watermarked(TrajectoryAdversary[GradientCanary]):
    """Marks `parameters` (2n) of the model; where nothing is said, 64, or as many as it has.

    `subtract` and `statistic` are as of `watched-dimension`: the likelihood ratio of all that is
    known, or the paper's `sum`.
    """

    fixed_gradient: ClassVar[bool] = True
    parameters: int | None = Field(default=None, ge=2)  # marked ones; 64 or all
    subtract: bool = True  # take away the others' gradients first
    statistic: Statistic = "likelihood-ratio"  # what is summed over the steps

    def check_size(self, parameters: int) -> None:
        if self.parameters is not None and (self.parameters > parameters or self.parameters % 2):
            raise SpecError(
                "adversary.parameters",
                f"is {self.parameters}, but the model has {parameters} and half of them go up, "
                f"half down; use an even number of at most {parameters - parameters % 2}",
            )

    @property
    def reading(self) -> Reading:
        """What is added up of the steps."""
        return Reading(self.period, self.subtract, self.statistic)

    def observer(self, canary: GradientCanary, public: PublicKnowledge, models: int) -> Projected:
        return Projected.along(canary, public, models, self.reading)

    def watermark(self, public: PublicKnowledge, moved: Tensor) -> GradientCanary:
        """Norm C on the parameters with the least of `moved`, float [p]; alternating signs."""
        size = len(moved)
        count = self.parameters or min(_USUAL, size - size % 2)
        places = moved.sort(stable=True).indices[:count]
        direction = moved.new_zeros(size)
        direction[places] = public.clip_norm / count**0.5
        direction[places[1::2]] *= -1
        return GradientCanary(direction)


class Gradient(Watermarked):
    """Marks what moves least in the first `observe` steps of a simulation, 10 if not said."""

    name: Literal["gradient"] = "gradient"
    observe: int | None = Field(default=None, ge=1)  # simulated steps to choose by; 10

    def craft(self, public: PublicKnowledge, rng: np.random.Generator) -> GradientCanary:
        import torch

        path = public.simulate(1, noisy=False, seed=int(rng.integers(2**63)))
        first = list(itertools.islice(path, (self.observe or _OBSERVED) + 1))
        moved = torch.stack([(b - a).abs()[0] for a, b in itertools.pairwise(first)]).sum(0)
        return self.watermark(public, moved)
