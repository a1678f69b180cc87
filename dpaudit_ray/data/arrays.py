"""A user's own arrays from an .npz file."""

import zlib
from collections.abc import Sequence
from typing import Any, Literal
from zipfile import BadZipFile

import numpy as np
import yaml
from pydantic import Field

from ..errors import DataError
from ..storage import decoding, strangers
from .base import Data, Dataset, checked, existing_file, require_finite, scaled_images, standardized

# What numpy, zipfile and zlib raise for a damaged or foreign file; TypeError for a bare .npy.
_DAMAGE = (
    TypeError, ValueError, OSError, EOFError, KeyError, RuntimeError, MemoryError, BadZipFile,
    zlib.error,
)  # fmt: skip
_REMEDY = "write one with numpy.savez(path, x=..., y=...)"
_CHANNELS = 4  # of an image, at most
_SHOWN = 8  # values in a message


class Npz(Data):
    """Arrays `x` and `y` of an .npz file.

    uint8 images [N, H, W, channels] become float32 in 0..1, [N, channels, H, W]; other arrays
    are taken as they are. `standardize` gives every feature mean 0 and deviation 1, which the claim
    does not cover where the records are private. `y` are classes 0, 1, ..., or values that
    `label_order` lists in that order, or any numbers for `regression`.
    """

    name: Literal["npz"] = "npz"
    path: str  # the file
    standardize: bool = False  # give every feature mean 0, deviation 1
    label_order: list[str | int | float] = Field(default=[])  # values of classes 0, 1, ...
    regression: bool = False  # y are numbers to learn

    def read(self) -> Dataset:
        x, y, source = read_npz(self.path, self.name)
        y = labels(y, f"{source}: y", self.label_order, self.regression)
        return checked(self._features(x, source), y, source)

    def _features(self, x: np.ndarray, source: str) -> np.ndarray:
        if x.dtype.kind not in "fiub" or x.ndim < 2:
            kind = "text" if x.dtype.kind in "SU" else x.dtype
            problem = f"x must be real numbers [N, ...], got {kind} {x.shape}"
            raise DataError(f"{source}: {problem}; a table with text is read as a CSV file")
        require_finite(x, source)
        images = x.dtype == np.uint8 and x.ndim == 4
        if images and x.shape[3] > _CHANNELS >= x.shape[1]:
            raise DataError(
                f"{source}: x are images {list(x.shape)}, with channels first; uint8 images are "
                "[N, H, W, channels]: write x.transpose(0, 2, 3, 1)"
            )
        if self.standardize:
            return standardized(x.transpose(0, 3, 1, 2) if images else x)
        return scaled_images(x) if images else x


def read_npz(path: str, what: str) -> tuple[np.ndarray, np.ndarray, str]:
    """Arrays `x` and `y`, and the name for messages; nothing is unpickled. Raises DataError."""
    file = existing_file(path, what, _REMEDY)
    try:
        with np.load(file, mmap_mode="r", allow_pickle=False) as archive:  # a bare .npy is not read
            arrays = _bounded_arrays(archive, stored=decoding.stored_bytes(file))
    except strangers.StrangeFileError as error:
        raise DataError(f"{file}: {error}; write it uncompressed, with numpy.savez") from error
    except _DAMAGE as error:
        if "Object arrays" in str(error):
            raise DataError(
                f"{file}: an array has Python objects, such as text of a table; write x as numbers "
                "and y as text or numbers: y.astype(str), x.astype(float)"
            ) from error
        raise DataError(f"{file}: not a readable .npz file of plain arrays; {_REMEDY}") from error
    if lost := [name for name in "xy" if name not in arrays]:
        raise DataError(f"{file}: array {lost[0]} is missing; {_REMEDY}")
    return arrays["x"], arrays["y"], str(file)


def _bounded_arrays(archive: Any, stored: int) -> dict[str, np.ndarray]:
    """Reads `x` and `y` of an .npz file of `stored` bytes. Raises as `np.load`, or if too large."""
    names = [name for name in ("x", "y") if name in archive.files]
    files = {*names, *(f"{name}.npy" for name in names)}
    decoding.require_members([m for m in archive.zip.infolist() if m.filename in files], stored)
    arrays = {name: archive[name] for name in names}
    for array in arrays.values():  # texts of no characters take no bytes
        strangers.require(array.size, decoding.most_decoded(stored), "values")
    return arrays


def labels(
    y: np.ndarray, source: str, order: Sequence[str | float] = (), regression: bool = False
) -> np.ndarray:
    """`y` [N] as int64 classes, by place in `order`, or float32 for `regression`. Or DataError."""
    kind = y.dtype.kind if y.ndim == 1 else ""
    if kind and order:
        places = {str(value): place for place, value in enumerate(order)}
        cells = [str(cell) for cell in y.tolist()]
        if lost := sorted(set(cells) - set(places)):
            raise DataError(f"{source} has {lost[0]!r:.40}; list it in `label_order`, too")
        return np.array([places[cell] for cell in cells], dtype=np.int64)
    if kind in ("O", "U", "S", "T"):
        values = listed(sorted({str(cell) for cell in y.tolist()}))
        raise DataError(f"{source} is text; `label_order: {values}` takes its values to 0, 1, ...")
    if regression and kind in ("i", "u", "f", "b"):
        return y.astype(np.float32)
    if kind not in ("i", "u", "b"):
        raise DataError(
            f"{source} must be integer classes [N], got {y.dtype} {y.shape}; convert them, for "
            "example with y.astype(int), or learn numbers: `regression: true` and "
            "`mechanism.loss: mse`"
        )
    return y.astype(np.int64)


def listed(values: Sequence[str | float]) -> str:
    """The values as a list in a sweep file, the first of many."""
    shown = [*values[:_SHOWN], "..."] if len(values) > _SHOWN else [*values]
    return yaml.safe_dump(shown, default_flow_style=True, allow_unicode=True, width=10**6).strip()
