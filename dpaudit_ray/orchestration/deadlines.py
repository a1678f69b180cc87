"""How long a pack may take before its trainer counts as hung."""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Callable, Mapping
from typing import Literal

from ..plan.model import Pack, Part

FACTOR = 10  # times the slowest pack of the audit, trial for trial
SHORTEST = 120.0  # seconds: opening an audit, a cold file cache, storage that fails for a minute
QUIET = 10.0  # seconds without an answer of the aggregator: longer than it takes to fold a pack
LONG = 60.0  # seconds of that, before the user is told
FIRST = 1800.0  # seconds, while no pack of the audit was timed; doubled after each that is lost so

_Kind = tuple[int, bool]


class Deadlines:
    """Deadlines in seconds, from the packs that were timed or as the sweep sets them.

    `limits`: seconds that a trial may take, by audits whose mechanism ends it then: a pack of them
    does not hang as long as each of its trials may wait for that.
    """

    def __init__(
        self, fixed: float | Literal["auto"], limits: Mapping[int, float] | None = None
    ) -> None:
        self._fixed, self._limits = fixed, limits or {}
        self._slowest: dict[_Kind, float] = {}  # seconds per trial, or of a part
        self._missed: collections.Counter[Pack] = collections.Counter()

    def measured(self, pack: Pack, seconds: float) -> None:
        """A pack took that long."""
        slowest = self._slowest.get(_kind(pack), 0.0)
        self._slowest[_kind(pack)] = max(slowest, seconds / (pack.size or 1))

    def missed(self, pack: Pack) -> None:
        """Its trainer was silent for longer than the limit: it hung, or the limit is too low."""
        self._missed[pack] += 1

    def unknown(self, pack: Pack) -> bool:
        """Whether the limit is a guess."""
        return self._fixed == "auto" and _kind(pack) not in self._slowest

    def of(self, pack: Pack) -> float:
        """The limit for a pack; a guess until a pack of its audit was timed."""
        if self._fixed != "auto":
            return self._fixed
        if self.unknown(pack):
            usual = FIRST * 2.0 ** self._missed[pack]
        else:
            usual = max(SHORTEST, FACTOR * self._slowest[_kind(pack)] * (pack.size or 1))
        limit = None if isinstance(pack, Part) else self._limits.get(pack.audit)
        return usual if limit is None else max(usual, SHORTEST + limit * pack.size)


def _kind(pack: Pack) -> _Kind:
    """What is as slow as this: packs of the same audit, or parts of its preparation."""
    return pack.audit, isinstance(pack, Part)


class Silence:
    """When the aggregator gave no answer: trainers wait for it then, and are not to blame.

    Restarted, it reads the finished packs first; so it is silent, too, when storage is.

    Args:
        tell: takes a line for the user when that takes long.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._asked = time.monotonic()
        self._told = False
        self.ended = -math.inf  # when it was silent last, by `time.monotonic`

    def asked(self) -> None:
        """It has answered, and is asked again."""
        self._asked, self._told = time.monotonic(), False

    def lasts(self, waiting: bool) -> bool:
        """Whether it is silent now; `waiting`: what it was asked last is not answered yet."""
        now = time.monotonic()
        if not waiting or now - self._asked < QUIET:
            return False
        self.ended = now
        if now - self._asked > LONG and not self._told:
            self._told = True
            self._tell(
                f"the aggregator has not answered for {LONG:.0f} s: it reads finished packs again, "
                "or storage is slow; trainers wait for it"
            )
        return True

    def within(self, seconds: float) -> bool:
        """Whether it was silent at any time of the last so many seconds."""
        return time.monotonic() - seconds < self.ended
