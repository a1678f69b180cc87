"""Which records a script's loaders draw, and which of these draws a step was taken with."""

from __future__ import annotations

import collections
import copy
import dataclasses
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch.utils.data.dataloader as torch_loaders

_MOST = 4_000_000  # indices that are kept: later draws are not looked at

Indices = npt.NDArray[np.int64]


@dataclasses.dataclass(eq=False)
class Iteration:
    """One walk through a loader. `drawn` were drawn ahead, `given` out since the last step."""

    loader: Any
    drawn: collections.deque[Indices] = dataclasses.field(default_factory=collections.deque)
    given: list[Indices] = dataclasses.field(default_factory=list)
    splits: bool = False  # a draw is given out in several parts


class Loaders:
    """Draws of one run. `taken` are those that a release was made of, in their order."""

    def __init__(self) -> None:
        self.current: Iteration | None = None
        self.taken: list[tuple[Any, Indices, tuple[int, int]]] = []  # data set, draw, release
        self.private: list[Any] = []  # that training uses, where that is known
        self.skipped: list[int] = []  # sizes of draws that were given out and led to no step
        self._kept = 0
        self._making: list[Iteration] = []
        self._of: weakref.WeakKeyDictionary[Any, Iteration] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        """Watches all loaders from now on."""
        loader: Any = torch_loaders.DataLoader
        iterator: Any = torch_loaders._BaseDataLoaderIter
        begin, step, sampler = loader.__iter__, iterator.__next__, loader._index_sampler.fget

        def begun(own: Any) -> Any:
            self._making.append(Iteration(own))
            try:
                found = begin(own)
            finally:
                made = self._making.pop()
            self._of[found] = made
            return found

        def stepped(own: Any) -> Any:
            found = step(own)
            self._given(self._of.get(own))
            return found

        def watched(own: Any) -> Any:
            return _Seen(sampler(own), self)

        loader.__iter__ = begun
        iterator.__next__ = stepped
        loader._index_sampler = property(watched)
        self._install_splitting()

    def _install_splitting(self) -> None:
        """Opacus hands a draw out in parts: the draw counts."""
        from opacus.utils.batch_memory_manager import BatchSplittingSampler

        split = BatchSplittingSampler.__iter__

        def begun(own: Any) -> Iterator[Any]:
            if not self._making:
                return iter(split(own))
            making = self._making[-1]
            making.splits = True
            seen = copy.copy(own)
            seen.sampler = _noted(own.sampler, making)
            return iter(split(seen))

        BatchSplittingSampler.__iter__ = begun

    def draws(self, sampler: Any) -> Iterator[Any]:
        """Those of a sampler, written down as they come for the walk that is being begun."""
        return _noted(sampler, self._making[-1] if self._making else None)

    def _given(self, iteration: Iteration | None) -> None:
        if iteration is None or not self._trains(iteration.loader):
            return
        self.current = iteration
        if not iteration.splits and iteration.drawn:
            iteration.given.append(iteration.drawn.popleft())

    def _trains(self, loader: Any) -> bool:
        """Others walk through the same data to evaluate."""
        if not self.private:
            return True
        samplers = [loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None)]
        return any(
            loader is own or any(one is own.batch_sampler for one in samplers if one is not None)
            for own in self.private
        )

    def at_step(self, accumulated: int, release: tuple[int, int]) -> None:
        """A release, by its optimizer and step, is made of the last draws."""
        now = self.current
        if now is None:
            return
        if now.splits:
            now.given = [now.drawn.popleft()] if now.drawn else []
        used = now.given[-accumulated:]
        self.skipped += [len(one) for one in now.given[: len(now.given) - len(used)]]
        now.given = []
        for one in used:
            if self._kept + len(one) <= _MOST:
                self._kept += len(one)
                self.taken.append((now.loader.dataset, one, release))

    @property
    def open(self) -> Indices:
        """The draw that is being handed out in parts."""
        now = self.current
        return now.drawn[0] if now is not None and now.splits and now.drawn else _indices([])


def _noted(sampler: Any, making: Iteration | None) -> Iterator[Any]:
    for batch in sampler:
        if making is not None:
            making.drawn.append(_indices(batch))
        yield batch


class _Seen:
    """A sampler whose draws are written down; all else is the sampler's."""

    def __init__(self, sampler: Any, loaders: Loaders) -> None:
        self._sampler, self._loaders = sampler, loaders

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self._sampler, _splitting()):
            own: Iterator[Any] = iter(self._sampler)
            return own
        return self._loaders.draws(self._sampler)

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


def _splitting() -> type[Any]:
    from opacus.utils.batch_memory_manager import BatchSplittingSampler

    found: type[Any] = BatchSplittingSampler
    return found


def _indices(batch: Any) -> Indices:
    try:
        return np.atleast_1d(np.asarray(batch, dtype=np.int64))
    except (TypeError, ValueError):  # a sampler may draw anything
        return np.zeros(0, dtype=np.int64)


def summary(taken: list[Indices], records: int, rate: float) -> dict[str, Any]:
    """Counts that `looks.sampling` judges.

    In windows of about 1 / rate draws, in which each record comes once on average: how often two
    draws of a window share a record (`shared`), out of how many windows of `window` draws.
    """
    sizes = [len(one) for one in taken]
    window = max(2, round(1 / rate)) if 0 < rate < 1 else max(2, len(taken))
    whole = len(taken) // window
    shared = 0
    for first in range(0, whole * window, window):
        counts = np.bincount(np.concatenate(taken[first : first + window]), minlength=records)
        shared += int((counts * (counts - 1) // 2).sum())
    counts = np.bincount(np.concatenate(taken or [_indices([])]), minlength=records)
    twice = sum(len(one) - len(np.unique(one)) for one in taken)
    return {
        "records": records, "sizes": sizes, "window": window, "windows": whole, "shared": shared,
        "most": int(counts.max(initial=0)), "never": int((counts[:records] == 0).sum()),
        "twice": twice,
    }  # fmt: skip
