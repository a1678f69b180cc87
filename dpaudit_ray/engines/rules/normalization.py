"""The learnt part of GroupNorm and LayerNorm: y = w ⊙ x̂ + b.

Normalising has no parameters, so it runs as the module's own code; only scale and shift are
stacked. Their per-sample gradients are as small as they are.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from .base import Formed, InputRule, SampleGradients, Slot, by_model


class AffineRule(InputRule):
    """Scale and shift per channel (GroupNorm) or per normalised entry (LayerNorm)."""

    def __init__(self, layer: nn.Module, slots: Mapping[str, Slot]) -> None:
        self._weight = slots["weight"]
        self._bias = slots.get("bias")
        self._by_channel = isinstance(layer, nn.GroupNorm)

    def forward(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return self._applied(theta, by_model(x, len(theta))).flatten(0, 1), x

    def forward_shared(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return self._applied(theta, x.unsqueeze(0)), x

    def input_gradient(self, theta: Tensor, x: Tensor, g: Tensor) -> Tensor:
        wide = by_model(g, len(theta))
        return (self._spread(self._weight, theta, wide.dim()) * wide).flatten(0, 1)

    def samples(self, theta: Tensor, x: Tensor, g: Tensor) -> SampleGradients:
        n = len(theta)
        parts = [(self._weight, self._reduced(g * x, n))]
        if self._bias is not None:
            parts.append((self._bias, self._reduced(g, n)))
        return Formed(tuple(parts))

    def _applied(self, theta: Tensor, x: Tensor) -> Tensor:
        y = self._spread(self._weight, theta, x.dim()) * x
        return y if self._bias is None else y + self._spread(self._bias, theta, x.dim())

    def _spread(self, slot: Slot, theta: Tensor, dims: int) -> Tensor:
        """A parameter in a shape that multiplies activations [n, B, ...] of `dims` dimensions."""
        n, shape = len(theta), slot.shape
        if self._by_channel:
            return slot.of(theta).view(n, 1, *shape, *[1] * (dims - 3))
        return slot.of(theta).view(n, *[1] * (dims - 1 - len(shape)), *shape)

    def _reduced(self, g: Tensor, n: int) -> Tensor:
        """Output gradients [n*B, ...] summed over positions: [n, B, size of the parameter]."""
        if self._by_channel:
            summed = g if g.dim() == 2 else g.flatten(2).sum(2)
        else:
            size = len(self._weight.shape)
            flat = g.flatten(-size)
            summed = flat if flat.dim() == 2 else flat.flatten(1, -2).sum(1)
        return by_model(summed, n)


def without_parameters(layer: nn.Module) -> nn.Module:
    """The same normalisation, neither scaling nor shifting."""
    if isinstance(layer, nn.GroupNorm):
        return nn.GroupNorm(layer.num_groups, layer.num_channels, layer.eps, affine=False)
    assert isinstance(layer, nn.LayerNorm)
    shape = [int(size) for size in layer.normalized_shape]
    return nn.LayerNorm(shape, layer.eps, elementwise_affine=False)
