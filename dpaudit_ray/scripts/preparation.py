"""Finds out whether a script prepares each record without looking at the others.

The private records come from some array of the script, row by row or not. In one run, rows of an
array change their order in cycles of different lengths: if the prepared records move in the same
cycles, these rows are theirs. In the next run, some of these rows become equal. Their records may
change then, and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import numpy.typing as npt

from .protocol import Appeared, Prepared

_MOST_LENGTHS = 3  # lengths of arrays that are followed
_MOST_LINES = 3  # whose arrays of one length are changed
_FEWEST_ROWS = 3  # rows that must be found again in the records
_LONGEST_CYCLE = 40
_SHARE = 10  # one in ten rows takes part in a cycle
_MOST_RECORDS = 1.5  # records that may change for each changed row
_TOLERANCES = (1e-4, 1e-3, 1e-2)  # shares of the spread by which a statistic may have changed
_EXACT = 1e-6  # share of the spread: the same operations on the same numbers differ by less

Numbers = npt.NDArray[np.float64]
Cycle = list[int]  # each row gets the values of the one before it, the first those of the last


@dataclass(frozen=True)
class PreparationRuns:
    """Result of runs with changed rows.

    Attributes:
        line: the script's line where the array of the rows appears.
        records: number of prepared records.
        rows: number of rows that were changed.
        records_changed: number of records of other rows that changed, though they should not.
        settings_changed: names of the settings of training that changed.
    """

    line: str
    records: int
    rows: int
    records_changed: int = 0
    settings_changed: tuple[str, ...] = ()


# Changes rows of arrays, named by their digests, where they appear; returns what comes of it, or
# None if the run fails. Without targets, rows with the extremes of columns are changed.
Rerun = Callable[[Sequence[str], tuple[int, ...], tuple[int, ...]], Prepared | None]


def follow(before: Prepared, rerun: Rerun) -> PreparationRuns | None:
    """Follows rows of the script's arrays to the records.

    Args:
        before: outcome of a run with nothing changed.
        rerun: runs the script until training is private, with changed rows.

    Returns:
        What the runs showed; None if no array becomes the records row by row.
    """
    for arrays in arrays_by_length(before)[:_MOST_LENGTHS]:
        result = _follow_arrays(before, rerun, arrays)
        if result is not None:
            return result
    return None


def _follow_arrays(
    before: Prepared,
    rerun: Rerun,
    arrays: Sequence[Appeared],
) -> PreparationRuns | None:
    """Follows rows of arrays of one length.

    Records and labels are rotated together at first. What is computed from them has another digest
    then, and is left alone. If that shows nothing, the arrays of one line are rotated.
    """
    rows = arrays[0].rows
    row_cycles = cycles(rows)
    rotation = moves(row_cycles)
    by_event: dict[int, list[Appeared]] = {}
    for array in arrays:
        by_event.setdefault(array.event, []).append(array)
    of_lines = list(by_event.values())[:_MOST_LINES]
    # All arrays together; if that shows nothing, those of each line alone.
    for chosen in (arrays, *(of_lines if len(of_lines) > 1 else ())):
        rotated = rerun(_digests(chosen), *rotation)
        if rotated is None:
            continue
        result = PreparationRuns(chosen[0].line, len(before.records), len(rotation[0]))
        descent = lineage(before, rotated, row_cycles)
        private = [chosen]
        if len(descent.rows) < _FEWEST_ROWS:
            mixed = mixed_records(before, rotated, row_cycles)
            if mixed and rows == result.records:
                return replace(result, records_changed=mixed)
            continue
        if chosen is arrays and len(of_lines) > 1:
            # Public data may be as long as the records: their rows move no record.
            reruns = [(part, rerun(_digests(part), *rotation)) for part in of_lines]
            private = [part for part, run in reruns if run and moves_records(before, run, descent)]
        if private:
            digests = list(chain.from_iterable(map(_digests, private)))
            result = replace(result, line=private[0][0].line)
            return _with_equal_rows(before, rotated, rerun, digests, descent, result)
    return None


def _digests(arrays: Sequence[Appeared]) -> list[str]:
    return [array.digest for array in arrays]


def _with_equal_rows(
    before: Prepared,
    rotated: Prepared,
    rerun: Rerun,
    digests: Sequence[str],
    descent: Lineage,
    result: PreparationRuns,
) -> PreparationRuns | None:
    """Makes private rows equal in some runs, until one shows that other records change.

    Args:
        before: outcome of a run with nothing changed.
        rotated: outcome of a run with rotated rows.
        rerun: runs the script.
        digests: digests of the arrays.
        descent: rows and their records.
        result: so far.

    Returns:
        The result; None if no run ended, had these rows, and prepared as many records.
    """
    is_whole = len(descent.rows) == len(rotated.targets)
    changed_rows = 0
    for targets in (descent.rows, descent.rows[::-1], ()):
        if not (targets or is_whole):  # extremes may be in rows that are public
            continue
        after = rerun(digests, targets, targets[:1] * len(targets))
        if after is None or not after.targets:
            continue
        if len(after.records) == len(before.records):
            changed_rows = changed_rows or len(after.targets)
        positions = descent.positions if targets else ()
        changed = changed_others(before, after, after.targets, positions)
        settings = changed_settings(before, rotated, after)
        if changed or settings:
            return replace(
                result,
                rows=len(after.targets),
                records_changed=changed,
                settings_changed=settings,
            )
    return replace(result, rows=changed_rows) if changed_rows else None


def arrays_by_length(prepared: Prepared) -> list[list[Appeared]]:
    """Groups arrays by their rows, in the order of their first appearance.

    Arrays that are much shorter than the records, such as those of networks, are left out.
    """
    groups: dict[int, list[Appeared]] = {}
    digests: set[str] = set()
    for array in prepared.arrays:
        if array.digest not in digests and array.rows * _SHARE >= len(prepared.records):
            groups.setdefault(array.rows, []).append(array)
        digests.add(array.digest)
    return list(groups.values())


def cycles(rows: int) -> list[Cycle]:
    """Returns disjoint cycles of 2, 3, 4 and more rows, a tenth of all, spread over an array."""
    lengths: list[int] = []
    for length in range(2, _LONGEST_CYCLE + 1):
        if sum(lengths) + length > max(2, rows // _SHARE):
            break
        lengths.append(length)
    # Rows at the beginning may decide on an order, as that in which words appear.
    spread_rows = np.linspace(rows // _SHARE, rows - 1, sum(lengths)).astype(int)
    return [part.tolist() for part in np.split(spread_rows, np.cumsum(lengths)[:-1])]


def moves(cycles: Iterable[Cycle]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns rows that get other values, and the rows that these come from."""
    targets: list[int] = []
    sources: list[int] = []
    for cycle in cycles:
        targets += cycle
        sources += [cycle[-1], *cycle[:-1]]
    return tuple(targets), tuple(sources)


@dataclass(frozen=True)
class Lineage:
    """Rows of an array that are private records, and the positions of these in the data set."""

    rows: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()


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
        positions = np.flatnonzero(distances > tolerance)
        if len(positions) > len(first) / 2:  # a statistic has changed, or the order of all
            continue
        record_cycles = _record_cycles(
            first[positions], second[positions], tolerance * _spread(first)
        )
        lengths = set(map(len, record_cycles))
        rows = list(chain.from_iterable(cycle for cycle in cycles if len(cycle) in lengths))
        if rows:
            members = positions[list(chain.from_iterable(record_cycles))]
            return Lineage(tuple(rows), tuple(members.tolist()))
    return Lineage()


def _record_cycles(
    first: Numbers,
    second: Numbers,
    tolerance: float,
) -> list[Cycle]:
    """Returns the cycles in which summaries [n, SUMMARY] moved, by their indices."""
    came_from: dict[int, int] = {}  # which record's values each record has after the rotation
    for index, summary in enumerate(second):
        (equal,) = np.nonzero(np.abs(first - summary).max(1) <= tolerance)
        if len(equal) == 1:
            came_from[index] = int(equal[0])
    record_cycles = []
    while came_from:
        start, index = came_from.popitem()
        cycle = [start]
        while index in came_from:
            cycle.append(index)
            index = came_from.pop(index)
        if index == start:
            record_cycles.append(cycle)
    return record_cycles


def moves_records(
    before: Prepared,
    rotated: Prepared,
    descent: Lineage,
) -> bool:
    """Returns whether rotated rows of one array moved some of these records, and few others."""
    first = np.array(before.records)
    second = np.array(rotated.records)
    if len(first) != len(second):
        return False
    distances = np.abs(first - second).max(1) / _spread(first)
    positions = set(np.flatnonzero(distances > _TOLERANCES[-1]).tolist())
    return bool(positions & set(descent.positions)) and len(positions) <= len(first) / 2


def changed_settings(
    before: Prepared,
    rotated: Prepared,
    after: Prepared,
) -> tuple[str, ...]:
    """Returns the names of settings that changed rows decide, and their order does not.

    Such a setting is the same with rotated rows as before, and another one with equal rows.
    """
    return tuple(
        name
        for name, text in before.settings.items()
        if rotated.settings.get(name) == text != after.settings.get(name)
    )


def mixed_records(
    before: Prepared,
    rotated: Prepared,
    cycles: Sequence[Cycle],
) -> int:
    """Counts records that changed with rotated rows, if each row is a part of several records.

    The count is 0 if no more records changed than a row each explains, or most of them. A table of
    public vectors that records look up has rows in several records, too. It seldom has as many rows
    as there are records, so the caller requires that of the array.
    """
    rows = sum(map(len, cycles))
    changed = _missing(np.array(before.records), rotated)
    return changed if _MOST_RECORDS * rows < changed <= len(before.records) / 2 else 0


def changed_others(
    before: Prepared,
    after: Prepared,
    rows: Sequence[int],
    positions: Sequence[int],
) -> int:
    """Counts records that changed though their rows did not; 0 unless that is certain.

    Args:
        before: outcome of a run with nothing changed.
        after: outcome of a run in which rows were changed.
        rows: these rows.
        positions: positions of their records in the data set, as far as that is known.
    """
    is_as_long = len(before.records) == len(after.records)
    if is_as_long and positions:
        changed = _missing(np.delete(np.array(before.records), positions, axis=0), after)
        if changed:
            return changed
    if not (is_as_long or positions):
        return 0  # a row that was left out may be in now, so that a random split is another one
    changed = _missing(np.array(before.records), after)
    return changed if changed > _MOST_RECORDS * len(rows) else 0


def _missing(records: Numbers, after: Prepared) -> int:
    """Counts records [n, SUMMARY] that a run does not have, at any position."""
    candidates = np.sort([record[0] for record in after.records])
    tolerance = _EXACT * _spread(records[:, 0])
    count = 0
    index = 0
    for number in np.sort(records[:, 0]):  # each candidate is taken once
        while index < len(candidates) and candidates[index] < number - tolerance:
            index += 1
        if index < len(candidates) and candidates[index] <= number + tolerance:
            index += 1
        else:
            count += 1
    return count


def _spread(numbers: Numbers) -> float:
    return float(numbers.std()) or 1.0
