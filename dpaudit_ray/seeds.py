"""Seeds and bits: keyed hashes of names, never a shared stream, give every random number.

Bits depend on (sweep seed, audit, trial) only, so they do not change with pack boundaries,
retries or the number of trials. Noise depends on (sweep seed, audit, first trial of the pack).
The two never share a key, so no scorer can learn a bit from a noise seed.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

_BITS_PER_BLOCK = 512  # one BLAKE2b digest


def derive(*parts: str | int) -> int:
    """A 128-bit seed that is a function of the texts of `parts` alone: 1 and "1" are the same.

    A control character stands between them, so that ("a", "b") and ("ab",) differ.
    """
    return int.from_bytes(_digest(parts, 16), "big")


def bits(seed: int, audit: str, first: int, last: int) -> npt.NDArray[np.bool_]:
    """Secret bits of trials first..last (inclusive): fair, independent, bool [last - first + 1]."""
    blocks = range(first // _BITS_PER_BLOCK, last // _BITS_PER_BLOCK + 1)
    raw = b"".join(_digest(("bits", seed, audit, block), 64) for block in blocks)
    stream = np.unpackbits(np.frombuffer(raw, dtype=np.uint8)).astype(np.bool_)
    start = blocks.start * _BITS_PER_BLOCK
    return stream[first - start : last - start + 1]


def noise_seed(seed: int, audit: str, first: int) -> int:
    """Seed of everything random inside the pack that starts at trial `first`."""
    return derive("noise", seed, audit, first)


def _digest(parts: tuple[str | int, ...], size: int) -> bytes:
    return hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=size).digest()
