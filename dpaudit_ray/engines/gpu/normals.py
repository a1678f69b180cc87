"""Standard normals from 64 random bits by integers alone, so that every device finds the same.

The highest bit is the sign, the others a number v below 2^63 that stands for the tail probability
(v + 1/2) / 2^64. Where its leading one lies (one of 63 octaves) and the three bits behind it name
a polynomial in what follows, in fixed point; their table lies beside this file, and
`python -m dpaudit_ray.engines.gpu.normals` writes it. A product and a shift of integers round in
one way everywhere; logarithms, sines and fused sums of floats do not.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

TABLE = Path(__file__).with_name("normals.npy")
OCTAVES, PARTS, DEGREE = 63, 8, 5
UNIT = 2.0**-28  # of the result: 600 times finer than float32 is at 1
_BITS = 31  # of a polynomial's argument
_HALF = 1 << (_BITS - 1)


def table() -> npt.NDArray[np.int64]:
    """Coefficients in units, highest first, int64 [octaves * parts, degree + 1], computed anew.

    Interpolates at Chebyshev's points. Normals are within three units of Φ⁻¹, but for the two
    farthest octaves: beyond 8.9, one draw in 2^60.
    """
    from scipy import special

    nodes = (1 - np.cos((np.arange(DEGREE + 1) + 0.5) * np.pi / (DEGREE + 1))) / 2
    octave, part = np.divmod(np.arange(OCTAVES * PARTS), PARTS)
    share = (part[:, None] + nodes) / PARTS
    tail = 2.0 ** -(octave[:, None] + 2.0) * (1 + share)
    found = np.linalg.solve(np.vander(nodes), -special.ndtri(tail).T).T
    return np.rint(found / UNIT).astype(np.int64)


@functools.cache
def coefficients(device: torch.device) -> Tensor:
    """The stored table, int64 [octaves * parts, degree + 1], row by row."""
    stored = np.ascontiguousarray(np.load(TABLE, allow_pickle=False))
    return torch.from_numpy(stored).to(device)


def normals(high: Tensor, low: Tensor) -> Tensor:
    """Normals in units of 2^-28, int64, from two words of 32 random bits each, int64 alike."""
    size = high & 0x7FFFFFFF
    known = torch.where(size > 0, size, low).clamp(min=1)
    leading = (known.to(torch.float64).view(torch.int64) >> 52) - 1023  # exact below 2^53
    octave = torch.where(size > 0, 30 - leading, 62 - leading)
    # Without the leading one, and moved up until 63 bits are full again.
    rest = (((size << 32) | low) << (octave + 1)) & 0x7FFFFFFFFFFFFFFF
    rows = coefficients(high.device)[octave * PARTS + (rest >> 60)]
    argument = (rest >> 29) & 0x7FFFFFFF
    value = rows[..., 0]
    for power in range(1, DEGREE + 1):
        value = rows[..., power] + ((value * argument + _HALF) >> _BITS)
    return torch.where(high >> 31 > 0, -value, value)


if __name__ == "__main__":
    np.save(TABLE, table(), allow_pickle=False)
