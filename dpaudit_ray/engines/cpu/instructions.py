"""The innermost loops of a convolution and the pooling behind it, in vector instructions.

LLVM does not keep arrays of vectors in registers on its own, so these are spelled out for it.
Sizes that unroll them are the lengths of the tuples in `static`; the first is that of a vector.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic

from .vectors import I8, I64, Vectors

DEAD = 255  # in place of the winner's number: ReLU let nothing through


def _generated(make: Callable[..., Any]) -> Any:
    """An intrinsic; without the type that numba gives it, which has one argument too many."""
    return intrinsic(make)


def _signature(arrays: Any, numbers: Any, static: Any) -> Any:
    return types.void(arrays, numbers, static)


@_generated
def convolve(_: Any, arrays: Any, numbers: Any, static: Any) -> Any:
    """One vector of output channels at neighbouring positions, some rows by some columns.

    `arrays`: x, w, bias, out; `numbers`: where they start, the distance of two positions' rows in
    x, an image row, the rows and the row length of a patch, and the distances of two positions'
    rows and columns in out. `static`: lanes, rows, columns, and the distance of columns in x.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Vectors(context, builder, signature, args)
        x_at, w_at, bias_at, out_at, down, row, height, width, below, beside = emit.numbers
        rows, columns, step = emit.sizes
        sums = emit.sums(rows, columns)
        bias = emit.load(emit.at(2, bias_at))
        for slot in sums:
            builder.store(bias, slot)
        with cgutils.for_range(builder, height) as i:
            of_x = emit.at(0, x_at, builder.mul(i.index, row))
            of_w = emit.at(1, w_at, builder.mul(builder.mul(i.index, width), I64(emit.lanes)))
            lines = [builder.gep(of_x, [builder.mul(down, I64(r))]) for r in range(rows)]
            with cgutils.for_range(builder, width) as j:
                place = builder.gep(of_w, [builder.mul(j.index, I64(emit.lanes))])
                weight = emit.load(place)
                for n, (r, c) in enumerate(np.ndindex(rows, columns)):
                    line = builder.gep(lines[r], [j.index])
                    value = builder.load(builder.gep(line, [I64(c * step)]))
                    emit.add(sums[n], weight, emit.splat(value))
        for n, (r, c) in enumerate(np.ndindex(rows, columns)):
            place = emit.at(3, out_at, builder.mul(below, I64(r)), builder.mul(beside, I64(c)))
            emit.store(builder.load(sums[n]), place)
        return context.get_dummy_value()

    return _signature(arrays, numbers, static), generate


@_generated
def pool(_: Any, arrays: Any, numbers: Any, static: Any) -> Any:
    """The largest entries of one window, a vector of channels, and their numbers.

    `arrays`: x, floor, out, marks; `numbers`: where x, out and marks start, and the distances of
    two rows and columns in x. `static`: lanes, rows and columns of a window.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Vectors(context, builder, signature, args)
        x_at, out_at, below, beside = emit.numbers
        kind = ir.VectorType(I8, emit.lanes)
        entries = [
            emit.load(emit.at(0, x_at, builder.mul(below, I64(i)), builder.mul(beside, I64(j))))
            for i, j in np.ndindex(*emit.sizes)
        ]
        best, mark = entries[0], emit.full(kind, 0)
        for k, value in enumerate(entries[1:], start=1):
            # The first of equals, and NaN, win as in torch.
            above = builder.fcmp_ordered(">", value, best)
            wins = builder.or_(above, builder.fcmp_unordered("!=", value, value))
            best = builder.select(wins, value, best)
            mark = builder.select(wins, emit.full(kind, k), mark)
        floor = emit.splat(builder.load(emit.at(1)))
        dead = builder.fcmp_ordered("<=", best, floor)
        emit.store(builder.select(dead, floor, best), emit.at(2, out_at))
        emit.store(builder.select(dead, emit.full(kind, DEAD), mark), emit.at(3, out_at))
        return context.get_dummy_value()

    return _signature(arrays, numbers, static), generate


@_generated
def spread(_: Any, arrays: Any, numbers: Any, static: Any) -> Any:
    """Adds the gradients of one window, a vector of channels, to those of what won it.

    `arrays`: g, marks, and gradients by position; `numbers`: where g and marks start, where the
    window does, the distances of two positions' rows and columns, and how many channels there are.
    `static` is that of `pool`.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Vectors(context, builder, signature, args)
        g_at, grid_at, below, beside, channels = emit.numbers
        kind = ir.VectorType(I8, emit.lanes)
        marks = builder.bitcast(emit.at(1, g_at), kind.as_pointer())
        g, mark = emit.load(emit.at(0, g_at)), builder.load(marks, align=1)
        inside = emit.below(0, channels)
        for k, (i, j) in enumerate(np.ndindex(*emit.sizes)):
            place = emit.at(2, grid_at, builder.mul(below, I64(i)), builder.mul(beside, I64(j)))
            wins = builder.icmp_unsigned("==", mark, emit.full(kind, k))
            own = builder.select(builder.and_(wins, inside), g, emit.zero)
            emit.store(builder.fadd(emit.load(place), own), place)
        return context.get_dummy_value()

    return _signature(arrays, numbers, static), generate


@_generated
def gather(_: Any, arrays: Any, numbers: Any, static: Any) -> Any:
    """Σ over listed places of g times some rows of the patch that begins there.

    `arrays`: x, the places, their g, out, and a vector that squares are added to; `numbers`: where
    the first four start, how many are listed, an image row, and the length of a patch's row, behind
    which zeros are written. `static`: lanes, rows, and vectors of a row.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Vectors(context, builder, signature, args)
        x_at, list_at, out_at, count, row, width = emit.numbers
        rows, parts = emit.sizes
        sums, (squares,) = emit.sums(rows, parts), emit.sums(1)
        with cgutils.for_range(builder, count) as e:
            listed = builder.sext(builder.load(emit.at(1, list_at, e.index)), I64)
            source = emit.at(0, x_at, listed)
            g = emit.splat(builder.load(emit.at(2, list_at, e.index)))
            for n, (r, v) in enumerate(np.ndindex(rows, parts)):
                place = builder.gep(source, [builder.mul(row, I64(r))])
                emit.add(sums[n], g, emit.load(builder.gep(place, [I64(v * emit.lanes)])))
        builder.store(emit.load(emit.at(4)), squares)
        for n, (_r, v) in enumerate(np.ndindex(rows, parts)):
            inside = emit.below(v * emit.lanes, width)
            total = builder.select(inside, builder.load(sums[n]), emit.zero)
            emit.store(total, emit.at(3, out_at, I64(n * emit.lanes)))
            emit.add(squares, total, total)
        emit.store(builder.load(squares), emit.at(4))
        return context.get_dummy_value()

    return _signature(arrays, numbers, static), generate


@_generated
def scatter(_: Any, arrays: Any, numbers: Any, static: Any) -> Any:
    """Adds Σ g · weights of the listed outputs to some rows of one patch of the image.

    `arrays`: image, g, w, the list; `numbers`: where the first three start, the length of the list,
    an image row, and the length of an output's weights. `static` is that of `gather`.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Vectors(context, builder, signature, args)
        image_at, g_at, w_at, count, row, patch = emit.numbers
        rows, parts = emit.sizes
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
