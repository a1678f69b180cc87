"""A small convolution that max-pooling, two by two, follows: one rule for both, on CPU.

Pooling sends a gradient to one position of four, so the gradients of what comes before need a
quarter of a convolution's products. ReLU, on either side of the pooling, is part of it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from ..cpu import kernels
from ..packing import vectors
from ..packing.tape import Tapped
from . import outer
from .base import Backward, Rule, SampleGradients
from .conv import Conv2dRule
from .plain import plain
from .pooling import PairPool

_DTYPES = (torch.float32, torch.float64)
_SPARE = 2  # registers for what is added to the sums


class ConvPool(nn.Module):
    """Convolution, pooling and, if it follows, ReLU: by the loops where they can, else one by one.

    The loops run on CPU, in float32 and float64, where per-sample gradients may be kept.
    """

    def __init__(self, rule: ConvPoolRule, tap: Callable[[Rule], Tapped]) -> None:
        super().__init__()
        self._rule = rule
        self._together = tap(rule)
        parts = [tap(rule.convolution), PairPool(), nn.ReLU()]
        self._apart = nn.Sequential(*parts[: 3 if rule.rectified else 2])

    def forward(self, x: Tensor) -> Tensor:
        """[N, c, h, w], pooled."""
        fits = self._rule.fits(x, self._together.run.batch)
        result: Tensor = (self._together if fits else self._apart)(x)
        return result


def merged(layers: list[nn.Module], tap: Callable[[Rule], Tapped]) -> list[nn.Module]:
    """The layers with every convolution and the pooling behind it as one.

    They come from `pooling.reordered`: a ReLU stands behind its pooling.
    """
    found: list[nn.Module] = []
    left = list(layers)
    while left:
        layer = left.pop(0)
        rule = layer.rule if isinstance(layer, Tapped) else None
        if isinstance(rule, Conv2dRule) and rule.dense and left and isinstance(left[0], PairPool):
            left.pop(0)
            rectified = bool(left) and plain(left[0], nn.ReLU)
            if rectified:
                left.pop(0)
            layer = ConvPool(ConvPoolRule(rule, rectified), tap)
        found.append(layer)
    return found


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """How the loops cut a layer up, for one dtype: see `kernels`."""

    lanes: int
    windows: int  # computed together, with a sum for each of four entries
    parts: int  # vectors of a row of a patch
    rows: int  # of a patch, computed together: a divisor of its height
    outputs: int  # computed together

    @classmethod
    def of(cls, weight: tuple[int, ...], dtype: torch.dtype) -> _Sizes | None:
        """None where a row of a patch does not fit into the registers."""
        outputs, channels, height, width = weight
        lanes = vectors.lanes(np.dtype(str(dtype).removeprefix("torch.")))
        parts = math.ceil(width * channels / lanes)
        room = vectors.REGISTERS - _SPARE
        if parts > room or room < 4:
            return None
        rows = max(r for r in range(1, height + 1) if height % r == 0 and r * parts <= room)
        return cls(lanes, room // 4, parts, rows, min(outputs, room // (rows * parts)))

    def static(self, channels: int) -> kernels.Static:
        """As the loops over one position of each window take them."""
        return tuple(map(_ones, (self.outputs, self.rows, self.parts, channels)))


class ConvPoolRule(Rule):
    """relu(pool(x * W + b)), of a convolution without stride, dilation and groups."""

    def __init__(self, convolution: Conv2dRule, rectified: bool) -> None:
        self.convolution = convolution
        self.rectified = rectified
        self.owner = convolution
        self.weight, self.bias = convolution.weight, convolution.bias
        self._sizes: dict[torch.dtype, _Sizes | None] = {
            dtype: _Sizes.of(self.weight.shape, dtype) for dtype in _DTYPES
        }

    def fits(self, x: Tensor, batch: int) -> bool:
        """Whether the loops can, and may, do this input, with so many samples to a model."""
        if x.device.type != "cpu" or self._sizes.get(x.dtype) is None:
            return False
        windows = math.prod(self._windows(x))
        outputs = self.weight.shape[0]
        inputs = math.prod(self.weight.shape[1:])
        return windows > 0 and outer.keeps(batch, windows, inputs, outputs)

    def sizes(self, dtype: torch.dtype) -> _Sizes:
        """For an input that fits."""
        sizes = self._sizes[dtype]
        assert sizes is not None
        return sizes

    def applied(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Backward]:
        y, back = self._applied(theta, x, len(theta))
        return y.flatten(0, 1), back

    def applied_shared(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Backward]:
        return self._applied(theta, x, 1)

    def _applied(self, theta: Tensor, x: Tensor, inputs: int) -> tuple[Tensor, Backward]:
        """Outputs [n, B, ...] from `inputs` sets of images, one for all models or one for each."""
        n, outputs, channels = len(theta), *self.weight.shape[:2]
        sizes, (down, across) = self.sizes(x.dtype), self._windows(x)
        images = _images(x, self.convolution.zero_pad, sizes.lanes)
        images = images.view(inputs, -1, images.shape[1], images.shape[2] * channels)
        y = _with_room((n, images.shape[1], down, across, outputs), x, sizes.lanes)
        marks = torch.empty(y.shape, dtype=torch.uint8)
        together = math.ceil(across / math.ceil(across / sizes.windows))
        w, bias = self._stacked(theta, inputs, sizes.lanes)
        arrays = (
            images.numpy(),
            (w.numpy(), bias.numpy()),
            np.array([0.0 if self.rectified else -math.inf], dtype=y.numpy().dtype),
            (y.numpy(), marks.numpy()),
        )
        static = (_ones(together), _ones(channels), _ones(outputs))
        kernels.convolve_and_pool(*arrays, static)
        return y.permute(0, 1, 4, 2, 3), _Back(self, images, marks)

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

    def _windows(self, x: Tensor) -> tuple[int, int]:
        rows, columns = self.convolution.output_size(x)
        return rows // 2, columns // 2


@dataclasses.dataclass(frozen=True, eq=False)
class _Back(Backward):
    """images [m, B, H, row], one set for all models or one for each; marks [n, B, h, w, o]."""

    rule: ConvPoolRule
    images: Tensor
    marks: Tensor

    def laid_out(self, g: Tensor) -> Tensor:
        return g.movedim(-3, -1).contiguous().movedim(-1, -3)

    def input_gradient(self, theta: Tensor, x: Tensor, g: Tensor) -> Tensor:
        n, sizes = len(theta), self.rule.sizes(x.dtype)
        outputs, channels, height, width = self.rule.weight.shape
        rows = self.rule.weight.of(theta).permute(0, 1, 3, 4, 2).reshape(n, outputs, height, -1)
        w = F.pad(rows, (0, sizes.parts * sizes.lanes - width * channels))
        gradient = _with_room(self.images.shape, x, sizes.lanes)
        arrays = (_above(g, self.marks), w.numpy(), gradient.numpy())
        static = sizes.static(channels)
        kernels.input_gradients(*arrays, static)
        left, _, top, _ = self.rule.convolution.zero_pad
        gradient = gradient.view(len(x), self.images.shape[2], -1, channels)
        return gradient.permute(0, 3, 1, 2)[:, :, top : top + x.shape[2], left : left + x.shape[3]]

    def samples(self, theta: Tensor, x: Tensor, g: Tensor) -> SampleGradients:
        return self._samples([g.reshape(len(theta), -1, *g.shape[1:])])

    def samples_shared(
        self, theta: Tensor, x: Tensor, parts: Sequence[Tensor], cache: dict[object, Tensor]
    ) -> SampleGradients:
        return self._samples(parts)

    def _samples(self, parts: Sequence[Tensor]) -> SampleGradients:
        """From the pooled outputs' gradients, [models, B, o, h, w] each."""
        outputs, channels, height, width = self.rule.weight.shape
        sizes, (n, batch) = self.rule.sizes(parts[0].dtype), self.marks.shape[:2]
        formed = parts[0].new_empty(n, batch, outputs, height, sizes.parts * sizes.lanes)
        biases = parts[0].new_empty(n, batch, outputs if self.rule.bias is not None else 0)
        squares = parts[0].new_empty(n, batch)
        start = 0
        for g in parts:
            models = slice(start, start + len(g))
            kernels.sample_gradients(
                self.images.numpy(),
                _above(g, self.marks[models]),
                (formed[models].numpy(), biases[models].numpy(), squares[models].numpy()),
                width * channels,
                sizes.static(channels),
            )
            start = models.stop
        return _Samples(self.rule, formed, biases, squares)


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
        n, (outputs, channels, height, width) = len(out), self.rule.weight.shape
        summed = torch.bmm(row, self.formed.flatten(2)).view(n, outputs, height, -1)
        own = summed[..., : width * channels].reshape(n, outputs, height, width, channels)
        self.rule.weight.of(out).copy_(own.permute(0, 1, 4, 2, 3))
        if self.rule.bias is not None:
            self.rule.bias.of(out).copy_(torch.bmm(row, self.biases).squeeze(1))


def _images(x: Tensor, zero_pad: tuple[int, int, int, int], lanes: int) -> Tensor:
    """x [N, c, h, w] with zeros around it as [N, h, w, c], with room for a vector behind it."""
    if any(zero_pad):
        x = F.pad(x, zero_pad)
    images = x.permute(0, 2, 3, 1)
    end = (images.storage_offset() + images.numel() + lanes) * images.itemsize
    if images.is_contiguous() and end <= images.untyped_storage().nbytes():
        return images
    return _with_room(images.shape, x, lanes).copy_(images)


def _with_room(shape: Sequence[int], like: Tensor, lanes: int) -> Tensor:
    """An empty tensor behind which a vector may be read."""
    size = math.prod(shape)
    return like.new_empty(size + lanes)[:size].view(*shape)


def _above(g: Tensor, marks: Tensor) -> kernels.Above:
    """Gradients [..., o, h, w], as laid out, and marks [n, B, h, w, o] for the loops."""
    return g.movedim(-3, -1).reshape(marks.shape).numpy(), marks.numpy()


def _ones(count: int) -> tuple[int, ...]:
    return (1,) * count
