"""Inspects steps of loops without Opacus: functions that return releases, in any framework.

A release can be computed after a change of its examples: None for no change, ("without", i) without
example i, ("scaled", factor) with the last example a second time and so many times larger, or
("appended", arrays) with another example's gradient.
"""

import collections
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import StackDataset

from ..protocol import WILD, ArraysGiven, Draws, History, Participation, PinnedStep
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

_FACTORS = (3, 10, 30)  # by which a record is scaled, in addition to a thousand
_MOST_ROWS = 200_000  # rows of all steps that are searched among the records
_FEWEST_EQUAL = 3  # rows of the largest length, which then seems to be a bound
_NEARLY = 1 - 1e-5  # share of the largest length from which on a row counts as equally long
_LIMIT = 6.0  # standard deviations of the number of rows that are never drawn

Arrays = list[Any]
# Returns a step's release after a change, by generators as they are, or seeded.
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
        records: the number of records that the last step's were drawn from, if stated.
        sizes: the number of examples of each step.
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
        self.released_shapes: list[tuple[int, ...]] = []
        # Steps by noise multiplier and sampling rate.
        self._counts: collections.Counter[Any] = collections.Counter()
        self._redraws: bool | None = None  # whether a call draws noise; None before a trial
        self._scale = 1.0  # standard deviation of the numbers that replace a pinned release
        self._noises: list[Release] = []  # noise of all steps, if it is correlated
        self._white: Release | None = None  # the step's noise that no earlier step determines
        self._first_steps: dict[int, int] = {}  # first step of each record, by its index
        self._call: ReleasedArrays = lambda *_: []  # repeats the step

    @property
    def history(self) -> History:
        """(σ, q, steps), as an accountant of Opacus has it."""
        return tuple((noise, rate, steps) for (noise, rate), steps in self._counts.items())

    def mechanism(self) -> str:
        """Returns the name of the accountant by which the judge composes, as Opacus' do theirs."""
        return "pld"

    def step(
        self,
        call: ReleasedArrays,
        rows: int | None,
        shapes: list[tuple[int, ...]] | None,
        of: int | None,
        *,
        redraws: bool | None = True,
        clips: bool = True,
        records: Sequence[Any] = (),
    ) -> Arrays:
        """Inspects the step, decides about its canary, takes it.

        Args:
            call: returns what the step releases after a change, by generators as they are or
                seeded.
            rows: number of the step's examples; None if only their sum is known.
            shapes: shapes of an example's gradient, if a gradient may be appended. Else the canary
                is the last record, which is left out or not.
            of: number of records that the examples were drawn from, if stated.
            redraws: whether `call` draws its noise; None if that is to be tried, once.
            clips: whether `call` clips; else the sum was passed as arrays.
            records: arrays that have the examples, if known.
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
                run.put(ArraysGiven(kind="sum"))
            if self._white is not None:
                self._inspect_white(self._white)
            elif self._draws_noise(redraws):
                self.inspect()
            elif inspects:
                run.put(ArraysGiven(kind="noise"))
            if inspects and records:
                if _are_numbers_of_rows(records, of or math.inf):
                    run.put(ArraysGiven(kind="numbers"))
                if _are_bounded(records):
                    run.put(ArraysGiven(kind="bounded"))
            if records and not run.releases and (inspects or run.request.pinned):
                pinned_runs.find_tables(run, records)
                if run.followed:
                    tables = run.pinned.tables
                    is_of_more = tables and len(tables[0]) > len(records[0])
                    run.followed.end(StackDataset(*tables) if is_of_more else None, {})
            if inspects and sum(self.sizes) <= _MOST_ROWS:
                self._note_draw(records)
            change = self.begin_trial(self.rate)  # None if the examples stay as they are
        with self.fresh_noise():
            arrays = self._pin(records) if run.request.pinned else call(change, None)
        self.released_shapes = [tuple(array.shape) for array in arrays]
        release = _released(arrays)
        if self._white is None:
            self._counts[self.noise, self.rate] += 1
        else:  # an adversary knows the noise of earlier steps
            past = difference(self._noises[-1], self._white)
            release = difference(release, past)
        self.end_step(release, self.noise, self.rate)
        return arrays

    def whiten(
        self, noise: Arrays, strategy: Any, separation: int, indices: Sequence[int] | None
    ) -> None:
        """Notes the correlated noise n_t of the next step, for a test of the independent noise C n.

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
        sizes = []
        for first in range(min(separation, len(matrix))):
            change = np.abs(matrix)[:, first::separation].sum(axis=1)
            sizes.append(float(np.linalg.norm(change)))
        assert self.noise is not None
        self._counts = collections.Counter({(self.noise, 1.0): 1})
        self.rate = 1.0
        self.noise *= max(sizes) / matrix[step, step]
        has_indices = indices is not None
        if not step:
            self.run.put(Participation(separation=separation, has_indices=has_indices))
        for index in indices or ():
            earlier = self._first_steps.setdefault(int(index), step)
            if (step - earlier) % separation:
                pair = (int(index), earlier, step)
                self.run.put(Participation(separation=separation, record=pair))
                break

    def _inspect_white(self, white: Release) -> None:
        """Inspects a step of correlated noise, by its known independent part `white`."""
        if not self.run.request.inspects:
            return
        # Two draws around their own mean show as much as one draw around a known mean, here 0.
        count = 2
        mean = [-math.sqrt(1 + 1 / count) * part for part in white]
        draws = NoiseDraws(count, squared_lengths(white), mean)
        with self.run.replay():
            actual = self.released()
            entry = self.with_changes(self.inspection(actual), actual, draws, in_full=True)
        self.run.put(entry)

    def _note_draw(self, records: Sequence[Any]) -> None:
        """Notes which records the step's examples are, if an array of the examples shows it."""
        numbers = self.run.pinned.numbers
        for rows in records if numbers else ():
            indices = [numbers.get(key, -1) for key in row_keys(rows)]
            if min(indices, default=0) >= 0:
                self.draws.append(np.array(indices, dtype=np.int64))
                return

    def counted_draws(self) -> Draws | None:
        """Returns counts of the draws; None if the number of records is unknown.

        If the script does not state the number, it is the number of rows of the array that the
        records are from. But if more rows are never drawn than is likely, the array must have other
        rows, too, and the number is unknown.
        """
        rows = len(self.run.pinned.numbers)
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
        """Returns whether a call draws noise: as the caller states, or whether two seeds differ.

        Args:
            redraws: the caller's statement; None if two seeds are to be tried, once.
        """
        if redraws is not None:
            return redraws
        if self._redraws is None:  # not tried yet
            with self.run.replay():
                self._redraws = any(part.any() for part in self._difference_by_noise())
        return self._redraws

    def _difference_by_noise(self) -> Release:
        """Returns the difference of two releases of this step, which have different noise."""
        return difference(self.released(seed=1), self.released(seed=2))

    def _pin(self, records: Sequence[Any]) -> Arrays:
        """Takes the step, records it, and returns random numbers of a seed for its release."""
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
        is_scaled = self.shapes is None and self.rows
        if is_scaled:
            yield f"{WILD} a thousand times larger", ("scaled", 1000)
        yield from super().changes()
        for factor in _FACTORS if is_scaled else ():
            yield f"{WILD} {factor} times larger", ("scaled", factor)


def change_examples(examples: Sequence[Any], change: Change) -> list[Any]:
    """Returns arrays with a leading dimension of examples, of any framework, after a change."""
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
    """Returns whether records seem to be numbers of rows: one each, different, and below `rows`."""
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
        sizes = (rows.max(axis=1, initial=0), np.linalg.norm(rows, axis=1))
        most = max(np.sum(size > size.max(initial=0) * _NEARLY) for size in sizes)
        if most < _FEWEST_EQUAL and "float" in str(array.dtype):
            return False
    return True


def _join(first: Any, second: Any) -> Any:
    """Returns two arrays joined along the first dimension, as an array of the first one's kind."""
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
