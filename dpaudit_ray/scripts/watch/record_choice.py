"""Chooses the record that pinned runs exchange, from the first private batches.

The record is one that is not finite, or the longest, or the largest: the length to which a batch is
padded, or a factor by which it is scaled, depends on such a record.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from .generators import generators_in, preserve_generators
from .hooks import around
from .run_state import WatchedRun
from .shared_records import base_and_rows
from .tensors import digest, has_numbers, is_array, is_numeric, tree_leaves

FEWEST = 4  # a record is chosen from batches with at least so many records
_FEWEST_VALUES = 8  # values of a record; records with fewer may be equal by chance
_BY_INDEX = 0  # PyTorch's number for data sets whose records have an index


def install(run: WatchedRun) -> None:
    """Chooses a record from the first private batches that are drawn from now on."""
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    @around(_BaseDataLoaderIter, "_next_index")
    def draw(original: Any, iterator: Any) -> Any:
        """Draws the indices of a batch; if the batch is private, chooses one of its records."""
        indices = original(iterator)
        if run.phase == "main" and run.pinned.batches_to_read > 0:
            private = private_items(run, iterator, indices)
            if private:
                # A record has another index in each subset of the data.
                rows = base_and_rows(iterator._dataset)[1]
                choose(run, private, indices if rows is None else [rows[i] for i in indices])
        return indices


def private_items(
    run: WatchedRun,
    iterator: Any,
    indices: Any,
) -> list[Any]:
    """Returns the records of a private batch.

    There are none if the data set is not private, if its records have no index, or if the batch has
    fewer records than FEWEST.

    Args:
        run: the run.
        iterator: iterator of a DataLoader.
        indices: indices of the batch.
    """
    data = iterator._dataset
    is_private = any(data is private for private in run.networks.data)
    has_items = iterator._auto_collation and iterator._dataset_kind == _BY_INDEX
    if not (is_private and has_items and len(indices) >= FEWEST):
        return []
    # Reading a record may draw random numbers. The script must draw the same ones when it reads.
    with preserve_generators(generators_in(data)):
        return [data[index] for index in indices]


def choose(
    run: WatchedRun,
    items: list[Any],
    indices: Sequence[int],
) -> None:
    """Chooses the record that later runs exchange, if none is chosen, and notes equal records.

    Args:
        run: the run.
        items: records of a private batch.
        indices: indices of these records, in the data set that theirs is a subset of.
    """
    pinned = run.pinned
    pinned.batches_to_read -= 1
    for index, item in zip(indices, items, strict=True):
        if key := _key(item):
            pinned.keys[index] = key
    if pinned.chosen is None:
        position, pinned.chosen_as = conspicuous_record(items)
        pinned.chosen = int(indices[position])


def conspicuous_record(items: Sequence[Any]) -> tuple[int, str]:
    """Returns the position of the record that may change a batch most, and why it was chosen."""
    leaves = [tree_leaves(item) for item in items]
    lengths = [sum(map(_length, parts)) for parts in leaves]
    norms = [math.sqrt(sum(map(_square, parts))) for parts in leaves]
    not_finite = [position for position, norm in enumerate(norms) if not math.isfinite(norm)]
    if not_finite:
        return not_finite[0], "a record that is not finite"
    if max(lengths) > min(lengths):
        return lengths.index(max(lengths)), "the longest record"
    if max(norms) > min(norms):
        return norms.index(max(norms)), "the largest record"
    return len(items) // 2, "a record in the middle of a batch"


def _key(item: Any) -> tuple[Any, ...]:
    """Returns a key that only equal records have; empty if records may be equal by chance."""
    leaves = [torch.as_tensor(v) if is_numeric(v) else v for v in tree_leaves(item)]
    arrays = [leaf for leaf in leaves if has_numbers(leaf)]
    if all(len(array.unique()) < _FEWEST_VALUES for array in arrays):
        return ()
    return tuple(digest(v) if is_array(v, least_dim=0) else repr(v) for v in leaves)


def _length(leaf: Any) -> int:
    """Returns how many numbers or characters a part of a record has."""
    if isinstance(leaf, (torch.Tensor, np.ndarray)):
        return math.prod(leaf.shape)
    return len(leaf) if isinstance(leaf, (str, bytes)) else 1


def _square(leaf: Any) -> float:
    """Returns the squared length of a part of a record; 0 if it has no floats."""
    is_number = isinstance(leaf, (float, torch.Tensor)) or is_numeric(leaf)
    if not is_number:
        return 0.0
    return float(torch.as_tensor(leaf).double().square().sum())
