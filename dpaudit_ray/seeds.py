"""Derives seeds and bits from keyed hashes of names, never from a shared stream.

Bits depend on (sweep seed, audit, trial) only, so they do not change with pack boundaries,
retries or the number of trials. Noise depends on (sweep seed, audit, first trial of the pack).
The two never share a key, so no scorer can learn a bit from a noise seed.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

_BITS_PER_BLOCK = 512  # one BLAKE2b digest


def derive(*parts: str | int) -> int:
    """Returns a 128-bit seed, a function of the texts of `parts`: 1 and "1" are the same.

    A control character separates them, so that ("a", "b") and ("ab",) differ.
    """
    digest = _digest(parts, size=16)
    return int.from_bytes(digest, "big")


def bits(
    seed: int,
    audit: str,
    first: int,
    last: int,
) -> NDArray[np.bool_]:
    """Returns the secret bits of trials, fair and independent.

    Args:
        seed: the sweep's.
        audit: fingerprint of the audit.
        first: the first trial.
        last: the last trial.

    Returns:
        bool [last - first + 1].
    """
    first_block = first // _BITS_PER_BLOCK
    last_block = last // _BITS_PER_BLOCK
    digests = []
    for block in range(first_block, last_block + 1):
        digest = _digest(("bits", seed, audit, block), size=64)
        digests.append(digest)
    raw = np.frombuffer(b"".join(digests), dtype=np.uint8)
    stream = np.unpackbits(raw).astype(bool)
    start = first - first_block * _BITS_PER_BLOCK
    count = last - first + 1
    return stream[start : start + count]


def noise_seed(seed: int, audit: str, first: int) -> int:
    """Returns the seed of everything random inside a pack.

    Args:
        seed: the sweep's.
        audit: fingerprint of the audit.
        first: the first trial of the pack.
    """
    return derive("noise", seed, audit, first)


def _digest(
    parts: tuple[str | int, ...],
    size: int,
) -> bytes:
    """Returns a BLAKE2b digest of the parts, `size` bytes; parts are joined by a separator."""
    name = "\x1f".join(map(str, parts))
    return hashlib.blake2b(name.encode(), digest_size=size).digest()
