"""Gaussian noise for a whole pack of models, from one generator per pack.

On a CPU the numbers are NumPy's. On a GPU they are computed from a counter by integer arithmetic
alone, so that every kind of GPU, and a CPU, generates the same bits from one seed, which torch's
own generator does not: Philox gives random words, and piecewise polynomials of the normal quantile
turn words into normals.
"""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import first_line

_LOG = logging.getLogger(__name__)

State = dict[str, NDArray[Any]]


class CpuNoise:
    """NumPy's SFC64, keyed by all 128 bits of a seed: torch keeps 32, too few for 10,000 packs."""

    def __init__(self, seed: int) -> None:
        """Begins the stream of a seed of 128 bits."""
        self._generator = np.random.Generator(np.random.SFC64(seed))

    def fill(self, out: Tensor) -> None:
        """Fills a contiguous float32 or float64 tensor in memory order."""
        array = out.numpy()
        self._generator.standard_normal(dtype=array.dtype, out=array)

    def state(self) -> State:
        """Returns four words of SFC64, whether half a word is unused, and that half word.

        Numbers in float32 take halves of words, so one half may remain.
        """
        current = self._generator.bit_generator.state
        words = current["state"]["state"]
        half_word = [current["has_uint32"], current["uinteger"]]
        return {"sfc64": np.array([*words, *half_word], dtype=np.uint64)}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continues from `state`. Raises KeyError for the state of another generator."""
        *words, has_half_word, half_word = state["sfc64"]
        self._generator.bit_generator.state = {
            "bit_generator": "SFC64",
            "state": {"state": np.array(words, dtype=np.uint64)},
            "has_uint32": int(has_half_word),
            "uinteger": int(half_word),
        }


_BLOCKS_AT_ONCE = 1 << 22  # intermediate results of so many blocks take some 600 MiB
_WORD_MASK = 0xFFFFFFFF  # the 32 bits of a word
_TRIAL_SIZE = 100_001  # numbers on which a compiled kernel is tried
# A block, a key and an upper half of the counter for the trial, in which high bits are set, too.
_TRIAL_STREAM = (5 << 31, (1 << 64) - 3, (1 << 64) - 5)


class GpuNoise:
    """Philox, all 128 bits of the seed in its key and counter, with the methods of `CpuNoise`.

    A block of Philox is four words, which make two normals.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        """Begins the stream of a seed of 128 bits."""
        # Philox 4x32: a key and a counter of 128 bits, whose upper half differs by stream.
        self._key = seed % 2**64
        self._upper = seed >> 64  # upper half of the counter
        self._device = device
        self._next_block = 0

    def fill(self, out: Tensor) -> None:
        """Fills a contiguous tensor in memory order, with the same bits on every device."""
        write = _writer(self._device)
        table = coefficients(self._device)
        for part in torch.split(out.view(-1), 2 * _BLOCKS_AT_ONCE):  # a block makes two normals
            write(part, table, self._next_block, self._key, self._upper)
            self._next_block += (len(part) + 1) // 2  # an odd number leaves one normal unused

    def state(self) -> State:
        """Returns the number of the next block, by the name of the generator."""
        return {"philox4x32": np.array([self._next_block], dtype=np.uint64)}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continues from `state`. Raises KeyError for the state of another generator."""
        self._next_block = int(state["philox4x32"][0])


Word = int | Tensor  # 64 bits: a number, or int64 without dimensions
Writer = Callable[[Tensor, Tensor, int, int, int], None]


def write_normals(
    out: Tensor,
    table: Tensor,
    first_block: Word,
    key: Word,
    upper: Word,
) -> None:
    """Writes normals into a tensor.

    Args:
        out: to be written, float [any number].
        table: the `coefficients`.
        first_block: number of the first block of Philox; each block makes two normals.
        key: key of the stream, 64 bits.
        upper: upper half of the counter, 64 bits, which is the same in all blocks of a stream.
    """
    blocks = torch.arange((len(out) + 1) // 2, device=out.device) + first_block
    zeros = torch.zeros_like(blocks)
    counter = (  # four words of 32 bits, the lowest first
        blocks & _WORD_MASK,
        (blocks >> 32) & _WORD_MASK,
        zeros + (upper & _WORD_MASK),
        zeros + (upper >> 32 & _WORD_MASK),
    )
    a, b, c, d = philox(key, counter)
    pairs = torch.stack([normals(a, b, table), normals(c, d, table)], dim=-1)
    # Only the copy rounds: a product with a power of two keeps all bits.
    out.copy_(pairs.view(-1)[: len(out)]).mul_(UNIT)


@functools.cache
def _writer(device: torch.device) -> Writer:
    """Returns `write_normals`, on a GPU compiled if that works and keeps all bits."""
    if device.type != "cuda":
        return write_normals
    try:
        return compiled_writer(device)
    except Exception as error:  # noqa: BLE001 (there may be no compiler, or another one)
        _LOG.warning("noise is drawn by 200 operations, not by one: %s", first_line(error))
        return write_normals


def compiled_writer(device: torch.device) -> Writer:
    """Returns `write_normals` as one kernel. Raises ArithmeticError if its bits differ."""
    compiled = torch.compile(write_normals, fullgraph=True, dynamic=True)

    def write(out: Tensor, table: Tensor, *numbers: int) -> None:
        """Calls the kernel; `numbers` are the block, the key and the upper half."""
        # As tensors, since torch would compile the kernel again for each number. They are signed:
        # the same 64 bits as int64.
        tensors = []
        for number in numbers:
            signed = number - (number >> 63 << 64)  # 2^64 less if the highest bit is set
            tensors.append(torch.full((), signed, dtype=torch.int64, device=device))
        compiled(out, table, *tensors)

    values = torch.empty(_TRIAL_SIZE, device=device)
    expected = torch.empty_like(values)
    table = coefficients(device)
    write(values, table, *_TRIAL_STREAM)
    write_normals(expected, table, *_TRIAL_STREAM)
    if not torch.equal(values, expected):
        raise ArithmeticError("the compiled kernel has other bits")
    return write


def noise_source(seed: int, device: torch.device) -> CpuNoise | GpuNoise:
    """Returns the generator of noise for a device, with a seed of 128 bits."""
    return CpuNoise(seed) if device.type == "cpu" else GpuNoise(seed, device)


# Philox4x32-10: multipliers, key increments and rounds of Salmon et al. (2011), section 3.3.
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10


def philox(
    key: Word,
    counter: Sequence[Tensor],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns four words of 32 random bits for each counter, int64 each (Philox4x32-10).

    Args:
        key: 64 bits.
        counter: four words of 32 bits, int64 each, the lowest first.
    """
    a, b, c, d = counter
    first_key = key & _WORD_MASK
    second_key = key >> 32 & _WORD_MASK
    for _ in range(_ROUNDS):
        # A product's low 64 bits are right even where int64 overflows; so are its two words.
        a_product = a * _MULTIPLIERS[0]
        c_product = c * _MULTIPLIERS[1]
        a = ((c_product >> 32) & _WORD_MASK) ^ b ^ first_key
        b = c_product & _WORD_MASK
        c = ((a_product >> 32) & _WORD_MASK) ^ d ^ second_key
        d = a_product & _WORD_MASK
        first_key = (first_key + _WEYL[0]) & _WORD_MASK
        second_key = (second_key + _WEYL[1]) & _WORD_MASK
    return a, b, c, d


# The highest of 64 random bits is a normal's sign. The others are a number v below 2^63 that stands
# for the tail probability (v + 1/2) / 2^64. The index of v's leading one (an octave) and the three
# bits behind it choose a polynomial in the remaining bits, in fixed point: products and shifts of
# integers are the same on every device. `tests/engines/normals.py` computes the coefficients,
# int64 [OCTAVES * PARTS, DEGREE + 1], in `UNIT`s, the highest power first.
COEFFICIENTS = Path(__file__).with_name("normals.npy")
OCTAVES = 63
PARTS = 8
DEGREE = 5
UNIT = 2.0**-28  # unit of the fixed-point result: 600 times finer than float32 is at 1
_ARGUMENT_BITS = 31
_HALF = 1 << (_ARGUMENT_BITS - 1)  # added for rounding to nearest
_MANTISSA_BITS = 52  # bits of a float64's mantissa
_EXPONENT_BIAS = 1023


@functools.cache
def coefficients(device: torch.device) -> Tensor:
    """Returns the table of polynomials on a device."""
    table = np.ascontiguousarray(np.load(COEFFICIENTS, allow_pickle=False))
    return torch.from_numpy(table).to(device)


def normals(high: Tensor, low: Tensor, table: Tensor) -> Tensor:
    """Returns normals in `UNIT`s, int64.

    Args:
        high: words of 32 random bits, int64; the highest bit is the sign.
        low: the 32 bits behind them, in the same form.
        table: the `coefficients`.
    """
    high_bits = high & 0x7FFFFFFF  # without the sign
    nonzero_word = torch.where(high_bits > 0, high_bits, low).clamp(min=1)
    # The exponent of a float64 is the index of the leading one: exact below 2^53.
    float_bits = nonzero_word.to(torch.float64).view(torch.int64)
    leading_one = (float_bits >> _MANTISSA_BITS) - _EXPONENT_BIAS
    # The number of zeros before the leading one, among the 63 bits of both words.
    octave = torch.where(high_bits > 0, 30 - leading_one, 62 - leading_one)
    # The bits behind the leading one, filled up to 63 with zeros.
    remaining = (((high_bits << 32) | low) << (octave + 1)) & 0x7FFFFFFFFFFFFFFF
    rows = table[octave * PARTS + (remaining >> 60)]  # the first three bits
    argument = (remaining >> 29) & 0x7FFFFFFF  # the 31 bits behind them
    # The polynomial by Horner's scheme, in fixed point.
    value = rows[..., 0]
    for power in range(1, DEGREE + 1):
        product = value * argument
        value = rows[..., power] + ((product + _HALF) >> _ARGUMENT_BITS)
    return torch.where(high >> 31 > 0, -value, value)
