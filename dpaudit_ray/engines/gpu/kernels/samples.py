"""Per-sample gradients of convolutions for n models: kept, or their norms, or weighted sums.

A gradient [o, patch (+ 1 for the bias)] is a sum over positions of products of an output's
gradient and a patch, which is read in place. Where it is not kept, its norm and its share of a sum
are taken while a tile of it is in registers. Sums over tiles and over parts of the batch are
torch's, in one order.

A tile of 64 x 64 over 32 positions: 262 kFLOP for 16 KB, as in `products`. With few positions T the
ghost norm (see `rules.outer`) takes T²(D + O) in place of T·D·O, so it has a kernel.
"""

from __future__ import annotations

import dataclasses
import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import OPTIONS, precision
from .numbers import product
from .products import STAGES, Geometry, places

GHOST = 64  # positions whose products of pairs stay in registers
_TOGETHER = 4096  # positions that one program adds up, so that small layers fill a GPU too
_NARROW, _WIDE = 16, 64


@dataclasses.dataclass(frozen=True)
class Samples:
    """What all kernels here read, channels last.

    `x` [n*B, h, w, c], or [B, h, w, c] for all models if `shared`; `g` [n*B, h', w', o], of the
    same dtype: float32 or bfloat16. `biased`: the layer has a bias.
    """

    geometry: Geometry
    x: Tensor
    g: Tensor
    models: int
    shared: bool
    biased: bool

    @property
    def batch(self) -> int:
        """Samples that every model sees."""
        return len(self.g) // self.models

    @property
    def columns(self) -> int:
        """Of a gradient's rows, which are the outputs."""
        return self.geometry.patch + self.biased

    @property
    def positions(self) -> int:
        """Of outputs in an image."""
        return math.prod(self.geometry.positions)


@dataclasses.dataclass(frozen=True)
class Tiles:
    """Of gradients: rows, columns, positions at once, and warps; by layer and dtype alone."""

    rows: int
    columns: int
    slices: int
    warps: int = 4

    @classmethod
    def of(cls, samples: Samples, products: str) -> Tiles:
        """See `products.Tiles`."""
        outputs = samples.geometry.outputs
        sides = (_fitting(outputs), _fitting(samples.columns))
        narrow = samples.g.dtype == torch.float32 and products == "ieee"
        return cls(*sides, 16 if narrow else 32)


def _fitting(size: int) -> int:
    return min(_WIDE, max(_NARROW, int(triton.next_power_of_2(size))))


def formed(samples: Samples) -> Tensor:
    """Every gradient, float32 [n, B, o, columns]; columns are [kh, kw, c] and then the bias."""
    shape = (samples.models, samples.batch, samples.geometry.outputs, samples.columns)
    out = torch.empty(shape, dtype=torch.float32, device=samples.g.device)
    _by_sample(samples, out, keep=True)
    return out


def squared_norms(samples: Samples) -> Tensor:
    """Of every gradient, float32 [n, B]; nothing else is kept."""
    positions, outputs = samples.positions, samples.geometry.outputs
    cheaper = outputs * samples.columns > positions * (samples.columns + outputs)
    if cheaper and positions <= GHOST:
        return _ghost_norms(samples)
    tiles = Tiles.of(samples, precision())
    shape = (samples.models, samples.batch, _tiles(samples, tiles))
    out = samples.g.new_empty(shape, dtype=torch.float32)
    _by_sample(samples, out, keep=False)
    return out.sum(2)


def weighted_sums(samples: Samples, weights: Tensor) -> Tensor:
    """Σ_j weights[:, j] · gradient of sample j, float32 [n, o, columns]; weights [n, B].

    Every sample's gradient is scaled in float32 after it was summed, also of bfloat16.
    """
    tiles, n = Tiles.of(samples, precision()), samples.models
    warps = 2 * tiles.warps  # two tiles of sums each
    together = max(1, _TOGETHER // samples.positions)
    parts = triton.cdiv(samples.batch, together)
    shape = (parts, n, samples.geometry.outputs, samples.columns)
    out = torch.empty(shape, dtype=torch.float32, device=samples.g.device)
    grid = (_tiles(samples, tiles), parts, n)
    sum_kernel[grid](
        out, samples.x, samples.g, weights.to(torch.float32).contiguous(),
        samples.batch, together, 0 if samples.shared else samples.batch,
        *_static(samples, tiles), num_warps=warps, num_stages=STAGES, **OPTIONS,
    )  # fmt: skip
    return out[0] if parts == 1 else out.sum(0)


def _by_sample(samples: Samples, out: Tensor, keep: bool) -> None:
    tiles = Tiles.of(samples, precision())
    grid = (_tiles(samples, tiles), samples.batch, samples.models)
    sample_kernel[grid](
        out, samples.x, samples.g, samples.batch, 0 if samples.shared else samples.batch, keep,
        *_static(samples, tiles), num_warps=tiles.warps, num_stages=STAGES, **OPTIONS,
    )  # fmt: skip


def _tiles(samples: Samples, tiles: Tiles) -> int:
    rows = triton.cdiv(samples.geometry.outputs, tiles.rows)
    return int(rows * triton.cdiv(samples.columns, tiles.columns))


def _static(samples: Samples, tiles: Tiles) -> tuple[object, ...]:
    return (
        samples.geometry.outputs, samples.columns, samples.geometry.static(back=False),
        (tiles.rows, tiles.columns, tiles.slices), precision(),
    )  # fmt: skip


def _ghost_norms(samples: Samples) -> Tensor:
    out = samples.g.new_empty(samples.models, samples.batch, dtype=torch.float32)
    side = max(_NARROW, triton.next_power_of_2(samples.positions))
    ghost_kernel[(samples.batch, samples.models)](
        out, samples.x, samples.g, samples.batch, 0 if samples.shared else samples.batch,
        samples.biased, samples.geometry.outputs, samples.geometry.static(back=False),
        (side, 32), precision(), num_warps=4, num_stages=STAGES, **OPTIONS,
    )  # fmt: skip
    return out


@triton.jit
def _gradient(
    x, g, row, column, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SHAPE: tl.constexpr,
    TILES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One sample's gradient of outputs `row` and patch entries `column`; zeros beyond them."""
    T: tl.constexpr = SHAPE[3] * SHAPE[4]
    PATCH: tl.constexpr = SHAPE[0] * SHAPE[5] * SHAPE[6]
    sums = tl.zeros((TILES[0], TILES[1]), tl.float32)
    for start in range(0, T, TILES[2]):
        place = start + tl.arange(0, TILES[2])
        known = (place < T)[:, None]
        at = place[:, None] * ROWS + row[None, :]
        above = tl.load(g + at, mask=known & (row < ROWS)[None, :], other=0)
        below = _patches(x, place, column, known & (column < PATCH)[None, :], SHAPE)
        if COLUMNS > PATCH:
            below = tl.where((column == PATCH)[None, :] & known, 1.0, below.to(tl.float32))
            below = below.to(x.dtype.element_ty)  # exact: what was read, or 1
        sums = product(tl.trans(above), below, sums, PRECISION)
    return tl.where((row < ROWS)[:, None] & (column < COLUMNS)[None, :], sums, 0.0)


@triton.jit
def _patches(x, place, column, wanted, SHAPE: tl.constexpr):
    """Entries `column` of the patches at positions `place` of one image, 0 where not wanted."""
    at, inside = places(place, column, SHAPE, False)
    return tl.load(x + at + (column % SHAPE[0])[None, :], mask=inside & wanted, other=0)


@triton.jit
def _of_sample(x, g, model, sample, batch, step, ROWS: tl.constexpr, SHAPE: tl.constexpr):
    """Where a sample's image, and its outputs' gradients, begin."""
    x += (model * step + sample) * (SHAPE[0] * SHAPE[1] * SHAPE[2])
    return x, g + (model * batch + sample) * (SHAPE[3] * SHAPE[4] * ROWS)


@triton.jit
def sample_kernel(
    out, x, g, batch, step, KEEP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    SHAPE: tl.constexpr, TILES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of one sample's gradient, into [n, batch, ROWS, COLUMNS], or its squares' sum."""
    across: tl.constexpr = (COLUMNS + TILES[1] - 1) // TILES[1]
    tile, sample = tl.program_id(0), tl.program_id(1)
    model = tl.program_id(2).to(tl.int64)
    row = tile // across * TILES[0] + tl.arange(0, TILES[0])
    column = tile % across * TILES[1] + tl.arange(0, TILES[1])
    x, g = _of_sample(x, g, model, sample, batch, step, ROWS, SHAPE)
    found = _gradient(x, g, row, column, ROWS, COLUMNS, SHAPE, TILES, PRECISION)
    number = model * batch + sample
    if KEEP:
        at = number * (ROWS * COLUMNS) + row[:, None] * COLUMNS + column[None, :]
        tl.store(out + at, found, mask=(row < ROWS)[:, None] & (column < COLUMNS)[None, :])
    else:
        tl.store(out + number * tl.num_programs(0) + tile, tl.sum(tl.sum(found * found, 1), 0))


@triton.jit
def sum_kernel(
    out, x, g, weights, batch, together, step, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    SHAPE: tl.constexpr, TILES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of one part's weighted sum, into [parts, n, ROWS, COLUMNS]."""
    across: tl.constexpr = (COLUMNS + TILES[1] - 1) // TILES[1]
    tile, part = tl.program_id(0), tl.program_id(1)
    model = tl.program_id(2).to(tl.int64)
    row = tile // across * TILES[0] + tl.arange(0, TILES[0])
    column = tile % across * TILES[1] + tl.arange(0, TILES[1])
    sums = tl.zeros((TILES[0], TILES[1]), tl.float32)
    for sample in range(part * together, tl.minimum((part + 1) * together, batch)):
        of_x, of_g = _of_sample(x, g, model, sample, batch, step, ROWS, SHAPE)
        found = _gradient(of_x, of_g, row, column, ROWS, COLUMNS, SHAPE, TILES, PRECISION)
        sums += found * tl.load(weights + model * batch + sample)
    number = part * tl.num_programs(2) + model
    at = number * (ROWS * COLUMNS) + row[:, None] * COLUMNS + column[None, :]
    tl.store(out + at, sums, mask=(row < ROWS)[:, None] & (column < COLUMNS)[None, :])


@triton.jit
def ghost_kernel(
    out, x, g, batch, step, BIASED: tl.constexpr, ROWS: tl.constexpr, SHAPE: tl.constexpr,
    TILES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One sample's squared norm, into [n, batch], by products of all pairs of its positions."""
    T: tl.constexpr = SHAPE[3] * SHAPE[4]
    PATCH: tl.constexpr = SHAPE[0] * SHAPE[5] * SHAPE[6]
    sample, model = tl.program_id(0), tl.program_id(1).to(tl.int64)
    x, g = _of_sample(x, g, model, sample, batch, step, ROWS, SHAPE)
    place = tl.arange(0, TILES[0])
    known = (place < T)[:, None]
    of_x = tl.zeros((TILES[0], TILES[0]), tl.float32)
    for start in range(0, PATCH, TILES[1]):
        column = start + tl.arange(0, TILES[1])
        below = _patches(x, place, column, known & (column < PATCH)[None, :], SHAPE)
        of_x = product(below, tl.trans(below), of_x, PRECISION)
    if BIASED:
        of_x += 1
    of_g = tl.zeros((TILES[0], TILES[0]), tl.float32)
    for start in range(0, ROWS, TILES[1]):
        row = start + tl.arange(0, TILES[1])
        above = tl.load(
            g + place[:, None] * ROWS + row[None, :], mask=known & (row < ROWS)[None, :], other=0
        )
        of_g = product(above, tl.trans(above), of_g, PRECISION)
    both = (place < T)[:, None] & (place < T)[None, :]
    total = tl.sum(tl.sum(tl.where(both, of_x * of_g, 0.0), 1), 0)
    tl.store(out + model * batch + sample, tl.where(total < 0, 0.0, total))  # but for rounding
