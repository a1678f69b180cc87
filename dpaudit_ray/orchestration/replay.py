"""Finished packs in trial order: from memory, else from the run directory."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator

from ..plan import score_stream
from ..plan.compaction import Stretch
from ..plan.model import PlannedAudit
from ..plan.score_stream import ConsumedPack
from ..storage.scores import PackScores


class Ahead:
    """Packs that will be asked for later: the latest `limit` bytes of them.

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
        self._bytes += pack.nbytes
        while self._bytes > self._limit:
            self._bytes -= self._packs.popitem(last=False)[1].nbytes

    def take(self, owner: object, first: int) -> PackScores | None:
        """Hands a pack out; None when it is not kept."""
        pack = self._packs.pop((owner, first), None)
        self._bytes -= 0 if pack is None else pack.nbytes
        return pack


class Replay:
    """The packs of one audit, one after another.

    Args:
        read: gives packs that one file holds, in any thread.
        audit: whose they are.
        ahead: shared by the audits of a sweep.
    """

    def __init__(
        self, read: Callable[[Stretch], ConsumedPack], audit: PlannedAudit, ahead: Ahead
    ) -> None:
        self._read, self._audit, self._ahead = read, audit, ahead

    def keep(self, pack: PackScores) -> None:
        """Takes a pack that will be asked for, now or later."""
        self._ahead.put(self, pack)

    def packs(self, asked: Iterable[Stretch]) -> Iterator[ConsumedPack]:
        """These packs, in this order; several are read at once."""
        return score_stream.in_order(
            self._read, asked, score_stream.read_ahead(self._audit), self._kept
        )

    def _kept(self, packs: Stretch) -> PackScores | None:
        if packs.file != self._audit.packs[packs.start]:
            return None
        return self._ahead.take(self, self._audit.packs[packs.start][0])
