"""A small convolution and the max-pooling or ReLU that follows: one rule for both, on CPU.

Pooling sends a gradient to one position of its window, so the gradients of what comes before need
a part of a convolution's products. ReLU, on either side of the pooling, is part of it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from ..cpu import backward, vectors
from ..cpu import forward as loops
from ..packing.passes import Layer, Passes
from . import outer
from .base import Rule, SampleGradients
from .conv import Conv2dRule
from .convpool_layout import (
    SPARE,
    Pooled,
    Sizes,
    above,
    images_of,
    numpy_dtype,
    ones,
    tile,
    with_room,
)
from .plain import plain
from .pooling import Pair, PairPool, SlicePool, Window

_DTYPES = (torch.float32, torch.float64)


class ConvPool(nn.Module):
    """Convolution, pooling and, if it follows, ReLU: by the loops where they can, else one by one.

    The loops run on CPU, in float32 and float64, where per-sample gradients may be kept.
    """

    def __init__(self, rule: ConvPoolRule, behind: Sequence[nn.Module], passes: Passes) -> None:
        super().__init__()
        self.rule = rule
        self._passes = passes
        self._together = Layer(rule, passes)
        self._apart = nn.Sequential(Layer(rule.convolution, passes), *behind)

    def forward(self, x: Tensor) -> Tensor:
        """[N, c, h, w], pooled."""
        fits = self._passes.by_loops and self.rule.fits(x, self._passes.batch)
        result: Tensor = (self._together if fits else self._apart)(x)
        return result


def merged(layers: list[nn.Module], passes: Passes) -> list[nn.Module]:
    """The layers with every convolution and the pooling behind it as one.

    They come from `pooling.reordered`: a ReLU stands behind its pooling.
    """
    found: list[nn.Module] = []
    left = list(layers)
    while left:
        layer = left.pop(0)
        rule = layer.rule if isinstance(layer, Layer) else None
        if isinstance(rule, Conv2dRule) and rule.in_runs:
            pooling = left[0] if left else None
            window = pooling.window if isinstance(pooling, PairPool | SlicePool) else None
            if window is not None:
                rectified = len(left) > 1 and plain(left[1], nn.ReLU)
                behind = [left.pop(0) for _ in range(1 + rectified)]
                layer = ConvPool(ConvPoolRule(rule, window, rectified), behind, passes)
        found.append(layer)
    return found


class ConvPoolRule(Rule[Pooled]):
    """relu(pool(x * W + b)), of a convolution without dilation and groups."""

    widens = False  # the loops have but the dtype that they were given

    def __init__(self, convolution: Conv2dRule, window: Window, rectified: bool) -> None:
        self.convolution = convolution
        self.window = window
        self.rectified = rectified
        self.owner = convolution
        self.weight, self.bias = convolution.weight, convolution.bias
        self._sizes: dict[torch.dtype, Sizes | None] = {
            dtype: Sizes.of(self.weight.shape, dtype) for dtype in _DTYPES
        }

    def fits(self, x: Tensor, batch: int) -> bool:
        """Whether the loops can, and may, do this input, with so many samples to a model."""
        return x.device.type == "cpu" and self.takes(x.shape[2:], x.dtype, batch)

    def takes(self, size: Sequence[int], dtype: torch.dtype, batch: int) -> bool:
        """The same of images of this height and width on CPU."""
        if self._sizes.get(dtype) is None:
            return False
        windows = math.prod(self.windows(size))
        outputs = self.weight.shape[0]
        inputs = math.prod(self.weight.shape[1:])
        return windows > 0 and outer.keeps(batch, windows, inputs, outputs)

    def sizes(self, dtype: torch.dtype) -> Sizes:
        """For an input that fits."""
        sizes = self._sizes[dtype]
        assert sizes is not None
        return sizes

    def forward(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Pooled]:
        y, kept = self._applied(theta, x, len(theta))
        return y.flatten(0, 1), kept

    def forward_shared(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Pooled]:
        return self._applied(theta, x, 1)

    def images(self, x: Tensor, inputs: int) -> Tensor:
        """x [inputs * B, c, h, w] as `pooled` takes it, [inputs, B, H, row]."""
        images = images_of(x, self.convolution.zero_pad)
        return images.view(inputs, -1, images.shape[1], images.shape[2] * images.shape[3])

    def _applied(self, theta: Tensor, x: Tensor, inputs: int) -> tuple[Tensor, Pooled]:
        y, marks = self.pooled(theta, images := self.images(x, inputs), self.windows(x.shape[2:]))
        return y.permute(0, 1, 4, 2, 3), Pooled(images, marks, x.shape[2:])

    def pooled(self, theta: Tensor, images: Tensor, windows: Pair) -> tuple[Tensor, Tensor]:
        """Outputs and marks, [n, B, h, w, o], from images for all models or for each."""
        n, outputs, channels = len(theta), *self.weight.shape[:2]
        inputs, (down, across) = len(images), windows
        y = with_room((n, images.shape[1], down, across, outputs), images)
        marks = torch.empty(y.shape, dtype=torch.uint8)
        lanes = vectors.lanes(numpy_dtype(y.dtype), n // inputs * outputs)
        w, bias = self._stacked(theta, inputs, lanes)
        arrays = (
            images.numpy(),
            (w.numpy(), bias.numpy()),
            np.array([0.0 if self.rectified else -math.inf], dtype=y.numpy().dtype),
            (y.numpy(), marks.numpy()),
        )
        (tall, wide), (height, width) = self.window.size, self.window.stride
        positions = (down - 1) * height + tall, (across - 1) * width + wide
        own_tile = tile(positions, vectors.REGISTERS - SPARE)
        counts = (lanes, *own_tile, self.convolution.stride[1] * channels), (lanes, tall, wide)
        convolved, pooled = (tuple(map(ones, count)) for count in counts)
        loops.convolve_and_pool(*arrays, self.steps, (convolved, pooled))
        return y, marks

    def laid_out(self, g: Tensor) -> Tensor:
        wide = g.movedim(-3, -1)
        if wide.stride(-1) == 1:
            return wide.contiguous().movedim(-1, -3)
        found = g.new_empty(wide.shape)
        by_sample = g.flatten(0, -4).flatten(2)
        own = found.flatten(0, -4).flatten(1, 2).numpy()
        if by_sample.is_contiguous():
            backward.to_channels_last(by_sample.numpy(), own)
        else:  # a linear layer's gradients run feature by feature
            backward.turned(by_sample.permute(1, 2, 0).numpy(), own)
        return found.movedim(-1, -3)

    def input_gradient(self, theta: Tensor, kept: Pooled, g: Tensor) -> Tensor:
        channels, gradient = self.weight.shape[1], with_room(kept.images.shape, g)
        arrays = (above(g, kept.marks), self.padded_rows(theta).numpy(), gradient.numpy())
        backward.input_gradients(*arrays, self.steps, self.static(g.dtype))
        left, _, top, _ = self.convolution.zero_pad
        gradient = gradient.view(-1, gradient.shape[2], gradient.shape[3] // channels, channels)
        inside = gradient[:, top : top + kept.size[0], left : left + kept.size[1]]
        return inside.permute(0, 3, 1, 2)

    def samples(self, theta: Tensor, kept: Pooled, g: Tensor) -> SampleGradients:
        return _samples(self, kept, [g.reshape(len(theta), -1, *g.shape[1:])])

    def samples_shared(
        self, theta: Tensor, kept: Pooled, parts: Sequence[Tensor], cache: dict[object, Tensor]
    ) -> SampleGradients:
        return _samples(self, kept, parts)

    @property
    def row(self) -> int:
        """Numbers in a row of a patch."""
        return self.weight.shape[1] * self.weight.shape[3]

    @property
    def steps(self) -> loops.Steps:
        """Through images and positions."""
        down, across = self.convolution.stride
        return (down, across * self.weight.shape[1], *self.window.stride, *self.window.size)

    def static(self, dtype: torch.dtype) -> tuple[loops.Static, loops.Static]:
        """As the loops on the way back take them, for an input that fits."""
        sizes = self.sizes(dtype)
        lanes = vectors.lanes(numpy_dtype(dtype), self.weight.shape[0])
        counts = (sizes.lanes, sizes.rows, sizes.parts), (lanes, *self.window.size)
        patches, windows = (tuple(map(ones, count)) for count in counts)
        return patches, windows

    def padded_rows(self, theta: Tensor) -> Tensor:
        """Weights [n, o, height, row], with zeros behind a row: whole vectors."""
        outputs, _, height, _ = self.weight.shape
        sizes = self.sizes(theta.dtype)
        rows = self.weight.of(theta).permute(0, 1, 3, 4, 2).reshape(-1, outputs, height, self.row)
        return F.pad(rows, (0, sizes.parts * sizes.lanes - self.row))

    def write(self, out: Tensor, sums: Tensor, biases: Tensor) -> None:
        """Sums [n, o, height, row], padded as above, and [n, o] into `out` [n, p]."""
        n, (outputs, channels, height, width) = len(out), self.weight.shape
        own = sums[..., : self.row].reshape(n, outputs, height, width, channels)
        self.weight.of(out).copy_(own.permute(0, 1, 4, 2, 3))
        if self.bias is not None:
            self.bias.of(out).copy_(biases)

    def _stacked(self, theta: Tensor, inputs: int, lanes: int) -> tuple[Tensor, Tensor]:
        """Weights and biases of models with the same input side by side, in whole vectors."""
        weight = self.weight.of(theta).permute(0, 1, 3, 4, 2)  # [n, o, height, width, c]
        wide = len(theta) // inputs * self.weight.shape[0]
        blocks = math.ceil(wide / lanes)
        height, width, channels = weight.shape[2:]
        w = theta.new_zeros(inputs, blocks * lanes, height, width * channels)
        w[:, :wide] = weight.reshape(inputs, wide, height, -1)
        bias = theta.new_zeros(inputs, blocks * lanes)
        if self.bias is not None:
            bias[:, :wide] = self.bias.of(theta).reshape(inputs, -1)
        w = w.view(inputs, blocks, lanes, height, -1).permute(0, 1, 3, 4, 2)
        return w.contiguous(), bias

    def windows(self, size: Sequence[int]) -> Pair:
        """Rows and columns of what is pooled of images of this height and width."""
        return self.window.count(self.convolution.output_size(size))


def _samples(rule: ConvPoolRule, kept: Pooled, parts: Sequence[Tensor]) -> SampleGradients:
    """From the pooled outputs' gradients, [models, B, o, h, w] each."""
    outputs, _, height, _ = rule.weight.shape
    sizes, (n, batch) = rule.sizes(parts[0].dtype), kept.marks.shape[:2]
    formed = parts[0].new_empty(n, batch, outputs, height, sizes.parts * sizes.lanes)
    biases = parts[0].new_empty(n, batch, outputs if rule.bias is not None else 0)
    squares = parts[0].new_empty(n, batch)
    start = 0
    for g in parts:
        models = slice(start, start + len(g))
        backward.sample_gradients(
            kept.images.numpy(),
            above(g, kept.marks[models]),
            (formed[models].numpy(), biases[models].numpy(), squares[models].numpy()),
            rule.row,
            rule.steps,
            rule.static(g.dtype),
        )
        start = models.stop
    return _Samples(rule, formed, biases, squares)


@dataclasses.dataclass(frozen=True)
class _Samples(SampleGradients):
    """Gradients [n, B, o, height, padded width] and [n, B, o], or of 0 biases; squares [n, B]."""

    rule: ConvPoolRule
    formed: Tensor
    biases: Tensor
    squares: Tensor

    def squared_norms(self) -> Tensor:
        return self.squares

    def weighted_sums(self, out: Tensor, weights: Tensor) -> None:
        row = weights.to(self.formed.dtype).unsqueeze(1)
        summed = torch.bmm(row, self.formed.flatten(2)).view(len(out), *self.formed.shape[2:])
        self.rule.write(out, summed, torch.bmm(row, self.biases).squeeze(1))
