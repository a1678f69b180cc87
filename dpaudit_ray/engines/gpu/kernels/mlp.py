"""One kernel per step for the networks that `packing.fused` recognises.

A program computes one model, block of examples by block: forward, loss, norms, clip factors and
sums, with parameters and sums on chip. Nothing is added up across programs, so in one order only.

d-3-8-1 with 8 features and 400 examples: 134 kFLOP (1.9 MFLOP as padded) and 13 KB of examples,
which all models read from the second cache, 2 KB of its own: bound by instructions, not by memory.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import OPTIONS, precision, takes
from .numbers import product, rounded

if TYPE_CHECKING:
    from ...packing.fused import FusedMlp

LEAST = 16  # side of a block that tensor cores take
EXAMPLES = 32  # at once: with more, activations of 64 features leave the registers
STAGES = 1  # examples wait in the second cache; those of the next block would take registers
# Of all layers' padded weights, which stay on chip together with their sums. Float32 products in
# `ieee` precision keep whole rows and columns in registers, those of tensor cores do not.
_ROOM, _ROOM_IEEE = 9216, 2560


def padded(widths: tuple[int, ...]) -> tuple[int, ...]:
    """Powers of two, of at least `LEAST`."""
    return tuple(max(LEAST, triton.next_power_of_2(width)) for width in widths)


def warps(widths: tuple[int, ...]) -> int:
    """Of a program: more share the registers that wide layers need."""
    return 4 if max(widths) <= 2 * LEAST else 8


def takes_chain(chain: FusedMlp, theta: Tensor, x: Tensor) -> bool:
    """Whether the kernel can do this network, in these dtypes: it must stay on chip."""
    if theta.dtype != torch.float32 or not takes(x.dtype):
        return False
    sides = padded(tuple(map(int, chain.widths)))
    size = sum(a * b for a, b in itertools.pairwise(sides))
    exact = x.dtype == torch.float32 and precision() == "ieee"
    return size <= (_ROOM_IEEE if exact else _ROOM)


def clipped_sums(
    chain: FusedMlp,
    out: Tensor,
    theta: Tensor,
    batch: tuple[Tensor, Tensor],
    clip_norm: float,
    weights: Tensor | None,
) -> None:
    """As `PackedModel.clipped_sums`, into `out` float32 [n, p].

    Args:
        chain: the network; `takes_chain` must be true.
        out: float32 [n, p], rows one after the other.
        theta: float32 [n, p].
        batch: x [B, ...], float32 or bfloat16, and y [B]. Products of the passes are in the dtype
            of x, sums in float32.
        clip_norm: C; infinity leaves the gradients as they are.
        weights: [n, B], 1 everywhere when left out.
    """
    x, y = batch
    widths = tuple(map(int, chain.widths))
    starts = tuple((int(weight), int(bias)) for weight, bias in chain.starts)
    own = theta.contiguous()
    factors = own if weights is None else weights.to(own.dtype).contiguous()
    sums = out if out.is_contiguous() else torch.empty_like(own)
    mlp_kernel[(len(own),)](
        sums, own, x.flatten(1).contiguous(), y.long(), factors,
        len(y), own.shape[1], clip_norm if math.isfinite(clip_norm) else math.inf,
        weights is not None, widths, padded(widths), starts, EXAMPLES, precision(),
        num_warps=warps(widths), num_stages=STAGES, **OPTIONS,
    )  # fmt: skip
    if sums is not out:
        out.copy_(sums)


@triton.jit
def mlp_kernel(
    out, theta, x, y, weights,
    batch, size, clip: tl.float32, WEIGHTED: tl.constexpr,
    WIDTHS: tl.constexpr, PADDED: tl.constexpr, STARTS: tl.constexpr,
    BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Program m writes row m of `out` [n, size]; x [batch, WIDTHS[0]]."""
    layers: tl.constexpr = len(WIDTHS) - 1
    model = tl.program_id(0).to(tl.int64)
    matrices, biases = _parameters(theta + model * size, x.dtype.element_ty, WIDTHS, PADDED, STARTS)
    sums, shifts = (), ()
    for i in tl.static_range(layers):
        sums = sums + (tl.zeros((PADDED[i + 1], PADDED[i]), tl.float32),)
        shifts = shifts + (tl.zeros((PADDED[i + 1],), tl.float32),)
    for start in range(0, batch, BLOCK):
        rows = start + tl.arange(0, BLOCK)
        valid = rows < batch
        examples = _matrix(x, rows, valid, WIDTHS[0], PADDED[0])
        acts = _forward(examples, matrices, biases, WIDTHS, PRECISION)
        classes = tl.load(y + rows, mask=valid, other=0)
        top = _loss_gradient(acts[layers], classes, valid, WIDTHS[layers])
        grads, squares = _backward(top, acts, matrices, STARTS, PRECISION)
        norms = tl.sqrt(squares)
        factors = tl.where(norms > clip, clip / norms, 1.0)
        if WEIGHTED:
            factors *= tl.load(weights + model * batch + rows, mask=valid, other=0)
        factors = tl.where(valid, factors, 0.0)
        new, moved = (), ()
        for i in tl.static_range(layers):
            scaled = grads[layers - 1 - i].to(tl.float32) * factors[:, None]
            below = acts[i].to(tl.float32)
            new = new + (product(tl.trans(scaled), below, sums[i], PRECISION),)
            moved = moved + (shifts[i] + tl.sum(scaled, 0),)
        sums, shifts = new, moved
    for i in tl.static_range(layers):
        _store(out + model * size, sums[i], shifts[i], WIDTHS[i], WIDTHS[i + 1], STARTS[i])


@triton.jit
def _matrix(
    start, rows, valid, WIDTH: tl.constexpr, PADDED: tl.constexpr
):  # fmt: skip
    """Rows of WIDTH numbers each, with zeros behind them and in rows that are not valid."""
    columns = tl.arange(0, PADDED)
    inside = valid[:, None] & (columns < WIDTH)[None, :]
    return tl.load(start + rows[:, None] * WIDTH + columns[None, :], mask=inside, other=0)


@triton.jit
def _parameters(
    theta, kind: tl.constexpr,
    WIDTHS: tl.constexpr, PADDED: tl.constexpr, STARTS: tl.constexpr,
):  # fmt: skip
    """Weights [outputs, inputs] of all layers in the dtype of the examples, and biases."""
    matrices, biases = (), ()
    for i in tl.static_range(len(WIDTHS) - 1):
        rows = tl.arange(0, PADDED[i + 1])
        valid = rows < WIDTHS[i + 1]
        weight = _matrix(theta + STARTS[i][0], rows, valid, WIDTHS[i], PADDED[i])
        bias = tl.zeros((PADDED[i + 1],), tl.float32)
        if STARTS[i][1] >= 0:
            bias = tl.load(theta + STARTS[i][1] + rows, mask=valid, other=0)
        matrices = matrices + (rounded(weight, kind),)
        biases = biases + (rounded(bias, kind).to(tl.float32),)
    return matrices, biases


@triton.jit
def _forward(
    examples, matrices, biases, WIDTHS: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """What goes into each layer, in the dtype of the examples, and the outputs in float32."""
    layers: tl.constexpr = len(WIDTHS) - 1
    acts = (examples,)
    for i in tl.static_range(layers):
        zero = tl.zeros((examples.shape[0], matrices[i].shape[0]), tl.float32)
        z = product(acts[i], tl.trans(matrices[i]), zero, PRECISION) + biases[i][None, :]
        if i < layers - 1:
            z = tl.where(z < 0, 0.0, z)  # NaN stays NaN, as in torch
            z = rounded(z, examples.dtype)
        acts = acts + (z,)
    return acts


@triton.jit
def _loss_gradient(scores, classes, valid, CLASSES: tl.constexpr):
    """As `losses.output_gradients`, [examples, scores]; 0 in rows that are not valid."""
    columns = tl.arange(0, scores.shape[1])
    inside = (columns < CLASSES)[None, :]
    if CLASSES == 1:
        found = tl.sigmoid(scores) - classes[:, None].to(tl.float32)
    else:
        known = tl.where(inside, scores, float("-inf"))
        powers = tl.exp(known - tl.max(known, 1)[:, None])
        found = powers / tl.sum(powers, 1)[:, None]
        found -= (columns[None, :] == classes[:, None]).to(tl.float32)
    return tl.where(inside & valid[:, None], found, 0.0)


@triton.jit
def _backward(
    top, acts, matrices, STARTS: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Gradients of the layers' outputs, the last layer's first, and squared norms of it all."""
    layers: tl.constexpr = len(STARTS)
    grads = (rounded(top, acts[0].dtype),)
    squares = _squares(grads[0], acts[layers - 1], STARTS[layers - 1][1] >= 0)
    for j in tl.static_range(1, layers):
        below = acts[layers - j]
        g = product(
            grads[j - 1], matrices[layers - j], tl.zeros_like(below).to(tl.float32), PRECISION
        )
        g = rounded(tl.where(below.to(tl.float32) <= 0, 0.0, g), below.dtype)
        squares += _squares(g, acts[layers - 1 - j], STARTS[layers - 1 - j][1] >= 0)
        grads = grads + (g,)
    return grads, squares


@triton.jit
def _squares(above, below, BIASED: tl.constexpr):
    """|g|² (|x|² + 1) of every example."""
    of_g, of_x = above.to(tl.float32), below.to(tl.float32)
    size = tl.sum(of_x * of_x, 1)
    if BIASED:
        size += 1
    return tl.sum(of_g * of_g, 1) * size


@triton.jit
def _store(
    out, summed, shift, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
    START: tl.constexpr,
):  # fmt: skip
    rows, columns = tl.arange(0, summed.shape[0]), tl.arange(0, summed.shape[1])
    inside = (rows < OUTPUTS)[:, None] & (columns < INPUTS)[None, :]
    tl.store(out + START[0] + rows[:, None] * INPUTS + columns[None, :], summed, mask=inside)
    if START[1] >= 0:
        tl.store(out + START[1] + rows, shift, mask=rows < OUTPUTS)
