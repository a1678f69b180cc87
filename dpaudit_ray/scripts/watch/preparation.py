"""Follows the script's arrays from where they first appear until training is private.

What a script computes from all its records before training, such as scales, fillings, selected
columns or made-up records, is in the prepared records of others, and no noise is for it. To see
that, a run changes some rows of an array right after the script's line that made it, and compares
the prepared records. A first run changes nothing, and lists the arrays.
"""

import functools
import hashlib
import sys
import time
import weakref
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset, StackDataset, TensorDataset

from ..protocol import SUMMARY, Appeared, Prepared, Summary
from . import hooks
from .generators import generators_in, preserve_generators, seed_generators
from .hooks import before, import_if_there
from .run_state import EnoughSeen, WatchedRun
from .tensors import digest, is_array, is_numeric, owns_memory, tree_leaves

_FEWEST = 30  # rows of an array that may have the records
_MOST_EVENTS = 200_000  # lines of the script that are followed
_MOST_BYTES = 2**28  # a followed array has at most
_MOST_RECORDS = 100_000  # records that are fetched one by one, if that is fast
_MOST_ELEMENTS = 100_000  # a followed list has at most
_SECONDS = 10.0  # fetching them may take
_MOST_COLUMNS = 20  # whose extremes are changed
_MOST_PARTS = 10  # a container with arrays has at most; a longer one is a list of records
_PLAIN = (int, float, bool, complex, str, bytes, type(None))

Numbers = npt.NDArray[np.float64]


def install(run: WatchedRun) -> None:
    """Follows the script from now on, until training becomes private."""
    followed = Followed(run)
    run.followed = followed
    if opacus := import_if_there("opacus"):

        @before(opacus.PrivacyEngine, "make_private")
        def make_private(_: Any, **options: Any) -> None:
            followed.end(options["data_loader"].dataset, options)

    sys.settrace(followed.trace)


class Followed:
    """Changes arrays as they appear, and summarises the prepared records at the end."""

    def __init__(self, run: WatchedRun) -> None:
        self._run = run
        self._is_over = False
        self._events = 0
        # Arrays that were seen, by identity. Lists have no weak references, and are kept.
        self._seen = weakref.WeakValueDictionary[int, Any]()
        self._seen_lists: dict[int, list[Any]] = {}
        self._appeared: list[Appeared] = []
        self._line = ""  # the script's last line
        self._targets: list[int] = []  # rows that were changed

    def trace(self, frame: FrameType, event: str, value: Any) -> Any:
        """Lists new arrays in the variables of the script's functions after each line.

        It is a trace function of Python, which is called with the frame and the kind of event;
        `value` is what a function returns.
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
            self._look(values)
        except Exception:  # noqa: BLE001 (objects of the script may raise anything when asked)
            sys.settrace(None)
            return None
        # A line is traced before it runs: what appears at the next event is from this one.
        self._line = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        return self.trace

    def _look(self, values: Sequence[Any]) -> None:
        """Lists arrays that appear now, and changes those that the request names."""
        request = self._run.request
        for array in _arrays_in(values):
            arrays = self._seen_lists if isinstance(array, list) else self._seen
            if id(array) in arrays:
                continue
            arrays[id(array)] = array
            name = _digest(array)
            if name is None:
                continue
            self._appeared.append(Appeared(name, len(array), self._events, self._line))
            if name in request.arrays:
                self._targets = list(self._targets or request.targets or _extreme_rows(array))
                # Without sources, all of these rows become equal to the one in the middle.
                middle = [len(array) // 2] * len(self._targets)
                _move_rows(array, self._targets, list(request.sources) or middle)

    def end(self, data: Any, options: dict[str, Any]) -> None:
        """Summarises the records of the first private data; ends a run that changed arrays.

        Args:
            data: the data set; None if there is none to look at.
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
        if self._run.request.arrays:
            raise EnoughSeen


def _settings(
    *,
    module: torch.nn.Module,
    optimizer: Any,
    data_loader: Any,
    **options: Any,
) -> dict[str, str]:
    """Returns what the script chose before private training, as texts by their names."""
    values = {name: options.get(name) for name in ("noise_multiplier", "max_grad_norm")}
    values["batch size"] = data_loader.batch_size
    for name, value in optimizer.defaults.items():
        if isinstance(value, _PLAIN):
            values[f"{name} of the optimizer"] = value
    parameters = [digest(p.detach().clone()) for p in module.parameters() if not p.is_meta]
    values["initial parameters"] = hashlib.blake2b(b"".join(parameters)).hexdigest()
    return {name: repr(value) for name, value in values.items()}


def _arrays_in(values: Sequence[Any], depth: int = 3) -> Iterator[Any]:
    """Yields arrays, tables and lists of many records in variables, and in what these contain."""
    for value in values:
        if isinstance(value, _PLAIN):
            continue
        if is_array(value) or is_numeric(value) or _is_table(value):
            if value.ndim > 0 and len(value) >= _FEWEST:
                yield value
        elif isinstance(value, list) and len(value) >= _FEWEST:
            if isinstance(value[0], (str, bytes, tuple, dict)):  # no indices, and no networks
                yield value
        elif depth > 0:
            yield from _arrays_in(_parts(value), depth - 1)


def _parts(value: Any) -> Sequence[Any]:
    """Returns elements of a short container, or attributes of an object of the script's own."""
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
    """Returns a digest of all rows; None for arrays that are large, or not to be changed."""
    if isinstance(array, list):
        is_usable = len(array) <= _MOST_ELEMENTS
        return f"{zlib.crc32(repr(array).encode()):x}" if is_usable else None
    if _is_table(array):
        from pandas.util import hash_pandas_object

        try:
            rows = hash_pandas_object(array).to_numpy()
        except TypeError:  # a column has lists
            return None
        return hashlib.blake2b(rows.data, digest_size=16).hexdigest()
    if array.nbytes > _MOST_BYTES or not owns_memory(array):
        return None
    if isinstance(array, torch.Tensor):
        if array.requires_grad or array.is_cuda:
            return None
        # Of a copy: numpy exports the memory, after which `owns_memory` may be False.
        return digest(array.clone()).hex()
    return hashlib.blake2b(np.ascontiguousarray(array).data, digest_size=16).hexdigest()


def _extreme_rows(array: Any) -> list[int]:
    """Returns the rows with the least and the greatest value of each column, in order.

    The columns are those with numbers. A list has one: the lengths of its elements, 0 for those
    without a length.
    """
    if isinstance(array, list):
        values = np.array([[len(text) if hasattr(text, "__len__") else 0] for text in array])
    elif _is_table(array):
        values = array.select_dtypes("number").to_numpy(dtype=float)
    else:
        # Of a copy: numpy exports the memory, after which `owns_memory` may be False.
        values = np.array(array.clone() if is_array(array) else array, dtype=float)
    columns = np.nan_to_num(values.reshape(len(array), -1)[:, :_MOST_COLUMNS])
    return sorted({*map(int, columns.argmin(0)), *map(int, columns.argmax(0))})


def _move_rows(
    array: Any,
    targets: list[int],
    sources: list[int],
) -> None:
    """Puts the values of source rows in the place of target rows."""
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
        An empty list for data that come as a stream, or of too many or too slow records.
    """
    if type(data) in (TensorDataset, StackDataset):
        tables = data.tensors if type(data) is TensorDataset else data.datasets
        parts = [_combined(table, number) for number, table in enumerate(tables)]
        return list(map(_summary, sum(parts, np.zeros((len(data), SUMMARY)))))
    if not hasattr(data, "__len__") or len(data) > _MOST_RECORDS:
        return []
    with preserve_generators(generators_in(data)):
        seed_generators(run.request.derived("prepared"))
        end = time.monotonic() + _SECONDS
        summaries = []
        for index in range(len(data)):
            if time.monotonic() > end:
                return []
            summaries.append(_summary(_of_item(data[index])))
        return summaries


def _combined(table: Any, number: int) -> Numbers:
    """Returns combinations [rows, SUMMARY] of each row's values; `number` is that of the table."""
    rows = torch.as_tensor(table).detach().double().reshape(len(table), -1).nan_to_num(0.5)
    combined: Numbers = rows.numpy() @ _weights(rows.shape[1], number)
    return combined


def _of_item(item: Any) -> Numbers:
    """Returns combinations [SUMMARY] of all values of a record."""
    total = np.zeros(SUMMARY)
    for number, leaf in enumerate(tree_leaves(item)):
        if isinstance(leaf, (str, bytes)):
            total += _weights(1, number)[0] * zlib.crc32(repr(leaf).encode())
            continue
        try:
            values = np.asarray(leaf, dtype=np.float64).reshape(-1)
        except (TypeError, ValueError):  # no numbers
            continue
        total += np.nan_to_num(values, nan=0.5) @ _weights(len(values), number)
    return total


def _summary(combinations: Numbers) -> Summary:
    first, second, third = map(float, combinations)
    return first, second, third


@functools.lru_cache(maxsize=32)
def _weights(size: int, number: int) -> Numbers:
    """Returns random weights [size, SUMMARY], the same in each run."""
    return np.random.Generator(np.random.PCG64([size, number])).standard_normal((size, SUMMARY))
