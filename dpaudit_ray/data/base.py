"""The interface of data sets: arrays in memory, float32 features and classes, or numbers."""

import dataclasses
import os
import time
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import Field

from ..errors import DataError, DpauditError, SpecError, first_line
from ..plugins import Plugin

Stamps = tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class Dataset:
    """`x` float32 [N, ...] (images in channel order); `y` [N]: int64 classes or float32."""

    x: npt.NDArray[np.float32]
    y: npt.NDArray[np.int64 | np.float32]

    @property
    def classes(self) -> int:
        """Number of classes: one more than the largest label; 0 for regression."""
        return 0 if self.y.dtype.kind == "f" else int(self.y.max()) + 1


class Data(Plugin):
    """Base of all data sets. `path` and `root` locate files and are no part of a run's identity."""

    kind = "data set"
    home = "dpaudit_ray.data"
    locations = frozenset({"path", "root"})

    records: int | None = Field(default=None, ge=2)  # so many of the first only; null: all

    @abstractmethod
    def read(self) -> Dataset:
        """Reads the data. Raises DataError in one line when it cannot be had."""

    @property
    def has_classes(self) -> bool:
        """Whether labels are classes, and not numbers for its option `regression`."""
        return not getattr(self, "regression", False)

    def files(self) -> tuple[Path, ...]:
        """The files that `read` reads, which may not exist yet; none for bundled data."""
        path = getattr(self, "path", None)
        return () if path is None else (Path(os.path.expanduser(path)).absolute(),)

    @property
    def key(self) -> str:
        """Names the data set in this run: its options, and where its files lie."""
        return f"{self.address} {self!r}"

    def load(self) -> Dataset:
        """The data, read once in a process as long as its files stay as they are.

        The arrays are shared, also between processes where they came by `provide`: nobody may write
        to them. Raises as `read`.
        """
        if (provided := _PROVIDED.get(self.key)) is not None:
            return provided
        if (stamps := _stamps(self.files())) is None:
            return self._read_records()
        if (source := (self.key, stamps)) not in _READ:
            dataset = self._read_records()
            if len(_READ) == _KEPT:
                del _READ[next(iter(_READ))]
            _READ[source] = dataset
        return _READ[source]

    def _read_records(self) -> Dataset:
        count = self.records
        try:
            whole = self.read()
        except (DpauditError, MemoryError):
            raise
        except Exception as error:  # libraries and plug-ins raise anything for a foreign file
            raise DataError(
                f"{self.name}: cannot be read ({type(error).__name__}: {first_line(error)}); "
                "repair the data, or see --debug"
            ) from error
        if count is None:
            return whole
        if count > len(whole.y):
            problem = f"is {count}, but {self.name} has {len(whole.y)}; use at most that"
            raise SpecError("mechanism.data.records", problem)
        return checked(whole.x[:count], whole.y[:count], f"the first {count} of {self.name}")


_KEPT = 2  # a data set of images takes hundreds of MB
_READ: dict[tuple[str, Stamps], Dataset] = {}  # by what was read, and the state of its files
_PROVIDED: dict[str, Dataset] = {}


def provide(datasets: Mapping[str, Dataset]) -> None:
    """Lets `load` answer with these instead of reading; by `Data.key`."""
    _PROVIDED.update(datasets)


# A file can change twice within the resolution of its time stamp, so a young one is read anew.
_SETTLED_NS = 2 * 10**9


def _stamps(files: tuple[Path, ...]) -> Stamps | None:
    """Stamps that change with `files`; None where they must be read anew."""
    try:
        stats = [file.stat() for file in files]
    except (OSError, ValueError):
        return None  # reading reports what is wrong
    if not stats or time.time_ns() - max(stat.st_mtime_ns for stat in stats) < _SETTLED_NS:
        return None
    return tuple((stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats)


def existing_file(path: str, what: str, remedy: str) -> Path:
    """The file at `path`, or a DataError that says where it was looked for and how to get it."""
    file = Path(os.path.expanduser(path))  # pathlib raises for an unknown user, or no home
    if not os.path.isfile(file):
        note = "" if file.is_absolute() else ", nor beside the sweep file"
        if os.path.isdir(file):
            note = ", which is a folder"
        raise DataError(f"{what}: no file at {file.absolute()}{note}; {remedy}")
    return file


def standardized(x: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    """Features [N, ...] with mean 0 and standard deviation 1; constant ones become 0."""
    if not len(wide := x.astype(np.float64)):
        return wide.astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # `checked` refuses what came of it
        spread = wide.std(axis=0)
        wide -= wide.mean(axis=0)
        wide /= np.where(spread > 0, spread, 1.0)
        return wide.astype(np.float32)


def scaled_images(x: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Pixels [N, H, W, channels] in 0..255 as float32 [N, channels, H, W] in 0..1."""
    scaled = x.transpose(0, 3, 1, 2).astype(np.float32, order="C")
    scaled /= 255
    return scaled


def require_finite(x: npt.NDArray[np.generic], source: str, name: str = "x") -> None:
    """Raises DataError when x [N, ...] has a NaN or infinite value."""
    if len(strange := np.argwhere(~np.isfinite(x))):
        problem = f"{name} has a NaN or infinite value in row {strange[0][0]}"
        raise DataError(f"{source}: {problem}; clean the data")


def checked(
    x: npt.NDArray[np.generic], y: npt.NDArray[np.int64 | np.float32], source: str
) -> Dataset:
    """The arrays as a data set, or a DataError naming what is wrong with them."""
    if len(x) != len(y):
        raise DataError(f"{source}: x has {len(x)} rows and y has {len(y)}; both need the same")
    if x.size == 0:
        raise DataError(
            f"{source}: holds no data, x is {x.shape}; give two examples with a feature, or more"
        )
    with np.errstate(over="ignore"):  # what does not fit becomes inf, and is refused
        narrow = np.ascontiguousarray(x, dtype=np.float32)
    outgrown = x.dtype.kind == "f" and np.isfinite(x).all()
    require_finite(narrow, source, "x, in float32," if outgrown else "x")
    if y.dtype.kind == "f":
        require_finite(y, source, "y")
        return Dataset(narrow, np.ascontiguousarray(y))
    classes = np.unique(y)
    if len(classes) < 2 or classes[0] != 0 or classes[-1] != len(classes) - 1:
        shown = ", ".join(map(str, classes[:5])) + (", ..." if len(classes) > 5 else "")
        raise DataError(
            f"{source}: y holds the classes {shown}; number two or more of them 0, 1, ... without "
            "a gap, list them in `label_order`, or learn them as numbers: `regression: true`"
        )
    return Dataset(narrow, np.ascontiguousarray(y))
