"""Convolutions by kernels on CUDA: models side by side, channels last, no patch unfolded.

For float32 and bfloat16; anything else takes the way of `Conv2dRule`. What the kernels do is in
`gpu.kernels`, which is imported when they are first asked for.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..gpu import kernels
from .base import SampleGradients, Slot
from .conv import Conv2dRule

if TYPE_CHECKING:
    from ..gpu.kernels.products import Geometry
    from ..gpu.kernels.samples import Samples

_LARGEST = 2**31  # numbers of a model's activations, which kernels count in 32 bits
_MODELS = 2**16  # of a launch, and of samples: CUDA's second and third index


class ImplicitConvRule(Conv2dRule):
    """A convolution without groups, by kernels."""

    widens = False  # products of two bfloat16 are exact in the float32 that kernels sum in

    def __init__(self, layer: nn.Module, slots: Mapping[str, Slot]) -> None:
        super().__init__(layer, slots)

    @property
    def in_runs(self) -> bool:
        """Never for the loops of a CPU."""
        return False

    def forward(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        if not self._takes(theta, x, len(theta)):
            return super().forward(theta, x)
        return self._outputs(theta, x, shared=False).flatten(0, 1), x

    def forward_shared(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        if not self._takes(theta, x, 1):
            return super().forward_shared(theta, x)
        return self._outputs(theta, x, shared=True), x

    def input_gradient(self, theta: Tensor, x: Tensor, g: Tensor) -> Tensor:
        if not self._takes(theta, x, len(theta)):
            return super().input_gradient(theta, x, g)
        from ..gpu.kernels import products

        return products.input_gradients(self._geometry_of(x), g, self.weight.of(theta))

    def samples(self, theta: Tensor, x: Tensor, g: Tensor) -> SampleGradients:
        if not self._takes(theta, x, len(theta)):
            return super().samples(theta, x.to(theta.dtype), g.to(theta.dtype))
        return self._by_kernels(x, g, len(theta), shared=False)

    def samples_shared(
        self, theta: Tensor, x: Tensor, parts: Sequence[Tensor], cache: dict[object, Tensor]
    ) -> SampleGradients:
        if not self._takes(theta, x, 1):
            wide = [part.to(theta.dtype) for part in parts]
            return super().samples_shared(theta, x.to(theta.dtype), wide, cache)
        g = (parts[0] if len(parts) == 1 else torch.cat(list(parts))).flatten(0, 1)
        return self._by_kernels(x, g, len(theta), shared=True)

    def _takes(self, theta: Tensor, x: Tensor, models: int) -> bool:
        """Whether there are kernels for these numbers, of which `x` holds as many models."""
        images = len(x) // models
        largest = images * max(
            x[0].numel(), self.weight.shape[0] * max(1, math.prod(self.output_size(x.shape[2:])))
        )
        counted = max(len(theta), images) < _MODELS and largest < _LARGEST
        return kernels.takes(theta.dtype, x.dtype) and counted and images > 0

    def _outputs(self, theta: Tensor, x: Tensor, shared: bool) -> Tensor:
        from ..gpu.kernels import products

        bias = None if self.bias is None else self.bias.of(theta)
        geometry, weight = self._geometry_of(x), self.weight.of(theta)
        return products.outputs(geometry, x.to(theta.dtype), weight, bias, shared)

    def _by_kernels(self, x: Tensor, g: Tensor, models: int, shared: bool) -> SampleGradients:
        from ..gpu.kernels import samples
        from ..gpu.kernels.products import last

        biased = self.bias is not None
        read = samples.Samples(self._geometry_of(x), last(x), last(g), models, shared, biased)
        if self._keeps(read.batch, read.positions):
            return _Kept(self.weight, self.bias, samples.formed(read))
        return _Implicit(self.weight, self.bias, read)

    def _geometry_of(self, x: Tensor) -> Geometry:
        from ..gpu.kernels.products import Geometry

        return Geometry(
            self.weight.shape[1], self.weight.shape[0], (x.shape[2], x.shape[3]),
            self.output_size(x.shape[2:]),
            self._kernel, self._stride, self._padding, self._dilation,
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _Kept(SampleGradients):
    """Formed gradients float32 [n, B, o, d (+ 1)]: columns [kh, kw, c] and then the bias."""

    weight: Slot
    bias: Slot | None
    formed: Tensor

    def squared_norms(self) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(self.formed.flatten(2), dim=2)
        return norms**2

    def weighted_sums(self, out: Tensor, weights: Tensor) -> None:
        row = weights.to(self.formed.dtype).unsqueeze(1)
        summed = torch.bmm(row, self.formed.flatten(2)).view(len(out), *self.formed.shape[2:])
        _write(out, self.weight, self.bias, summed)


@dataclasses.dataclass(frozen=True)
class _Implicit(SampleGradients):
    """Gradients that are formed twice, tile by tile, and never kept."""

    weight: Slot
    bias: Slot | None
    read: Samples

    def squared_norms(self) -> Tensor:
        from ..gpu.kernels import samples

        return samples.squared_norms(self.read)

    def weighted_sums(self, out: Tensor, weights: Tensor) -> None:
        from ..gpu.kernels import samples

        _write(out, self.weight, self.bias, samples.weighted_sums(self.read, weights))


def _write(out: Tensor, weight: Slot, bias: Slot | None, summed: Tensor) -> None:
    """Sums [n, o, d (+ 1)] into their places of `out` [n, p]."""
    outputs, channels, height, width = weight.shape
    size = channels * height * width
    by_place = summed[..., :size].reshape(len(out), outputs, height, width, channels)
    weight.of(out).copy_(by_place.movedim(-1, 2))
    if bias is not None:
        bias.of(out).copy_(summed[..., size])
