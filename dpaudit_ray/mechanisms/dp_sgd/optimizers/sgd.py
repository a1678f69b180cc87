"""Plain gradient descent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from .base import Noisy, Optimizer, State

if TYPE_CHECKING:
    from torch import Tensor, nn, optim


class Sgd(Optimizer):
    """θ ← θ - η g."""

    name: Literal["sgd"] = "sgd"

    def move(self, theta: Tensor, noisy: Noisy, state: State) -> None:
        """In one pass over θ."""
        theta.sub_(noisy.summed, alpha=noisy.rate / noisy.batch_size)

    def torch(self, parameters: Iterable[nn.Parameter], rate: float) -> optim.Optimizer:
        """`torch.optim.SGD`."""
        from torch import optim

        return optim.SGD(parameters, lr=rate)
