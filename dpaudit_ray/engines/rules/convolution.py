"""Convolutions: per-sample gradients on unfolded patches, formed where they are small."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from .base import Rule, SampleGradients, Slot, by_model
from .ghost_norm import keeps, squared_norms

Pair = tuple[int, int]  # down and across

# Unfolded patches that exist at once, in numbers: 64 MiB of float32.
_PATCHES = 1 << 24


class Conv2dRule(Rule):
    """A convolution, groups as samples of smaller ones; uneven padding comes before (`padding`)."""

    def __init__(self, layer: nn.Module, slots: Mapping[str, Slot]) -> None:
        assert isinstance(layer, nn.Conv2d)
        self.weight = slots["weight"]
        self.bias = slots.get("bias")
        self._groups = layer.groups
        self._kernel, self.stride, self._dilation = (
            (int(p[0]), int(p[1])) for p in (layer.kernel_size, layer.stride, layer.dilation)
        )
        left, top = (int(p) for p in layer._reversed_padding_repeated_twice[::2])
        self._padding = (top, left) if padding(layer) is None else (0, 0)
        # What F.pad needs: left, right, top, bottom.
        self.zero_pad = (self._padding[1],) * 2 + (self._padding[0],) * 2
        self._inputs = math.prod(self.weight.shape[1:])

    def forward(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        n = len(theta)
        return _in_turn(self._convolved(_side_by_side(x, n), theta, n * self._groups), n), x

    def forward_shared(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        if self._groups > 1:
            y, _ = self.forward(theta, x.repeat(len(theta), 1, 1, 1))
            return y.reshape(len(theta), len(x), *y.shape[1:]), x
        y = self._convolved(x, theta, groups=1)
        return y.view(len(x), len(theta), self.weight.shape[0], *y.shape[2:]).transpose(0, 1), x

    def _convolved(self, x: Tensor, theta: Tensor, groups: int) -> Tensor:
        """Outputs of all models side by side."""
        weight = self.weight.of(theta).flatten(0, 1)
        bias = None if self.bias is None else self.bias.of(theta).flatten()
        return F.conv2d(x, weight, bias, self.stride, self._padding, self._dilation, groups)

    def input_gradient(self, theta: Tensor, x: Tensor, g: Tensor) -> Tensor:
        weight, n = self.weight.of(theta).flatten(0, 1), len(theta)
        of_x, of_g = _side_by_side(x, n), _side_by_side(g, n)
        return _in_turn(self._backward(weight, of_x, of_g, (True, False), n * self._groups)[0], n)

    def samples(self, theta: Tensor, x: Tensor, g: Tensor) -> SampleGradients:
        n, outputs, groups = len(theta), g.shape[1], self._groups
        g = g.flatten(2)  # [n*B, o, T]
        if groups == 1 and not keeps(len(g) // n, g.shape[2], self._inputs, outputs):
            return _Passing(self, x, g.view(n, -1, *g.shape[1:]), None)
        g = g.reshape(len(g) * groups, -1, g.shape[2])
        formed = g.new_empty(*g.shape[:2], self._inputs + 1)
        for rows, patches in self._patches(x.reshape(len(x) * groups, -1, *x.shape[2:])):
            torch.bmm(g[rows], patches.transpose(1, 2), out=formed[rows])
        return _WithBias(self.weight, self.bias, formed.view(n, -1, outputs, self._inputs + 1))

    def samples_shared(
        self, theta: Tensor, x: Tensor, parts: Sequence[Tensor], cache: dict[object, Tensor]
    ) -> SampleGradients:
        if self._groups > 1:
            return super().samples_shared(theta, x, parts, cache)
        n, batch, outputs = len(theta), len(x), self.weight.shape[0]
        by_sample = torch.cat([g.transpose(0, 1).flatten(3) for g in parts], 1)  # [B, n, o, T]
        if not keeps(batch, by_sample.shape[3], self._inputs, outputs):
            return _Passing(self, x, by_sample.transpose(0, 1), cache)
        by_sample = by_sample.flatten(1, 2)
        if self not in cache:
            cache[self] = self.unfolded(x)
        formed = torch.bmm(by_sample, cache[self].transpose(1, 2)).view(batch, n, outputs, -1)
        return _WithBias(self.weight, self.bias, formed.transpose(0, 1))

    def unfolded(self, x: Tensor) -> Tensor:
        """Patches of x [N, c, h, w], and a row of ones for the bias: [N, c*kh*kw + 1, T]."""
        rows, columns = self.output_size(x.shape[2:])
        x = F.pad(x, self.zero_pad).contiguous() if any(self.zero_pad) else x.contiguous()
        count, channels, height, width = x.shape
        kernel, stride, dilation = self._kernel, self.stride, self._dilation
        view = x.as_strided(  # F.unfold takes more than twice as long on CPU
            (count, channels, *kernel, rows, columns),
            (channels * height * width, height * width, dilation[0] * width, dilation[1],
             stride[0] * width, stride[1]),
        )  # fmt: skip
        out = x.new_empty(count, self._inputs + 1, rows * columns)
        out[:, :-1].view(count, channels, *kernel, rows, columns).copy_(view)
        out[:, -1].fill_(1)
        return out

    @property
    def in_runs(self) -> bool:
        """Whether compiled loops may take it: a row of a patch is one piece, of all channels."""
        return self._dilation == (1, 1) and self._groups == 1

    def _patches(self, x: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Unfolded patches of as many samples at a time as `_PATCHES` allows."""
        size = max(1, _PATCHES // (self._inputs * x[0, 0].numel()))  # as at stride 1
        for start in range(0, len(x), size):
            rows = slice(start, start + size)
            yield rows, self.unfolded(x[rows])

    def _backward(
        self, weight: Tensor, x: Tensor, g: Tensor, wanted: tuple[bool, bool], groups: int = 1
    ) -> list[Tensor]:
        """Gradients of the input and of the weight, those that are `wanted`."""
        gradients: list[Tensor] = torch.ops.aten.convolution_backward(
            g, x, weight, None, self.stride, self._padding, self._dilation,
            False, (0, 0), groups, (*wanted, False),
        )  # fmt: skip
        return gradients

    def squared_norms(self, x: Tensor, g: Tensor) -> Tensor:
        """Squared norms [N] from the input [N, c, h, w] and g [N, o, T]; keeps no gradient."""
        rows = slice(None) if self.bias is not None else slice(-1)  # the row of ones
        parts = [
            squared_norms(patches[:, rows].transpose(1, 2), g[chunk].transpose(1, 2), bias=False)
            for chunk, patches in self._patches(x)
        ]
        return torch.cat(parts)

    def write_sum(self, out: Tensor, x: Tensor, g: Tensor) -> None:
        """Writes Σ_j of the gradients of one model into its row `out` [1, p]; g is weighted."""
        weight = self.weight.of(out)[0]
        of_y = g.reshape(*g.shape[:2], *self.output_size(x.shape[2:]))
        weight.copy_(self._backward(weight, x, of_y, (False, True))[1])
        if self.bias is not None:
            self.bias.of(out)[0].copy_(g.sum((0, 2)))

    def output_size(self, size: Sequence[int]) -> Pair:
        """Height and width of the output, from those of the input."""
        sizes = [
            (size[i] + 2 * self._padding[i] - self._dilation[i] * (self._kernel[i] - 1) - 1)
            // self.stride[i] + 1
            for i in (0, 1)
        ]  # fmt: skip
        return sizes[0], sizes[1]


@dataclasses.dataclass(frozen=True)
class _WithBias(SampleGradients):
    """Formed gradients [n, B, o, d + 1], the last column being the bias's."""

    weight: Slot
    bias: Slot | None
    formed: Tensor

    def squared_norms(self) -> Tensor:
        used = self.formed if self.bias is not None else self.formed[..., :-1]
        norms: Tensor = torch.linalg.vector_norm(used.flatten(2), dim=2)
        return norms**2

    def weighted_sums(self, out: Tensor, weights: Tensor) -> None:
        summed = torch.bmm(weights.unsqueeze(1), self.formed.flatten(2)).view(
            len(out), *self.formed.shape[2:]
        )
        self.weight.of(out).copy_(summed[..., :-1].reshape(len(out), *self.weight.shape))
        if self.bias is not None:
            self.bias.of(out).copy_(summed[..., -1])


@dataclasses.dataclass(frozen=True)
class _Passing(SampleGradients):
    """Norms without kept gradients, sums as one convolution gradient per model; g [n, B, o, T]."""

    rule: Conv2dRule
    x: Tensor
    g: Tensor
    cache: dict[object, Tensor] | None  # given when x [B, ...] is shared by all models

    def squared_norms(self) -> Tensor:
        return torch.stack(
            [self.rule.squared_norms(x, g) for x, g in zip(self._inputs(), self.g, strict=True)]
        )

    def weighted_sums(self, out: Tensor, weights: Tensor) -> None:
        scaled = self.g * weights[:, :, None, None]
        for row, x, g in zip(torch.split(out, 1), self._inputs(), scaled, strict=True):
            self.rule.write_sum(row, x, g)

    def _inputs(self) -> tuple[Tensor, ...]:
        n = len(self.g)
        return self.x.chunk(n) if self.cache is None else (self.x,) * n


def _side_by_side(x: Tensor, n: int) -> Tensor:
    """[n*B, c, h, w] as [B, n*c, h, w]: models as groups of channels."""
    return x if n == 1 else by_model(x, n).transpose(0, 1).flatten(1, 2)


def _in_turn(x: Tensor, n: int) -> Tensor:
    """The way back: [B, n*c, h, w] as [n*B, c, h, w]."""
    return x if n == 1 else x.view(len(x), n, -1, *x.shape[2:]).transpose(0, 1).flatten(0, 1)


def as_2d(layer: nn.Conv1d, slots: Mapping[str, Slot]) -> tuple[nn.Conv2d, dict[str, Slot]]:
    """The convolution, and its parameters' places, on images of height 1."""
    padding = layer.padding if isinstance(layer.padding, str) else (0, int(layer.padding[0]))
    flat = nn.Conv2d(
        layer.in_channels, layer.out_channels, (1, layer.kernel_size[0]), (1, layer.stride[0]),
        padding, (1, layer.dilation[0]), layer.groups, layer.bias is not None,
        layer.padding_mode, device="meta",
    )  # fmt: skip
    return flat, {**slots, "weight": Slot(slots["weight"].start, tuple(flat.weight.shape))}


_PADDINGS = {
    "zeros": nn.ZeroPad2d, "reflect": nn.ReflectionPad2d, "replicate": nn.ReplicationPad2d,
    "circular": nn.CircularPad2d,
}  # fmt: skip


def padding(layer: nn.Conv2d) -> nn.Module | None:
    """The padding as a layer of its own; None for the same number of zeros on both sides."""
    left, right, top, bottom = (int(p) for p in layer._reversed_padding_repeated_twice)
    if (left, top) == (right, bottom) and (layer.padding_mode == "zeros" or not any((left, top))):
        return None
    return _PADDINGS[layer.padding_mode]((left, right, top, bottom))
