"""Vector instructions, spelled out for LLVM.

Compiled loops are cached by the time stamp of their file: see `forward`.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding  # type: ignore[import-untyped]
import numpy as np
from llvmlite import ir
from numba.core import cgutils

I64, I8 = ir.IntType(64), ir.IntType(8)
_I32 = ir.IntType(32)
_FUSED = ("contract",)  # a product and a sum may be one instruction
_allocated: Any = cgutils.alloca_once


def _machine() -> tuple[int, int]:
    """Bytes of a vector register, and how many there are."""
    features = llvmlite.binding.get_host_cpu_features()
    if features.get("avx512f"):
        return 64, 32
    return (32, 16) if features.get("avx") else (16, 32)


_BYTES, REGISTERS = _machine()


def lanes(dtype: np.dtype[Any], wide: int) -> int:
    """Numbers in the vectors that rows of `wide` numbers are cut into: whole or half a register.

    Half where that leaves less empty: two of those are as quick as a whole one.
    """
    whole = _BYTES // dtype.itemsize
    return min((whole, whole // 2), key=lambda size: -wide % size)


class Vectors:
    """Emits vector code: an intrinsic's arguments are `arrays`, `numbers` and sizes by length.

    The first of these sizes is that of a vector.
    """

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
        self.zero = self.full(self.type, 0.0)

    def full(self, kind: Any, value: float) -> Any:
        """A constant vector."""
        return ir.Constant(kind, [value] * self.lanes)

    def at(self, array: int, *offsets: Any) -> Any:
        """A pointer into one of the arrays."""
        pointer = self.pointers[array]
        for offset in offsets:
            pointer = self.builder.gep(pointer, [offset])
        return pointer

    def load(self, pointer: Any) -> Any:
        """A vector from anywhere."""
        return self.builder.load(self._as(pointer, self.type), align=1)

    def store(self, value: Any, pointer: Any) -> None:
        """A vector to anywhere."""
        self.builder.store(value, self._as(pointer, value.type), align=1)

    def splat(self, scalar: Any) -> Any:
        """The number in every lane."""
        kind = ir.VectorType(scalar.type, self.lanes)
        undefined = ir.Constant(kind, ir.Undefined)
        single = self.builder.insert_element(undefined, scalar, _I32(0))
        order = ir.Constant(ir.VectorType(_I32, self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(single, undefined, order)

    def below(self, first: int, count: Any) -> Any:
        """Which lanes, numbered from `first`, are among so many."""
        numbers = [first + lane for lane in range(self.lanes)]
        lane = ir.Constant(ir.VectorType(I64, self.lanes), numbers)
        return self.builder.icmp_signed("<", lane, self.splat(count))

    def sums(self, *counts: int) -> list[Any]:
        """Vectors of zeros, to be kept in registers; the last count runs fastest."""
        slots = [_allocated(self.builder, self.type) for _ in range(int(np.prod(counts)))]
        for slot in slots:
            self.builder.store(self.zero, slot)
        return slots

    def add(self, slot: Any, a: Any, b: Any) -> None:
        """slot += a · b."""
        product = self.builder.fmul(a, b, flags=_FUSED)
        self.builder.store(self.builder.fadd(product, self.builder.load(slot), _FUSED), slot)

    def _as(self, pointer: Any, kind: Any) -> Any:
        return self.builder.bitcast(pointer, kind.as_pointer())
