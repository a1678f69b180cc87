"""Finished packs in trial order: from memory, else from the run directory."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from ..prefix import Bounds, FoldedPack
from ..storage import PackScores

READERS = 32  # an object store takes tens of milliseconds to answer, whoever asks
UNDERWAY = 2 * READERS


class Ahead:
    """Packs that were finished before their turn: the latest `limit` bytes of them.

    What was dropped is in the run directory, as every finished pack is.
    """

    def __init__(self, limit: int = 2**24) -> None:
        self._limit = limit
        self._bytes = 0
        self._packs: collections.OrderedDict[tuple[object, int], PackScores] = (
            collections.OrderedDict()
        )

    def put(self, owner: object, pack: PackScores) -> None:
        """Keeps a pack, and drops the oldest ones if that is too much."""
        self._packs[owner, pack.first] = pack
        self._bytes += _size(pack)
        while self._bytes > self._limit:
            self._bytes -= _size(self._packs.popitem(last=False)[1])

    def take(self, owner: object, first: int) -> PackScores | None:
        """Hands a pack out; None when it is not kept."""
        pack = self._packs.pop((owner, first), None)
        self._bytes -= 0 if pack is None else _size(pack)
        return pack


class Replay:
    """The packs of one audit, one after another.

    Args:
        read: gives a pack by its first and last trial, in any thread.
        ahead: shared by the audits of a sweep.
    """

    def __init__(self, read: Callable[[int, int], FoldedPack], ahead: Ahead) -> None:
        self._read, self._ahead = read, ahead

    def keep(self, pack: PackScores) -> None:
        """Takes a pack that will be asked for, now or later."""
        self._ahead.put(self, pack)

    def packs(self, bounds: Iterable[Bounds]) -> Iterator[FoldedPack]:
        """The packs with these bounds, in this order; several are read at once."""
        waiting: collections.deque[PackScores | Future[FoldedPack]] = collections.deque()
        for pack in bounds:
            kept = self._ahead.take(self, pack[0])
            waiting.append(kept or _readers().submit(self._read, *pack))
            if len(waiting) >= UNDERWAY:
                yield _arrived(waiting.popleft())
        while waiting:
            yield _arrived(waiting.popleft())


@functools.cache
def _readers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(READERS, thread_name_prefix="replay")


def _arrived(pack: PackScores | Future[FoldedPack]) -> FoldedPack:
    return pack.result() if isinstance(pack, Future) else pack


def _size(pack: PackScores) -> int:
    return pack.scores.nbytes + pack.members.nbytes
