"""Finds out whether a script prepares each record without looking at the others.

The private records come from some array of the script, row by row or not. In one run, rows of an
array change places in cycles of different lengths: if the prepared records move in the same cycles,
these rows are theirs. In the next run, some of these rows become equal. Their records may change
then, and no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .protocol import Appeared, Prepared

_LONGEST_CYCLE = 40
_SHARE = 10  # one in so many rows changes its place
_MOST_RECORDS = 1.5  # for each row that was changed
_TOLERANCES = (1e-4, 1e-3, 1e-2)  # of the spread, by which a statistic may have changed
_EXACT = 1e-6  # of the spread: the same operations on the same numbers

Numbers = npt.NDArray[np.float64]
Cycle = list[int]  # each row gets the values of the one before it, the first those of the last


@dataclass(frozen=True)
class PreparationRuns:
    """What runs with changed rows showed.

    Attributes:
        line: the script's line where the array of the rows appears.
        records: number of prepared records.
        rows: number of rows that were changed.
        changed: number of records that changed with them, though they should not; 0 if none did.
    """

    line: str
    records: int
    rows: int
    changed: int


def units(prepared: Prepared) -> list[list[Appeared]]:
    """Groups arrays by the line that made them; the first appearance of a digest counts."""
    groups: dict[tuple[int, int], list[Appeared]] = {}
    known: set[str] = set()
    for array in prepared.arrays:
        if array.digest not in known:
            groups.setdefault((array.event, array.rows), []).append(array)
        known.add(array.digest)
    return list(groups.values())


def cycles(rows: int) -> list[Cycle]:
    """Returns disjoint cycles of 2, 3, 4 and more rows, a tenth of all, spread over an array."""
    lengths: list[int] = []
    for length in range(2, _LONGEST_CYCLE + 1):
        if sum(lengths) + length > max(2, rows // _SHARE):
            break
        lengths.append(length)
    # Rows at the beginning may decide on an order, as that in which words appear.
    places = iter(np.linspace(rows // _SHARE, rows - 1, sum(lengths)).astype(int).tolist())
    return [[next(places) for _ in range(length)] for length in lengths]


def moves(cycles: Iterable[Cycle]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns rows that get other values, and the rows that these come from."""
    pairs = [(row, cycle[place - 1]) for cycle in cycles for place, row in enumerate(cycle)]
    targets, sources = zip(*pairs, strict=True)
    return targets, sources


@dataclass(frozen=True)
class Lineage:
    """Rows of an array that are private records, and the places of these among the records."""

    rows: tuple[int, ...] = ()
    places: tuple[int, ...] = ()


def lineage(
    before: Prepared,
    rotated: Prepared,
    cycles: Sequence[Cycle],
) -> Lineage:
    """Finds the rows whose records moved as the rows did."""
    first = np.array(before.records)
    second = np.array(rotated.records)
    if len(first) != len(second) or not len(first):
        return Lineage()
    distances = np.abs(first - second).max(1) / _spread(first)
    for tolerance in _TOLERANCES:
        moved = np.flatnonzero(distances > tolerance)
        if len(moved) > len(first) / 2:  # a statistic has changed, or the order of all
            continue
        found = _record_cycles(first[moved], second[moved], tolerance * _spread(first))
        lengths = {len(cycle) for cycle in found}
        rows = [row for cycle in cycles if len(cycle) in lengths for row in cycle]
        if rows:
            return Lineage(tuple(rows), tuple(int(moved[k]) for cycle in found for k in cycle))
    return Lineage()


def mixed_records(
    before: Prepared,
    rotated: Prepared,
    cycles: Sequence[Cycle],
) -> int:
    """Counts records that changed with rotated rows, if these are in several records each; else 0.

    A table of public vectors that records look up has such rows, too, but seldom one for each
    record: the array must be as long as the records are many.
    """
    rows = sum(map(len, cycles))
    changed = _missing(np.array(before.records), rotated)
    return changed if _MOST_RECORDS * rows < changed <= len(before.records) / 2 else 0


def _record_cycles(
    first: Numbers,
    second: Numbers,
    tolerance: float,
) -> list[Cycle]:
    """Returns the cycles in which summaries [places, SUMMARY] moved."""
    came_from: dict[int, int] = {}
    for place, summary in enumerate(second):
        (equal,) = np.nonzero(np.abs(first - summary).max(1) <= tolerance)
        if len(equal) == 1:
            came_from[place] = int(equal[0])
    found = []
    while came_from:
        start, place = came_from.popitem()
        cycle = [start]
        while place in came_from:
            cycle.append(place)
            place = came_from.pop(place)
        if place == start:
            found.append(cycle)
    return found


def changed_others(
    before: Prepared,
    after: Prepared,
    rows: Sequence[int],
    places: Sequence[int],
) -> int:
    """Counts records that changed though their rows did not; 0 unless that is certain.

    Args:
        before: of a run with nothing changed.
        after: of a run in which rows were changed.
        rows: these rows.
        places: of their records, as far as that is known.
    """
    if len(before.records) == len(after.records) and places:
        changed = _missing(np.delete(np.array(before.records), places, axis=0), after)
        if changed:
            return changed
    changed = _missing(np.array(before.records), after)
    return changed if changed > _MOST_RECORDS * len(rows) else 0


def _missing(records: Numbers, after: Prepared) -> int:
    """Counts records [n, SUMMARY] that a run does not have, in any place."""
    found = np.sort([record[0] for record in after.records])
    tolerance = _EXACT * _spread(records[:, 0])
    count = 0
    place = 0
    for number in np.sort(records[:, 0]):  # each is found once
        while place < len(found) and found[place] < number - tolerance:
            place += 1
        if place < len(found) and found[place] <= number + tolerance:
            place += 1
        else:
            count += 1
    return count


def _spread(numbers: Numbers) -> float:
    return float(numbers.std()) or 1.0
