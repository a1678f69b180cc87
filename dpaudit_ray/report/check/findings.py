"""What a check has found: where something differs, what was told, and what could not be checked."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable

# Relative: what other versions of numpy and scipy, on another kind of machine, may differ by.
TOLERANCE = 1e-9
_NOTHING = 1e-12  # and what they may take for 0
KEPT = 1000  # differences that are remembered; the others are counted


@dataclasses.dataclass(frozen=True)
class Difference:
    """A place in the run directory where something stands that does not follow from the rest.

    `file` is a path in it, `audit` a label (empty: of no one audit), `place` says where in the
    file; `stored` and `derived` are in words.
    """

    file: str
    audit: str
    place: str
    stored: str
    derived: str

    def __str__(self) -> str:
        where = ", ".join(filter(None, (self.audit, self.place)))
        apart = f" there, not {self.derived}" if self.derived else ""
        return f"{self.file}: {where}{': ' * bool(where)}{self.stored}{apart}"


@dataclasses.dataclass(frozen=True)
class Checked:
    """What is known of a run directory.

    `derived` counts what was computed again, by what it is; `differences` are the first KEPT of
    `different`. `partial` says how far a run is that is not complete, and is empty for others.
    `unchecked` is what cannot be told here, `told` what is no difference and worth knowing.
    """

    location: str
    differences: tuple[Difference, ...]
    different: int
    derived: dict[str, int]
    verdict: str
    partial: str
    unchecked: tuple[str, ...]
    told: tuple[str, ...]
    seconds: float

    @property
    def in_order(self) -> bool:
        """Whether nothing differs, as far as it could be checked."""
        return self.different == 0


class Findings:
    """Collects what one check finds."""

    def __init__(self) -> None:
        self.differences: list[Difference] = []
        self.different = 0
        self.derived: collections.Counter[str] = collections.Counter()
        self._unchecked: dict[tuple[str, str], list[str]] = {}  # of which audits
        self.told: list[str] = []
        self.rounded = 0  # values that are not the same bit for bit
        self.furthest = 0.0  # relative

    def add(self, found: Iterable[Difference]) -> int:
        """Takes differences; returns how many."""
        before = self.different
        for each in found:
            self.different += 1
            if len(self.differences) < KEPT:
                self.differences.append(each)
        return self.different - before

    def differs(
        self, file: str, place: str, stored: object, derived: object, audit: str = ""
    ) -> None:
        """Something else stands in a file than follows."""
        self.add([Difference(file, audit, place, shown(stored), shown(derived))])

    def cannot(self, what: str, why: str, audit: str = "") -> None:
        """Something cannot be checked here; said once for all audits."""
        audits = self._unchecked.setdefault((what, why), [])
        if audit and audit not in audits:
            audits.append(audit)

    @property
    def unchecked(self) -> list[str]:
        """What cannot be checked, and why."""
        return [
            f"{_several(audits)}{what}: {why}" for (what, why), audits in self._unchecked.items()
        ]

    def same(self, stored: float, derived: float) -> bool:
        """Whether two numbers are the same, or differ by no more than machines do."""
        if stored == derived or (math.isnan(stored) and math.isnan(derived)):
            return True
        apart = abs(stored - derived)
        largest = max(abs(stored), abs(derived))
        if not math.isfinite(apart) or apart > max(TOLERANCE * largest, _NOTHING):
            return False
        self.rounded += 1
        self.furthest = max(self.furthest, apart / largest)
        return True


def _several(audits: list[str]) -> str:
    more = f" and {len(audits) - 1} more" * (len(audits) > 1)
    return f"{audits[0]}{more}: " if audits else ""


def shown(value: object) -> str:
    """A value as a line about it has it; numbers with all their digits."""
    return value if isinstance(value, str) else repr(value)
