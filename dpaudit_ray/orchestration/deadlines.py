"""How long a pack may take before its trainer counts as hung."""

from __future__ import annotations

import collections
from typing import Literal

from ..plan import Pack

FACTOR = 10  # times the slowest pack of the audit, trial for trial
SHORTEST = 120.0  # seconds: opening an audit, a cold file cache, storage that fails for a minute
FIRST = 1800.0  # seconds, while no pack of the audit was timed; doubled after each that is lost so


class Deadlines:
    """Deadlines in seconds, from the packs that were timed or as the sweep sets them."""

    def __init__(self, fixed: float | Literal["auto"]) -> None:
        self._fixed = fixed
        self._slowest: dict[int, float] = {}  # seconds per trial, by audit
        self._missed: collections.Counter[Pack] = collections.Counter()

    def measured(self, pack: Pack, seconds: float) -> None:
        """A pack took that long."""
        slowest = self._slowest.get(pack.audit, 0.0)
        self._slowest[pack.audit] = max(slowest, seconds / pack.size)

    def missed(self, pack: Pack) -> None:
        """Its trainer was silent for longer than the limit: it hung, or the limit is too low."""
        self._missed[pack] += 1

    def unknown(self, pack: Pack) -> bool:
        """Whether the limit is a guess."""
        return self._fixed == "auto" and pack.audit not in self._slowest

    def of(self, pack: Pack) -> float:
        """The limit for a pack; a guess until a pack of its audit was timed."""
        if self._fixed != "auto":
            return self._fixed
        if self.unknown(pack):
            return FIRST * 2.0 ** self._missed[pack]
        return max(SHORTEST, FACTOR * self._slowest[pack.audit] * pack.size)
