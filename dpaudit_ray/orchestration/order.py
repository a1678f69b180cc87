"""Which pack is handed out next: what was lost, then what is new; none before what it waits for."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterable

from ..plan.model import Pack, Part


class Order:
    """Takes packs in an order in which the parts that a pack waits for come before it.

    `over` says of an audit that none of its packs is to be run any more.
    """

    def __init__(self, packs: Iterable[Pack], over: Callable[[int], bool]) -> None:
        self._packs, self._over = iter(packs), over
        self._again: collections.deque[Pack] = collections.deque()
        self._awaited: dict[int, set[Part]] = {}  # parts that are not done, by audit that waits
        self._held: dict[int, list[Pack]] = {}  # packs that wait, by audit
        self._all_out = False  # every pack was looked at once

    def next(self) -> Pack | None:
        """None when no pack is left that can be run now; some may still wait for a part."""
        while (pack := self._any()) is not None:
            if isinstance(pack, Part):
                waiting = [audit for audit in pack.waiting if not self._over(audit)]
                for audit in waiting:
                    self._awaited.setdefault(audit, set()).add(pack)
                if waiting:
                    return pack
            elif not self._over(pack.audit):
                if not self._awaited.get(pack.audit):
                    return pack
                self._held.setdefault(pack.audit, []).append(pack)
        return None

    def again(self, packs: Iterable[Pack]) -> None:
        """These come next."""
        self._again.extendleft(reversed(list(packs)))

    def done(self, pack: Pack) -> None:
        """A pack is done; those that waited for it, and for nothing else, come next."""
        for audit in pack.waiting if isinstance(pack, Part) else ():
            awaited = self._awaited.get(audit, set())
            awaited.discard(pack)
            if not awaited:
                self._again.extend(self._held.pop(audit, ()))

    @property
    def backlog(self) -> float:
        """Packs that are still to be handed out; inf where nobody has looked how many come."""
        return len(self._again) + sum(map(len, self._held.values())) if self._all_out else math.inf

    def _any(self) -> Pack | None:
        pack = self._again.popleft() if self._again else next(self._packs, None)
        self._all_out |= pack is None
        return pack
