"""Compilation of loops: by numba, and of the innermost loops to vector instructions for LLVM.

LLVM does not keep arrays of vectors in registers, so the innermost loops of `conv_pool_loops` are
written as LLVM instructions here. Each of these intrinsics takes three tuples:

* `arrays`: the arrays that it reads and writes.
* `numbers`: indices into these arrays (starts) and distances between entries.
* `static`: sizes that unroll its code. Each is the length of a tuple (`static_sizes`), so that
  numba knows it when it compiles; the first is the length of a vector.
"""

import functools
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
    """Compiles loops with numba: they release Python's lock, and may reorder their sums.

    Values of NaN and infinity stay correct.
    """
    options: dict[str, Any] = {"nopython": True, "nogil": True, "fastmath": {"reassoc", "contract"}}
    try:
        dispatcher = numba.jit(cache=True, **options)(loops)
    except RuntimeError:  # no folder is writable for numba's cache: each process compiles
        dispatcher = numba.jit(**options)(loops)
    return cast(F, dispatcher)


def inlined(loops: F) -> F:
    """Compiles a function into each of its callers, and never separately."""
    return cast(F, numba.jit(nopython=True, inline="always")(loops))


def static_sizes(*sizes: int) -> Static:
    """Returns tuples of the given lengths, which are numbers that numba knows when it compiles."""
    return tuple((1,) * size for size in sizes)


# Bytes of a vector register of this machine, and the number of registers.
_features = llvmlite.binding.get_host_cpu_features()
if _features.get("avx512f"):
    REGISTER_BYTES, REGISTERS = 64, 32
elif _features.get("avx"):
    REGISTER_BYTES, REGISTERS = 32, 16
else:
    REGISTER_BYTES, REGISTERS = 16, 32


def lanes(itemsize: int, row_length: int) -> int:
    """Returns the length of vectors for rows of `row_length` numbers of `itemsize` bytes.

    Vectors fill a register, or half of one if that leaves fewer lanes of a row's last vector empty.
    """
    register = REGISTER_BYTES // itemsize
    return min((register, register // 2), key=lambda size: -row_length % size)


_I64, _I32, _I8 = ir.IntType(64), ir.IntType(32), ir.IntType(8)
_FUSED = ("contract",)  # LLVM may make one instruction of a product and a sum
# Without types, as numba has no annotations.
_allocate: Any = cgutils.alloca_once
_unpack: Any = cgutils.unpack_tuple


class _Emitter:
    """Emits an intrinsic's instructions; takes the arguments of numba's code generators.

    Attributes:
        lanes: length of a vector, the first static size.
        sizes: the other static sizes.
        pointers: to the first entry of each array.
        numbers: values of the numbers.
        vector: type of a vector of the arrays' entries.
        byte_vector: type of a vector of as many bytes.
        zero: a vector of zeros.
    """

    def __init__(
        self,
        context: Any,
        builder: Any,
        signature: Any,
        args: Any,
    ) -> None:
        """Unpacks the arguments of an intrinsic.

        Args:
            context: numba's code generator for this machine.
            builder: builder of LLVM instructions.
            signature: types of the three tuples.
            args: values of the three tuples.
        """
        array_types, number_types, static_types = signature.args
        self.builder = builder
        self.lanes, *self.sizes = (kind.count for kind in static_types.types)
        self.pointers = []
        structs = _unpack(builder, args[0])
        for kind, struct in zip(array_types.types, structs, strict=True):
            array = context.make_array(kind)(context, builder, struct)
            self.pointers.append(array.data)
        self.numbers = _unpack(builder, args[1], number_types.count)
        element = context.get_value_type(array_types.types[0].dtype)
        self.vector = ir.VectorType(element, self.lanes)
        self.byte_vector = ir.VectorType(_I8, self.lanes)
        self.zero = self.full(self.vector, 0.0)

    def full(self, kind: Any, value: float) -> Any:
        """Returns a constant vector of type `kind`, with this number in every lane."""
        return ir.Constant(kind, [value] * self.lanes)

    def at(self, base: Any, *offsets: Any) -> Any:
        """Returns a pointer to an entry.

        Args:
            base: index of an array in `arrays`, whose first entry is meant; or a pointer.
            offsets: distances from there, in entries, which are added up: each is a number, or a
                tuple of factors whose product is the distance.
        """
        pointer = self.pointers[base] if isinstance(base, int) else base
        for offset in offsets:
            factors = offset if isinstance(offset, tuple) else (offset,)
            # Python's numbers become constants of the code; others are its values already.
            values = [_I64(f) if isinstance(f, int) else f for f in factors]
            distance = functools.reduce(self.builder.mul, values)
            pointer = self.builder.gep(pointer, [distance])
        return pointer

    def load(self, pointer: Any) -> Any:
        """Returns a vector from any address, aligned or not."""
        return self.builder.load(self._cast(pointer, self.vector), align=1)

    def store(self, value: Any, pointer: Any) -> None:
        """Writes a vector to any address, aligned or not."""
        self.builder.store(value, self._cast(pointer, value.type), align=1)

    def splat(self, scalar: Any) -> Any:
        """Returns a vector with the number in every lane.

        LLVM has no instruction for that: it puts the number into lane 0, and copies this lane to
        all.
        """
        kind = ir.VectorType(scalar.type, self.lanes)
        undefined = ir.Constant(kind, ir.Undefined)
        single = self.builder.insert_element(undefined, scalar, _I32(0))
        order = self.full(ir.VectorType(_I32, self.lanes), 0)
        return self.builder.shuffle_vector(single, undefined, order)

    def lanes_below(self, first: int, count: Any) -> Any:
        """Returns a mask of the lanes whose numbers, from `first` on, are less than `count`."""
        numbers = [first + lane for lane in range(self.lanes)]
        lane = ir.Constant(ir.VectorType(_I64, self.lanes), numbers)
        return self.builder.icmp_signed("<", lane, self.splat(count))

    def sums(
        self,
        *counts: int,
    ) -> dict[tuple[int, ...], Any]:
        """Allocates vectors of zeros, which LLVM keeps in registers.

        Args:
            counts: how many there are along each axis.

        Returns:
            A pointer to each, by its index along the axes.
        """
        slots = {}
        for index in np.ndindex(*counts):
            slots[index] = _allocate(self.builder, self.vector)
            self.builder.store(self.zero, slots[index])
        return slots

    def add_product(self, slot: Any, a: Any, b: Any) -> None:
        """Adds the product a · b to the vector of `sums` that `slot` points to."""
        product = self.builder.fmul(a, b, flags=_FUSED)
        total = self.builder.fadd(product, self.builder.load(slot), _FUSED)
        self.builder.store(total, slot)

    def _cast(self, pointer: Any, kind: Any) -> Any:
        """Returns a pointer to values of this type at the same address."""
        return self.builder.bitcast(pointer, kind.as_pointer())


def _vectorised(emit_code: Callable[[_Emitter], None]) -> Any:
    """Returns an intrinsic (arrays, numbers, static) -> None from a function that emits it."""

    def make(
        _typing: Any,
        arrays: Any,
        numbers: Any,
        static: Any,
    ) -> Any:
        """Returns numba's signature for these types of arguments, and the code generator."""

        def generate(
            context: Any,
            builder: Any,
            signature: Any,
            args: Any,
        ) -> Any:
            """Emits the function's code where numba builds it."""
            emit_code(_Emitter(context, builder, signature, args))
            return context.get_dummy_value()

        return types.void(arrays, numbers, static), generate

    make.__name__ = emit_code.__name__
    make.__doc__ = emit_code.__doc__
    return cast(Any, intrinsic)(make)


@_vectorised
def convolve(emit: _Emitter) -> None:
    """Convolves one vector of output channels at adjacent positions, some rows by some columns.

    out[r, c] = bias + Σ_ij w[i, j] · x[i + r · down, j + c · step] is summed in registers, one for
    each position.

    `arrays`: x, w, bias, out. `numbers`: their starts, the distance `down` of two positions' rows
    in x, the length of an image row, rows and row length of a patch, and the distances of two
    positions' rows and columns in out. `static`: lanes, rows, columns, distance `step` of columns.
    """
    builder = emit.builder
    x_at, w_at, bias_at, out_at, down, row_length, height, width, out_down, out_across = (
        emit.numbers
    )
    rows, columns, step = emit.sizes
    sums = emit.sums(rows, columns)
    bias = emit.load(emit.at(2, bias_at))
    for slot in sums.values():
        builder.store(bias, slot)
    with cgutils.for_range(builder, height) as i:
        x_row = emit.at(0, x_at, (i.index, row_length))
        w_row = emit.at(1, w_at, (i.index, width, emit.lanes))
        # By row of positions: the row of the image that meets row i of the patch.
        row_pointers = [emit.at(x_row, (down, r)) for r in range(rows)]
        with cgutils.for_range(builder, width) as j:
            weight = emit.load(emit.at(w_row, (j.index, emit.lanes)))
            for (r, c), slot in sums.items():
                value = builder.load(emit.at(row_pointers[r], j.index, c * step))
                emit.add_product(slot, weight, emit.splat(value))
    for (r, c), slot in sums.items():
        target = emit.at(3, out_at, (out_down, r), (out_across, c))
        emit.store(builder.load(slot), target)


DEAD = 255  # in place of the winner's number if the ReLU makes the window's output 0


@_vectorised
def pool(emit: _Emitter) -> None:
    """Writes the largest entries of one window, a vector of channels, and their numbers or DEAD.

    `arrays`: x, floor, out, marks; `numbers`: the start in x, the start in out and marks, and the
    distances of two rows and columns in x. `static`: lanes, rows and columns of a window.
    """
    builder = emit.builder
    x_at, out_at, down, across = emit.numbers
    entries = []
    for i, j in np.ndindex(*emit.sizes):
        entry = emit.at(0, x_at, (down, i), (across, j))
        entries.append(emit.load(entry))
    best = entries[0]
    mark = emit.full(emit.byte_vector, 0)
    for k, value in enumerate(entries[1:], start=1):
        # The first of equals, and NaN, win as in torch.
        above = builder.fcmp_ordered(">", value, best)
        wins = builder.or_(above, builder.fcmp_unordered("!=", value, value))
        best = builder.select(wins, value, best)
        mark = builder.select(wins, emit.full(emit.byte_vector, k), mark)
    floor = emit.splat(builder.load(emit.at(1)))
    dead = builder.fcmp_ordered("<=", best, floor)
    best = builder.select(dead, floor, best)
    mark = builder.select(dead, emit.full(emit.byte_vector, DEAD), mark)
    emit.store(best, emit.at(2, out_at))
    emit.store(mark, emit.at(3, out_at))


@_vectorised
def unpool(emit: _Emitter) -> None:
    """Adds the gradients of one window, a vector of channels, to the positions that won.

    `arrays`: g, marks, and gradients by position; `numbers`: the start in g and marks, that of the
    window, the distances of two positions' rows and columns, and the number of channels from there
    on: lanes beyond these add 0. `static` is that of `pool`.
    """
    builder = emit.builder
    g_at, grid_at, down, across, channels = emit.numbers
    g = emit.load(emit.at(0, g_at))
    marks = builder.bitcast(emit.at(1, g_at), emit.byte_vector.as_pointer())
    mark = builder.load(marks, align=1)
    inside = emit.lanes_below(0, channels)
    for k, (i, j) in enumerate(np.ndindex(*emit.sizes)):
        target = emit.at(2, grid_at, (down, i), (across, j))
        wins = builder.icmp_unsigned("==", mark, emit.full(emit.byte_vector, k))
        gradient = builder.select(builder.and_(wins, inside), g, emit.zero)
        emit.store(builder.fadd(emit.load(target), gradient), target)


@_vectorised
def gather(emit: _Emitter) -> None:
    """Writes out[r, c] = Σ_i g[i] · x[start[i] + r · row_length + c]: a sum of patches of an image.

    From column `width` on, out is 0. Squares of out are added to a vector.

    `arrays`: x, start, g, out, squares. `numbers`: where to begin in x, in start and g, and in out;
    the number of starts; the length of an image row; the width of a patch. `static`: lanes of a
    vector, rows of a patch, vectors in each row.
    """
    builder = emit.builder
    x_offset, start_offset, out_offset, count, row_length, width = emit.numbers
    rows, vectors = emit.sizes
    sums = emit.sums(rows, vectors)
    (squares,) = emit.sums(1).values()
    with cgutils.for_range(builder, count) as e:
        start = builder.load(emit.at(1, start_offset, e.index))
        patch = emit.at(0, x_offset, builder.sext(start, _I64))
        g = emit.splat(builder.load(emit.at(2, start_offset, e.index)))
        for (r, v), slot in sums.items():
            x = emit.load(emit.at(patch, (row_length, r), v * emit.lanes))
            emit.add_product(slot, g, x)
    builder.store(emit.load(emit.at(4)), squares)
    for vector, slot in enumerate(sums.values()):
        column = vector % vectors * emit.lanes
        inside = emit.lanes_below(column, width)
        total = builder.select(inside, builder.load(slot), emit.zero)
        emit.store(total, emit.at(3, out_offset, vector * emit.lanes))
        emit.add_product(squares, total, total)
    emit.store(builder.load(squares), emit.at(4))


@_vectorised
def scatter(emit: _Emitter) -> None:
    """Adds Σ_e g[list[e]] · w[list[e]] to some rows of one patch of an image.

    `arrays`: the image; g, a number for each output; w, the weights of each output, row by row as
    the patch; and the list of outputs. `numbers`: where to start in the first three; the lengths of
    the list, of an image row, and of an output's weights. `static`: lanes, rows of the patch, and
    vectors in each.
    """
    builder = emit.builder
    image_at, g_at, w_at, count, row_length, weights_length = emit.numbers
    rows, vectors = emit.sizes
    sums = emit.sums(rows, vectors)
    with cgutils.for_range(builder, count) as e:
        output = builder.load(emit.at(3, e.index))
        g = emit.splat(builder.load(emit.at(1, g_at, output)))
        weights = emit.at(2, w_at, (output, weights_length))
        for n, slot in enumerate(sums.values()):
            w = emit.load(emit.at(weights, n * emit.lanes))
            emit.add_product(slot, g, w)
    for (r, v), slot in sums.items():
        target = emit.at(0, image_at, (row_length, r), v * emit.lanes)
        total = builder.fadd(emit.load(target), builder.load(slot))
        emit.store(total, target)
