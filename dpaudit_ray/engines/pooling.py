"""Max-pooling over 2 x 2 windows by comparing slices.

Torch's own looks every window up by index, which takes ten times as long on CPU and was the
largest single cost of a small convolutional network. Ties go to the first entry, as in torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class PairPool(nn.Module):
    """Stands for nn.MaxPool2d(2); odd edges are dropped as there."""

    def forward(self, x: Tensor) -> Tensor:
        """[N, c, h, w] to [N, c, h // 2, w // 2]."""
        height, width = x.shape[2] // 2 * 2, x.shape[3] // 2 * 2
        result: Tensor = _PairMax.apply(x[:, :, :height, :width])
        return result


def stands_for(layer: nn.Module) -> bool:
    """Whether `PairPool` does what this layer does."""
    return (
        isinstance(layer, nn.MaxPool2d)
        and layer.kernel_size in (2, (2, 2))
        and layer.stride in (2, (2, 2))
        and layer.padding in (0, (0, 0))
        and layer.dilation in (1, (1, 1))
        and not layer.ceil_mode
        and not layer.return_indices
    )


def reordered(layers: list[nn.Module]) -> list[nn.Module]:
    """Moves every ReLU behind the max-pooling that follows it, where it has a quarter to do.

    Values and gradients are the same: the maximum of what is positive is the positive part of
    the maximum, and where nothing is positive both gradients are 0.
    """
    ordered = list(layers)
    for i in range(len(ordered) - 1):
        if isinstance(ordered[i], nn.ReLU) and isinstance(ordered[i + 1], PairPool):
            ordered[i], ordered[i + 1] = ordered[i + 1], ordered[i]
    return ordered


class _PairMax(torch.autograd.Function):
    """Rows first, which are contiguous; then half as many columns."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        top, bottom = x[..., 0::2, :], x[..., 1::2, :]
        is_bottom = bottom > top
        rows = torch.maximum(top, bottom)  # [N, c, h/2, w]; NaN wins, as in torch
        left, right = rows[..., 0::2], rows[..., 1::2]
        # Torch goes row by row: of equals, right wins only from the top row against the bottom.
        of_left, of_right = is_bottom[..., 0::2], is_bottom[..., 1::2]
        is_right = (right > left) | ((right == left) & (of_left > of_right))
        ctx.save_for_backward(is_right, is_bottom)
        return torch.maximum(left, right)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        is_right, is_bottom = ctx.saved_tensors
        right = g * is_right
        rows = g.new_empty(is_bottom.shape)
        rows[..., 1::2] = right
        torch.sub(g, right, out=right)
        rows[..., 0::2] = right
        bottom = rows * is_bottom
        return torch.stack((rows - bottom, bottom), -2).flatten(-3, -2)
