"""Gaussian noise for a whole pack of models, from one generator per pack.

On a CPU the numbers are NumPy's. On a GPU they are computed from a counter by integer arithmetic
alone, so that every kind of GPU, and a CPU, draws the same bits from one seed, which torch's own
generator does not: Philox gives random words, and piecewise polynomials of the normal quantile
turn words into normals.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class CpuNoise:
    """NumPy's SFC64, keyed by all 128 bits of a seed: torch keeps 32, too few for 10,000 packs."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.SFC64(seed))

    def fill(self, out: Tensor) -> None:
        """Fills a contiguous float32 or float64 tensor in memory order."""
        array = out.numpy()
        self._generator.standard_normal(dtype=array.dtype, out=array)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Returns four words of SFC64, and the half word that float32 may have left over."""
        current = self._generator.bit_generator.state
        half_word = [current["has_uint32"], current["uinteger"]]
        return {"sfc64": np.array([*current["state"]["state"], *half_word], dtype=np.uint64)}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continues from `state`. Raises KeyError for the state of another generator."""
        *words, has_half_word, half_word = state["sfc64"]
        self._generator.bit_generator.state = {
            "bit_generator": "SFC64",
            "state": {"state": np.array(words, dtype=np.uint64)},
            "has_uint32": int(has_half_word),
            "uinteger": int(half_word),
        }


_BLOCKS_AT_ONCE = 1 << 22  # intermediate results of so many blocks take some 600 MiB


class GpuNoise:
    """Philox, all 128 bits of the seed in its key and counter, with the methods of `CpuNoise`."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._key, self._upper = seed % 2**64, seed >> 64
        self._device = device
        self._next_block = 0

    def fill(self, out: Tensor) -> None:
        flat = out.view(-1)
        for first in range(0, len(flat), 2 * _BLOCKS_AT_ONCE):
            part = flat[first : first + 2 * _BLOCKS_AT_ONCE]
            start, count = self._next_block + first // 2, (len(part) + 1) // 2
            lower = torch.arange(start, start + count, dtype=torch.int64, device=self._device)
            upper = (torch.full_like(lower, w) for w in (self._upper & _WORD, self._upper >> 32))
            words = philox(self._key, (lower & _WORD, (lower >> 32) & _WORD, *upper))
            drawn = torch.stack([normals(*words[:2]), normals(*words[2:])], dim=-1).view(-1)
            part.copy_(drawn[: len(part)]).mul_(UNIT)  # one rounding: a power of two keeps all bits
        self._next_block += (len(flat) + 1) // 2

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return {"philox4x32": np.array([self._next_block], dtype=np.uint64)}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        self._next_block = int(state["philox4x32"][0])


# Philox4x32-10: multipliers, key increments and rounds of Salmon et al. (2011), section 3.3.
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_WORD = 0xFFFFFFFF


def noise_source(seed: int, device: torch.device) -> CpuNoise | GpuNoise:
    """Returns the generator that belongs to `device`; `seed` has 128 bits."""
    return CpuNoise(seed) if device.type == "cpu" else GpuNoise(seed, device)


def philox(key: int, counter: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Returns four words of 32 random bits for each counter, int64 each (Philox4x32-10).

    `key` has 64 bits, `counter` four words of 32, int64 each, the lowest first.
    """
    a, b, c, d = counter
    first, second = key & _WORD, key >> 32 & _WORD
    for _ in range(_ROUNDS):
        # The product's low 64 bits are right however they are read; so are its words.
        left, right = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (
            ((right >> 32) & _WORD) ^ b ^ first,
            right & _WORD,
            ((left >> 32) & _WORD) ^ d ^ second,
            left & _WORD,
        )
        first, second = (first + _WEYL[0]) & _WORD, (second + _WEYL[1]) & _WORD
    return a, b, c, d


# The highest of 64 random bits is a normal's sign. The others are a number v below 2^63 that stands
# for the tail probability (v + 1/2) / 2^64. The place of v's leading one (an octave) and the three
# bits behind it choose a polynomial in the remaining bits, in fixed point: products and shifts of
# integers are the same on every device.
COEFFICIENTS = Path(__file__).with_name("normals.npy")
OCTAVES, PARTS, DEGREE = 63, 8, 5
UNIT = 2.0**-28  # of the fixed-point result: 600 times finer than float32 is at 1
_ARGUMENT_BITS = 31
_HALF = 1 << (_ARGUMENT_BITS - 1)  # for rounding to nearest


def fitted_coefficients() -> npt.NDArray[np.int64]:
    """Computes the stored table, in `UNIT`s, int64 [OCTAVES * PARTS, DEGREE + 1], highest first.

    Interpolates the normal quantile at Chebyshev's points, within three units of Φ⁻¹ up to 8.9 (all
    but one draw in 2^60). `python -m dpaudit_ray.engines.noise` writes the table.
    """
    from scipy import special

    nodes = (1 - np.cos((np.arange(DEGREE + 1) + 0.5) * np.pi / (DEGREE + 1))) / 2
    octave, part = np.divmod(np.arange(OCTAVES * PARTS), PARTS)
    tail = 2.0 ** -(octave[:, None] + 2.0) * (1 + (part[:, None] + nodes) / PARTS)
    powers = np.linalg.solve(np.vander(nodes), -special.ndtri(tail).T).T
    return np.rint(powers / UNIT).astype(np.int64)


@functools.cache
def _coefficients(device: torch.device) -> Tensor:
    stored = np.ascontiguousarray(np.load(COEFFICIENTS, allow_pickle=False))
    return torch.from_numpy(stored).to(device)


def normals(high: Tensor, low: Tensor) -> Tensor:
    """Returns normals in `UNIT`s, int64, from two words of 32 random bits each, int64 alike."""
    size = high & 0x7FFFFFFF
    nonzero_word = torch.where(size > 0, size, low).clamp(min=1)
    # The exponent of a float64 is the place of the leading one: exact below 2^53.
    leading = (nonzero_word.to(torch.float64).view(torch.int64) >> 52) - 1023
    octave = torch.where(size > 0, 30 - leading, 62 - leading)
    # Without the leading one, and moved up until 63 bits are full again.
    rest = (((size << 32) | low) << (octave + 1)) & 0x7FFFFFFFFFFFFFFF
    rows = _coefficients(high.device)[octave * PARTS + (rest >> 60)]
    argument = (rest >> 29) & 0x7FFFFFFF
    value = rows[..., 0]
    for power in range(1, DEGREE + 1):
        value = rows[..., power] + ((value * argument + _HALF) >> _ARGUMENT_BITS)
    return torch.where(high >> 31 > 0, -value, value)


if __name__ == "__main__":
    np.save(COEFFICIENTS, fitted_coefficients(), allow_pickle=False)
