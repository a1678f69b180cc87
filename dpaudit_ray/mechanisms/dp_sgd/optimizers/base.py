"""The interface of optimizers: one rule, for all models of a pack, and torch's own for Opacus.

Noise is added before an optimizer sees a gradient, so whatever it makes of it is post-processing:
no claim depends on the optimizer, and none on the schedule of its learning rate.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from ....plugins import Plugin

if TYPE_CHECKING:
    from torch import Tensor, nn, optim

State = dict[str, "Tensor"]


@dataclasses.dataclass(frozen=True)
class Noisy:
    """What a step releases of n models, and how far it may move them.

    `summed` is float [n, p]: clipped gradients, canary and noise; `number` counts steps from 1.
    """

    summed: Tensor
    batch_size: int
    rate: float
    number: int

    @property
    def mean(self) -> Tensor:
        """The gradient that descent follows, float [n, p]."""
        return self.summed / self.batch_size


class Optimizer(Plugin):
    """Base of all optimizers. θ starts without momentum, as in torch."""

    kind: ClassVar[str] = "optimizer"
    home: ClassVar[str] = "dpaudit_ray.mechanisms.dp_sgd.optimizers"

    @abstractmethod
    def move(self, theta: Tensor, noisy: Noisy, state: State) -> None:
        """Changes `theta`, float [n, p], in place, and `noisy` not at all.

        `state` is empty at first and keeps what it is given, float [n, p] each, for the next step.
        """

    @abstractmethod
    def torch(self, parameters: Iterable[nn.Parameter], rate: float) -> optim.Optimizer:
        """The same, for the parameters of one model. The rate is set anew at every step."""
