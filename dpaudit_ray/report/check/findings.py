"""What a check has found, and the one comparison of what is stored with what was derived again."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...errors import RunDirectoryError, first_line

# Relative: what other versions of numpy and scipy, on another kind of machine, may differ by.
TOLERANCE = 1e-9
_ZERO = 1e-12  # and what they may take for 0
KEPT = 1000  # differences that are remembered; the others are counted
NOTHING = "nothing"


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
    """The outcome of a check.

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
        self.told: list[str] = []
        self._unchecked: dict[tuple[str, str], list[str]] = {}  # of which audits
        self._rounded = 0  # values that are not the same bit for bit
        self._furthest = 0.0  # relative

    def add(self, differences: Iterable[Difference]) -> None:
        """Takes differences."""
        for difference in differences:
            self.different += 1
            if len(self.differences) < KEPT:
                self.differences.append(difference)

    def differs(self, file: str, place: str, stored: Any, derived: Any, audit: str = "") -> None:
        """Adds one difference; values are shown with all their digits."""
        words = (value if isinstance(value, str) else repr(value) for value in (stored, derived))
        self.add([Difference(file, audit, place, *words)])

    def compare(
        self, file: str, stored: Any, derived: Any, audit: str = "", place: str = ""
    ) -> int:
        """Adds a difference wherever a stored value is not the derived one; returns how many.

        Mappings are compared key by key, whose keys make up the place; of tuples the first element
        that differs is named; floats may differ in their last digits.
        """
        if isinstance(stored, Mapping) and isinstance(derived, Mapping):
            different = 0
            for key in dict.fromkeys([*stored, *derived]):
                values = stored.get(key, NOTHING), derived.get(key, NOTHING)
                inside = f"{place}, {key}" if place else str(key)
                different += self.compare(file, *values, audit=audit, place=inside)
            return different
        numbers = isinstance(stored, float) and isinstance(derived, float)
        if stored == derived or (numbers and self._same(stored, derived)):
            return 0
        if isinstance(stored, tuple) and isinstance(derived, tuple):
            pairs = zip(stored, derived, strict=False)
            shorter = min(len(stored), len(derived))
            at = next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
            stored, derived = (
                values[at] if at < len(values) else NOTHING for values in (stored, derived)
            )
            place = f"{place}, number {at}"
        stored, derived = (
            "an entry" if isinstance(value, Mapping) else value for value in (stored, derived)
        )
        self.differs(file, place, stored, derived, audit)
        return 1

    def cannot(self, what: str, why: str, audit: str = "") -> None:
        """Notes something that cannot be checked here; said once for all audits."""
        audits = self._unchecked.setdefault((what, why), [])
        if audit and audit not in audits:
            audits.append(audit)

    @contextlib.contextmanager
    def reading(self, file: str) -> Iterator[None]:
        """Adds a difference where the content of a file cannot be used.

        Raises:
            RunDirectoryError: it was not read at all.
        """
        try:
            yield
        except RunDirectoryError as error:
            if isinstance(error.__cause__, OSError):
                raise
            self.differs(file, "", first_line(error.__cause__ or error), "")

    def checked(self, location: str, verdict: str, partial: str, seconds: float) -> Checked:
        """The outcome of it all."""
        if self._rounded:
            self.told.append(
                f"values that differ in their last digits: {self._rounded:,}, by at most "
                f"{self._furthest:.0e} of their size"
            )
        derived = {name: count for name, count in self.derived.items() if count}
        unchecked = tuple(
            f"{_several(audits)}{what}: {why}" for (what, why), audits in self._unchecked.items()
        )
        return Checked(location, tuple(self.differences), self.different, derived, verdict,
                       partial, unchecked, tuple(self.told), seconds)  # fmt: skip

    def _same(self, stored: float, derived: float) -> bool:
        """Whether two numbers differ by no more than machines do; remembers that they do."""
        if math.isnan(stored) and math.isnan(derived):
            return True
        apart = abs(stored - derived)
        largest = max(abs(stored), abs(derived))
        if not math.isfinite(apart) or apart > max(TOLERANCE * largest, _ZERO):
            return False
        self._rounded += 1
        self._furthest = max(self._furthest, apart / largest)
        return True


def _several(audits: list[str]) -> str:
    more = f" and {len(audits) - 1} more" * (len(audits) > 1)
    return f"{audits[0]}{more}: " if audits else ""
