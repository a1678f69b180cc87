"""Pins releases: random numbers of a seed take the place of what steps release.

Two such runs, one with another record in the place of one, differ in nothing that private training
publishes. What does differ, but for the steps that have the record, carries it past the noise:
later steps, what is returned or saved, what chooses a learning rate or an epoch. A third run, with
other noise, shows what noise changes as well. Of a loop without Opacus the data are arrays of its
code that the first step's records are rows of.
"""

import contextlib
import dataclasses
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.data import StackDataset

from ..protocol import PinnedStep
from . import private_arrays
from .generators import preserve_generators, seed_generators
from .hooks import around, import_if_there
from .loaders import Indices, ReleaseKey
from .record_choice import FEWEST, conspicuous_records
from .run_state import WatchedRun

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

    def make_private(original: Any, self: Any, **kwargs: Any) -> Any:
        if not run.networks.modules:
            _watch_decisions(run)
        if exchanges:
            private_arrays.exchange(kwargs["data_loader"].dataset, record)
        return original(self, **kwargs)

    if opacus := import_if_there("opacus"):
        around(opacus.PrivacyEngine, "make_private")(make_private)
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
            substitute = {record: private_arrays.other_record(self.dataset, record)}
            indices = tree_map(lambda index: substitute.get(index, index), indices)
        return original(self, indices)


def _watch_decisions(run: WatchedRun) -> None:
    """Makes imported classes of `_DECIDERS` publish the numbers that they are given."""
    for module, name, method in _DECIDERS:
        kind = getattr(sys.modules.get(module), name, None)
        if kind is None:
            continue

        def decide(
            original: Any,
            *args: Any,
            name: str = name,
            **kwargs: Any,
        ) -> Any:
            leaves = tree_flatten((args[1:], kwargs))[0]
            leaves = [torch.as_tensor(v) for v in leaves if isinstance(v, (float, torch.Tensor))]
            numbers = [float(v) for v in leaves if v.dim() == 0]
            run.publications.pinned.append((f"what {name} is given", str(numbers)))
            return original(*args, **kwargs)

        around(kind, method)(decide)


def find_tables(run: WatchedRun, examples: Sequence[Any]) -> None:
    """Finds the arrays that a step's examples are rows of; chooses a record, or exchanges it."""
    if private_arrays.uses_keys() or len(examples[0]) < FEWEST:
        return
    pinned = run.pinned
    pinned.tables, indices = private_arrays.find_tables(examples)
    if not pinned.tables:
        return
    columns = [table[indices] for table in pinned.tables]
    rows = list(zip(*columns, strict=True))
    position, pinned.chosen_as = next(conspicuous_records(rows))
    pinned.chosen = indices[position]
    if run.request.pinned:
        _watch_decisions(run)
    if run.request.pinned == "exchanged":
        data = StackDataset(*pinned.tables)
        private_arrays.exchange(data, pinned.chosen)


def has_row(run: WatchedRun, examples: Sequence[Any]) -> bool:
    """Returns whether examples have the chosen record; True if that is unknown."""
    pinned = run.pinned
    if not pinned.tables or pinned.chosen is None or not examples:
        return True
    table = pinned.tables[0]
    (row,) = private_arrays.row_keys(table[pinned.chosen : pinned.chosen + 1])
    comparable = (rows for rows in examples if private_arrays.same_kind(table, rows))
    return any(row in private_arrays.row_keys(rows) for rows in comparable)


@contextlib.contextmanager
def noise_of_seed(
    run: WatchedRun, at: ReleaseKey, member: bool, generators: Sequence[Any]
) -> Iterator[int]:
    """Seeds a step's noise in a pinned run, and what random numbers come after it."""
    request = run.request
    run.pinned.shaken |= request.pinned == "shaken" and member
    seed = request.derived("noise", request.pinned == "noised" and member, *at)
    seed_generators(seed, generators)
    yield seed
    seed_generators(request.derived("after", run.pinned.shaken, *at), generators)


def has_record(run: WatchedRun, draw: Indices) -> bool:
    """Returns whether a draw has the record that is exchanged."""
    record = run.pinned.chosen if run.request.record is None else run.request.record
    return record in draw


def add_step(run: WatchedRun, entry: PinnedStep, draw: Indices) -> None:
    """Writes an entry once the record is chosen of which it states whether the step has it."""
    run.pinned.steps.append((entry, draw))
    if run.request.record is not None or not run.pinned.batches:
        write_steps(run)


def write_steps(run: WatchedRun) -> None:
    """Writes the entries of steps that waited for the choice of a record."""
    for entry, draw in run.pinned.steps:
        run.put(dataclasses.replace(entry, member=has_record(run, draw)))
    run.pinned.steps.clear()


def choose_record(run: WatchedRun, draw: Indices) -> None:
    """Chooses the record that later runs exchange from a draw, if no batch was collated."""
    if len(draw) < FEWEST:
        return
    run.pinned.last_record = int(draw[len(draw) // 2])
    if run.request.record is None and run.pinned.chosen is None:
        run.pinned.chosen = run.pinned.last_record
        run.pinned.chosen_as = "a record in the middle of a batch"
