"""A user's own arrays from an .npz file."""

from __future__ import annotations

import zipfile
from typing import Literal

import numpy as np

from ..errors import DataError
from .base import Data, Dataset, checked, existing_file, standardized


class Npz(Data):
    """Arrays `x` and `y` of an .npz file.

    uint8 images [N, H, W, channels] become float32 in 0..1, [N, channels, H, W]; other arrays
    are taken as they are, or column by column to mean 0 and deviation 1 with `standardize`.
    """

    name: Literal["npz"] = "npz"
    path: str
    standardize: bool = False

    def load(self) -> Dataset:
        """Reads the file without unpickling anything."""
        remedy = "write one with numpy.savez(path, x=..., y=...)"
        file = existing_file(self.path, self.name, remedy)
        try:
            with np.load(file, allow_pickle=False) as archive:
                missing = {"x", "y"} - set(archive.files)
                if missing:
                    raise DataError(f"{file}: array {sorted(missing)[0]} is missing; {remedy}")
                x, y = archive["x"], archive["y"]
        except (ValueError, OSError, zipfile.BadZipFile) as error:
            raise DataError(
                f"{file}: not a readable .npz file of plain arrays; {remedy}"
            ) from error
        return checked(self._features(x, str(file)), self._labels(y, str(file)), str(file))

    def _features(self, x: np.ndarray, source: str) -> np.ndarray:
        if not (np.issubdtype(x.dtype, np.number) or x.dtype == np.bool_) or x.ndim < 2:
            raise DataError(f"{source}: x must be numbers [N, ...], got {x.dtype} {x.shape}")
        if self.standardize:
            flat = standardized(x.reshape(len(x), -1).astype(np.float64))
            return flat.reshape(x.shape)
        if x.dtype == np.uint8 and x.ndim == 4:
            return np.ascontiguousarray(x.transpose(0, 3, 1, 2)).astype(np.float32) / 255
        return x.astype(np.float32)

    @staticmethod
    def _labels(y: np.ndarray, source: str) -> np.ndarray:
        if y.ndim != 1 or not (np.issubdtype(y.dtype, np.integer) or y.dtype == np.bool_):
            raise DataError(f"{source}: y must be integer classes [N], got {y.dtype} {y.shape}")
        return y.astype(np.int64)
