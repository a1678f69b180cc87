"""Records which examples a script's loaders draw, and which draws each step was taken with."""

import collections
import contextlib
import functools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..protocol import Draws
from .hooks import around, before
from .shared_records import base_and_rows

_MOST_INDICES = 4_000_000  # indices that are stored; later draws are not checked

Indices = npt.NDArray[np.int64]
ReleaseKey = tuple[int, int]  # number of an optimizer or call site, and its step


@dataclass(eq=False)
class Iteration:
    """A walk through a loader.

    Attributes:
        data: the loader's data set.
        sampler: draws the indices of batches.
        splits: a draw is passed to the script in several parts.
        waiting: draws whose batch the script has not got yet.
        batches: draws that the script got since its last step.
    """

    data: Any
    sampler: Any
    splits: bool
    waiting: collections.deque[Indices] = field(default_factory=collections.deque)
    batches: list[Indices] = field(default_factory=list)

    @functools.cached_property
    def _rows(self) -> Indices | None:
        rows = base_and_rows(self.data)[1]
        return None if rows is None else np.array(rows)

    def in_base(self, indices: Indices) -> Indices:
        """Returns indices of `data` as indices of the data set that it is a subset of."""
        return indices if self._rows is None else self._rows[indices]


@dataclass(frozen=True, eq=False)
class Draw:
    """Indices that a sampler drew from a data set, and the release that was made of them."""

    data: Any
    indices: Indices
    release: ReleaseKey


class LoaderWatch:
    """Records draws of loaders.

    Attributes:
        current: the walk that the script is in.
        private: loaders that training uses, if that is known.
        used: draws that a release was made of, in their order.
        last_draws: draws of the last release.
        unused: sizes of draws of which the script made no release.
        beside: sizes of draws of other loaders, since a private loader drew.
    """

    def __init__(self) -> None:
        """Begins without draws; `install` records them."""
        self.current: Iteration | None = None
        self.private: list[Any] = []
        self.used: list[Draw] = []
        self.last_draws: list[Indices] = []
        self.unused: list[int] = []
        self.beside = set[int]()
        self._private_draws = False  # whether a private loader was drawn from
        self._stored = 0  # number of indices in `used`
        self._iterations: weakref.WeakKeyDictionary[Any, Iteration] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        """Records draws from now on."""
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        @before(_BaseDataLoaderIter, "_reset")
        def reset(iterator: Any, *_: Any, **__: Any) -> None:
            """Forgets the iterator's pass before it begins another one."""
            # With persistent workers an iterator serves several passes.
            self._iterations.pop(iterator, None)

        @around(_BaseDataLoaderIter, "_next_index")
        def draw(original: Any, iterator: Any) -> Any:
            """Draws indices, and notes them as waiting, since workers fetch batches ahead."""
            batch = original(iterator)
            sampler = iterator._index_sampler
            splits = type(sampler).__name__ == "BatchSplittingSampler"  # a class of Opacus
            iteration = Iteration(iterator._dataset, sampler, splits)
            self._iterations.setdefault(iterator, iteration).waiting.append(_as_indices(batch))
            return batch

        @around(_BaseDataLoaderIter, "__next__")
        def advance(original: Any, iterator: Any) -> Any:
            """Returns the next batch, whose draw is the oldest waiting one, and notes the draw."""
            batch = original(iterator)
            iteration = self._iterations.get(iterator)
            if iteration is not None and iteration.waiting:
                indices = iteration.waiting.popleft()
                if self._trains(iteration.sampler):
                    self.current = iteration
                    iteration.batches.append(indices)
                else:
                    self.beside.add(len(indices))
            return batch

    def _trains(self, sampler: Any) -> bool:
        """Returns whether draws of a sampler may train.

        Once a private loader draws, only draws of private loaders may: other loaders walk through
        the same data to evaluate. Until then draws of any loader may, since Lightning trains from a
        loader that it makes, and the private loader rests.
        """
        samplers = {id(sampler), id(getattr(sampler, "sampler", sampler))}
        is_private = any(id(loader._index_sampler) in samplers for loader in self.private)
        self._private_draws |= is_private
        return is_private or not self._private_draws

    def at_step(self, accumulated: int, release: ReleaseKey) -> int:
        """Notes from which draws a release is made.

        Args:
            accumulated: number of draws whose gradients are added up in the release: the last
                ones. If a loader splits draws, all parts since the last release are one draw.
            release: optimizer or call site, and its step.

        Returns:
            The number of records in these draws; 0 if it is unknown, or if the loader splits draws.
        """
        iteration = self.current
        if iteration is None:
            return 0
        batches = iteration.batches
        iteration.batches = []
        if iteration.splits and batches:
            batches = [np.concatenate(batches)]
        used = batches[-accumulated:]
        self.last_draws = used
        self.unused += [len(draw) for draw in batches[: len(batches) - len(used)]]
        for indices in used:
            if self._stored + len(indices) <= _MOST_INDICES:
                self._stored += len(indices)
                self.used.append(Draw(iteration.data, indices, release))
        return 0 if iteration.splits else sum(map(len, used))


def _as_indices(batch: Any) -> Indices:
    """Converts what a sampler drew into an array; returns an empty one if it drew no indices."""
    with contextlib.suppress(TypeError, ValueError):  # a sampler may draw anything
        return np.atleast_1d(np.asarray(batch, dtype=np.int64))
    return np.zeros(0, dtype=np.int64)


def draw_counts(draws: Sequence[Indices], records: int, rate: float) -> Draws:
    """Counts how often records were drawn, and which draws have a record in common.

    In a window of draws each record comes once on average. Shuffled batches of one window have no
    record in common, and independent draws have some.

    Args:
        draws: indices of the records of each draw.
        records: number of records that are drawn from.
        rate: rate of sampling.
    """
    window = max(2, round(1 / rate)) if 0 < rate < 1 else max(2, len(draws))
    windows = len(draws) // window
    shared_pairs = 0  # pairs of draws in one window, counted once for each common record
    for first in range(0, windows * window, window):
        times = _times_drawn(draws[first : first + window], records)
        shared_pairs += int((times * (times - 1) // 2).sum())
    times = _times_drawn(draws, records)
    return Draws(
        records=records,
        sizes=tuple(map(len, draws)),
        rate=rate,
        window=window,
        windows=windows,
        shared=shared_pairs,
        most=int(times.max(initial=0)),
        squares=int((times**2).sum()),
        twice=sum(len(draw) - len(np.unique(draw)) for draw in draws),
    )


def _times_drawn(draws: Sequence[Indices], records: int) -> Indices:
    """Returns how many times each record is drawn, int64 [records]."""
    return np.bincount(np.concatenate([_as_indices([]), *draws]), minlength=records)
