"""Products and rounding inside kernels, compiled or in Triton's interpreter.

The interpreter multiplies bfloat16 as if it were integers, and cuts where a GPU rounds. There,
products are taken of the same numbers in float32, in which each product of two is exact, and
rounding is spelled out; so what it shows of bfloat16 is the kernels' own arithmetic.
"""

from __future__ import annotations

import triton
import triton.language as tl

INTERPRETED: tl.constexpr = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def product(a, b, sums, PRECISION: tl.constexpr):
    """sums + a · b in float32, of two float32 or two bfloat16 blocks."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), sums, input_precision="ieee")
    else:  # noqa: RET505 (without it Triton compiles what follows all the same)
        return tl.dot(a, b, sums, input_precision=PRECISION)


@triton.jit
def rounded(value, kind: tl.constexpr):
    """float32 in another dtype: the nearest, of two the even one."""
    if INTERPRETED and kind == tl.bfloat16:
        bits = value.to(tl.int32, bitcast=True)
        near = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
        value = tl.where(value == value, near.to(tl.float32, bitcast=True), value)
    return value.to(kind)
