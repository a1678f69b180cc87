"""The interface of data sets: arrays in memory, float32 features and classes, or numbers."""

import os
import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ..errors import DataError, DpauditError, SpecError, first_line
from ..plugins import Plugin

Stamps = tuple[tuple[int, ...], ...]
_MOST_CLASSES = 5  # classes that a message lists at most


@dataclass(frozen=True)
class Dataset:
    """Records in memory.

    Attributes:
        x: features, float32 [N, ...]; images have their channels first.
        y: labels [N], int64 classes or float32 numbers.
    """

    x: NDArray[np.float32]
    y: NDArray[np.int64 | np.float32]

    @property
    def classes(self) -> int:
        """Number of classes: one more than the largest label; 0 for regression."""
        return 0 if self.y.dtype.kind == "f" else int(self.y.max()) + 1


class Data(Plugin):
    """Base of all data sets; `path` and `root` locate files, and do not identify a run."""

    kind = "data set"
    home = "dpaudit_ray.data"
    locations = frozenset({"path", "root"})

    records: int | None = Field(default=None, ge=2)  # use the first so many records; null: all

    @abstractmethod
    def read(self) -> Dataset:
        """Reads the data. Raises DataError in one line if that fails."""

    @property
    def has_classes(self) -> bool:
        """Whether labels are classes, and not numbers for the option `regression`."""
        return not getattr(self, "regression", False)

    def files(self) -> tuple[Path, ...]:
        """Returns the files that `read` reads, which may not exist yet; none for bundled data."""
        path = getattr(self, "path", None)
        return () if path is None else (Path(os.path.expanduser(path)).absolute(),)

    @property
    def key(self) -> str:
        """Identifies the data set in this run, by its options and the paths of its files."""
        return f"{self.address} {self!r}"

    def load(self) -> Dataset:
        """Returns the data; a process reads them again only after their files have changed.

        The arrays are shared, also between processes if they came by `provide`: do not write to
        them. Raises the same errors as `read`.
        """
        provided = _PROVIDED.get(self.key)
        if provided is not None:
            return provided
        stamps = _stamps(self.files())
        if stamps is None:
            return self._read_records()
        source = (self.key, stamps)
        if source not in _CACHE:
            dataset = self._read_records()
            if len(_CACHE) == _MOST_CACHED:  # the oldest one is removed
                del _CACHE[next(iter(_CACHE))]
            _CACHE[source] = dataset
        return _CACHE[source]

    def _read_records(self) -> Dataset:
        """Reads the data, and keeps the first `records` of them. Raises DataError in one line."""
        try:
            dataset = self.read()
        except (DpauditError, MemoryError):
            raise
        except Exception as error:  # libraries and plug-ins raise anything for a foreign file
            raise DataError(
                f"{self.name}: cannot be read ({type(error).__name__}: {first_line(error)}); "
                "repair the data, or see --debug"
            ) from error
        count = self.records
        if count is None:
            return dataset
        if count > len(dataset.y):
            problem = f"is {count}, but {self.name} has {len(dataset.y)}; use at most that"
            raise SpecError("mechanism.data.records", problem)
        return checked(dataset.x[:count], dataset.y[:count], f"the first {count} of {self.name}")


_MOST_CACHED = 2  # a data set of images takes hundreds of MB
_CACHE: dict[tuple[str, Stamps], Dataset] = {}  # data by `Data.key`, and by the state of the files
_PROVIDED: dict[str, Dataset] = {}  # data by `Data.key`, which need not be read


def provide(datasets: Mapping[str, Dataset]) -> None:
    """Lets `load` return these data sets, by `Data.key`, instead of reading files."""
    _PROVIDED.update(datasets)


# Nanoseconds after which a change of a file is sure to change its time stamp: the file could change
# twice within the resolution of the stamp, so a newer one is read again each time.
_SETTLED_NS = 2 * 10**9


def _stamps(files: tuple[Path, ...]) -> Stamps | None:
    """Returns stamps that change with the content of `files`; None if these must be read again."""
    try:
        stats = [file.stat() for file in files]
    except (OSError, ValueError):
        return None  # reading reports the problem
    if not stats:
        return None
    age = time.time_ns() - max(stat.st_mtime_ns for stat in stats)
    if age < _SETTLED_NS:
        return None
    return tuple((stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats)


def existing_file(path: str, what: str, remedy: str) -> Path:
    """Returns the file at `path`.

    Args:
        path: may begin with ~.
        what: name of the data set, for errors.
        remedy: how to get the file, for errors, as an imperative.

    Raises:
        DataError: there is no such file.
    """
    file = Path(os.path.expanduser(path))  # pathlib raises for an unknown user, or no home
    if not os.path.isfile(file):
        note = "" if file.is_absolute() else ", nor in the folder of the sweep file"
        if os.path.isdir(file):
            note = ", which is a folder"
        raise DataError(f"{what}: no file at {file.absolute()}{note}; {remedy}")
    return file


def standardized(x: NDArray[np.generic]) -> NDArray[np.float32]:
    """Gives features [N, ...] mean 0 and standard deviation 1; constant ones become 0."""
    features = x.astype(float)
    if len(features) == 0:
        return features.astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # `checked` refuses NaN and infinite values
        deviation = features.std(axis=0)
        features -= features.mean(axis=0)
        features /= np.where(deviation > 0, deviation, 1.0)
        return features.astype(np.float32)


def scaled_images(x: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Converts pixels [N, H, W, channels] in 0..255 to float32 [N, channels, H, W] in 0..1."""
    scaled = x.transpose(0, 3, 1, 2).astype(np.float32, order="C")
    scaled /= 255
    return scaled


def require_finite(x: NDArray[np.generic], source: str, name: str = "x") -> None:
    """Raises DataError if x [N, ...] has a NaN or infinite value.

    Args:
        x: the array, with a record in each row.
        source: file or data set, for the error.
        name: name of the array, for the error.
    """
    rows = np.argwhere(~np.isfinite(x))[:, 0]
    if len(rows):
        raise DataError(
            f"{source}: {name} has a NaN or infinite value in row {rows[0]}; clean the data"
        )


def checked(x: NDArray[np.generic], y: NDArray[np.int64 | np.float32], source: str) -> Dataset:
    """Returns arrays as a data set, with features in float32, after checking both.

    Args:
        x: features [N, ...].
        y: labels [N].
        source: file or data set, for errors.

    Raises:
        DataError: the arrays are empty, differ in length, or have a value that is not finite in
            float32; or labels are not classes 0, 1, ... or numbers.
    """
    if len(x) != len(y):
        raise DataError(f"{source}: x has {len(x)} rows and y has {len(y)}; both need the same")
    if x.size == 0:
        raise DataError(
            f"{source}: holds no data, x is {x.shape}; give two examples with a feature, or more"
        )
    with np.errstate(over="ignore"):  # a value above float32's largest becomes inf, and is refused
        features = np.ascontiguousarray(x, dtype=np.float32)
    # If only float32 makes a value infinite, the message names it.
    was_finite = x.dtype.kind == "f" and np.isfinite(x).all()
    require_finite(features, source, "x, in float32," if was_finite else "x")
    dataset = Dataset(features, np.ascontiguousarray(y))
    if y.dtype.kind == "f":
        require_finite(y, source, "y")
        return dataset
    classes = np.unique(y)
    has_gap = classes[0] != 0 or classes[-1] != len(classes) - 1
    if has_gap or len(classes) < 2:
        first = [str(value) for value in classes[:_MOST_CLASSES]]
        if len(classes) > _MOST_CLASSES:
            first.append("...")
        raise DataError(
            f"{source}: y holds the classes {', '.join(first)}; number two or more of them 0, 1, "
            "... without a gap, list them in `label_order`, or learn them as numbers: "
            "`regression: true`"
        )
    return dataset
