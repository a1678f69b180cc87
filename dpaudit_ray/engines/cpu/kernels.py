"""Compiled loops of a small convolution that max-pooling follows, two by two.

Images are channels-last: a row of a patch is one run of `width · channels` numbers. The first loop
convolves and pools at once: its vectors hold output channels, and the four entries of a window are
compared before they leave the registers. The other two need but the one position of each window
that won, a quarter of a convolution's products; their vectors run along rows of the patch.

LLVM does not keep arrays of vectors in registers on its own, so the innermost loops are spelled
out for it (`_windows`, `_gather`, `_scatter`). Sizes that unroll them are the lengths of tuples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic

from ..packing.vectors import I8, I64, Vectors
from .compiled import compiled

_TOGETHER = 16  # windows whose sums are kept apart, so that they fill vectors
DEAD = 4  # in place of the winner's number, row by row: ReLU let nothing through

Floats = npt.NDArray[np.floating]
Bytes = npt.NDArray[np.uint8]
Above = tuple[Floats, Bytes]
Static = tuple[tuple[int, ...], ...]


def _generated(make: Callable[..., Any]) -> Any:
    """An intrinsic; without the type that numba gives it, which has one argument too many."""
    return intrinsic(make)


def _signature(arrays: Any, numbers: Any, static: Any) -> Any:
    return types.void(arrays, numbers, static)


def _counts(signature: Any) -> list[int]:
    return [kind.count for kind in signature.args[2].types]


@_generated
def _windows(_: Any, arrays: Any, numbers: Any, static: Any) -> Any:
    """Pooled outputs of one vector of channels, for neighbouring windows of one row.

    `arrays`: x, w, bias, floor, out, marks; `numbers`: where they start, then an image row, the
    rows and the row length of a patch, and the distance of two windows in `out`.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Vectors(context, builder, signature, args)
        x_at, w_at, bias_at, out_at, row, height, width, step = emit.numbers
        windows, channels = _counts(signature)[:2]
        across = 2 * windows
        sums = emit.sums(2, across)
        bias = emit.load(emit.at(2, bias_at))
        for slot in sums:
            builder.store(bias, slot)
        with cgutils.for_range(builder, height) as i:
            of_x = emit.at(0, x_at, builder.mul(i.index, row))
            of_w = emit.at(1, w_at, builder.mul(builder.mul(i.index, width), I64(emit.lanes)))
            with cgutils.for_range(builder, width) as j:
                place = builder.gep(of_w, [builder.mul(j.index, I64(emit.lanes))])
                weight = emit.load(place)
                for n, slot in enumerate(sums):
                    line = builder.gep(of_x, [j.index if n < across else builder.add(j.index, row)])
                    value = builder.load(builder.gep(line, [I64(n % across * channels)]))
                    emit.add(slot, weight, emit.splat(value))
        for n in range(windows):
            four = [builder.load(sums[line + 2 * n + k]) for line in (0, across) for k in (0, 1)]
            best, mark = _winner(emit, four)
            place = builder.add(out_at, builder.mul(step, I64(n)))
            emit.store(best, emit.at(4, place))
            emit.store(mark, emit.at(5, place))
        return context.get_dummy_value()

    return _signature(arrays, numbers, static), generate


def _winner(emit: Vectors, four: list[Any]) -> tuple[Any, Any]:
    """The largest of four and its number; the first of equals, and NaN, win as in torch."""
    builder, kind = emit.builder, ir.VectorType(I8, emit.lanes)
    floor = emit.splat(builder.load(emit.at(3)))
    best, mark = four[0], emit.full(kind, 0)
    for k, value in enumerate(four[1:], start=1):
        above = builder.fcmp_ordered(">", value, best)
        wins = builder.or_(above, builder.fcmp_unordered("!=", value, value))
        best = builder.select(wins, value, best)
        mark = builder.select(wins, emit.full(kind, k), mark)
    dead = builder.fcmp_ordered("<=", best, floor)
    return builder.select(dead, floor, best), builder.select(dead, emit.full(kind, DEAD), mark)


@_generated
def _gather(_: Any, arrays: Any, numbers: Any, static: Any) -> Any:
    """Σ over windows of g times the patch that won, for some outputs and rows of the patch.

    `arrays`: x, g, formed, marks; `numbers`: where they start, then an image row, the rows and
    columns of windows, their outputs, a patch row's length and a patch's length in `formed`.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Vectors(context, builder, signature, args)
        x_at, g_at, out_at, marks_at, row, down, across, step, width, patch = emit.numbers
        outputs, rows, parts, channels = _counts(signature)
        sums = emit.sums(outputs, rows, parts)
        with cgutils.for_range(builder, down) as i, cgutils.for_range(builder, across) as j:
            window = builder.mul(builder.add(builder.mul(i.index, across), j.index), step)
            pixel = builder.add(
                builder.mul(builder.mul(i.index, I64(2)), row),
                builder.mul(j.index, I64(2 * channels)),
            )
            for o in range(outputs):
                own = builder.add(window, I64(o))
                g = emit.splat(builder.load(emit.at(1, g_at, own)))
                mark = builder.load(emit.at(3, marks_at, own))
                source = emit.at(0, x_at, pixel, _offset(builder, mark, row, channels))
                for n, (r, v) in enumerate(np.ndindex(rows, parts)):
                    place = builder.gep(source, [builder.mul(row, I64(r))])
                    value = emit.load(builder.gep(place, [I64(v * emit.lanes)]))
                    emit.add(sums[o * rows * parts + n], g, value)
        for n, (o, r, v) in enumerate(np.ndindex(outputs, rows, parts)):
            place = emit.at(2, out_at, builder.mul(patch, I64(o)))
            place = builder.gep(place, [I64((r * parts + v) * emit.lanes)])
            numbered = [v * emit.lanes + lane for lane in range(emit.lanes)]
            lane = ir.Constant(ir.VectorType(I64, emit.lanes), numbered)
            inside = builder.icmp_signed("<", lane, emit.splat(width))
            emit.store(builder.select(inside, builder.load(sums[n]), emit.zero), place)
        return context.get_dummy_value()

    return _signature(arrays, numbers, static), generate


def _offset(builder: Any, mark: Any, row: Any, channels: int) -> Any:
    """Where a window's winner lies from its first entry."""
    number = builder.zext(mark, I64)
    right = builder.mul(builder.and_(number, I64(1)), I64(channels))
    below = builder.icmp_signed("!=", builder.and_(number, I64(2)), I64(0))
    return builder.add(right, builder.select(below, row, I64(0)))


@_generated
def _scatter(_: Any, arrays: Any, numbers: Any, static: Any) -> Any:
    """Adds Σ g · weights of the listed outputs to some rows of one patch of the image.

    `arrays`: image, g, w, the list; `numbers`: where the first three start, the length of the
    list, an image row, and the length of an output's weights.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Vectors(context, builder, signature, args)
        image_at, g_at, w_at, count, row, patch = emit.numbers
        rows, parts = _counts(signature)[1:3]
        sums = emit.sums(rows, parts)
        with cgutils.for_range(builder, count) as e:
            own = builder.load(emit.at(3, e.index))
            g = emit.splat(builder.load(emit.at(1, g_at, own)))
            weights = emit.at(2, w_at, builder.mul(own, patch))
            for n, slot in enumerate(sums):
                emit.add(slot, g, emit.load(builder.gep(weights, [I64(n * emit.lanes)])))
        for n, (r, v) in enumerate(np.ndindex(rows, parts)):
            place = emit.at(0, image_at, builder.mul(row, I64(r)), I64(v * emit.lanes))
            total = builder.fadd(emit.load(place), builder.load(sums[n]))
            emit.store(total, place)
        return context.get_dummy_value()

    return _signature(arrays, numbers, static), generate


@compiled
def convolve_and_pool(
    images: Floats, weights: tuple[Floats, Floats], floor: Floats, found: tuple[Floats, Bytes],
    static: Static,
) -> None:  # fmt: skip
    """Pooled convolutions into out and marks [n, B, h, w, o], the winner's number or DEAD.

    `images` [m, B, H, row]; where n is a multiple of m, that many models share images. `weights`
    are w [m, blocks, height, width, lanes] and bias [m, blocks · lanes], the outputs of models
    that share images side by side. What is not above `floor` [1] is cut off: 0 for a ReLU.
    `static` has as many entries as windows are computed together, an image has channels, and a
    model outputs.
    """
    (w, bias), (out, marks) = weights, found
    blocks, height, width, size = w.shape[1:]
    each, down, across = out.shape[0] // images.shape[0], out.shape[2], out.shape[3]
    together, channels, outputs = len(static[0]), len(static[1]), len(static[2])
    row, line_width = images.shape[3], blocks * size
    line = np.empty((across, line_width), dtype=out.dtype)
    line_marks = np.empty((across, line_width), dtype=marks.dtype)
    arrays = (images, w, bias, floor, line, line_marks)
    for m in range(images.shape[0]):
        for s in range(images.shape[1]):
            image = (m * images.shape[1] + s) * images.shape[2] * row
            for i in range(down):
                for block in range(blocks):
                    of_w = (m * blocks + block) * height * width * size
                    of_bias = (m * blocks + block) * size
                    for start in range(0, across, together):
                        first = min(start, across - together)
                        x_at = image + 2 * i * row + 2 * first * channels
                        at = first * line_width + block * size
                        numbers = (x_at, of_w, of_bias, at, row, height, width, line_width)
                        _windows(arrays, numbers, static)
                for k in range(each):
                    for j in range(across):
                        for o in range(outputs):
                            out[m * each + k, s, i, j, o] = line[j, k * outputs + o]
                            marks[m * each + k, s, i, j, o] = line_marks[j, k * outputs + o]


@compiled
def sample_gradients(
    images: Floats, above: Above, found: tuple[Floats, Floats, Floats],
    width: int, static: Static,
) -> None:  # fmt: skip
    """Every sample's gradients of weights and bias, and their squared norms.

    `images` as above; `above` are the gradients of the pooled outputs and the marks, both [n, B,
    h, w, o]. `found` takes
    weights [n, B, o, height, padded width], biases [n, B, o] or [n, B, 0], and squares [n, B].
    `static` has as many entries as outputs and rows are computed together, a padded row has
    vectors, and an image has channels.
    """
    (g, marks), (formed, biases, squares) = above, found
    n, batch, down, across, outputs = marks.shape
    height, padded = formed.shape[3:]
    each, row = n // images.shape[0], images.shape[3]
    own = np.empty(down * across * outputs, dtype=g.dtype)
    arrays = (images, own, formed, marks)
    for s in range(batch):
        for m in range(n):
            image = (m // each * batch + s) * images.shape[2] * row
            sample = m * batch + s
            bias = biases[m, s]
            _alive(g[m, s].reshape(-1), marks[m, s].reshape(-1), own)
            _sums(own, bias)
            for start in range(0, outputs, len(static[0])):
                o = min(start, outputs - len(static[0]))
                for r in range(0, height, len(static[1])):
                    numbers = (
                        image + r * row, o, ((sample * outputs + o) * height + r) * padded,
                        sample * down * across * outputs + o,
                        row, down, across, outputs, width, height * padded,
                    )  # fmt: skip
                    _gather(arrays, numbers, static)
            squares[m, s] = _square(formed[m, s].reshape(-1)) + _square(bias)


@compiled
def _alive(g: Floats, marks: Bytes, own: Floats) -> None:
    """Gradients [windows · o] without those that ReLU stopped, into own."""
    zero = g.dtype.type(0)
    for i in range(len(g)):
        own[i] = zero if marks[i] == DEAD else g[i]


@compiled
def _sums(own: Floats, bias: Floats) -> None:
    """Sums over windows, into bias [o]; or [0], of a layer without."""
    if len(bias) == 0:
        return
    sums = np.zeros(len(bias) * _TOGETHER, dtype=own.dtype)
    for start in range(0, len(own), len(sums)):
        part = own[start : start + len(sums)]
        for i in range(len(part)):
            sums[i] += part[i]
    bias[:] = 0
    for start in range(0, len(sums), len(bias)):
        part = sums[start : start + len(bias)]
        for o in range(len(bias)):
            bias[o] += part[o]


@compiled
def _square(values: Floats) -> Any:
    total = values.dtype.type(0)
    for i in range(len(values)):
        total += values[i] * values[i]
    return total


@compiled
def input_gradients(above: Above, w: Floats, images: Floats, static: Static) -> None:
    """Gradients of the images [n, B, H, row]; w [n, o, height, padded width], zeros behind a row.

    `above` and `static` as in `sample_gradients`.
    """
    g, marks = above
    n, batch, down, across, outputs = marks.shape
    height, padded = w.shape[2:]
    rows, row = images.shape[2:]
    channels = len(static[3])
    image = np.empty(rows * row + padded, dtype=g.dtype)
    listed = np.empty(outputs + 1, dtype=np.int64)
    own = np.empty(down * across * outputs, dtype=g.dtype)
    arrays = (image, own, w, listed)
    for m in range(n):
        for s in range(batch):
            image[:] = 0
            _alive(g[m, s].reshape(-1), marks[m, s].reshape(-1), own)
            for k, j, i in np.ndindex(4, across, down):
                # Down a column, patches meet in the same vectors: what one has written, the
                # next reads from the store buffer.
                count = 0
                for o in range(outputs):
                    listed[count] = o
                    count += marks[m, s, i, j, o] == k
                at = (2 * i + k // 2) * row + (2 * j + k % 2) * channels
                g_at = (i * across + j) * outputs
                for r in range(0, height if count else 0, len(static[1])):
                    w_at = (m * outputs * height + r) * padded
                    numbers = (at + r * row, g_at, w_at, count, row, height * padded)
                    _scatter(arrays, numbers, static)
            images[m, s] = image[: rows * row].reshape(rows, row)
