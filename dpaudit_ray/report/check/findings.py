"""What a check has found, and the one comparison of what is stored with what was derived again."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
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


@dataclasses.dataclass
class Checked:
    """What a check of a run has shown so far.

    `derived` counts what was computed again, by what it is; `differences` are the first KEPT of
    `different`. `partial` says how far a run is that is not complete, and is empty for others.
    `unchecked` is what cannot be told here, and why, with the labels of its audits; `notes` what is
    no difference and worth knowing. So many values as were `rounded` are not the same bit for bit,
    and `furthest` apart relative to their size.
    """

    location: str
    differences: list[Difference] = dataclasses.field(default_factory=list)
    different: int = 0
    derived: dict[str, int] = dataclasses.field(default_factory=dict)
    verdict: str = ""
    partial: str = ""
    unchecked: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    rounded: int = 0
    furthest: float = 0.0
    seconds: float = 0.0

    @property
    def in_order(self) -> bool:
        """Whether nothing differs, as far as it could be checked."""
        return self.different == 0

    def count(self, what: str, number: int = 1) -> None:
        """Notes that something was derived."""
        if number:
            self.derived[what] = self.derived.get(what, 0) + number

    def differs(
        self, file: str, place: str, stored: Any, derived: Any = "", audit: str = ""
    ) -> None:
        """Adds one difference; values are shown with all their digits."""
        self.different += 1
        if self.different <= KEPT:
            there, here = (v if isinstance(v, str) else repr(v) for v in (stored, derived))
            self.differences.append(Difference(file, audit, place, there, here))

    def compare(
        self, file: str, stored: Any, derived: Any, audit: str = "", place: str = ""
    ) -> None:
        """Adds a difference wherever a stored value is not the derived one.

        Mappings are compared key by key, whose keys make up the place; of tuples the first element
        that differs is named; floats may differ in their last digits.
        """
        if isinstance(stored, Mapping) and isinstance(derived, Mapping):
            for key in dict.fromkeys([*stored, *derived]):
                values = stored.get(key, NOTHING), derived.get(key, NOTHING)
                inside = f"{place}, {key}" if place else str(key)
                self.compare(file, *values, audit=audit, place=inside)
            return
        if stored == derived or self._nearly(stored, derived):
            return
        if isinstance(stored, tuple) and isinstance(derived, tuple):
            pairs = enumerate(itertools.zip_longest(stored, derived, fillvalue=NOTHING))
            number, (stored, derived) = next(item for item in pairs if item[1][0] != item[1][1])
            place = f"{place}, number {number}"
        there, here = ("an entry" if isinstance(v, Mapping) else v for v in (stored, derived))
        self.differs(file, place, there, here, audit)

    def cannot(self, what: str, why: str, audit: str = "") -> None:
        """Notes something that cannot be checked here; said once for all audits."""
        audits = self.unchecked.setdefault(f"{what}: {why}", [])
        if audit and audit not in audits[-1:]:
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
            self.differs(file, "", first_line(error.__cause__ or error))

    def _nearly(self, stored: Any, derived: Any) -> bool:
        """Whether two numbers differ by no more than machines do; remembers that they do."""
        if not (isinstance(stored, float) and isinstance(derived, float)):
            return False
        if math.isnan(stored) and math.isnan(derived):
            return True
        if not math.isclose(stored, derived, rel_tol=TOLERANCE, abs_tol=_ZERO):
            return False
        self.rounded += 1
        apart = abs(stored - derived) / max(abs(stored), abs(derived))
        self.furthest = max(self.furthest, apart)
        return True
