"""How long a pack may take before its trainer counts as hung."""

from __future__ import annotations

import math
from typing import Literal

from ..plan import Pack

FACTOR = 10  # times the slowest pack of the audit, trial for trial
SHORTEST = 120.0  # seconds: opening an audit, a cold file cache, storage that fails for a minute


class Deadlines:
    """Deadlines in seconds, from the packs that were timed or as the sweep sets them."""

    def __init__(self, fixed: float | Literal["auto"]) -> None:
        self._fixed = fixed
        self._slowest: dict[int, float] = {}  # seconds per trial, by audit

    def measured(self, pack: Pack, seconds: float) -> None:
        """A pack took that long."""
        slowest = self._slowest.get(pack.audit, 0.0)
        self._slowest[pack.audit] = max(slowest, seconds / pack.size)

    def of(self, pack: Pack) -> float:
        """inf until a pack of the audit was timed: nothing is known of its size before."""
        if self._fixed != "auto":
            return self._fixed
        if pack.audit not in self._slowest:
            return math.inf
        return max(SHORTEST, FACTOR * self._slowest[pack.audit] * pack.size)
