"""Finds the arrays in memory that have a private record in each row, and exchanges records there.

Data are exchanged in memory, never in files.
"""

import contextlib
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten
from torch.utils.data import Dataset, Subset

from .hooks import users_frames
from .tensors import digest

_CANDIDATES = 100  # records that one might be exchanged for
_MOST_PARTS = 10  # of a data set; a longer list is of records
_MOST_ROWS = 200_000  # of an array in which a step's examples are searched


def other_record(data: Any, record: int) -> int:
    """Returns the index of a record to take the place of this one: different in each array."""
    size = len(data)
    if record >= size:
        return record
    arrays = [] if isinstance(data, Subset) else arrays_of(data)
    candidates = [(record + size // 2 + k) % size for k in range(min(size, _CANDIDATES))]
    for index in candidates:
        if all((array[index] != array[record]).any() for array in arrays):
            return index
    return candidates[0]


def exchange(data: Any, record: int) -> None:
    """Puts another record in the place of one, in arrays that a data set has in memory."""
    other = other_record(data, record)
    if other != record:
        if isinstance(data, Subset):
            record, other = data.indices[record], data.indices[other]
        exchange_rows(arrays_of(data), record, other)


def exchange_rows(
    arrays: Sequence[Any],
    record: int,
    other: int,
) -> None:
    """Copies one row over another, in arrays that own their memory."""
    with torch.no_grad():
        for array in arrays:
            if owns_memory(array):
                array[record] = array[other]


def owns_memory(array: Any) -> bool:
    """Returns whether memory is an array's own: no file's, and of no other library."""
    if isinstance(array, torch.Tensor):
        storage = array.untyped_storage()
        if hasattr(storage, "resizable"):
            return bool(storage.resizable())
        with contextlib.suppress(RuntimeError):  # torch 2.2 refuses to resize others
            storage.resize_(storage.nbytes())
            return True
        return False
    return array.base is None and bool(array.flags.writeable)


def arrays_of(data: Any) -> list[Any]:
    """Returns tensors and arrays of numpy that a data set has, with a record in each row."""
    data = data.dataset if isinstance(data, Subset) else data
    parts: list[Any] = []
    for value in getattr(data, "__dict__", {}).values():
        is_short = isinstance(value, (tuple, list)) and len(value) < _MOST_PARTS
        parts += value if is_short else [value]
    arrays = [v for v in parts if isinstance(v, (np.ndarray, torch.Tensor)) and v.ndim > 0]
    return [array for array in arrays if len(array) == len(data)]


def find_tables(examples: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """Finds the arrays of the script that a step's examples are rows of.

    Returns:
        The arrays, and the rows that the examples are; both empty if they are not found.
    """
    tables = _arrays_of_script()
    for table, rows in itertools.product(tables, examples):
        if table.ndim > 1 and same_kind(table, rows):
            numbers = {row: number for number, row in enumerate(row_keys(table))}
            indices = [numbers.get(row, -1) for row in row_keys(rows)]
            if min(indices) >= 0:
                break
    else:
        return [], []
    beside = [t for t in tables if len(t) == len(table) and t is not table]
    labels = []
    for array in beside:
        if any(_are_rows(rows, array, indices) for rows in examples):
            labels.append(array)
    return [table, *labels], indices


def script_values() -> list[Any]:
    """Returns the values of variables of the user's code that is being run."""
    leaves: list[Any] = []
    for frame in users_frames():
        leaves += tree_flatten([dict(frame.f_locals), frame.f_globals])[0]
    return leaves


def _arrays_of_script() -> list[Any]:
    """Returns arrays that may have the records, the longest first: batches are among them."""
    leaves: list[Any] = []
    for value in script_values():
        is_data = isinstance(value, Dataset) and hasattr(value, "__len__")
        leaves += arrays_of(value) if is_data else [value]
    arrays = (v for v in leaves if isinstance(v, torch.Tensor) or _is_numeric(v))
    tables = [a for a in arrays if a.ndim > 0 and len(a) <= _MOST_ROWS and owns_memory(a)]
    return sorted(tables, key=len, reverse=True)


def _is_numeric(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "fiub"


def row_keys(rows: Any) -> Iterator[bytes]:
    """Yields a digest of each row."""
    # Of a copy: memory that numpy has exported does not count as the tensor's own.
    return map(digest, torch.as_tensor(rows).clone())


def same_kind(first: Any, second: Any) -> bool:
    """Returns whether rows of two arrays have the same type and shape."""
    a, b = torch.as_tensor(first), torch.as_tensor(second)
    return a.dtype == b.dtype and a.shape[1:] == b.shape[1:]


def _are_rows(
    rows: Any,
    table: Any,
    indices: list[int],
) -> bool:
    return same_kind(table, rows) and [*row_keys(table[indices])] == [*row_keys(rows)]


def uses_keys() -> bool:
    """Returns whether the script may draw from keys, as JAX does, which no run can replace."""
    return bool({"jax", "tensorflow"} & {*sys.modules})
