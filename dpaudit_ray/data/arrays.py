"""A user's own arrays from an .npz file."""

from __future__ import annotations

import zlib
from typing import Literal
from zipfile import BadZipFile

import numpy as np

from ..errors import DataError
from .base import Data, Dataset, checked, existing_file, require_finite, scaled_images, standardized

# numpy, zipfile and zlib each raise their own for a damaged or foreign file.
# (TypeError: a bare .npy is no archive.)
_DAMAGE = (
    TypeError, ValueError, OSError, EOFError, KeyError, RuntimeError, MemoryError, BadZipFile,
    zlib.error,
)  # fmt: skip
_REMEDY = "write one with numpy.savez(path, x=..., y=...)"


class Npz(Data):
    """Arrays `x` and `y` of an .npz file.

    uint8 images [N, H, W, channels] become float32 in 0..1, [N, channels, H, W]; other arrays
    are taken as they are. With `standardize`, every feature then gets mean 0 and deviation 1.
    """

    name: Literal["npz"] = "npz"
    path: str  # the file
    standardize: bool = False  # give every feature mean 0, deviation 1

    def read(self) -> Dataset:
        x, y, source = read_npz(self.path, self.name)
        return checked(self._features(x, source), labels(y, source), source)

    def _features(self, x: np.ndarray, source: str) -> np.ndarray:
        if x.dtype.kind not in "fiub" or x.ndim < 2:
            raise DataError(f"{source}: x must be real numbers [N, ...], got {x.dtype} {x.shape}")
        require_finite(x, source)
        images = x.dtype == np.uint8 and x.ndim == 4
        if self.standardize:
            return standardized(x.transpose(0, 3, 1, 2) if images else x)
        return scaled_images(x) if images else x


def read_npz(path: str, what: str) -> tuple[np.ndarray, np.ndarray, str]:
    """Arrays `x` and `y` of an .npz file, and its name for messages; nothing is unpickled.

    Raises:
        DataError: the file is missing or damaged, or lacks one of them.
    """
    file = existing_file(path, what, _REMEDY)
    try:
        with np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in "xy" if name in archive.files}
    except _DAMAGE as error:
        raise DataError(f"{file}: not a readable .npz file of plain arrays; {_REMEDY}") from error
    for name in "xy":
        if name not in arrays:
            raise DataError(f"{file}: array {name} is missing; {_REMEDY}")
    return arrays["x"], arrays["y"], str(file)


def labels(y: np.ndarray, source: str) -> np.ndarray:
    """`y` as int64 classes [N]. Raises DataError when it holds none."""
    if y.ndim != 1 or y.dtype.kind not in "iub":
        raise DataError(
            f"{source}: y must be integer classes [N], got {y.dtype} {y.shape}; convert them, "
            "for example with y.astype(int)"
        )
    return y.astype(np.int64)
