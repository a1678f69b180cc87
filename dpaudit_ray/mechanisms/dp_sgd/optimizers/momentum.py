"""Gradient descent with momentum (Polyak 1964), as `torch.optim.SGD` has it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from .base import Noisy, Optimizer, State

if TYPE_CHECKING:
    from torch import Tensor, nn, optim


class Momentum(Optimizer):
    """v ← m v + g, θ ← θ - η v."""

    name: Literal["momentum"] = "momentum"
    momentum: float = Field(default=0.9, ge=0, lt=1)

    def move(self, theta: Tensor, noisy: Noisy, state: State) -> None:
        """v is kept in sums, as the gradients come."""
        if "velocity" not in state:
            state["velocity"] = theta.new_zeros(theta.shape)
        velocity = state["velocity"].mul_(self.momentum).add_(noisy.summed)
        theta.sub_(velocity, alpha=noisy.rate / noisy.batch_size)

    def torch(self, parameters: Iterable[nn.Parameter], rate: float) -> optim.Optimizer:
        """`torch.optim.SGD`."""
        from torch import optim

        return optim.SGD(parameters, lr=rate, momentum=self.momentum)
