"""Philox4x32-10 and the normals of `gpu.normals` in one pass: nothing but the result is written.

Torch's operations take some thirty passes over 64-bit integers, 0.6 KB for each pair of numbers;
here 8 bytes leave for each, after about 150 integer instructions: bound by arithmetic.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ..normals import DEGREE, PARTS, UNIT
from . import OPTIONS

BLOCKS = 256  # of four words, by a program: two for each of its 128 threads
WARPS = 4
_UNIT = tl.constexpr(UNIT)
_PARTS = tl.constexpr(PARTS)
_DEGREE = tl.constexpr(DEGREE)


def fill(out: Tensor, table: Tensor, key: int, upper: int, start: int) -> None:
    """As `GpuNoise.fill` into a contiguous vector, from block `start` on.

    Args:
        out: float32 or float64 [m].
        table: coefficients, int64 [octaves * parts, degree + 1], on the same device.
        key: the lower 64 bits of the seed.
        upper: the upper 64 bits of every block's counter.
        start: the lower ones of the first block.
    """
    grid = (triton.cdiv(len(out), 2 * BLOCKS),)
    # As words: an argument's type would follow its size, and each type be compiled anew.
    state = (_signed(word) for word in (key, key >> 32, upper, upper >> 32))
    fill_kernel[grid](
        out, table, len(out), start, *state, BLOCKS=BLOCKS, num_warps=WARPS, **OPTIONS
    )


def _signed(word: int) -> int:
    """The lower 32 bits as Triton takes an int32."""
    low = word & 0xFFFFFFFF
    return low - (1 << 32) if low >> 31 else low


@triton.jit(do_not_specialize=("size", "start", "key", "key_up", "upper", "upper_up"))
def fill_kernel(
    out, table, size: tl.int64, start: tl.int64,
    key: tl.int32, key_up: tl.int32, upper: tl.int32, upper_up: tl.int32,
    BLOCKS: tl.constexpr,
):  # fmt: skip
    """A program writes 2 * BLOCKS numbers."""
    place = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    counter = start + place
    zero = tl.zeros((BLOCKS,), tl.int32)
    words = tl.philox_impl(
        (counter & 0xFFFFFFFF).to(tl.uint32),
        ((counter >> 32) & 0xFFFFFFFF).to(tl.uint32),
        (zero + upper).to(tl.uint32, bitcast=True),
        (zero + upper_up).to(tl.uint32, bitcast=True),
        (zero + key).to(tl.uint32, bitcast=True),
        (zero + key_up).to(tl.uint32, bitcast=True),
    )
    kind = out.dtype.element_ty
    first = normals(words[0].to(tl.int64), words[1].to(tl.int64), table)
    second = normals(words[2].to(tl.int64), words[3].to(tl.int64), table)
    found = tl.interleave(first, second).to(kind) * _UNIT  # rounded once: a power of two
    at = tl.program_id(0).to(tl.int64) * (2 * BLOCKS) + tl.arange(0, 2 * BLOCKS)
    tl.store(out + at, found.to(kind), mask=at < size)


@triton.jit
def normals(high, low, table):
    """As `gpu.normals.normals`, word by word."""
    size = high & 0x7FFFFFFF
    known = (size << 32) | low
    # Without the bit behind the leading one, no rounding to float32 can carry past it.
    clear = tl.where(known > 0, known & ~(known >> 1), 1).to(tl.float32)
    octave = 62 - ((clear.to(tl.int32, bitcast=True) >> 23) - 127).to(tl.int64)
    rest = (known << (octave + 1)) & 0x7FFFFFFFFFFFFFFF
    row = table + (octave * _PARTS + (rest >> 60)) * (_DEGREE + 1)
    argument = (rest >> 29) & 0x7FFFFFFF
    value = tl.load(row)
    for power in tl.static_range(1, _DEGREE + 1):
        value = tl.load(row + power) + ((value * argument + (1 << 30)) >> 31)
    return tl.where(high >> 31 > 0, -value, value)
