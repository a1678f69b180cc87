"""Gradients that are sums of outer products over positions: Σ_t g_t x_tᵀ.

That is a linear layer on a sequence and, on unfolded patches, a convolution. With T positions,
D inputs and O outputs, forming a sample's gradient takes T·D·O multiplications and D·O numbers;
its norm alone takes T²(D + O), by

    |Σ_t g_t x_tᵀ|² = Σ_{t,s} (g_t · g_s)(x_t · x_s),

the ghost norm (Li et al. 2022, "Large language models can be strong DP learners", section 4).
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from .base import Formed, SampleGradients, Slot

_KEPT = 1 << 23  # numbers of one layer and model until clip factors are known: 32 MiB of float32


def keeps(samples: int, positions: int, inputs: int, outputs: int) -> bool:
    """Whether to form and keep a layer's gradients: the clipped sum is then a mere reduction."""
    size = inputs * outputs
    return size <= positions**2 * (inputs + outputs) and samples * size <= _KEPT


def outer_products(weight: Slot, bias: Slot | None, x: Tensor, g: Tensor) -> SampleGradients:
    """Gradients of W [o, d] and b [o] from x [n, B, T, d] and g [n, B, T, o]."""
    batch, positions, inputs = x.shape[1:]
    if not keeps(batch, positions, inputs, g.shape[3]):
        return _Ghost(weight, bias, x, g)
    formed = torch.bmm(g.flatten(0, 1).transpose(1, 2), x.flatten(0, 1))
    parts = [(weight, formed.view(*x.shape[:2], -1))]
    if bias is not None:
        parts.append((bias, g.sum(2)))
    return Formed(tuple(parts))


def squared_norms(x: Tensor, g: Tensor, bias: bool) -> Tensor:
    """Squared norms [N] from x [N, T, d] and g [N, T, o], by formed gradients or ghost norms."""
    positions, inputs, outputs = x.shape[1], x.shape[2], g.shape[2]
    if inputs * outputs <= positions * (inputs + outputs):
        formed = torch.bmm(g.transpose(1, 2), x).flatten(1)
        squares: Tensor = torch.linalg.vector_norm(formed, dim=1) ** 2
        if bias:
            squares += (g.sum(1) ** 2).sum(1)
        return squares
    of_x = torch.bmm(x, x.transpose(1, 2))
    if bias:
        of_x += 1
    of_g = torch.bmm(g, g.transpose(1, 2))
    return (of_x * of_g).sum((1, 2)).clamp_(min=0)  # a sum of squares, but for rounding


@dataclasses.dataclass(frozen=True)
class _Ghost(SampleGradients):
    """Gradients that are never formed: x [n, B, T, d] and g [n, B, T, o]."""

    weight: Slot
    bias: Slot | None
    x: Tensor
    g: Tensor

    def squared_norms(self) -> Tensor:
        flat = squared_norms(self.x.flatten(0, 1), self.g.flatten(0, 1), self.bias is not None)
        return flat.view(self.x.shape[:2])

    def weighted_sums(self, out: Tensor, weights: Tensor) -> None:
        scaled = self.g * weights[:, :, None, None]
        product = torch.bmm(scaled.flatten(1, 2).transpose(1, 2), self.x.flatten(1, 2))
        self.weight.of(out).copy_(product.view(len(out), *self.weight.shape))
        if self.bias is not None:
            self.bias.of(out).copy_(scaled.sum((1, 2)))
