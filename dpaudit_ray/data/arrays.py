"""A user's own arrays from an .npz file."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import yaml
from pydantic import Field

from ..errors import DataError
from ..storage import decoding, strangers
from .base import Data, Dataset, checked, existing_file, require_finite, scaled_images, standardized

_REMEDY = "write one with numpy.savez(path, x=..., y=...)"
_MOST_CHANNELS = 4  # channels of an image at most
_MOST_LISTED = 8  # values that a message lists at most


class Npz(Data):
    """Arrays `x` and `y` of an .npz file.

    uint8 images [N, H, W, channels] become float32 in 0..1, [N, channels, H, W]; other arrays
    are used unchanged. `standardize` gives every feature mean 0 and deviation 1, which the claim
    does not cover if the records are private. `y` are classes 0, 1, ..., or values that
    `label_order` lists in that order, or any numbers for `regression`.
    """

    name: Literal["npz"] = "npz"
    path: str  # the file
    standardize: bool = False  # give every feature mean 0, deviation 1
    label_order: list[str | int | float] = Field(default=[])  # values of classes 0, 1, ...
    regression: bool = False  # y are numbers to learn

    def read(self) -> Dataset:
        x, y, source = read_npz(self.path, self.name)
        y = labels(y, f"{source}: y", self.label_order, regression=self.regression)
        return checked(self._features(x, source), y, source)

    def _features(self, x: np.ndarray, source: str) -> np.ndarray:
        """Returns features as `Npz` describes them.

        Raises DataError if x is not an array of finite numbers, or has images with channels first.
        """
        if x.dtype.kind not in "fiub" or x.ndim < 2:
            kind = "text" if x.dtype.kind in "SU" else x.dtype
            problem = f"x must be real numbers [N, ...], got {kind} {x.shape}"
            raise DataError(f"{source}: {problem}; a table with text is read as a CSV file")
        require_finite(x, source)
        has_images = x.dtype == np.uint8 and x.ndim == 4  # other arrays are not converted
        if has_images and x.shape[3] > _MOST_CHANNELS >= x.shape[1]:
            raise DataError(
                f"{source}: x are images {list(x.shape)}, with channels first; uint8 images are "
                "[N, H, W, channels]: write x.transpose(0, 2, 3, 1)"
            )
        if self.standardize:
            return standardized(x.transpose(0, 3, 1, 2) if has_images else x)
        return scaled_images(x) if has_images else x


def read_npz(path: str, what: str) -> tuple[np.ndarray, np.ndarray, str]:
    """Reads arrays from an .npz file; nothing is unpickled.

    Args:
        path: path of the file.
        what: name of the data set, for errors.

    Returns:
        Arrays `x` and `y`, and the file's name for errors.

    Raises:
        DataError: the file cannot be read, or lacks `x` or `y`.
    """
    file = existing_file(path, what, _REMEDY)
    try:
        # `mmap_mode` keeps numpy from reading a bare .npy, which is refused.
        with np.load(file, mmap_mode="r", allow_pickle=False) as archive:
            arrays = _bounded_arrays(archive, stored=decoding.stored_bytes(file))
    except strangers.StrangeFileError as error:
        raise DataError(f"{file}: {error}; write it uncompressed, with numpy.savez") from error
    except Exception as error:  # numpy, zipfile and zlib raise many kinds for a damaged file
        if "Object arrays" in str(error):
            raise DataError(
                f"{file}: an array has Python objects, such as text of a table; write x as numbers "
                "and y as text or numbers: y.astype(str), x.astype(float)"
            ) from error
        raise DataError(f"{file}: not a readable .npz file of plain arrays; {_REMEDY}") from error
    for name in "xy":
        if name not in arrays:
            raise DataError(f"{file}: array {name} is missing; {_REMEDY}")
    return arrays["x"], arrays["y"], str(file)


def _bounded_arrays(archive: Any, stored: int) -> dict[str, np.ndarray]:
    """Reads `x` and `y` from an .npz file, unless they are far larger than the file.

    Args:
        archive: the file, as opened by `np.load`.
        stored: size of the file in bytes.

    Returns:
        Those of the two arrays that the file has, by name.

    Raises:
        StrangeFileError: an array is too large for a file of this size. A damaged file raises the
            errors of `np.load`.
    """
    names = [name for name in "xy" if name in archive.files]
    members = [
        member for member in archive.zip.infolist() if member.filename.removesuffix(".npy") in names
    ]
    decoding.require_members(members, stored)
    arrays = {name: archive[name] for name in names}
    # Numbers of values are bounded, too, since empty texts have no bytes.
    for array in arrays.values():
        strangers.require_at_most(array.size, decoding.most_decoded(stored), "values")
    return arrays


def labels(
    y: np.ndarray,
    source: str,
    order: Sequence[str | float] = (),
    regression: bool = False,
) -> np.ndarray:
    """Converts labels to the classes or the numbers that a data set has.

    Args:
        y: labels [N], of any type.
        source: file and name of the labels, for errors.
        order: the values of classes 0, 1, ...; empty if `y` are classes already.
        regression: whether `y` are numbers to learn.

    Returns:
        int64 classes [N], or float32 [N] for `regression`.

    Raises:
        DataError: `y` is no list of classes or numbers, or has a value that `order` lacks.
    """
    # Numpy's letter for the type, or a text that is none of the letters below.
    kind = y.dtype.kind if y.ndim == 1 else "not a list"
    if order and y.ndim == 1:
        classes = {str(value): number for number, value in enumerate(order)}
        cells = [str(cell) for cell in y.tolist()]
        unlisted = sorted(set(cells) - set(classes))
        if unlisted:
            raise DataError(f"{source} has {unlisted[0]!r:.40}; list it in `label_order`, too")
        return np.array([classes[cell] for cell in cells], dtype=np.int64)
    if kind in "OUST":  # objects, or text of any kind
        texts = {str(cell) for cell in y.tolist()}
        values = listed(sorted(texts))
        raise DataError(f"{source} is text; `label_order: {values}` takes its values to 0, 1, ...")
    if regression and kind in "iufb":  # integers, floats or booleans
        return y.astype(np.float32)
    if kind not in "iub":  # neither integers nor booleans
        raise DataError(
            f"{source} must be integer classes [N], got {y.dtype} {y.shape}; convert them, for "
            "example with y.astype(int), or learn numbers: `regression: true` and "
            "`mechanism.loss: mse`"
        )
    return y.astype(np.int64)


def listed(values: Sequence[str | float]) -> str:
    """Returns the first values as a list that can be copied to a sweep file."""
    first = list(values[:_MOST_LISTED])
    if len(values) > _MOST_LISTED:
        first.append("...")
    text = yaml.safe_dump(first, default_flow_style=True, allow_unicode=True, width=10**6)
    return text.strip()
