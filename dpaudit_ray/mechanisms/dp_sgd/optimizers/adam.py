"""Adam (Kingma and Ba 2015, Algorithm 1) on noisy gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field

from .base import Noisy, Optimizer, State

if TYPE_CHECKING:
    from torch import Tensor, nn, optim

_Decay = Annotated[float, Field(ge=0, lt=1)]
_Listed = BeforeValidator(lambda raw: tuple(raw) if isinstance(raw, list) else raw)


class Adam(Optimizer):
    """First and second moments decay by `betas`; `eps` keeps the quotient finite."""

    name: Literal["adam"] = "adam"
    betas: Annotated[tuple[_Decay, _Decay], _Listed] = (0.9, 0.999)
    eps: float = Field(default=1e-8, gt=0)

    def move(self, theta: Tensor, noisy: Noisy, state: State) -> None:
        """With both corrections for moments that start at zero."""
        if not state:
            state.update(m=theta.new_zeros(theta.shape), v=theta.new_zeros(theta.shape))
        first, second, gradient, (slow, slower) = *state.values(), noisy.mean, self.betas
        first.lerp_(gradient, 1 - slow)
        second.mul_(slower).addcmul_(gradient, gradient, value=1 - slower)
        root = (second / (1 - slower**noisy.number)).sqrt_().add_(self.eps)
        theta.addcdiv_(first, root, value=-noisy.rate / (1 - slow**noisy.number))

    def torch(self, parameters: Iterable[nn.Parameter], rate: float) -> optim.Optimizer:
        """`torch.optim.Adam`."""
        from torch import optim

        return optim.Adam(parameters, lr=rate, betas=self.betas, eps=self.eps)
