"""The gradient attack (Nasr et al. 2021, section IV-E, Crafter 4 and Distinguisher 3).

A watermark of norm C on the 2n parameters that training moves least, with alternating signs, and
the sum over the steps of what each shows along it. The paper chooses the parameters while the
audited training runs; here they are chosen in a simulation, which takes public knowledge only, so
that every trial inserts one and the same gradient and every step counts. The printed score is the
plain sum; with sampling the exact one is the mixture's log likelihood ratio.
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


class Gradient(TrajectoryAdversary[GradientCanary]):
    """Marks the `parameters` (2n) that move least in the first `observe` steps of a simulation.

    Where nothing is said, 64 parameters, or as many as the model has, and 10 steps. `subtract` and
    `statistic` are as of `watched-dimension`: the likelihood ratio of all that is known, or the
    paper's `sum`.
    """

    fixed_gradient: ClassVar[bool] = True
    name: Literal["gradient"] = "gradient"
    parameters: int | None = Field(default=None, ge=2)
    observe: int | None = Field(default=None, ge=1)
    subtract: bool = True
    statistic: Statistic = "likelihood-ratio"

    def check_steps(self, steps: int) -> None:
        if self.observe is not None and self.observe > steps:
            raise SpecError(
                "adversary.observe",
                f"is {self.observe}, but there are {steps} steps; lower it",
            )

    def check_size(self, parameters: int) -> None:
        check_marked(self.parameters, parameters)

    def craft(self, public: PublicKnowledge, rng: np.random.Generator) -> GradientCanary:
        import torch

        path = public.simulate(1, noisy=False, seed=int(rng.integers(2**63)))
        first = list(itertools.islice(path, (self.observe or _OBSERVED) + 1))
        moved = torch.stack([(b - a).abs()[0] for a, b in itertools.pairwise(first)]).sum(0)
        return watermark(public, moved, self.parameters)

    def observer(self, canary: GradientCanary, public: PublicKnowledge, models: int) -> Projected:
        reading = Reading(self.period, self.subtract, self.statistic)
        return Projected.along(canary, public, models, reading)


def check_marked(marked: int | None, parameters: int) -> None:
    """Raises SpecError where a watermark does not fit a model."""
    if marked is not None and (marked > parameters or marked % 2):
        raise SpecError(
            "adversary.parameters",
            f"is {marked}, but the model has {parameters} and half of them go up, half down; use "
            f"an even number of at most {parameters - parameters % 2}",
        )


def watermark(public: PublicKnowledge, moved: Tensor, marked: int | None) -> GradientCanary:
    """Norm C on the `marked` parameters with the least of `moved`, float [p]; alternating signs."""
    size = len(moved)
    count = marked or min(_USUAL, size - size % 2)
    places = moved.sort(stable=True).indices[:count]
    direction = moved.new_zeros(size)
    direction[places] = public.clip_norm / count**0.5
    direction[places[1::2]] *= -1
    return GradientCanary(direction)
