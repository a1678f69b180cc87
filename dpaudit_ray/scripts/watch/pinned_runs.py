"""Pins releases: random numbers of a seed replace the releases of steps.

Two such runs, one of them with a record exchanged, have the same releases. So they differ only in
the steps that have the record, and in values that carry it past the noise: later steps, values that
are returned or saved, or numbers that choose a learning rate or an epoch. A third run, with other
noise, shows which values noise changes as well. In a loop without Opacus, the data are arrays of
the loop's code that have the first step's records as rows. Data are exchanged in memory, never in
files.
"""

import itertools
import os
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset, StackDataset

from ..protocol import PinnedStep
from .forward_passes import in_functorch
from .generators import preserve_generators, seed_generators
from .hooks import around, before, import_if_there, users_frames
from .loaders import Indices
from .record_choice import FEWEST, conspicuous_record, private_items
from .run_state import WatchedRun
from .shared_records import arrays_of, base_and_rows
from .tensors import (
    has_numbers,
    is_array,
    is_numeric,
    owns_memory,
    row_keys,
    sample_digest,
    tree_leaves,
)

_CANDIDATES = 100  # records of which one takes the place of the exchanged one
_MOST_ROWS = 200_000  # rows of an array in which a step's examples are searched
_DROPPING = ("dropout", "dropout1d", "dropout2d", "dropout3d")  # functions of torch.nn.functional
_DRAWING = ("rand", "randn", "randint", "rand_like", "randn_like")  # functions of torch
_DECIDERS = (  # methods that choose by a number: module, class, method
    ("torch.optim.lr_scheduler", "ReduceLROnPlateau", "step"),
    ("pytorch_lightning.callbacks", "ModelCheckpoint", "check_monitor_top_k"),
    ("pytorch_lightning.callbacks", "EarlyStopping", "_evaluate_stopping_criteria"),
    ("transformers.trainer", "Trainer", "_determine_best_metric"),
)


def install(run: WatchedRun) -> None:
    """Exchanges the record in private data from now on, and seeds the draws of loaders."""
    from torch.utils.data._utils.fetch import _MapDatasetFetcher
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    _seed_entropy(run)
    _draw_alike(run)
    private_data = _PrivateData(run)
    if run.request.tables:
        before(torch.nn.Module, "__call__")(private_data.replace_half)
    if opacus := import_if_there("opacus"):
        before(opacus.PrivacyEngine, "make_private")(private_data.make_private)
    around(_BaseDataLoaderIter, "_next_index")(private_data.draw)
    around(_MapDatasetFetcher, "fetch")(private_data.fetch)


def _seed_entropy(run: WatchedRun) -> None:
    """Replaces the seeds that a script gets from the operating system by those of the request."""
    entropy = random.Random(run.request.derived("entropy"))

    @around(os, "urandom")
    def urandom(_: Any, size: int) -> bytes:
        """Replaces `os.urandom`: returns bytes that follow from the request."""
        return entropy.randbytes(size)

    @around(np.random, "default_rng")
    def default_rng(original: Any, seed: Any = None) -> Any:
        """Makes a generator, by a seed of the request if the script gives none."""
        return original(entropy.getrandbits(64) if seed is None else seed)


def _draw_alike(run: WatchedRun) -> None:
    """Makes random functions of torch draw the same numbers for each record of a batch.

    So a record has the same random numbers in a batch of another size.
    """

    def drop(original: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Multiplies all records by one mask of dropout."""
        if x.dim() < 2 or in_functorch():
            return original(x, *args, **kwargs)
        # Dropout of ones gives the mask, already scaled.
        return x * original(x.new_ones(1, *x.shape[1:]), *args, **kwargs)

    def draw(original: Any, *args: Any, **kwargs: Any) -> Any:
        """Draws numbers for one record and repeats them, if the tensor has rows for each record."""
        size: Any = args  # size of the drawn tensor: integers, a tuple, or a tensor of this size
        if args and isinstance(args[-1], (tuple, list, torch.Tensor)):
            size = args[-1]
        shape = list(getattr(size, "shape", size))
        records = _batch_size(run)
        if records < FEWEST or not shape or shape[0] % records or in_functorch():
            return original(*args, **kwargs)
        shape[0] //= records
        smaller = size.new_empty(shape) if isinstance(size, torch.Tensor) else shape
        numbers = original(*(args[:-1] if size is not args else ()), smaller, **kwargs)
        return numbers.repeat(records, *[1] * (len(shape) - 1))

    for name in _DROPPING:
        around(torch.nn.functional, name)(drop)
    for name in _DRAWING:
        around(torch, name)(draw)


class _PrivateData:
    """Exchanges records in the data of private loaders; wrapped functions call its methods."""

    def __init__(self, run: WatchedRun) -> None:
        """Begins before training is private."""
        self._run = run
        self._record = run.request.record or 0
        # By the identity of a data set: index of the record that takes the place of each exchanged
        # one. They are chosen before records are exchanged, as the choice depends on values.
        self._substitutes: dict[int, dict[int, int]] = {}
        # Data sets whose first batch was searched for numbers of records.
        self._searched: set[int] = set()
        self._replaced: list[tuple[Any, Any]] = []  # arrays, and copies of their earlier values
        self._draw_numbers = itertools.count()  # numbers of draws, from which seeds are derived

    def replace_half(self, *_: Any, **__: Any) -> None:
        """Puts other records in place of half of the data, until training is private."""
        if not (self._replaced or self._run.networks.modules):
            self._replaced.extend(_replace_half(self._run))

    def make_private(self, _: Any, *, data_loader: Any, **options: Any) -> None:
        """Puts back the values that `replace_half` replaced; exchanges records as requested."""
        run = self._run
        for array, values in self._replaced:
            array[:] = values
        run.pinned.leaves_out = options.get("poisson_sampling", True)
        if not run.networks.modules:
            _watch_decisions(run)
        data = data_loader.dataset
        self._substitutes[id(data)] = _exchange_as_requested(run, data, self._record)

    def draw(self, original: Any, iterator: Any) -> Any:
        """Draws the same indices in each run, whatever random numbers were drawn before.

        In runs that vary a record of each batch, the record is exchanged or left out here.
        """
        run = self._run
        with preserve_generators():
            seed_generators(run.request.derived("loader", next(self._draw_numbers)))
            indices = original(iterator)
        varies = run.request.pinned == "varied"
        private = private_items(run, iterator, indices) if varies else []
        if not private:
            return indices
        # A batch that lacks a record would shift the random numbers of worker processes, which are
        # not pinned: with workers the record is exchanged.
        return _varied_draw(run, indices, private, keeps_size=iterator._num_workers > 0)

    def fetch(self, original: Any, fetcher: Any, indices: Any) -> Any:
        """Fetches a batch, with other records in place of those that are exchanged.

        Arrays in memory have these records already, but a data set may read records from files.

        Args:
            original: the loader's own `fetch`.
            fetcher: the object whose method it is, which has the data set.
            indices: indices of the batch.
        """
        data = fetcher.dataset
        substitutes = self._substitutes.get(id(data))
        if not substitutes:
            return original(fetcher, indices)
        indices = tree_map(lambda index: substitutes.get(index, index), indices)
        batch = original(fetcher, indices)
        is_unsearched = id(data) not in self._searched and len(indices) >= FEWEST
        if is_unsearched and self._run.request.pinned == "exchanged":
            self._searched.add(id(data))
            record = next(iter(substitutes))
            pair = (record, other_record(data, record))
            _exchange_looked_up(self._run, data, batch, indices, pair)
        return batch


def table_digests(data: Iterable[Any]) -> Iterator[str]:
    """Yields digests of the arrays of data sets."""
    for data_set in data:
        for array in arrays_of(base_and_rows(data_set)[0]):
            yield sample_digest(torch.as_tensor(array)).hex()


def _replace_half(run: WatchedRun) -> Iterator[tuple[Any, Any]]:
    """Puts other records in place of half of the data, before training is private.

    Yields each array that it changes, and a copy of its values from before.
    """
    for array in _arrays_of_script():
        values = torch.as_tensor(array)
        if array.ndim > 1 and sample_digest(values).hex() in run.request.tables:
            yield array, values.clone()
            half = len(array) // 2
            array[:half] = array[-half:]


def _batch_size(run: WatchedRun) -> int:
    """Returns how many records the last batch has, after its variation; 0 if there is no batch."""
    current = run.loaders.current
    if current is None or not current.batches:
        return 0
    draw = current.batches[-1]
    _, missing = run.pinned.variations.get(draw.tobytes(), ("", None))
    return len(draw) - (missing is not None)


def _exchange_looked_up(
    run: WatchedRun,
    data: Any,
    batch: Any,
    indices: Indices,
    pair: tuple[int, int],
) -> None:
    """Exchanges the record in tables that the script looks up by numbers of records.

    A table is an array of the script, or of its networks, as long as the data. It can be looked up
    if batches have the numbers of their records.

    Args:
        run: the run.
        data: the private data set.
        batch: the data set's first batch, already with the other record.
        indices: indices of the batch.
        pair: indices of the exchanged record, and of the record in its place.
    """
    base, rows = base_and_rows(data)
    numbers = torch.arange(len(base)) if rows is None else torch.tensor(rows)
    drawn_numbers = numbers[indices]
    for leaf in tree_leaves(batch):
        has_shape = isinstance(leaf, torch.Tensor) and leaf.shape == drawn_numbers.shape
        # All numbers agree, except perhaps at the exchanged record.
        if has_shape and int((leaf != drawn_numbers).sum()) < 2:
            break
    else:  # batches do not have the numbers of their records
        return
    tables = _arrays_of_script()
    for network in run.networks.modules:
        for layer in network.modules():
            tables += filter(is_array, tree_leaves(vars(layer)))
    record, other = numbers[list(pair)].tolist()
    with torch.no_grad():
        for table in tables:
            if len(table) == len(base) and not isinstance(table, torch.nn.Parameter):
                table[record] = table[other]


def _watch_decisions(run: WatchedRun) -> None:
    """Makes imported classes of `_DECIDERS` publish the numbers that they are given."""
    for module, name, method in _DECIDERS:
        owner = getattr(sys.modules.get(module), name, None)
        if owner is None:
            continue

        def decide(*args: Any, name: str = name, **kwargs: Any) -> None:
            """Notes the numbers by which an object, the first of `args`, is about to decide."""
            numbers = []
            for leaf in tree_leaves((args[1:], kwargs)):
                is_scalar_tensor = isinstance(leaf, torch.Tensor) and leaf.dim() == 0
                if is_scalar_tensor or isinstance(leaf, float):
                    numbers.append(float(leaf))
            run.publications.pinned.append((f"what {name} is given", str(numbers)))

        before(owner, method)(decide)


def find_tables(run: WatchedRun, examples: Sequence[Any]) -> None:
    """Finds the script's arrays that examples are rows of; chooses a record, or exchanges it.

    Args:
        run: the run.
        examples: arrays that have the examples of the first step.
    """
    # No run can replace the draws of a script that may draw from keys, as JAX does.
    if {"jax", "tensorflow"} & {*sys.modules} or len(examples[0]) < FEWEST:
        return
    pinned = run.pinned
    batch = len(examples[0])
    # Batches are among the script's arrays, too. So the shortest array that is longer than a batch
    # comes first: batches are drawn from it.
    tables = sorted(_arrays_of_script(), key=lambda table: (len(table) <= batch, len(table)))
    keys = [list(row_keys(rows)) for rows in examples]
    for table, number in itertools.product(tables, range(len(examples))):
        shape = table.shape[1:]
        if len(shape) > 0 and shape == examples[number].shape[1:]:
            row_numbers = {key: number for number, key in enumerate(row_keys(table))}
            indices = [row_numbers.get(key, -1) for key in keys[number]]
            if min(indices) >= 0:
                break
    else:
        return
    if len(row_numbers) == len(table):
        pinned.numbers = row_numbers
    same_length = [t for t in tables if len(t) == len(table) and t is not table]
    labels = [array for array in same_length if list(row_keys(array[indices])) in keys]
    pinned.tables = [table, *labels]
    columns = [table[indices] for table in pinned.tables]
    rows = list(zip(*columns, strict=True))
    position, pinned.chosen_as = conspicuous_record(rows)
    pinned.chosen = indices[position]
    if run.request.pinned:
        _watch_decisions(run)
    _exchange_as_requested(run, StackDataset(*pinned.tables), pinned.chosen)


def has_row(run: WatchedRun, examples: Sequence[Any]) -> bool:
    """Returns whether examples have the chosen record; True if that is unknown."""
    pinned = run.pinned
    if run.request.pinned == "halved":  # every batch may have an exchanged record
        return True
    if not pinned.tables or pinned.chosen is None or not examples:
        return True
    (row,) = row_keys(pinned.tables[0][pinned.chosen : pinned.chosen + 1])
    return any(row in row_keys(rows) for rows in examples)


def _arrays_of_script() -> list[Any]:
    """Returns arrays in the script's variables that may have the records, or batches of them."""
    leaves: list[Any] = []
    for frame in users_frames():
        for value in tree_leaves([dict(frame.f_locals), frame.f_globals]):
            value = value.dataset if isinstance(value, DataLoader) else value
            is_data = isinstance(value, Dataset)
            leaves += arrays_of(base_and_rows(value)[0]) if is_data else [value]
    arrays = [leaf for leaf in leaves if is_array(leaf) or is_numeric(leaf)]
    return [a for a in arrays if a.ndim > 0 and len(a) <= _MOST_ROWS and owns_memory(a)]


def other_record(data: Any, record: int) -> int:
    """Returns the index of the record that takes the place of `record`.

    If possible, the two differ in each array that the data set has.
    """
    size = len(data)
    if record >= size:  # the data set does not have the record, so nothing is exchanged
        return record
    arrays = arrays_of(data)
    candidates = [(record + size // 2 + k) % size for k in range(min(size, _CANDIDATES))]
    for index in candidates:
        if all((array[index] != array[record]).any() for array in arrays):
            return index
    return candidates[0]


def _exchange_as_requested(run: WatchedRun, data: Any, record: int) -> dict[int, int]:
    """Exchanges `record`, or half of the records, as the request says.

    Returns:
        Index of the record that replaces each exchanged one, by its index.
    """
    if run.request.pinned == "exchanged":
        return exchange(data, record)
    return exchange_half(data) if run.request.pinned == "halved" else {}


def exchange(data: Any, record: int) -> dict[int, int]:
    """Puts another record in the place of `record`, in arrays that a data set has in memory.

    In tables of floats the new record has the largest value of each column, so that extremes of all
    records move with it. Exchanging it again changes nothing: several data sets may share a table.
    Other values are those of `other_record`.

    Args:
        data: the data set, which may have the record several times, or not at all.
        record: index of the record in the data set that `data` is a subset of.

    Returns:
        Index of the record to read in its place, by each of its indices: itself if a table has it.
    """
    rows = base_and_rows(data)[1] or range(len(data))
    indices = [index for index, row in enumerate(rows) if row == record]
    if not indices:
        return {}
    other = other_record(data, indices[0])
    is_extreme = _overwrite(data, {indices[0]: other}, with_extremes=True)
    return {index: index if is_extreme else other for index in indices}


def exchange_half(data: Any) -> dict[int, int]:
    """Puts the second record in the place of every other record.

    With half of the records equal, even a share or a threshold that is rounded changes.

    Returns:
        The index of the second record, by the index of each record that was replaced.
    """
    size = len(data) if hasattr(data, "__len__") else 0  # in a stream, nothing is exchanged
    substitutes = dict.fromkeys(range(0, size - 1, 2), 1)
    _overwrite(data, substitutes)
    return substitutes


def _overwrite(
    data: Any,
    substitutes: dict[int, int],
    with_extremes: bool = False,
) -> bool:
    """Puts records in the place of others, in arrays that a data set has in memory.

    Args:
        data: the data set.
        substitutes: index of the record that takes the place of each record, by its index.
        with_extremes: whether new records in tables of floats are the columns' largest values.

    Returns:
        Whether a table got extremes.
    """
    base, rows = base_and_rows(data)
    targets = list(substitutes)
    sources = list(substitutes.values())
    if rows is not None:
        targets = [rows[index] for index in targets]
        sources = [rows[index] for index in sources]
    arrays = arrays_of(base)
    for array in _arrays_of_script():  # the script may have the data twice
        if any(_is_equal(array, table) for table in arrays_of(base)):
            arrays.append(array)
    got_extremes = False
    with torch.no_grad():
        for array in {id(array): array for array in arrays if owns_memory(array)}.values():
            values = array[sources]
            table = torch.as_tensor(array)
            if with_extremes and has_numbers(table, least=2):
                values = table.amax(dim=0)
                got_extremes = True
            array[targets] = values
    return got_extremes


def _is_equal(array: Any, other: Any) -> bool:
    """Returns whether two arrays have the same shape and values."""
    return bool(
        array.shape == other.shape and (torch.as_tensor(array) == torch.as_tensor(other)).all()
    )


def choose_record(run: WatchedRun, draw: Indices) -> None:
    """Chooses a record from a draw for later runs to exchange, if no batch could be read before."""
    if len(draw) >= FEWEST and run.request.record is None and run.pinned.chosen is None:
        run.pinned.chosen = int(draw[len(draw) // 2])
        run.pinned.chosen_as = "a record in the middle of a batch"


def _varied_draw(
    run: WatchedRun,
    indices: list[int],
    items: list[Any],
    keeps_size: bool,
) -> list[int]:
    """Returns a draw without its most conspicuous record, or with another record in its place.

    The record is left out of every second draw, unless batches have a fixed size. The change is
    stored by the bytes of the draw, as workers may fetch several batches before their steps.

    Args:
        run: the run.
        indices: indices of a draw.
        items: records of the draw.
        keeps_size: whether all batches must have the same size.
    """
    pinned = run.pinned
    position, name = conspicuous_record(items)
    leaves_out = pinned.leaves_out and len(pinned.variations) % 2 == 0 and not keeps_size
    change = "leaving out" if leaves_out else "another record in place of"
    change += f" record {indices[position]} ({name})"
    missing = position if leaves_out else None
    pinned.variations[np.array(indices).tobytes()] = change, missing
    # The record before it in the batch takes its place, and for the first record the last one.
    replacement = [] if leaves_out else [indices[position - 1]]
    return [*indices[:position], *replacement, *indices[position + 1 :]]


def with_variation(
    run: WatchedRun,
    step: PinnedStep,
    draws: list[Indices],
) -> PinnedStep:
    """Adds the change of its batch by `_varied_draw` to the entry of a step.

    If the step has several draws, their changes overlap. Then lengths of gradients are left out, so
    that they are not compared.

    Args:
        run: the run, which varies a record of each batch.
        step: the entry so far.
        draws: indices of the records of each draw in the step.
    """
    keys = [draw.tobytes() for draw in draws]
    if len(keys) != 1 or keys[0] not in run.pinned.variations:
        return replace(step, rows=())
    change, missing = run.pinned.variations[keys[0]]
    return replace(step, change=change, missing=missing)
