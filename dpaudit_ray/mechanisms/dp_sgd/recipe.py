"""What a training by DP-SGD is made of: numbers, data and a model, and nothing of a sweep file."""

from __future__ import annotations

import dataclasses
from typing import Literal

from ...data.base import Data
from ...errors import SpecError
from ...models.base import Model
from .optimizers.base import Optimizer
from .optimizers.sgd import Sgd
from .sampling.base import Sampler, Sizes
from .sampling.fixed import Fixed
from .schedules.base import Schedule
from .schedules.constant import Constant

_FIXED, _SGD, _CONSTANT = Fixed(), Sgd(), Constant()


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
    sampling: Sampler = _FIXED
    batches: Literal["known", "secret"] = "known"
    optimizer: Optimizer = _SGD
    schedule: Schedule = _CONSTANT
    physical_batch_size: int | None = None
    augmentations: int = 1
    held_out: Data | float | None = None
    reserved: float | None = None

    def rate(self, step: int) -> float:
        """The learning rate of `step`, from 1 on."""
        return self.schedule.rate(self.learning_rate, step, self.steps)

    def sizes(self, examples: int) -> Sizes:
        """What sampling goes by, for `examples` of them."""
        return Sizes(examples, self.batch_size)

    @property
    def hidden_start(self) -> bool:
        """Whether every trial draws its own θ_0, which the adversary does not know."""
        return self.model.initialization == "random"


def check_known_start(model: Model) -> None:
    """Raises SpecError where no adversary can choose θ_0, as every trial draws its own."""
    if model.initialization == "random":
        raise SpecError(
            "mechanism.model.initialization",
            "is random, so that every trial draws its own start; the adversary chooses one for "
            "all: use fixed",
        )
