"""What a data set is: arrays in memory, float32 features and integer classes."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from ..plugins import Plugin


@dataclasses.dataclass(frozen=True)
class Dataset:
    """`x` float32 [N, ...] (images in channel order), `y` int64 [N] in 0..classes-1."""

    x: npt.NDArray[np.float32]
    y: npt.NDArray[np.int64]

    @property
    def classes(self) -> int:
        """Number of classes: one more than the largest label."""
        return int(self.y.max()) + 1


class Data(Plugin):
    """Base of all data sets. `path` locates a file and is no part of a run's identity."""

    kind: ClassVar[str] = "data set"
    home: ClassVar[str] = "dpaudit_ray.data"
    locations: ClassVar[frozenset[str]] = frozenset({"path"})

    @abstractmethod
    def load(self) -> Dataset:
        """Reads the data. Raises DataError in one line when it cannot be had."""


def existing_file(path: str, what: str, remedy: str) -> Path:
    """The file at `path`, or a DataError that says where it was looked for and how to get it."""
    found = Path(path)
    if not found.is_file():
        raise DataError(
            f"{what}: no file at {found.absolute()} nor beside the sweep file; {remedy}"
        )
    return found


def standardized(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Columns with mean 0 and standard deviation 1; constant columns become 0. x is [N, d]."""
    spread = x.std(axis=0)
    scaled: npt.NDArray[np.float64] = (x - x.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return scaled.astype(np.float32)


def checked(x: npt.NDArray[np.float32], y: npt.NDArray[np.int64], source: str) -> Dataset:
    """The arrays as a data set, or a DataError naming what is wrong with them."""
    if len(x) != len(y) or len(x) == 0:
        raise DataError(f"{source}: x has {len(x)} rows and y has {len(y)}; both need the same")
    if not np.isfinite(x).all():
        row = int(np.argwhere(~np.isfinite(x))[0][0])
        raise DataError(f"{source}: x has a NaN or infinite value in row {row}; clean the data")
    if y.min() < 0 or int(y.max()) < 1:
        raise DataError(f"{source}: y must hold classes 0, 1, ..., got {y.min()}..{y.max()}")
    return Dataset(np.ascontiguousarray(x), np.ascontiguousarray(y))
