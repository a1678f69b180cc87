"""A user's own arrays from an .npz file."""

from __future__ import annotations

import zlib
from typing import Literal
from zipfile import BadZipFile

import numpy as np

from ..errors import DataError
from .base import Data, Dataset, checked, existing_file, require_finite, standardized

# numpy, zipfile and zlib each raise their own for a damaged or foreign file.
_DAMAGE = (
    TypeError,  # a bare .npy is no archive
    ValueError,
    OSError,
    EOFError,
    KeyError,
    RuntimeError,
    MemoryError,
    BadZipFile,
    zlib.error,
)
_REMEDY = "write one with numpy.savez(path, x=..., y=...)"


class Npz(Data):
    """Arrays `x` and `y` of an .npz file.

    uint8 images [N, H, W, channels] become float32 in 0..1, [N, channels, H, W]; other arrays
    are taken as they are. With `standardize`, every feature then gets mean 0 and deviation 1.
    """

    name: Literal["npz"] = "npz"
    path: str
    standardize: bool = False

    def load(self) -> Dataset:
        """Reads the file without unpickling anything."""
        file = existing_file(self.path, self.name, _REMEDY)
        try:
            with np.load(file, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in "xy" if name in archive.files}
        except _DAMAGE as error:
            raise DataError(
                f"{file}: not a readable .npz file of plain arrays; {_REMEDY}"
            ) from error
        for name in "xy":
            if name not in arrays:
                raise DataError(f"{file}: array {name} is missing; {_REMEDY}")
        x, y = arrays["x"], arrays["y"]
        return checked(self._features(x, str(file)), _labels(y, str(file)), str(file))

    def _features(self, x: np.ndarray, source: str) -> np.ndarray:
        if x.dtype.kind not in "fiub" or x.ndim < 2:
            raise DataError(f"{source}: x must be real numbers [N, ...], got {x.dtype} {x.shape}")
        require_finite(x, source)
        images = x.dtype == np.uint8 and x.ndim == 4
        ordered = x.transpose(0, 3, 1, 2) if images else x
        if self.standardize:
            return standardized(ordered)
        return ordered.astype(np.float32) / 255 if images else ordered


def _labels(y: np.ndarray, source: str) -> np.ndarray:
    if y.ndim != 1 or y.dtype.kind not in "iub":
        raise DataError(
            f"{source}: y must be integer classes [N], got {y.dtype} {y.shape}; convert them, "
            "for example with y.astype(int)"
        )
    return y.astype(np.int64)
