"""Layer rules: how one kind of layer is applied to, and clipped for, n models at once.

Activations keep the shape that the module's own code expects, batch first: [n*B, ...], model by
model, or [B, ...] as long as they are the same for all models. Inside a rule the memory of an
activation runs feature by feature ([features, n, B]), so that elementwise work and reductions
over features run along contiguous memory whatever the (often tiny) layer width.

To support another layer, subclass `LayerRule` here and name its class in `RULES`.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..errors import SpecError


@dataclasses.dataclass(frozen=True)
class Slot:
    """Where one parameter lies in the flat parameter vector."""

    start: int
    shape: tuple[int, ...]

    @property
    def stop(self) -> int:
        """One past its last entry."""
        return self.start + int(torch.Size(self.shape).numel())

    def of(self, flat: Tensor) -> Tensor:
        """The view [n, *shape] of flat parameters [n, p]."""
        return flat[:, self.start : self.stop].view(len(flat), *self.shape)


class LayerRule(ABC):
    """One layer's share of the packed forward and backward pass. `theta` is float [n, p]."""

    layer: ClassVar[type[nn.Module]]

    @abstractmethod
    def __init__(self, layer: nn.Module, slots: Mapping[str, Slot]) -> None:
        """Keeps the layer's settings; its parameters are found through `slots` by name."""

    @abstractmethod
    def forward(self, theta: Tensor, x: Tensor, shared: bool) -> Tensor:
        """Output [n*B, ...] from input [B, ...] if `shared`, else [n*B, ...]."""

    @abstractmethod
    def input_gradient(self, theta: Tensor, g: Tensor) -> Tensor:
        """Gradient of the input [n*B, ...] from that of the output, `g`."""

    @abstractmethod
    def squared_norms(self, n: int, x: Tensor, g: Tensor, shared: bool) -> Tensor:
        """Squared norm of every per-sample gradient of this layer's parameters, [n, B]."""

    @abstractmethod
    def weighted_sums(
        self, out: Tensor, x: Tensor, g: Tensor, weights: Tensor, shared: bool
    ) -> None:
        """Writes Σ_j weights[:, j] · (gradient of sample j) into this layer's part of `out`."""


class LinearRule(LayerRule):
    """y = W x + b. A sample's gradient is the outer product g xᵀ, of norm |g| |x|: never formed."""

    layer = nn.Linear

    def __init__(self, layer: nn.Module, slots: Mapping[str, Slot]) -> None:
        self._weight = slots["weight"]
        self._bias = slots.get("bias")

    def forward(self, theta: Tensor, x: Tensor, shared: bool) -> Tensor:
        if x.dim() != 2:
            raise SpecError("mechanism.model", f"Linear on {x.dim()}-D input is not supported")
        weight = self._weight.of(theta)
        n, out, width = weight.shape
        if shared:  # one matrix product for all models
            stacked = weight.transpose(0, 1).reshape(out * n, width)
            y = (stacked @ x.t()).view(out, n, -1)
        else:
            y = theta.new_empty(out, n, x.shape[0] // n)
            torch.bmm(weight, _columns(x, n), out=y.transpose(0, 1))
        if self._bias is not None:
            y += self._bias.of(theta).t().unsqueeze(2)
        return y.view(out, -1).t()

    def input_gradient(self, theta: Tensor, g: Tensor) -> Tensor:
        weight = self._weight.of(theta)
        n, _, width = weight.shape
        gradient = theta.new_empty(width, n, g.shape[0] // n)
        torch.bmm(weight.transpose(1, 2), _columns(g, n), out=gradient.transpose(0, 1))
        return gradient.view(width, -1).t()

    def squared_norms(self, n: int, x: Tensor, g: Tensor, shared: bool) -> Tensor:
        size = (x * x).sum(1)
        if self._bias is not None:
            size = size + 1
        return (g * g).sum(1).view(n, -1) * (size if shared else size.view(n, -1))

    def weighted_sums(
        self, out: Tensor, x: Tensor, g: Tensor, weights: Tensor, shared: bool
    ) -> None:
        n, batch = weights.shape
        scaled = g * weights.reshape(-1, 1)
        target = self._weight.of(out)
        if shared:
            product = scaled.t().reshape(-1, batch) @ x
            target.copy_(product.view(g.shape[1], n, -1).transpose(0, 1))
        else:
            target.copy_(torch.bmm(_columns(scaled, n), x.view(n, batch, -1)))
        if self._bias is not None:
            self._bias.of(out).copy_(scaled.view(n, batch, -1).sum(1))


def _columns(x: Tensor, n: int) -> Tensor:
    """[n*B, f] as [n, f, B]; a view when memory runs feature by feature."""
    return x.view(n, x.shape[0] // n, -1).transpose(1, 2)


RULES: dict[type[nn.Module], type[LayerRule]] = {rule.layer: rule for rule in (LinearRule,)}
