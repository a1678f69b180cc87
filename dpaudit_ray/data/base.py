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
    found = Path(path).expanduser()
    if not found.is_file():
        beside = "" if found.is_absolute() else ", nor beside the sweep file"
        raise DataError(f"{what}: no file at {found.absolute()}{beside}; {remedy}")
    return found


def standardized(x: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    """Features [N, ...] with mean 0 and standard deviation 1; constant ones become 0."""
    wide = x.astype(np.float64)
    if len(wide) == 0:
        return wide.astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # `checked` refuses what came of it
        spread = wide.std(axis=0)
        wide -= wide.mean(axis=0)
        wide /= np.where(spread > 0, spread, 1.0)
        return wide.astype(np.float32)


def require_finite(x: npt.NDArray[np.generic], source: str) -> None:
    """Raises DataError when x [N, ...] has a NaN or infinite value."""
    if not np.isfinite(x).all():
        row = int(np.argwhere(~np.isfinite(x))[0][0])
        raise DataError(f"{source}: x has a NaN or infinite value in row {row}; clean the data")


def checked(x: npt.NDArray[np.generic], y: npt.NDArray[np.int64], source: str) -> Dataset:
    """The arrays as a data set, or a DataError naming what is wrong with them."""
    if len(x) != len(y):
        raise DataError(f"{source}: x has {len(x)} rows and y has {len(y)}; both need the same")
    if x.size == 0:
        raise DataError(f"{source}: holds no data, x is {x.shape}; give at least two examples")
    with np.errstate(over="ignore"):  # what does not fit becomes inf, and is refused
        narrow = np.ascontiguousarray(x, dtype=np.float32)
    require_finite(narrow, source)
    found = np.unique(y)
    if len(found) < 2 or found[0] != 0 or found[-1] != len(found) - 1:
        shown = ", ".join(map(str, found[:5])) + (", ..." if len(found) > 5 else "")
        raise DataError(
            f"{source}: y holds the classes {shown}; number two or more of them 0, 1, ... without "
            "a gap"
        )
    return Dataset(narrow, np.ascontiguousarray(y))
