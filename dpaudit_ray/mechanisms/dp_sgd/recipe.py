"""What a training by DP-SGD is made of: numbers, data and a model, and nothing of a sweep file."""

from __future__ import annotations

import dataclasses
from typing import Literal

from ...data.base import Data
from ...models.base import Model


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One training; see `DpSgd` for what each entry means. `seed` varies θ_0 and the batches."""

    data: Data
    model: Model
    steps: int
    batch_size: int
    learning_rate: float
    clip_norm: float
    noise_multiplier: float
    engine: Literal["packed", "opacus"] = "packed"
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    seed: int = 0

    @property
    def hidden_start(self) -> bool:
        """Whether every trial draws its own θ_0, which the adversary does not know."""
        return self.model.initialization == "random"
