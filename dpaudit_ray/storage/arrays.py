"""Named arrays as a Parquet file, whose pages have checksums; numbers only, so nothing is pickled.

A row is an array, or a piece of one: `name`, `dtype` (NumPy's, with its byte order), `shape` (of
the whole array) and `content`, its bytes in C order.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from . import decoding, scores

Arrays = Mapping[str, npt.NDArray[Any]]

SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("dtype", pa.string()),
        ("shape", pa.list_(pa.int64())),
        ("content", pa.large_binary()),
    ]
)
_KINDS = "biuf"  # of dtypes: bool, int, unsigned int, float
_PIECE = 2**26  # bytes of a row: a page of Parquet holds less than 2**31


def checked(arrays: Any, whose: str) -> Arrays:
    """`found`, if it is arrays of numbers by name; `whose` says of what in the TypeError else."""
    if not isinstance(arrays, Mapping):
        raise TypeError(f"{whose} gave a {type(arrays).__name__}, not arrays by name")
    for name, array in arrays.items():
        if not isinstance(name, str) or not isinstance(array, np.ndarray):
            kind = type(array).__name__
            raise TypeError(f"{whose} gave a {kind} as {name!r:.40}, not a NumPy array by name")
        if array.dtype.kind not in _KINDS:
            raise TypeError(f"{whose} gave {name} of type {array.dtype}; it must hold numbers")
    return dict(arrays)


def encoded(arrays: Arrays) -> bytes:
    """The file."""
    rows = [row for name, array in arrays.items() for row in _rows(name, array)]
    table = pa.Table.from_pylist(rows, SCHEMA)
    content = scores.encoded(table)
    if 2 * table.nbytes > decoding.most_decoded(len(content)):  # such as a gradient of zeros
        return scores.encoded(table, compression="none")
    return content


def decoded(content: bytes) -> Arrays:
    """The inverse; raises OSError, ValueError or ArrowException where `content` is damaged."""
    table = scores.decoded(content, lambda names: SCHEMA)
    if any(column.null_count for column in table.columns):
        raise ValueError("it has an array that lacks a value")
    pieces: dict[str, list[bytes]] = {}
    kinds: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
    for row in table.to_pylist():
        pieces.setdefault(row["name"], []).append(row["content"])
        try:
            kinds[row["name"]] = np.dtype(row["dtype"]), tuple(row["shape"])
        except TypeError as error:
            raise ValueError(f"it has an array of {row['dtype']!r:.40}") from error
    return {name: _array(b"".join(parts), *kinds[name]) for name, parts in pieces.items()}


def same(left: Arrays, right: Arrays) -> bool:
    """Whether both hold the same arrays, bit for bit."""
    return encoded(left) == encoded(right)


def _rows(name: str, array: npt.NDArray[Any]) -> list[dict[str, Any]]:
    content = array.tobytes()
    head = {"name": name, "dtype": array.dtype.str, "shape": list(array.shape)}
    starts = range(0, max(len(content), 1), _PIECE)
    return [head | {"content": content[start : start + _PIECE]} for start in starts]


def _array(content: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """The bytes of a file as numbers. Raises ValueError where they are not so many."""
    if dtype.kind not in _KINDS or min(shape, default=0) < 0:
        raise ValueError(f"it has an array of {dtype}, shape {shape}")
    if math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError(f"an array of shape {shape} has {len(content)} bytes")
    return np.frombuffer(bytearray(content), dtype).reshape(shape)
