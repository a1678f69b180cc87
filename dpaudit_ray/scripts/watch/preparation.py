"""Follows the script's arrays from where they first appear until training is private.

Scales, fillings, selected columns or made-up records that a script computes from all records before
training put a record's values into other prepared records, without noise. To see that, a run
changes some rows of an array right after the script's line that made it, and the prepared records
are compared. A first run changes nothing, and lists the arrays.
"""

import functools
import hashlib
import math
import sys
import time
import weakref
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, StackDataset, TensorDataset

from ..preparation import Numbers
from ..protocol import SUMMARY, Appeared, Prepared, Summary
from . import hooks
from .generators import generators_in, preserve_generators, seed_generators
from .hooks import before, import_if_there
from .run_state import EnoughSeen, WatchedRun
from .tensors import digest, hex_digest, is_array, is_numeric, owns_memory, tree_leaves

_FEWEST_ROWS = 30  # an array with fewer rows is not followed
_MOST_EVENTS = 200_000  # lines of the script that are followed
_MOST_BYTES = 2**28  # size of the largest array that is followed
_MOST_RECORDS = 100_000  # records that are fetched one by one
_MOST_ELEMENTS = 100_000  # elements of a list that is followed
_FETCH_SECONDS = 10.0  # time for fetching records one by one
_MOST_COLUMNS = 20  # columns whose extremes are changed
_MOST_PARTS = 10  # parts of a container with arrays; a longer one is a list of records
_PLAIN = (int, float, bool, complex, str, bytes, type(None))  # classes without parts


def install(run: WatchedRun) -> None:
    """Follows the script from now on, until training becomes private."""
    followed = Followed(run)
    run.followed = followed
    if opacus := import_if_there("opacus"):

        @before(opacus.PrivacyEngine, "make_private")
        def make_private(_: Any, **options: Any) -> None:
            """Ends the following, as training becomes private."""
            followed.end(options["data_loader"].dataset, options)

    sys.settrace(followed.trace)


class Followed:
    """Lists and changes arrays as they appear, and summarises the prepared records at the end."""

    def __init__(self, run: WatchedRun) -> None:
        """Begins before the script's first line; `trace` follows the script."""
        self._run = run
        self._is_over = False
        self._events = 0
        # Arrays that appeared, by identity. Lists have no weak references, and are kept.
        self._known_arrays = weakref.WeakValueDictionary[int, Any]()
        self._known_lists: dict[int, list[Any]] = {}
        self._sizes: dict[int, int] = {}  # how many numbers each had; a table may get more columns
        self._appeared: list[Appeared] = []
        self._line = ""  # line of the script that made what appears at the next event
        self._targets: list[int] = []  # rows that were changed

    def trace(self, frame: FrameType, event: str, value: Any) -> Any:
        """Lists new arrays in the variables of the script's functions after each line.

        Python calls it as a trace function.

        Args:
            frame: the frame of the running code.
            event: kind of the event, such as "line" or "return".
            value: value that a function returns.
        """
        if not hooks.is_users(frame.f_code.co_filename):
            return None
        self._events += 1
        if self._events > _MOST_EVENTS:
            sys.settrace(None)
            return None
        values = list(frame.f_locals.values())
        if event == "return":
            values.append(value)
        try:
            self._list_arrays(values)
        except Exception:  # noqa: BLE001 (objects of the script may raise anything when asked)
            sys.settrace(None)
            return None
        # A line is traced before it runs, so what appears at the next event is from this line.
        self._line = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        return self.trace

    def _list_arrays(self, values: Sequence[Any]) -> None:
        """Lists arrays that are new in these values, and changes those that the request names."""
        request = self._run.request
        for array in _arrays_in(values):
            arrays = self._known_lists if isinstance(array, list) else self._known_arrays
            key = id(array)
            size = math.prod(getattr(array, "shape", ()))  # a list has no shape, and never grows
            is_known = key in arrays
            if is_known and size <= self._sizes[key]:
                continue
            arrays[key] = array
            self._sizes[key] = size
            name = _digest(array)
            if name is None:
                continue
            self._appeared.append(
                Appeared(name, len(array), self._events, self._line, is_grown=is_known)
            )
            if name in request.arrays:
                self._targets = list(self._targets or request.targets or _extreme_rows(array))
                # Without sources, all of these rows get the values of the row in the middle.
                middle = [len(array) // 2] * len(self._targets)
                _move_rows(array, self._targets, list(request.sources) or middle)

    def end(self, data: Any, options: dict[str, Any]) -> None:
        """Summarises the records of the first private data; ends a run that changed arrays.

        Args:
            data: the data set; None if it is unknown.
            options: options of `make_private`; empty for a loop without Opacus.

        Raises:
            EnoughSeen: the run was about the preparation alone.
        """
        if self._is_over:
            return
        self._is_over = True
        sys.settrace(None)
        try:
            prepared = Prepared(
                targets=tuple(self._targets),
                settings=_settings(**options) if options else {},
                arrays=tuple(self._appeared),
                records=tuple(_summaries(self._run, data)),
            )
        except Exception:  # noqa: BLE001 (a data set of the script may raise anything)
            prepared = Prepared()
        self._run.put(prepared)
        request = self._run.request
        if request.arrays and request.pinned != "followed":
            raise EnoughSeen


def _settings(
    *,
    module: torch.nn.Module,
    optimizer: Any,
    data_loader: Any,
    **options: Any,
) -> dict[str, str]:
    """Returns settings that the script chose before private training, as texts by their names.

    Args:
        module: the network.
        optimizer: the script's optimizer.
        data_loader: loader of the private data.
        options: further arguments of `make_private`.
    """
    values = {name: options.get(name) for name in ("noise_multiplier", "max_grad_norm")}
    values["batch size"] = data_loader.batch_size
    for name, value in optimizer.defaults.items():
        if isinstance(value, _PLAIN):
            values[f"{name} of the optimizer"] = value
    parameters = [digest(p.detach().clone()) for p in module.parameters() if not p.is_meta]
    values["initial parameters"] = hashlib.blake2b(b"".join(parameters)).hexdigest()
    return {name: repr(value) for name, value in values.items()}


def _arrays_in(values: Sequence[Any], depth: int = 3) -> Iterator[Any]:
    """Yields arrays, tables and lists that may have the records, in values and in their parts.

    Args:
        values: values of variables.
        depth: how often containers and objects are divided into parts.
    """
    for value in values:
        if isinstance(value, _PLAIN):
            continue
        if is_array(value) or is_numeric(value) or _is_table(value):
            if value.ndim > 0 and len(value) >= _FEWEST_ROWS:
                yield value
        elif isinstance(value, list) and len(value) >= _FEWEST_ROWS:
            if isinstance(value[0], (str, bytes, tuple, dict)):  # not a list of indices or networks
                yield value
        elif depth > 0:
            yield from _arrays_in(_parts(value), depth - 1)


def _parts(value: Any) -> Sequence[Any]:
    """Returns elements of a short container, or attributes of an object of the script's class."""
    if isinstance(value, dict):
        return list(value.values()) if len(value) <= _MOST_PARTS else []
    if isinstance(value, (list, tuple)):
        return value if len(value) <= _MOST_PARTS else []
    if isinstance(value, DataLoader):
        return [value.dataset]
    is_of_script = hooks.is_of_user(value) and hasattr(value, "__dict__")
    if is_of_script or isinstance(value, Dataset):
        return list(vars(value).values())
    return []


def _is_table(value: Any) -> bool:
    """Returns whether a value is a DataFrame of pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.DataFrame)


def _digest(array: Any) -> str | None:
    """Returns a digest of all rows; None for arrays that are large, or must not be changed."""
    if isinstance(array, list):
        return f"{zlib.crc32(repr(array).encode()):x}" if len(array) <= _MOST_ELEMENTS else None
    if _is_table(array):
        from pandas.util import hash_pandas_object

        try:
            rows = hash_pandas_object(array).to_numpy()
        except TypeError:  # a column has lists
            return None
        return hex_digest(rows.data)
    if array.nbytes > _MOST_BYTES or not owns_memory(array):
        return None
    if isinstance(array, torch.Tensor):
        if array.requires_grad or array.is_cuda:
            return None
        # The array is copied, as `owns_memory` may be False after numpy has exported its memory.
        return digest(array.clone()).hex()
    return hex_digest(np.ascontiguousarray(array).data)


def _extreme_rows(array: Any) -> list[int]:
    """Returns the rows with the least and the greatest value of each column, in order.

    For a column of texts, they are all rows with the rarest text. A list has a single column: the
    lengths of its elements, 0 for an element without length.
    """
    rare: list[int] = []
    if isinstance(array, list):
        values = np.array([[len(text) if hasattr(text, "__len__") else 0] for text in array])
    elif _is_table(array):
        values = array.select_dtypes("number").to_numpy(dtype=float)
        for name in array.select_dtypes(exclude="number"):
            rarest = array[name].value_counts().index[-1:]
            rare += map(int, np.flatnonzero(array[name].isin(rarest)))
    else:
        # The array is copied, as `owns_memory` may be False after numpy has exported its memory.
        values = np.array(array.clone() if is_array(array) else array, dtype=float)
    columns = np.nan_to_num(values.reshape(len(array), -1)[:, :_MOST_COLUMNS])
    return sorted({*map(int, columns.argmin(0)), *map(int, columns.argmax(0)), *rare})


def _move_rows(
    array: Any,
    targets: list[int],
    sources: list[int],
) -> None:
    """Puts the values of source rows in the place of target rows.

    Args:
        array: an array, a table or a list.
        targets: indices of the rows that change.
        sources: index of the row whose values each target gets.
    """
    if isinstance(array, list):
        for target, value in zip(targets, [array[row] for row in sources], strict=True):
            array[target] = value
    elif _is_table(array):
        for number in range(array.shape[1]):
            column = array.iloc[:, number].array.copy()
            column[targets] = column[sources]
            array.isetitem(number, column)
    else:
        with torch.no_grad():
            array[targets] = array[sources].clone() if is_array(array) else array[sources]


def _summaries(run: WatchedRun, data: Any) -> list[Summary]:
    """Returns random combinations of each prepared record's values.

    Returns:
        The combinations, or an empty list if the data come as a stream, or if records are too many
        or too slow to fetch.
    """
    if type(data) in (TensorDataset, StackDataset):
        tables = data.tensors if type(data) is TensorDataset else data.datasets
        parts = [_combine_table(table, number) for number, table in enumerate(tables)]
        return list(map(_summary, sum(parts, np.zeros((len(data), SUMMARY)))))
    if not hasattr(data, "__len__") or len(data) > _MOST_RECORDS:
        return []
    end = time.monotonic() + _FETCH_SECONDS
    summaries = []
    with preserve_generators(generators_in(data)):
        for index in range(len(data)):
            if time.monotonic() > end:
                return []
            # A data set may draw random numbers for a record. With one seed for all records, a
            # record has the same summary wherever its row moves. The last number is by a seed of
            # its own.
            combined = []
            for seed in (0, index):
                seed_generators(run.request.derived("prepared", seed))
                combined += _combine_item(data[index]).tolist()
            summaries.append((*combined[: SUMMARY - 1], combined[-1]))
    return summaries


def _combine_table(table: Any, number: int) -> Numbers:
    """Returns combinations [rows, SUMMARY] of each row's values, in the data's table `number`."""
    values = torch.as_tensor(table).detach().double()
    rows = values.reshape(len(table), -1).nan_to_num(0.5)
    combined: Numbers = rows.numpy() @ _weights(rows.shape[1], number)
    return combined


def _combine_item(item: Any) -> Numbers:
    """Returns a fingerprint of a record: SUMMARY sums of its values, with fixed random weights."""
    total = np.zeros(SUMMARY)
    for part_number, leaf in enumerate(tree_leaves(item)):
        if isinstance(leaf, (str, bytes)):
            total += _weights(1, part_number)[0] * zlib.crc32(repr(leaf).encode())
            continue
        try:
            values = np.asarray(leaf, dtype=np.float64).reshape(-1)
        except (TypeError, ValueError):  # no numbers
            continue
        # NaN equals nothing, not even itself; 0 would be like values that are often there.
        total += np.nan_to_num(values, nan=0.5) @ _weights(len(values), part_number)
    return total


def _summary(combinations: Numbers) -> Summary:
    """Converts SUMMARY numbers into plain ones."""
    first, second, third = map(float, combinations)
    return first, second, third


@functools.lru_cache(maxsize=32)
def _weights(size: int, number: int) -> Numbers:
    """Returns random weights [size, SUMMARY] of part `number` of records, the same in each run."""
    return np.random.Generator(np.random.PCG64([size, number])).standard_normal((size, SUMMARY))
