"""The malicious data set (Nasr et al. 2021, section IV-F, Crafter 5 and Distinguisher 3).

The adversary chooses all records, θ_0 and the learning rate, which is zero: every step is taken at
θ_0. Records are labelled by the model itself, with its probabilities: their cross-entropy has no
gradient there, so nothing but the canary's and the noise is left. Hard labels, the likeliest class,
do have one; the adversary knows it, as it knows the batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from .base import GradientCanary, PublicKnowledge, TrajectoryAdversary
from .gradient import check_marked, watermark
from .likelihood import Projected, Reading, Statistic

if TYPE_CHECKING:
    import numpy as np


class MaliciousDataset(TrajectoryAdversary[GradientCanary]):
    """A watermark on `parameters` (2n) of a model that does not move; options as of `gradient`.

    `subtract: false` leaves the others' gradients in, which makes a difference to hard labels.
    """

    fixed_gradient: ClassVar[bool] = True
    frozen: ClassVar[bool] = True
    name: Literal["malicious-dataset"] = "malicious-dataset"
    labels: Literal["soft", "hard"] = "soft"
    parameters: int | None = Field(default=None, ge=2)
    subtract: bool = True
    statistic: Statistic = "likelihood-ratio"

    def check_size(self, parameters: int) -> None:
        """Refuses to mark more parameters than there are, or an odd number of them."""
        check_marked(self.parameters, parameters)

    def craft(self, known: PublicKnowledge, rng: np.random.Generator) -> GradientCanary:
        """Marks the first parameters: none of them moves."""
        return watermark(known, known.initial.new_zeros(len(known.initial)), self.parameters)

    def observer(self, canary: GradientCanary, known: PublicKnowledge, models: int) -> Projected:
        """What every step shows along the watermark, added up."""
        reading = Reading(self.period, self.subtract, self.statistic)
        return Projected.of(canary, known, models, reading)
