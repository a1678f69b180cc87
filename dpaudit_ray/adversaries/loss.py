"""A_L: a training example with a flipped label, scored by its loss (baseline of Cebere et al.)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from .base import FinalModel, FinalModelAdversary, PublicKnowledge, SampleCanary

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


class Loss(FinalModelAdversary[SampleCanary]):
    """Adds a copy of an example with a wrong label; a low final loss says that it was there.

    `statistic: gradient-norm` scores by the norm of the canary's gradient instead, before
    clipping. Recorded over the steps, it shows how much of C the canary ever used.
    """

    name: Literal["loss"] = "loss"
    example: int | None = Field(default=None, ge=0)  # the one that is copied; else one by chance
    statistic: Literal["loss", "gradient-norm"] = "loss"  # what the score is read from

    @property
    def needs_classes(self) -> bool:
        return True

    def craft(self, public: PublicKnowledge, rng: np.random.Generator) -> SampleCanary:
        index = int(rng.integers(public.examples)) if self.example is None else self.example
        x, y = public.example(index)
        return SampleCanary(x, (y + int(rng.integers(1, public.classes))) % public.classes)

    def score(self, canary: SampleCanary, observed: FinalModel) -> Tensor:
        if self.statistic == "loss":
            return -observed.losses(canary.x, canary.y)[:, 0]
        norms: Tensor = observed.gradients(canary.x, canary.y).norm(dim=1)
        return -norms
