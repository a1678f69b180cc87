"""Max-pooling on CPU by comparing slices.

Torch's own looks every window up by index, which takes ten times as long and was the largest
single cost of a small convolutional network. Ties go to the first entry, as in torch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from .base import plain

_LARGEST = 3  # side of a window; every entry costs a pass

Pair = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Window:
    """What is pooled: rows and columns, and how far windows are apart in both."""

    size: Pair = (1, 1)
    stride: Pair = (1, 1)

    def count(self, positions: Pair) -> Pair:
        """Rows and columns of windows."""
        rows, columns = (
            max(0, (positions[i] - self.size[i]) // self.stride[i] + 1) for i in (0, 1)
        )
        return rows, columns


class PairPool(nn.Module):
    """Stands for nn.MaxPool2d(2); odd edges are dropped as there."""

    window = Window((2, 2), (2, 2))

    def forward(self, x: Tensor) -> Tensor:
        """[N, c, h, w] to [N, c, h // 2, w // 2]."""
        if x.device.type != "cpu":
            return F.max_pool2d(x, 2)
        height, width = x.shape[2] // 2 * 2, x.shape[3] // 2 * 2
        result: Tensor = _PairMax.apply(x[:, :, :height, :width])
        return result


class SlicePool(nn.Module):
    """Stands for any other small nn.MaxPool2d."""

    def __init__(self, layer: nn.MaxPool2d) -> None:
        super().__init__()
        self._layer = layer
        self._kernel, self._stride, self._padding = (
            _pair(value) for value in (layer.kernel_size, layer.stride, layer.padding)
        )

    @property
    def window(self) -> Window | None:
        """None where edges are padded."""
        return None if any(self._padding) else Window(self._kernel, self._stride)

    def forward(self, x: Tensor) -> Tensor:
        """[N, c, h, w] to [N, c, h', w']."""
        if x.device.type != "cpu":
            y: Tensor = self._layer(x)
            return y
        if any(self._padding):
            rows, columns = self._padding
            x = F.pad(x, (columns, columns, rows, rows), value=-math.inf)
        result: Tensor = _SliceMax.apply(x, self._kernel, self._stride)
        return result


def replacement(layer: nn.Module) -> nn.Module | None:
    """What does the same as this layer in less time, if anything does."""
    if not plain(layer, nn.MaxPool2d):
        return None
    assert isinstance(layer, nn.MaxPool2d)
    if layer.ceil_mode or layer.return_indices:
        return None
    kernel, stride, padding = map(_pair, (layer.kernel_size, layer.stride, layer.padding))
    if _pair(layer.dilation) != (1, 1) or max(kernel) > _LARGEST:
        return None
    pairs = kernel == stride == (2, 2) and padding == (0, 0)
    return PairPool() if pairs else SlicePool(layer)


def _pair(value: int | tuple[int, ...]) -> Pair:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def reordered(layers: list[nn.Module]) -> list[nn.Module]:
    """Moves every ReLU behind the max-pooling that follows it, where it has a quarter to do.

    Values and gradients are the same: the maximum of what is positive is the positive part of
    the maximum, and where nothing is positive both gradients are 0.
    """
    ordered = list(layers)
    for i in range(len(ordered) - 1):
        if plain(ordered[i], nn.ReLU) and isinstance(ordered[i + 1], PairPool | SlicePool):
            ordered[i], ordered[i + 1] = ordered[i + 1], ordered[i]
    return ordered


class _PairMax(torch.autograd.Function):
    """Rows first, which are contiguous; then half as many columns.

    What wins is kept as a difference, positive where the second of two does: `threshold_backward`
    on floats takes a third of what a product with booleans does.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        top, bottom = x[..., 0::2, :], x[..., 1::2, :]
        below = bottom - top
        rows = torch.maximum(top, bottom)  # [N, c, h/2, w]; NaN wins, as in torch
        left, right = rows[..., 0::2], rows[..., 1::2]
        beside = right - left
        if int(torch.count_nonzero(beside)) < beside.numel():
            # Torch goes row by row: of equals, right wins from the top against the bottom row.
            wins = (beside == 0) & (below[..., 0::2] > 0) & (below[..., 1::2] <= 0)
            beside[wins] = 1.0
        ctx.save_for_backward(beside, below)
        return torch.maximum(left, right)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        beside, below = ctx.saved_tensors
        rows = g.new_empty(below.shape)
        right = _where_positive(g, beside)
        rows[..., 1::2] = right
        rows[..., 0::2] = g - right
        bottom = _where_positive(rows, below)
        return torch.stack((rows - bottom, bottom), -2).flatten(-3, -2)


def _where_positive(g: Tensor, x: Tensor) -> Tensor:
    result: Tensor = torch.ops.aten.threshold_backward(g, x, 0)
    return result


class _SliceMax(torch.autograd.Function):
    """One pass per entry of the window. An entry wins where it is above all before it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: tuple[int, int], stride: tuple[int, int]) -> Tensor:
        first, *others = _entries(x, kernel, stride)
        best, leads = first.clone(), []
        for entry in others:
            leads.append(entry - best)
            best = torch.maximum(best, entry)
        ctx.save_for_backward(*leads)
        ctx.shape, ctx.kernel, ctx.stride = x.shape, kernel, stride
        return best

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        out = g.new_zeros(ctx.shape)
        first, *others = _entries(out, ctx.kernel, ctx.stride)
        for entry, lead in zip(others[::-1], ctx.saved_tensors[::-1], strict=True):
            won = _where_positive(g, lead)
            entry += won
            g = g - won
        first += g
        return out, None, None


def _entries(x: Tensor, kernel: tuple[int, int], stride: tuple[int, int]) -> Iterator[Tensor]:
    """For every place in the window, the view of x [N, c, h, w] that all windows see there."""
    rows, columns = ((x.shape[2 + i] - kernel[i]) // stride[i] + 1 for i in (0, 1))
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            below = x[:, :, i : i + (rows - 1) * stride[0] + 1 : stride[0]]
            yield below[..., j : j + (columns - 1) * stride[1] + 1 : stride[1]]
