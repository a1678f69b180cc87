"""Inspects steps of loops without Opacus: functions that return releases, in any framework.

A release can be computed again after a change of its examples: None changes nothing, ("without", i)
leaves out example i, ("scaled", factor) adds the last example once more, times the factor, and
("appended", arrays) adds another example with this gradient.
"""

import collections
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import StackDataset

from ..protocol import WILD, Draws, History, Integers, Participation, PinnedStep
from . import pinned_runs
from .generators import script_generators
from .loaders import Indices, draw_counts
from .noise_draws import NoiseDraws
from .publications import digests_of_all_networks
from .run_state import WatchedRun
from .step_probe import INSPECTED, Change, StepWatch
from .tensors import (
    Release,
    difference,
    flat_vectors,
    row_keys,
    sample_digest,
    squared_lengths,
)

run: WatchedRun | None = None  # the run that this process watches

_FACTORS = (3, 10, 30)  # factors by which a record is scaled, in addition to a thousand
_MOST_ROWS = 200_000  # rows of all steps that are searched among the records
_FEWEST_EQUAL = 3  # rows of the largest length, which then seems to be a bound
_NEARLY = 1 - 1e-5  # share of the largest length from which on a row counts as equally long
_LIMIT = 6.0  # standard deviations of the number of rows that are never drawn

Arrays = list[Any]
# Returns a step's release after a change. The second argument is the seed of its generators; None
# for generators as they are.
ReleasedArrays = Callable[[Change, int | None], Arrays]


def stream_at(name: str, claim: tuple[float, float, float]) -> "Stream | None":
    """Returns the recorder of a call site; None outside training, and in replays.

    Args:
        name: name of the call site.
        claim: noise multiplier, clipping bound and sampling rate that the call states.
    """
    if run is None or run.replaying or run.phase != "main":
        return None
    if name not in run.streams:
        run.streams[name] = Stream(run, len(run.streams))
    stream: Stream = run.streams[name]
    stream.noise, stream.bound, stream.rate = claim
    return stream


class Stream(StepWatch):
    """Records the steps of one call site, and counts them by the parameters that calls state.

    The judge composes ε from the counts, as the script's environment may have no accountant.

    Attributes:
        rate: the sampling rate that the last call states.
        records: number of records that the last step's examples were drawn from; None if the call
            does not state it.
        sizes: number of examples of each step.
        draws: indices of the records of each step, as far as they are known.
        released_shapes: shapes of the arrays that the last step released.
    """

    glance_changes = 2

    def __init__(self, run: WatchedRun, number: int) -> None:
        """Begins before the first step.

        Args:
            run: the run.
            number: number of the call site among the run's optimizers or call sites.
        """
        super().__init__(run, number)
        self.rate = 1.0
        self.records: int | None = None
        self.sizes: list[int] = []
        self.draws: list[Indices] = []
        self.released_shapes: list[Integers] = []
        # Steps by noise multiplier and sampling rate.
        self._counts: collections.Counter[Any] = collections.Counter()
        # Whether repeated calls have different noise; None before that is tried.
        self._redraws: bool | None = None
        self._scale = 1.0  # standard deviation of the numbers that replace a pinned release
        self._noises: list[Release] = []  # noise of all steps, if it is correlated
        # The part of a step's correlated noise that no earlier step determines; None for noise
        # that is not correlated.
        self._white: Release | None = None
        self._first_steps: dict[int, int] = {}  # first step of each record, by its index
        self._call: ReleasedArrays = lambda *_: []  # repeats the step

    @property
    def history(self) -> History:
        """(σ, q, steps), as an accountant of Opacus has it."""
        return tuple((noise, rate, steps) for (noise, rate), steps in self._counts.items())

    def mechanism(self) -> str:
        """Returns the name of the claim: the judge composes the steps by PLD.

        Accountants of Opacus have such a method, too.
        """
        return "pld"

    def step(
        self,
        call: ReleasedArrays,
        rows: int | None,
        shapes: list[Integers] | None,
        of: int | None,
        *,
        redraws: bool | None = True,
        clips: bool = True,
        records: Sequence[Any] = (),
    ) -> Arrays:
        """Inspects a step, decides about its canary, and takes it.

        Args:
            call: returns what the step releases after a change; see `ReleasedArrays`.
            rows: number of the step's examples; None if only their sum is known.
            shapes: shapes of an example's gradient if a gradient can be appended. If None, the
                canary is the last record, which is left out or not.
            of: number of records that the examples were drawn from; None if it is not stated.
            redraws: whether `call` draws its noise; None if that is to be tried, once.
            clips: whether `call` clips; else the sum was passed as arrays.
            records: arrays that have the examples; empty if they are unknown.

        Returns:
            The arrays that the step releases; random numbers in a run with pinned releases.
        """
        self._call = call
        self.shapes = shapes
        self.rows = rows or 0
        self.records = of
        if rows is not None:
            self.sizes.append(rows)
        run = self.run
        inspects = run.request.inspects
        run.accountants.note_gains(self.at)
        if inspects and not self.steps:
            run.publications.before |= digests_of_all_networks()
        with run.clock.inspection():
            if self.steps in INSPECTED:
                self.generators = script_generators()
            if inspects and not clips:
                self.note_limit("sum")
            if self._white is not None:
                self._inspect_white(self._white)
            elif self._draws_noise(redraws):
                self.inspect()
            elif inspects:
                self.note_limit("noise")
            if records:
                self._examine_records(records)
            if inspects and sum(self.sizes) <= _MOST_ROWS:
                self._note_draw(records)
            change = self.begin_trial(self.rate)  # None if the examples stay as they are
        with self.fresh_noise():
            arrays = self._pin(records) if run.request.pinned else call(change, None)
        self.released_shapes = [tuple(array.shape) for array in arrays]
        release = _released(arrays)
        if self._white is None:
            self._counts[self.noise, self.rate] += 1
        else:  # an adversary knows the part of the noise that follows from earlier steps
            known_noise = difference(self._noises[-1], self._white)
            release = difference(release, known_noise)
        self.end_step(release, self.noise, self.rate)
        return arrays

    def _examine_records(self, records: Sequence[Any]) -> None:
        """Notes what is peculiar about the step's examples; before the first step, finds the data.

        Args:
            records: arrays that have the examples.
        """
        run = self.run
        inspects = run.request.inspects
        if inspects and _are_numbers_of_rows(records, self.records or math.inf):
            self.note_limit("numbers")
        if inspects and _are_bounded(records):
            self.note_limit("bounded")
        if run.releases or not (inspects or run.request.pinned):
            return
        pinned_runs.find_tables(run, records)
        if run.followed:
            tables = run.pinned.tables
            # A table that is no longer than the batch may be the batch itself.
            has_more = tables and len(tables[0]) > len(records[0])
            run.followed.end(StackDataset(*tables) if has_more else None, {})

    def whiten(
        self, noise: Arrays, strategy: Any, separation: int, indices: Sequence[int] | None
    ) -> None:
        """Notes the correlated noise n_t of the next step, to test the independent noise C n.

        Multiplied by C, the releases g + n of all steps are C g + z, where z = C n. So step t is a
        step of DP-SGD with the noise z_t / C_tt. Its multiplier is the claimed one times the
        sensitivity of C, divided by C_tt.

        Args:
            noise: n_t, an array per tensor.
            strategy: C [T, T].
            separation: number of steps b between two steps that a record takes part in.
            indices: indices of the step's records, if known.

        Raises:
            ValueError: C has too few rows.
        """
        matrix = np.asarray(strategy, dtype=float)
        step = self.steps
        if step >= len(matrix):
            raise ValueError(f"strategy has {len(matrix)} rows; give one for each step")
        self._noises.append(_flat(noise))
        row = matrix[step] / matrix[step, step]
        white = [np.zeros_like(part) for part in self._noises[-1]]
        for weight, noises in zip(row, self._noises, strict=False):
            white = [total + weight * part for total, part in zip(white, noises, strict=True)]
        self._white = white
        # The sensitivity of C is the largest length of the change by one record, which takes part
        # in steps `first`, `first` + b, ...
        lengths = []
        for first in range(min(separation, len(matrix))):
            change = np.abs(matrix)[:, first::separation].sum(axis=1)
            lengths.append(float(np.linalg.norm(change)))
        assert self.noise is not None
        # All steps together are one release with the claimed multiplier.
        self._counts = collections.Counter({(self.noise, 1.0): 1})
        self.rate = 1.0
        self.noise *= max(lengths) / matrix[step, step]
        if not step:
            self.run.put(Participation(separation=separation, has_indices=indices is not None))
        for index in indices or ():
            earlier = self._first_steps.setdefault(int(index), step)
            if (step - earlier) % separation:
                record = (int(index), earlier, step)
                self.run.put(Participation(separation=separation, record=record))
                break

    def _inspect_white(self, white: Release) -> None:
        """Inspects a step of correlated noise, by its known independent part `white`."""
        if not self.run.request.inspects:
            return
        # Two draws around their own mean show as much as one draw around a known mean, here 0.
        count = 2
        # `StepNoise` divides the draws' mean by the root of this factor, which is undone here.
        mean = [-math.sqrt(1 + 1 / count) * part for part in white]
        draws = NoiseDraws(count, squared_lengths(white), mean)
        with self.run.replay():
            actual = self.released()
            entry = self.with_changes(self.inspection(actual), actual, draws, in_full=True)
        self.run.put(entry)

    def _note_draw(self, records: Sequence[Any]) -> None:
        """Notes which records the step's examples are, if they are rows of a known table."""
        row_numbers = self.run.pinned.numbers  # numbers of the table's rows, by their keys
        for rows in records if row_numbers else ():
            indices = [row_numbers.get(key, -1) for key in row_keys(rows)]
            if min(indices, default=0) >= 0:  # each example is a row of the table
                self.draws.append(np.array(indices, dtype=np.int64))
                return

    def counted_draws(self) -> Draws | None:
        """Returns counts of the draws; None if the number of records is unknown.

        If the script does not state the number, it is the number of rows of the array that the
        records are from. But if more rows are never drawn than is likely, the array must have other
        rows, too, and the number is unknown.
        """
        rows = len(self.run.pinned.numbers)
        # The records of each step are known, and all steps state the same noise and rate.
        is_known = rows > 0 and len(self.draws) == self.steps and len(self._counts) == 1
        if is_known and self.records in (None, rows):
            counts = draw_counts(self.draws, rows, self.rate)
            undrawn = rows - len(np.unique(np.concatenate(self.draws)))
            rate = sum(counts.sizes) / (rows * self.steps)
            expected = rows * (1 - rate) ** self.steps
            if self.records or undrawn <= expected + _LIMIT * math.sqrt(expected):
                return counts
        return Draws(self.records, tuple(self.sizes)) if self.records else None

    def _draws_noise(self, redraws: bool | None) -> bool:
        """Returns whether a call draws noise.

        Args:
            redraws: the caller's statement; None to try once whether two seeds give two releases.
        """
        if redraws is not None:
            return redraws
        if self._redraws is None:  # not tried yet
            with self.run.replay():
                self._redraws = any(part.any() for part in self._difference_by_noise())
        return self._redraws

    def _difference_by_noise(self) -> Release:
        """Returns the difference between two releases of this step that differ in their noise."""
        return difference(self.released(seed=1), self.released(seed=2))

    def _pin(self, records: Sequence[Any]) -> Arrays:
        """Takes a step of a pinned run, records it, and returns random numbers as its release."""
        run = self.run
        if not self.steps:  # the scale of the first step serves for all
            spread = np.std(np.concatenate(self._difference_by_noise())) or 1.0
            self._scale = 2.0 ** round(math.log2(spread))  # the same however the noise is rounded
        member = pinned_runs.has_row(run, records)
        with self.pinned_noise(member) as seed:
            arrays = self._call(None, seed)
        parts = map(torch.from_numpy, _flat(arrays))
        release = tuple(sample_digest(part).hex() for part in parts)
        run.put(PinnedStep(member=member, release=release, drawn=self.rows))
        shapes = [np.shape(array) for array in arrays]
        pinned = []
        for array, values in zip(arrays, self.pinned_release(shapes, self._scale), strict=True):
            is_tensor = isinstance(array, torch.Tensor)
            pinned.append(values.to(array) if is_tensor else values.numpy().astype(array.dtype))
        return pinned

    def release(self, change: Change, seed: int | None) -> Release:
        return _released(self._call(change, seed))

    def without(self, index: int) -> Change:
        return "without", index

    def appended(self, row: list[torch.Tensor]) -> Change:
        return "appended", [w.numpy() for w in row]

    def changes(self) -> Iterator[tuple[str, Change]]:
        """Implements `StepWatch.changes`; scales a record if no gradient can be appended."""
        scales = self.shapes is None and self.rows
        if scales:  # the largest factor first, as most steps make two changes only
            yield f"{WILD} a thousand times larger", ("scaled", 1000)
        yield from super().changes()
        for factor in _FACTORS if scales else ():
            yield f"{WILD} {factor} times larger", ("scaled", factor)


def change_examples(examples: Sequence[Any], change: Change) -> list[Any]:
    """Returns arrays of any framework, one example per row, after a change of the examples."""
    if change is None:
        return list(examples)
    kind, value = change
    if kind == "without":
        return [_join(array[:value], array[value + 1 :]) for array in examples]
    if kind == "appended":
        rows = [new.reshape(1, *a.shape[1:]) for a, new in zip(examples, value, strict=True)]
        return list(map(_join, examples, rows))
    changed = []
    for array in examples:
        factor = value if "float" in str(array.dtype) else 1  # classes and tokens stay
        changed.append(_join(array, array[-1:] * factor))
    return changed


def _are_numbers_of_rows(records: Sequence[Any], rows: float) -> bool:
    """Returns whether records seem to be numbers of rows: one each, different, and below `rows`.

    Args:
        records: arrays that have the examples.
        rows: number of rows that records are drawn from; infinite if it is unknown.
    """
    if any(math.prod(np.shape(array)) > len(array) for array in records):
        return False
    columns = _flat([array for array in records if "int" in str(array.dtype)])
    return any(len(set(column)) == len(column) and (column < rows).all() for column in columns)


def _are_bounded(records: Sequence[Any]) -> bool:
    """Returns whether in each array of floats several rows have the largest length or number.

    Such rows seem to have been shortened or cut before.
    """
    for array in records:
        row_size = math.prod(np.shape(array)[1:])
        rows = np.abs(_flat([array])[0]).reshape(len(array), row_size)
        measures = (rows.max(axis=1, initial=0), np.linalg.norm(rows, axis=1))
        # How many rows are as large as the largest one, by the measure that gives more.
        most = max(np.sum(sizes > sizes.max(initial=0) * _NEARLY) for sizes in measures)
        if most < _FEWEST_EQUAL and "float" in str(array.dtype):
            return False
    return True


def _join(first: Any, second: Any) -> Any:
    """Joins two arrays along the first dimension; returns an array of the first one's kind."""
    if isinstance(first, torch.Tensor):
        return torch.cat([first, torch.as_tensor(second).to(first)])
    kind = type(first).__module__.partition(".")[0]
    if kind in ("jax", "jaxlib"):
        import jax.numpy as jnp

        return jnp.concatenate([first, jnp.asarray(second, first.dtype)])
    if kind == "tensorflow":
        import tensorflow as tf

        return tf.concat([first, tf.cast(second, first.dtype)], axis=0)
    return np.concatenate([first, np.asarray(second, np.asarray(first).dtype)])


def _released(arrays: Arrays) -> Release:
    """Returns releases as `_flat` does, with each number of a symmetric matrix once.

    It stands twice off the diagonal. Lengths stay as they are: the upper number is multiplied by
    √2, and the lower one is 0.
    """
    release = _flat(arrays)
    for index, array in enumerate(arrays):
        shape = tuple(array.shape)
        if len(shape) == 2 and shape[0] == shape[1]:
            matrix = release[index].reshape(shape)
            if np.array_equal(matrix, matrix.T):
                upper = math.sqrt(2) * np.triu(matrix, 1)
                release[index] = (upper + np.diag(np.diag(matrix))).reshape(-1)
    return release


def _flat(arrays: Arrays) -> Release:
    """Returns arrays of any framework as flat float64 vectors of numpy."""
    vectors = []
    for array in arrays:
        if isinstance(array, torch.Tensor):
            vectors += flat_vectors([array])
        else:
            vectors.append(np.asarray(array, dtype=np.float64).reshape(-1))
    return vectors
