"""Convolutions of n models as implicit products, channels last: outputs and input gradients.

Row by column of [positions of all examples, channels of one patch] · [those, outputs] of each
model; patches are read in place, never unfolded. A model is one index of the grid, so models need
not be groups of channels. Each number is one program's sum, in one order.

Per tile of 64 x 64 and a slice of 32: 262 kFLOP for 16 KB from the second cache (8 KB in bf16), so
products bound it where there are 32 channels and more, reading below.
"""

from __future__ import annotations

import dataclasses
import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import OPTIONS, precision
from .numbers import product, rounded

Pair = tuple[int, int]

STAGES = 3  # slices that are on their way from memory
_NARROW, _WIDE = 16, 64  # sides of tiles: the least that tensor cores take, and what registers hold


@dataclasses.dataclass(frozen=True)
class Geometry:
    """A convolution without groups: `inputs` to `outputs` channels, `size` to `positions`."""

    inputs: int
    outputs: int
    size: Pair
    positions: Pair
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    @property
    def patch(self) -> int:
        """Numbers that one output looks at."""
        return self.inputs * math.prod(self.kernel)

    def static(self, back: bool) -> tuple[int, ...]:
        """What kernels are compiled for; `back` from outputs to inputs."""
        (channels, size), (_, positions) = sides = (
            (self.inputs, self.size), (self.outputs, self.positions)
        )  # fmt: skip
        if back:
            (channels, size), (_, positions) = reversed(sides)
        return (
            channels, *size, *positions,
            *self.kernel, *self.stride, *self.padding, *self.dilation,
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Tiles:
    """Rows, columns and slices of a product's tiles, and the warps that share one."""

    rows: int
    columns: int
    slices: int
    warps: int

    @classmethod
    def of(cls, columns: int, kind: torch.dtype, products: str) -> Tiles:
        """By layer and dtype alone: what a device would like best may sum in another order."""
        side = min(_WIDE, max(_NARROW, triton.next_power_of_2(columns)))
        # `ieee` products keep whole rows and columns of a slice in registers.
        slices = 16 if kind == torch.float32 and products == "ieee" else 32
        return cls(_WIDE, side, slices, 4)


def last(x: Tensor) -> Tensor:
    """[..., c, h, w] as [..., h, w, c] in that order of memory; no copy where it has it."""
    return x.movedim(-3, -1).contiguous()


def outputs(
    geometry: Geometry, x: Tensor, weight: Tensor, bias: Tensor | None, shared: bool
) -> Tensor:
    """Convolutions of n models: [n, B, o, h', w'], channels last in memory.

    Args:
        geometry: of the layer.
        x: [n*B, c, h, w], or [B, c, h, w] for all models if it is `shared`; float32 or bfloat16.
        weight: [n, o, c, kh, kw], of the same dtype.
        bias: [n, o], any stride between models.
        shared: see `x`.
    """
    laid = weight.permute(0, 3, 4, 2, 1).contiguous()  # [n, kh, kw, c, o]
    n, images = len(weight), len(x) // (1 if shared else len(weight))
    y = x.new_empty(n, images, *geometry.positions, geometry.outputs)
    _launch(geometry, y, last(x), laid, bias, shared, back=False)
    return y.movedim(-1, 2)


def input_gradients(geometry: Geometry, g: Tensor, weight: Tensor) -> Tensor:
    """Of x from that of the outputs, g [n*B, o, h', w']: [n*B, c, h, w], channels last in memory.

    With strides, all but one of their product of positions are multiplied as zeros.
    """
    laid = weight.permute(0, 3, 4, 1, 2).contiguous()  # [n, kh, kw, o, c]
    n = len(weight)
    x = g.new_empty(n, len(g) // n, *geometry.size, geometry.inputs)
    _launch(geometry, x, last(g), laid, None, False, back=True)
    return x.movedim(-1, 2).flatten(0, 1)


def _launch(
    geometry: Geometry,
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    shared: bool,
    back: bool,
) -> None:
    n, columns = len(weight), out.shape[-1]
    rows = out[0].numel() // columns
    tiles = Tiles.of(columns, x.dtype, precision())
    grid = (triton.cdiv(rows, tiles.rows) * triton.cdiv(columns, tiles.columns), n)
    step = 0 if shared else x.numel() // n
    product_kernel[grid](
        out, x, weight, weight if bias is None else bias,
        rows, step, 0 if bias is None else bias.stride(0),
        bias is not None, columns, geometry.static(back), back,
        (tiles.rows, tiles.columns, tiles.slices), precision(),
        num_warps=tiles.warps, num_stages=STAGES, **OPTIONS,
    )  # fmt: skip


@triton.jit
def product_kernel(
    out, x, weight, bias, rows, step: tl.int64, bias_step: tl.int64,
    BIASED: tl.constexpr, COLUMNS: tl.constexpr, SHAPE: tl.constexpr, BACK: tl.constexpr,
    TILES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of one model's outputs [rows, COLUMNS], from x [images, h, w, c] of that model."""
    CHANNELS: tl.constexpr = SHAPE[0]
    DEPTH: tl.constexpr = SHAPE[0] * SHAPE[5] * SHAPE[6]
    across: tl.constexpr = (COLUMNS + TILES[1] - 1) // TILES[1]
    model = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) // across * TILES[0] + tl.arange(0, TILES[0])
    column = tl.program_id(0) % across * TILES[1] + tl.arange(0, TILES[1])
    x += model * step
    weight += model * (DEPTH * COLUMNS)
    sums = tl.zeros((TILES[0], TILES[1]), tl.float32)
    for start in range(0, DEPTH, TILES[2]):
        depth = start + tl.arange(0, TILES[2])
        at, inside = places(row, depth, SHAPE, BACK)
        inside = inside & (row < rows)[:, None] & (depth < DEPTH)[None, :]
        left = tl.load(x + at + (depth % CHANNELS)[None, :], mask=inside, other=0)
        known = (depth < DEPTH)[:, None] & (column < COLUMNS)[None, :]
        right = tl.load(weight + depth[:, None] * COLUMNS + column[None, :], mask=known, other=0)
        sums = product(left, right, sums, PRECISION)
    if BIASED:
        shift = tl.load(bias + model * bias_step + column, mask=column < COLUMNS, other=0)
        sums += shift.to(tl.float32)[None, :]
    place = out + model * rows * COLUMNS + row[:, None] * COLUMNS + column[None, :]
    tl.store(
        place, rounded(sums, out.dtype.element_ty),
        mask=(row < rows)[:, None] & (column < COLUMNS)[None, :],
    )  # fmt: skip


@triton.jit
def places(row, depth, SHAPE: tl.constexpr, BACK: tl.constexpr):
    """Where row r finds entry k of its patch, less the channel; and whether there is such a place.

    `row` counts positions of all images, `depth` [kernel rows, kernel columns, channels].
    """
    C: tl.constexpr = SHAPE[0]
    H: tl.constexpr = SHAPE[1]
    W: tl.constexpr = SHAPE[2]
    image = row // (SHAPE[3] * SHAPE[4])
    y, x = row // SHAPE[4] % SHAPE[3], row % SHAPE[4]
    of_kernel = depth // C
    down, across = of_kernel // SHAPE[6] * SHAPE[11], of_kernel % SHAPE[6] * SHAPE[12]
    if BACK:  # position p was read by output (p + padding - offset) / stride, where that is whole
        top = (y + SHAPE[9])[:, None] - down[None, :]
        left = (x + SHAPE[10])[:, None] - across[None, :]
        inside = (top >= 0) & (left >= 0) & (top % SHAPE[7] == 0) & (left % SHAPE[8] == 0)
        top, left = top // SHAPE[7], left // SHAPE[8]
    else:
        top = (y * SHAPE[7] - SHAPE[9])[:, None] + down[None, :]
        left = (x * SHAPE[8] - SHAPE[10])[:, None] + across[None, :]
        inside = (top >= 0) & (left >= 0)
    inside = inside & (top < H) & (left < W)
    return (image[:, None] * H + top) * (W * C) + left * C, inside
