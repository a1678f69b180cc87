"""Chooses the record that pinned runs exchange: one whose removal changes the other records' rows.

The first batches of private records are collated again without their longest record, their
shortest, and so on, by the loader's own function. If no removal changes anything, the longest of
the first batch is chosen.
"""

import collections
import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from ..protocol import CollateInspection
from .generators import Generator, generators_in, preserve_generators
from .hooks import around
from .run_state import WatchedRun

FEWEST = 4  # records of the batch that the record is chosen from

Collate = Callable[[list[Any]], Any]


def install(run: WatchedRun) -> None:
    """Chooses from the first private batches that are fetched from now on."""
    from torch.utils.data import get_worker_info
    from torch.utils.data._utils.fetch import _MapDatasetFetcher
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    def is_due(data: Any) -> bool:
        is_private = any(data is private for private in run.networks.data)
        return is_private and run.phase == "main" and run.pinned.batches > 0

    @around(_MapDatasetFetcher, "fetch")
    def fetch(original: Any, self: Any, indices: Any) -> Any:
        if get_worker_info() is not None or not self.auto_collation or not is_due(self.dataset):
            return original(self, indices)
        collate = self.collate_fn

        def choose_and_collate(items: list[Any]) -> Any:
            choose(run, items, indices, collate)
            return collate(items)

        self.collate_fn = choose_and_collate
        try:
            return original(self, indices)
        finally:
            self.collate_fn = collate

    @around(_BaseDataLoaderIter, "_next_index")
    def draw(original: Any, iterator: Any) -> Any:
        indices = original(iterator)
        if iterator._num_workers and iterator._auto_collation and is_due(iterator._dataset):
            # Workers have copies of the data: what is read here changes nothing there.
            with preserve_generators():
                items = [iterator._dataset[index] for index in indices]
            choose(run, items, indices, iterator._collate_fn)
        return indices


def choose(
    run: WatchedRun,
    items: list[Any],
    indices: Sequence[int],
    collate: Collate,
) -> None:
    """Chooses a record of a batch, unless the batch is too small."""
    if len(items) < FEWEST:
        return
    pinned = run.pinned
    pinned.batches -= 1
    generators = list(generators_in(collate))
    for position, name in conspicuous_records(items):
        record = int(indices[position])
        change = change_by_removal(collate, items, position, generators)
        if change or pinned.chosen is None:
            pinned.chosen = record
            pinned.chosen_as = name
        if change:
            pinned.batches = 0
            run.put(CollateInspection(record=record, chosen_as=name, changes=change))
            return


def conspicuous_records(items: Sequence[Any]) -> Iterator[tuple[int, str]]:
    """Yields positions of records that may change a batch most, with their description."""
    leaves = [tree_leaves(item) for item in items]
    lengths = [sum(map(_length, parts)) for parts in leaves]
    norms = [math.sqrt(sum(map(_square, parts))) for parts in leaves]
    broken = [n for n, norm in enumerate(norms) if not math.isfinite(norm)]
    if broken:
        yield broken[0], "a record that is not finite"
    if max(lengths) > min(lengths):
        yield lengths.index(max(lengths)), "the longest record"
        yield lengths.index(min(lengths)), "the shortest record"
    if not broken and max(norms) > min(norms):
        yield norms.index(max(norms)), "the largest record"
    labels = list(map(_label, leaves))
    counts = collections.Counter(labels)
    if max(counts.values()) > min(counts.values()):
        yield labels.index(min(counts, key=lambda label: counts[label])), "a record of a rare class"
    yield len(items) // 2, "a record in the middle of a batch"


def _length(leaf: Any) -> int:
    if isinstance(leaf, (torch.Tensor, np.ndarray)):
        return math.prod(leaf.shape)
    return len(leaf) if isinstance(leaf, (str, bytes)) else 1


def _square(leaf: Any) -> float:
    is_number = isinstance(leaf, (float, torch.Tensor)) or (
        isinstance(leaf, np.ndarray) and leaf.dtype.kind in "fiu"
    )
    return float(torch.as_tensor(leaf).double().square().sum()) if is_number else 0.0


def _label(leaves: Sequence[Any]) -> int | None:
    """Returns the last whole number that a record has by itself; None without one."""
    for leaf in reversed(leaves):
        is_single = isinstance(leaf, (int, np.integer)) or (
            isinstance(leaf, torch.Tensor) and leaf.dim() == 0 and not leaf.is_floating_point()
        )
        if is_single:
            return int(leaf)
    return None


def change_by_removal(
    collate: Collate,
    items: Sequence[Any],
    index: int,
    generators: Sequence[Generator] = (),
) -> str:
    """Returns how the rows of other records change in a batch without one; "" if they do not."""
    remaining = [*items[:index], *items[index + 1 :]]
    with contextlib.suppress(Exception):  # the user's function may not take such a batch
        with preserve_generators(generators):
            batch = tree_leaves(collate(copy.deepcopy(list(items))))
        with preserve_generators(generators):
            smaller = tree_leaves(collate(copy.deepcopy(remaining)))
        if len(batch) != len(smaller):
            return f"{len(smaller)} parts in place of {len(batch)}"
        for leaf, without in zip(batch, smaller, strict=True):
            if isinstance(leaf, torch.Tensor) and isinstance(without, torch.Tensor):
                change = _row_change(leaf, without, index, len(items))
                if change:
                    return change
    return ""


def _row_change(
    batch: torch.Tensor,
    smaller: torch.Tensor,
    index: int,
    count: int,
) -> str:
    """Returns how a tensor changed, but for the row of the record that is left out."""
    if batch.dim() != smaller.dim():
        return "another number of dimensions"
    for dim, size in enumerate(batch.shape):
        if size == count and smaller.shape[dim] == count - 1:
            before, _, after = torch.split(batch, [index, 1, count - index - 1], dim)
            batch = torch.cat([before, after], dim)
            break
    for size, other_size in zip(batch.shape, smaller.shape, strict=True):
        if size != other_size:
            return f"padded from {other_size} to {size} positions"
    is_same = torch.equal(batch.nan_to_num(), smaller.nan_to_num())
    return "" if is_same else "other values in the rows of other records"
