"""Runs whose releases are held: random numbers of a seed are in the place of what steps release.

Two such runs, one with another record in the place of one, differ in nothing that private training
publishes. So what does differ, but for the steps that have the record, carries it past the noise:
later steps, what is returned or saved, what chooses a learning rate or an epoch. A third run, with
other noise, tells what noise moves as well. Data are exchanged in memory, never in their files.
Of a loop without Opacus they are arrays of its code that the first step's records are rows of.
"""

import contextlib
import itertools
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.data import Dataset, StackDataset, Subset

from . import step_probe
from .opacus_engine import named_tensors
from .run_state import Indices, ReleaseKey, WatchedRun, around, import_if_there, is_users

_TRIED = 100  # records that one might be exchanged for
_PARTS = 10  # of a data set, at most; a longer list is of records
_FEWEST = 4  # records of the draw that one is exchanged of
_MOST = 200_000  # records that a step's are looked for in
_DECIDERS = (  # what chooses by a number: module, class, method
    ("torch.optim.lr_scheduler", "ReduceLROnPlateau", "step"),
    ("pytorch_lightning.callbacks", "ModelCheckpoint", "check_monitor_top_k"),
    ("pytorch_lightning.callbacks", "EarlyStopping", "_evaluate_stopping_criteria"),
    ("transformers.trainer", "Trainer", "_determine_best_metric"),
)


def install(run: WatchedRun) -> None:
    """Holds releases from now on: private data have another record, what comes of them is noted."""
    from torch.utils.data._utils.fetch import _MapDatasetFetcher
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    def make_private(original: Any, self: Any, **kwargs: Any) -> Any:
        if not run.modules:
            _watch_decisions(run)
        if run.request.held == "exchanged":
            exchange(kwargs["data_loader"].dataset, run.request.record or 0)
        return original(self, **kwargs)

    if opacus := import_if_there("opacus"):
        around(opacus.PrivacyEngine, "make_private")(make_private)
    numbers = itertools.count()

    @around(_BaseDataLoaderIter, "_next_index")
    def draw(original: Any, iterator: Any) -> Any:
        with step_probe.preserve_generators():  # whatever random numbers were drawn before
            step_probe.seed_generators(run.request.derived("loader", next(numbers)))
            return original(iterator)

    @around(_MapDatasetFetcher, "fetch")
    def fetch(original: Any, self: Any, indices: Any) -> Any:
        private = any(self.dataset is data for data in run.data)
        if private and run.request.held == "exchanged":
            record = run.request.record or 0
            change = {record: _other(self.dataset, record)}
            indices = tree_map(lambda index: change.get(index, index), indices)
        return original(self, indices)


def _watch_decisions(run: WatchedRun) -> None:
    """What has been imported of `_DECIDERS` notes the numbers that it is given."""
    for module, name, method in _DECIDERS:
        kind = getattr(sys.modules.get(module), name, None)
        if kind is None:
            continue

        def decide(original: Any, *args: Any, name: str = name, **kwargs: Any) -> Any:
            leaves = tree_flatten((args[1:], kwargs))[0]
            leaves = [torch.as_tensor(v) for v in leaves if isinstance(v, (float, torch.Tensor))]
            numbers = [float(v) for v in leaves if v.dim() == 0]
            run.published.append((f"what {name} is given", str(numbers)))
            return original(*args, **kwargs)

        around(kind, method)(decide)


def _other(data: Any, record: int) -> int:
    """The index of the record that comes in the place of this one: another in each array."""
    size = len(data)
    if record >= size:
        return record
    arrays = [] if isinstance(data, Subset) else arrays_of(data)
    others = [(record + size // 2 + k) % size for k in range(min(size, _TRIED))]
    differ = (i for i in others if all((a[i] != a[record]).any() for a in arrays))
    return next(differ, others[0])


def exchange(data: Any, record: int) -> None:
    """Puts another record in the place of one, in arrays that a data set holds in memory."""
    other = _other(data, record)
    if other == record:
        return
    if isinstance(data, Subset):
        data, record, other = data.dataset, data.indices[record], data.indices[other]
    with torch.no_grad():
        for array in filter(_is_alone, arrays_of(data)):
            array[record] = array[other]


def _is_alone(array: Any) -> bool:
    """Whether its memory is its own: no file's, and of no other library."""
    if isinstance(array, torch.Tensor):
        storage = array.untyped_storage()
        if hasattr(storage, "resizable"):
            return storage.resizable()
        with contextlib.suppress(RuntimeError):  # torch 2.2 refuses to resize others
            storage.resize_(storage.nbytes())
            return True
        return False
    return array.base is None and bool(array.flags.writeable)


def arrays_of(data: Any) -> list[Any]:
    """Tensors and arrays of numpy that a data set holds, a record in each row."""
    data = data.dataset if isinstance(data, Subset) else data
    values = [
        part
        for value in getattr(data, "__dict__", {}).values()
        for part in (value if isinstance(value, (tuple, list)) and len(value) < _PARTS else [value])
    ]
    held = [v for v in values if isinstance(v, (np.ndarray, torch.Tensor)) and v.ndim > 0]
    return [array for array in held if len(array) == len(data)]


def find_tables(run: WatchedRun, examples: Sequence[Any]) -> None:
    """Finds the arrays that a step's examples are rows of; chooses a record, or exchanges it.

    JAX draws from keys that no run can give others, so its scripts are left out.
    """
    if {"jax", "tensorflow"} & {*sys.modules} or len(examples[0]) < _FEWEST:
        return
    leaves: list[Any] = []
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            leaves += tree_flatten([dict(frame.f_locals), frame.f_globals])[0]
        frame = frame.f_back
    run.drawing = [v for v in leaves if isinstance(v, (torch.Generator, np.random.Generator))]
    leaves = [a for v in leaves for a in (arrays_of(v) if _is_sized(v) else [v])]
    arrays = (v for v in leaves if isinstance(v, torch.Tensor) or _has_numbers(v))
    tables = [a for a in arrays if a.ndim > 0 and len(a) <= _MOST and _is_alone(a)]
    tables.sort(key=len, reverse=True)  # batches are among them
    for table, rows in itertools.product(tables, examples):
        if table.ndim > 1 and _of_one_kind(table, rows):
            numbers = {row: number for number, row in enumerate(_digests(table))}
            places = [numbers.get(row, -1) for row in _digests(rows)]
            if min(places) >= 0:
                break
    else:
        return
    others = (t for t in tables if len(t) == len(table) and t is not table)
    given = (t for t in others if any(_are_rows(e, t, places) for e in examples))
    run.tables, run.chosen = [table, *given], places[len(places) // 2]
    if run.request.held:
        _watch_decisions(run)
    if run.request.held == "exchanged":
        exchange(StackDataset(*run.tables), run.chosen)


def _is_sized(value: Any) -> bool:
    return isinstance(value, Dataset) and hasattr(value, "__len__")


def _has_numbers(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "fiub"


def _digests(rows: Any) -> Iterator[bytes]:
    # Of a copy: memory that numpy has seen is taken for a file's.
    return map(step_probe.digest, torch.as_tensor(rows).clone())


def _of_one_kind(first: Any, second: Any) -> bool:
    a, b = torch.as_tensor(first), torch.as_tensor(second)
    return a.dtype == b.dtype and a.shape[1:] == b.shape[1:]


def _are_rows(rows: Any, table: Any, places: list[int]) -> bool:
    return _of_one_kind(table, rows) and [*_digests(table[places])] == [*_digests(rows)]


def has_row(run: WatchedRun, examples: Sequence[Any]) -> bool:
    """Whether these examples have the record that is chosen; True where that is not told."""
    if not run.tables or run.chosen is None or not examples:
        return True
    (row,) = _digests(run.tables[0][run.chosen : run.chosen + 1])
    alike = (rows for rows in examples if _of_one_kind(run.tables[0], rows))
    return any(row in _digests(rows) for rows in alike)


@contextlib.contextmanager
def noise_of_seed(
    run: WatchedRun, at: ReleaseKey, member: bool, generators: Sequence[Any]
) -> Iterator[int]:
    """Seeds a step's noise in a run that holds, and what random numbers come after it."""
    request = run.request
    run.shaken |= request.held == "shaken" and member
    seed = request.derived("noise", request.held == "noised" and member, *at)
    step_probe.seed_generators(seed, generators)
    yield seed
    step_probe.seed_generators(request.derived("after", run.shaken, *at), generators)


def drawn_at(run: WatchedRun, at: ReleaseKey) -> list[Indices]:
    """What was drawn for the step that is taken."""
    last = itertools.takewhile(lambda taken: taken[2] == at, reversed(run.loaders.taken))
    return [draw for _, draw, _ in last]


def has_record(run: WatchedRun, at: ReleaseKey) -> bool:
    """Whether a step has the record that is exchanged."""
    record = run.chosen if run.request.record is None else run.request.record
    return any(record in draw for draw in drawn_at(run, at))


def hold(watched: Any) -> None:
    """Notes what an optimizer steps by; random numbers of a seed, as large as noise, replace it."""
    run, optimizer = watched.run, watched.optimizer
    at = watched.number, watched.steps
    params = list(optimizer.params)
    drawn = drawn_at(run, at)
    if run.request.record is None and run.chosen is None and drawn:
        draw = np.concatenate(drawn)
        run.chosen = int(draw[len(draw) // 2]) if len(draw) >= _FEWEST else None
    release = [step_probe.sample_digest(p.grad).hex() for p in params if p.grad is not None]
    watched.batch["drawn"] = sum(map(len, drawn))
    run.put("held", member=has_record(run, at), release=release, **watched.batch)
    noise = watched.unit * watched.bound * float(optimizer.noise_multiplier)
    held = step_probe.random_direction([p.shape for p in params], run.request.derived("held", *at))
    length = sum(p.numel() for p in params) ** 0.5
    for p, values in zip(params, held, strict=True):
        p.grad = (noise * length * values).to(p)


def publish_all(run: WatchedRun, value: Any, file: str = "") -> None:
    """Notes digests of all tensors that are returned, or saved in a file, but of what is public."""
    for key, kind, tensor in named_tensors(value):
        if not run.is_public(key, kind):
            run.published.append((file + key, step_probe.digest(tensor).hex()))
