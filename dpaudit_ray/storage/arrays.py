"""Named arrays as a Parquet file, whose pages have checksums; numbers only, so nothing is pickled.

A row is an array, or a piece of one: `name`, `dtype` (NumPy's, with its byte order), `shape` (of
the complete array) and `content`, its bytes in C order.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from . import decoding, scores

Arrays = Mapping[str, NDArray[Any]]

SCHEMA = pa.schema(
    {
        "name": pa.string(),
        "dtype": pa.string(),
        "shape": pa.list_(pa.int64()),
        "content": pa.large_binary(),
    }
)
_KINDS = "biuf"  # kinds of dtypes: bool, int, unsigned int, float
_PIECE = 2**26  # bytes of a row: a page of Parquet has less than 2**31


def checked(arrays: Any, whose: str) -> Arrays:
    """Returns a copy of a mapping from names to arrays of numbers.

    Args:
        arrays: returned by a user's code.
        whose: the name of that code, for errors.

    Raises:
        TypeError: `arrays` is not such a mapping.
    """
    if not isinstance(arrays, Mapping):
        raise TypeError(f"{whose} gave a {type(arrays).__name__}, not arrays by name")
    for name, array in arrays.items():
        if not isinstance(name, str) or not isinstance(array, np.ndarray):
            raise TypeError(
                f"{whose} gave a {type(array).__name__} as {name!r:.40}, not a NumPy array by name"
            )
        if array.dtype.kind not in _KINDS:
            raise TypeError(f"{whose} gave {name} of type {array.dtype}; it must hold numbers")
    return dict(arrays)


def encoded(arrays: Arrays) -> bytes:
    """Returns the file of these arrays."""
    rows = []
    for name, array in arrays.items():
        content = array.tobytes()
        header = {"name": name, "dtype": array.dtype.str, "shape": list(array.shape)}
        for start in range(0, max(len(content), 1), _PIECE):
            rows.append(header | {"content": content[start : start + _PIECE]})
    table = pa.Table.from_pylist(rows, SCHEMA)
    file = scores.encoded(table)
    if 2 * table.nbytes > decoding.most_decoded(len(file)):  # zeros, say, compress to too little
        return scores.encoded(table, compression="none")
    return file


def decoded(content: bytes) -> Arrays:
    """Returns the arrays of a file.

    Raises:
        OSError, ValueError, pa.ArrowException: the file is damaged.
    """
    contents: dict[str, bytearray] = {}
    kinds = {}
    for row in scores.decoded(content, lambda names: SCHEMA).to_pylist():
        contents.setdefault(row["name"], bytearray()).extend(row["content"])
        kinds[row["name"]] = row["dtype"], row["shape"]
    return {name: _array(contents[name], *kind) for name, kind in kinds.items()}


def same(first: Arrays, second: Arrays) -> bool:
    """Returns whether both are the same arrays, bit for bit."""
    return encoded(first) == encoded(second)


def _array(
    content: bytearray,
    dtype_name: str,
    shape: list[int],
) -> NDArray[Any]:
    """Returns bytes of a file as an array that may be written to.

    Args:
        content: bytes of the numbers.
        dtype_name: name of the type, as NumPy spells it.
        shape: shape of the array.

    Raises:
        ValueError: the type is not one of plain numbers, or shape and size do not agree.
    """
    try:
        dtype = np.dtype(dtype_name)
    except TypeError as error:
        raise ValueError(f"it has an array of {dtype_name!r:.40}") from error
    if dtype.kind not in _KINDS or min(shape, default=0) < 0:
        raise ValueError(f"it has an array of {dtype}, shape {shape}")
    if math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError(f"an array of shape {shape} has {len(content)} bytes")
    return np.frombuffer(content, dtype).reshape(shape)
