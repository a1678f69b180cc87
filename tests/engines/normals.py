"""Computes the table of `noise.normals`: `python -m tests.engines.normals` writes it."""

import numpy as np
import numpy.typing as npt
from scipy import special

from dpaudit_ray.engines.noise import COEFFICIENTS, DEGREE, OCTAVES, PARTS, UNIT


def fitted_coefficients() -> npt.NDArray[np.int64]:
    """Returns polynomials of the normal quantile by octave and part, in the units of the table.

    They interpolate it at Chebyshev's points, within three units of Φ⁻¹ up to 8.9 (all but one
    number in 2^60).
    """
    nodes = (1 - np.cos((np.arange(DEGREE + 1) + 0.5) * np.pi / (DEGREE + 1))) / 2
    octave, part = np.divmod(np.arange(OCTAVES * PARTS), PARTS)
    tail = 2.0 ** -(octave[:, None] + 2.0) * (1 + (part[:, None] + nodes) / PARTS)
    powers = np.linalg.solve(np.vander(nodes), -special.ndtri(tail).T).T
    return np.rint(powers / UNIT).astype(np.int64)


if __name__ == "__main__":
    np.save(COEFFICIENTS, fitted_coefficients(), allow_pickle=False)
