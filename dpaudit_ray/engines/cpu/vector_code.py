"""Compilation of loops: by numba, and of the innermost ones to vector instructions for LLVM.

LLVM does not keep arrays of vectors in registers, so the innermost loops of `conv_pool_loops` are
written as LLVM instructions here. Each of these intrinsics takes three tuples:

* `arrays`: the arrays that it reads and writes.
* `numbers`: indices into these arrays (starts) and distances between entries.
* `static`: sizes that unroll its code. Each is the length of a tuple (`static_sizes`), so that
  numba knows it when it compiles; the first is the length of a vector.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import llvmlite.binding  # type: ignore[import-untyped]
import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])
Static = tuple[tuple[int, ...], ...]


def compiled(loops: F) -> F:
    """Compiles loops that free Python's lock; sums may be reordered, NaN and inf stay correct."""
    options: dict[str, Any] = {"nopython": True, "nogil": True, "fastmath": {"reassoc", "contract"}}
    try:
        made: F = numba.jit(cache=True, **options)(loops)
    except RuntimeError:  # no folder is writable for numba's cache: each process compiles
        made = numba.jit(**options)(loops)
    return made


def inlined(loops: F) -> F:
    """Marks a function that is compiled only as a part of its callers."""
    made: Any = numba.jit(nopython=True, inline="always")(loops)
    return cast(F, made)


def static_sizes(*sizes: int) -> Static:
    """Returns tuples of these lengths: numbers that numba knows when it compiles."""
    return tuple((1,) * size for size in sizes)


# Bytes of a vector register of this machine, and the number of registers.
_features = llvmlite.binding.get_host_cpu_features()
REGISTER_BYTES, REGISTERS = (
    (64, 32) if _features.get("avx512f") else (32, 16) if _features.get("avx") else (16, 32)
)


def lanes(itemsize: int, row: int) -> int:
    """Returns the length of vectors for rows of `row` numbers of `itemsize` bytes.

    It is half a register if fewer lanes stay empty then.
    """
    register = REGISTER_BYTES // itemsize
    return min((register, register // 2), key=lambda size: -row % size)


_I64, _I32, _I8 = ir.IntType(64), ir.IntType(32), ir.IntType(8)
_FUSED = ("contract",)  # a product and a sum may be one instruction
_allocated: Any = cgutils.alloca_once


class _Emitter:
    """Emits an intrinsic's instructions; `sizes` are the static ones except the first, `lanes`."""

    def __init__(self, context: Any, builder: Any, signature: Any, args: Any) -> None:
        self.builder = builder
        self.lanes, *self.sizes = (kind.count for kind in signature.args[2].types)
        kinds = signature.args[0].types
        self.pointers = [
            context.make_array(kind)(context, builder, builder.extract_value(args[0], i)).data
            for i, kind in enumerate(kinds)
        ]
        self.numbers = [builder.extract_value(args[1], i) for i in range(signature.args[1].count)]
        element = context.get_value_type(kinds[0].dtype)
        self.type = ir.VectorType(element, self.lanes)
        self.bytes = ir.VectorType(_I8, self.lanes)
        self.zero = self.full(self.type, 0.0)

    def full(self, kind: Any, value: float) -> Any:
        return ir.Constant(kind, [value] * self.lanes)

    def at(self, base: Any, *offsets: Any) -> Any:
        """Returns a pointer into an array, by its number, or beyond another pointer."""
        pointer = self.pointers[base] if isinstance(base, int) else base
        for offset in offsets:
            pointer = self.builder.gep(pointer, [offset])
        return pointer

    def load(self, pointer: Any) -> Any:
        """Returns a vector from any address, aligned or not."""
        return self.builder.load(self._cast(pointer, self.type), align=1)

    def store(self, value: Any, pointer: Any) -> None:
        self.builder.store(value, self._cast(pointer, value.type), align=1)

    def splat(self, scalar: Any) -> Any:
        """Returns a vector with the number in every lane."""
        kind = ir.VectorType(scalar.type, self.lanes)
        undefined = ir.Constant(kind, ir.Undefined)
        single = self.builder.insert_element(undefined, scalar, _I32(0))
        order = ir.Constant(ir.VectorType(_I32, self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(single, undefined, order)

    def below(self, first: int, count: Any) -> Any:
        """Returns a mask of the lanes whose numbers, from `first` on, are less than `count`."""
        numbers = [first + lane for lane in range(self.lanes)]
        lane = ir.Constant(ir.VectorType(_I64, self.lanes), numbers)
        return self.builder.icmp_signed("<", lane, self.splat(count))

    def sums(self, *counts: int) -> list[Any]:
        """Returns vectors of zeros, to be kept in registers; the last count runs fastest."""
        slots = [_allocated(self.builder, self.type) for _ in range(int(np.prod(counts)))]
        for slot in slots:
            self.builder.store(self.zero, slot)
        return slots

    def add(self, slot: Any, a: Any, b: Any) -> None:
        """Adds a · b to a slot."""
        product = self.builder.fmul(a, b, flags=_FUSED)
        self.builder.store(self.builder.fadd(product, self.builder.load(slot), _FUSED), slot)

    def _cast(self, pointer: Any, kind: Any) -> Any:
        return self.builder.bitcast(pointer, kind.as_pointer())


def _vectorised(emit_code: Callable[[_Emitter], None]) -> Any:
    """Returns an intrinsic (arrays, numbers, static) -> None from a function that emits it."""

    def make(_typing: Any, arrays: Any, numbers: Any, static: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            emit_code(_Emitter(context, builder, signature, args))
            return context.get_dummy_value()

        return types.void(arrays, numbers, static), generate

    make.__name__, make.__doc__ = emit_code.__name__, emit_code.__doc__
    return cast(Any, intrinsic)(make)


@_vectorised
def convolve(emit: _Emitter) -> None:
    """Convolves one vector of output channels at adjacent positions, some rows by some columns.

    `arrays`: x, w, bias, out; `numbers`: their starts, the distance of two positions' rows in x,
    the length of an image row, the rows and the row length of a patch, and the distances of two
    positions' rows and columns in out. `static`: lanes, rows, columns, distance of columns in x.
    """
    builder = emit.builder
    x_at, w_at, bias_at, out_at, down, row, height, width, below, beside = emit.numbers
    rows, columns, step = emit.sizes
    sums = emit.sums(rows, columns)
    bias = emit.load(emit.at(2, bias_at))
    for slot in sums:
        builder.store(bias, slot)
    with cgutils.for_range(builder, height) as i:
        of_x = emit.at(0, x_at, builder.mul(i.index, row))
        of_w = emit.at(1, w_at, builder.mul(builder.mul(i.index, width), _I64(emit.lanes)))
        lines = [emit.at(of_x, builder.mul(down, _I64(r))) for r in range(rows)]
        with cgutils.for_range(builder, width) as j:
            weight = emit.load(emit.at(of_w, builder.mul(j.index, _I64(emit.lanes))))
            for n, (r, c) in enumerate(np.ndindex(rows, columns)):
                line = emit.at(lines[r], j.index)
                value = builder.load(emit.at(line, _I64(c * step)))
                emit.add(sums[n], weight, emit.splat(value))
    for n, (r, c) in enumerate(np.ndindex(rows, columns)):
        target = emit.at(3, out_at, builder.mul(below, _I64(r)), builder.mul(beside, _I64(c)))
        emit.store(builder.load(sums[n]), target)


DEAD = 255  # in place of the winner's number: ReLU let nothing through


@_vectorised
def pool(emit: _Emitter) -> None:
    """Writes the largest entries of one window, a vector of channels, and their numbers or DEAD.

    `arrays`: x, floor, out, marks; `numbers`: the start in x, the start in out and marks, and the
    distances of two rows and columns in x. `static`: lanes, rows and columns of a window.
    """
    builder = emit.builder
    x_at, out_at, below, beside = emit.numbers
    entries = [
        emit.load(emit.at(0, x_at, builder.mul(below, _I64(i)), builder.mul(beside, _I64(j))))
        for i, j in np.ndindex(*emit.sizes)
    ]
    best, mark = entries[0], emit.full(emit.bytes, 0)
    for k, value in enumerate(entries[1:], start=1):
        # The first of equals, and NaN, win as in torch.
        above = builder.fcmp_ordered(">", value, best)
        wins = builder.or_(above, builder.fcmp_unordered("!=", value, value))
        best = builder.select(wins, value, best)
        mark = builder.select(wins, emit.full(emit.bytes, k), mark)
    floor = emit.splat(builder.load(emit.at(1)))
    dead = builder.fcmp_ordered("<=", best, floor)
    emit.store(builder.select(dead, floor, best), emit.at(2, out_at))
    emit.store(builder.select(dead, emit.full(emit.bytes, DEAD), mark), emit.at(3, out_at))


@_vectorised
def unpool(emit: _Emitter) -> None:
    """Adds the gradients of one window, a vector of channels, to those of the positions that won.

    `arrays`: g, marks, and gradients by position; `numbers`: the start in g and marks, that of the
    window, the distances of two positions' rows and columns, and the number of channels. `static`
    is that of `pool`.
    """
    builder = emit.builder
    g_at, grid_at, below, beside, channels = emit.numbers
    marks = builder.bitcast(emit.at(1, g_at), emit.bytes.as_pointer())
    g, mark = emit.load(emit.at(0, g_at)), builder.load(marks, align=1)
    inside = emit.below(0, channels)
    for k, (i, j) in enumerate(np.ndindex(*emit.sizes)):
        target = emit.at(2, grid_at, builder.mul(below, _I64(i)), builder.mul(beside, _I64(j)))
        wins = builder.icmp_unsigned("==", mark, emit.full(emit.bytes, k))
        gradient = builder.select(builder.and_(wins, inside), g, emit.zero)
        emit.store(builder.fadd(emit.load(target), gradient), target)


@_vectorised
def gather(emit: _Emitter) -> None:
    """Writes the sum, over listed starts, of g times some rows of the patch that begins there.

    `arrays`: x, the listed starts, their g, out, and a vector that squares are added to; `numbers`:
    the starts in x, in both lists and in out, the number of listed starts, the length of an image
    row, and that of a patch's row, behind which zeros are written. `static`: lanes, rows, and
    vectors of a row.
    """
    builder = emit.builder
    x_at, list_at, out_at, count, row, width = emit.numbers
    rows, parts = emit.sizes
    sums, (squares,) = emit.sums(rows, parts), emit.sums(1)
    with cgutils.for_range(builder, count) as e:
        listed = builder.sext(builder.load(emit.at(1, list_at, e.index)), _I64)
        source = emit.at(0, x_at, listed)
        g = emit.splat(builder.load(emit.at(2, list_at, e.index)))
        for n, (r, v) in enumerate(np.ndindex(rows, parts)):
            patch_row = emit.at(source, builder.mul(row, _I64(r)))
            emit.add(sums[n], g, emit.load(emit.at(patch_row, _I64(v * emit.lanes))))
    builder.store(emit.load(emit.at(4)), squares)
    for n, (_r, v) in enumerate(np.ndindex(rows, parts)):
        inside = emit.below(v * emit.lanes, width)
        total = builder.select(inside, builder.load(sums[n]), emit.zero)
        emit.store(total, emit.at(3, out_at, _I64(n * emit.lanes)))
        emit.add(squares, total, total)
    emit.store(builder.load(squares), emit.at(4))


@_vectorised
def scatter(emit: _Emitter) -> None:
    """Adds Σ g · weights of the listed outputs to some rows of one patch of the image.

    `arrays`: image, g, w, the list; `numbers`: the starts in the first three, the lengths of the
    list, of an image row, and of an output's weights. `static` is that of `gather`.
    """
    builder = emit.builder
    image_at, g_at, w_at, count, row, patch = emit.numbers
    rows, parts = emit.sizes
    sums = emit.sums(rows, parts)
    with cgutils.for_range(builder, count) as e:
        output = builder.load(emit.at(3, e.index))
        g = emit.splat(builder.load(emit.at(1, g_at, output)))
        weights = emit.at(2, w_at, builder.mul(output, patch))
        for n, slot in enumerate(sums):
            emit.add(slot, g, emit.load(emit.at(weights, _I64(n * emit.lanes))))
    for n, (r, v) in enumerate(np.ndindex(rows, parts)):
        target = emit.at(0, image_at, builder.mul(row, _I64(r)), _I64(v * emit.lanes))
        total = builder.fadd(emit.load(target), builder.load(sums[n]))
        emit.store(total, target)
