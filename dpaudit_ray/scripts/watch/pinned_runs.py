"""Pins releases: random numbers of a seed take the place of what steps release.

Two such runs, one with another record in the place of one, differ in nothing that private training
publishes. What does differ, but for the steps that have the record, carries it past the noise:
later steps, what is returned or saved, what chooses a learning rate or an epoch. A third run, with
other noise, shows what noise changes as well. Of a loop without Opacus the data are arrays of its
code that the first step's records are rows of. Data are exchanged in memory, never in files.
"""

import contextlib
import itertools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import Dataset, StackDataset

from .generators import preserve_generators, seed_generators
from .hooks import around, before, import_if_there, users_frames
from .loaders import Indices
from .record_choice import FEWEST, conspicuous_records
from .run_state import WatchedRun
from .shared_records import arrays_of, base_and_rows
from .tensors import row_keys

_CANDIDATES = 100  # records that one might be exchanged for
_MOST_ROWS = 200_000  # of an array in which a step's examples are searched
_DECIDERS = (  # what chooses by a number: module, class, method
    ("torch.optim.lr_scheduler", "ReduceLROnPlateau", "step"),
    ("pytorch_lightning.callbacks", "ModelCheckpoint", "check_monitor_top_k"),
    ("pytorch_lightning.callbacks", "EarlyStopping", "_evaluate_stopping_criteria"),
    ("transformers.trainer", "Trainer", "_determine_best_metric"),
)


def install(run: WatchedRun) -> None:
    """Exchanges the record in private data from now on, and seeds what loaders draw."""
    from torch.utils.data._utils.fetch import _MapDatasetFetcher
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    exchanges = run.request.pinned == "exchanged"
    record = run.request.record or 0
    # By identity of a data set, as it was before the exchange: after it, another would be chosen.
    substitutes: dict[int, int] = {}

    def make_private(_: Any, *, data_loader: Any, **__: Any) -> None:
        if not run.networks.modules:
            _watch_decisions(run)
        if exchanges:
            substitutes[id(data_loader.dataset)] = other_record(data_loader.dataset, record)
            exchange(data_loader.dataset, record)

    if opacus := import_if_there("opacus"):
        before(opacus.PrivacyEngine, "make_private")(make_private)
    numbers = itertools.count()

    @around(_BaseDataLoaderIter, "_next_index")
    def draw(original: Any, iterator: Any) -> Any:
        with preserve_generators():  # whatever random numbers were drawn before
            seed_generators(run.request.derived("loader", next(numbers)))
            return original(iterator)

    @around(_MapDatasetFetcher, "fetch")
    def fetch(original: Any, self: Any, indices: Any) -> Any:
        is_private = any(self.dataset is data for data in run.networks.data)
        if is_private and exchanges:
            substitute = {record: substitutes.get(id(self.dataset), record)}
            indices = tree_map(lambda index: substitute.get(index, index), indices)
        return original(self, indices)


def _watch_decisions(run: WatchedRun) -> None:
    """Makes imported classes of `_DECIDERS` publish the numbers that they are given."""
    for module, name, method in _DECIDERS:
        kind = getattr(sys.modules.get(module), name, None)
        if kind is None:
            continue

        def decide(*args: Any, name: str = name, **kwargs: Any) -> None:
            leaves = tree_leaves((args[1:], kwargs))
            leaves = [torch.as_tensor(v) for v in leaves if isinstance(v, (float, torch.Tensor))]
            numbers = [float(v) for v in leaves if v.dim() == 0]
            run.publications.pinned.append((f"what {name} is given", str(numbers)))

        before(kind, method)(decide)


def find_tables(run: WatchedRun, examples: Sequence[Any]) -> None:
    """Finds the script's arrays that examples are rows of; chooses a record, or exchanges it."""
    # A script that may draw from keys, as JAX does, draws what no run can replace.
    if {"jax", "tensorflow"} & {*sys.modules} or len(examples[0]) < FEWEST:
        return
    pinned = run.pinned
    tables = _arrays_of_script()
    keys = [list(row_keys(rows)) for rows in examples]
    for table, number in itertools.product(tables, range(len(examples))):
        if table.ndim > 1 and table.shape[1:] == examples[number].shape[1:]:
            numbers = {key: number for number, key in enumerate(row_keys(table))}
            indices = [numbers.get(key, -1) for key in keys[number]]
            if min(indices) >= 0:
                break
    else:
        return
    same_length = [t for t in tables if len(t) == len(table) and t is not table]
    labels = [array for array in same_length if list(row_keys(array[indices])) in keys]
    pinned.tables = [table, *labels]
    columns = [table[indices] for table in pinned.tables]
    rows = list(zip(*columns, strict=True))
    position, pinned.chosen_as = next(conspicuous_records(rows))
    pinned.chosen = indices[position]
    if run.request.pinned:
        _watch_decisions(run)
    if run.request.pinned == "exchanged":
        exchange(StackDataset(*pinned.tables), pinned.chosen)


def has_row(run: WatchedRun, examples: Sequence[Any]) -> bool:
    """Returns whether examples have the chosen record; True if that is unknown."""
    pinned = run.pinned
    if not pinned.tables or pinned.chosen is None or not examples:
        return True
    (row,) = row_keys(pinned.tables[0][pinned.chosen : pinned.chosen + 1])
    return any(row in row_keys(rows) for rows in examples)


def _arrays_of_script() -> list[Any]:
    """Returns arrays that may have the records, the longest first: batches are among them."""
    leaves: list[Any] = []
    for frame in users_frames():
        for value in tree_leaves([dict(frame.f_locals), frame.f_globals]):
            is_data = isinstance(value, Dataset)
            leaves += arrays_of(base_and_rows(value)[0]) if is_data else [value]
    arrays = (v for v in leaves if isinstance(v, torch.Tensor) or _is_numeric(v))
    tables = [a for a in arrays if a.ndim > 0 and len(a) <= _MOST_ROWS and owns_memory(a)]
    return sorted(tables, key=len, reverse=True)


def _is_numeric(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "fiub"


def other_record(data: Any, record: int) -> int:
    """Returns the index of a record to take the place of this one: different in each array."""
    size = len(data)
    if record >= size:
        return record
    arrays = arrays_of(data)
    candidates = [(record + size // 2 + k) % size for k in range(min(size, _CANDIDATES))]
    for index in candidates:
        if all((array[index] != array[record]).any() for array in arrays):
            return index
    return candidates[0]


def exchange(data: Any, record: int) -> None:
    """Puts another record in the place of one, in arrays that a data set has in memory."""
    other = other_record(data, record)
    if other == record:
        return
    base, rows = base_and_rows(data)
    if rows is not None:
        record, other = rows[record], rows[other]
    with torch.no_grad():
        for array in arrays_of(base):
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


def choose_record(run: WatchedRun, draw: Indices) -> None:
    """Chooses the record that later runs exchange from a draw, if no batch was collated."""
    if len(draw) < FEWEST:
        return
    pinned = run.pinned
    pinned.last_record = int(draw[len(draw) // 2])
    if run.request.record is None and pinned.chosen is None:
        pinned.chosen = pinned.last_record
        pinned.chosen_as = "a record in the middle of a batch"
