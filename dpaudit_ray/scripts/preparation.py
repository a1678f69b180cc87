"""Finds out whether a script prepares each record without looking at the others.

The private records come from some array of the script, row by row or not. In one run, rows of an
array change places in cycles of different lengths. If prepared records move in a cycle of the same
length, they come from the rows of that cycle. In the next run, some of these rows become equal. If
records are prepared one by one, only the records of these rows change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import numpy.typing as npt

from .protocol import Appeared, Integers, Prepared, Texts

_MOST_LENGTHS = 3  # lengths of arrays that are followed
_MOST_LINES = 3  # lines of the script whose arrays of one length are changed
_FEWEST_ROWS = 3  # rows whose records must be found
_LONGEST_CYCLE = 40
_SHARE = 10  # one in ten rows takes part in a cycle
_MOST_RECORDS = 1.5  # records that may change for each changed row
# Records that may change for each moved row, if there are as many rows as records.
_MOST_MOVED = 1.1
# Shares of the spread: a record counts as moved only if it changes by more. All records may change
# a little, since a statistic has changed by which they are scaled.
_TOLERANCES = (1e-4, 1e-3, 1e-2)
_EXACT = 1e-6  # share of the spread: the same operations on the same numbers differ by less

Numbers = npt.NDArray[np.float64]
# Rows that change places: each gets the values of the row before it, the first those of the last.
Cycle = list[int]


@dataclass(frozen=True)
class PreparationRuns:
    """Result of runs with changed rows.

    Attributes:
        line: the script's line where the array of the rows appears.
        records: number of prepared records.
        rows: number of rows that were changed.
        records_changed: number of records of other rows that changed, though they should not.
        settings_changed: names of the settings of training that changed.
        arrays: digests of the arrays that have the rows.
        targets: indices of rows that are private records.
    """

    line: str
    records: int
    rows: int
    records_changed: int = 0
    settings_changed: Texts = ()
    arrays: Texts = ()
    targets: Integers = ()


# Runs the script until training is private, with changed rows of some arrays. Takes the arrays'
# digests, the rows that change, and the rows whose values these get (see `RunRequest`). Returns the
# prepared records, or None if the run fails.
Rerun = Callable[[Sequence[str], Integers, Integers], Prepared | None]


def follow(before: Prepared, rerun: Rerun) -> PreparationRuns | None:
    """Follows rows of the script's arrays to the records.

    Args:
        before: outcome of a run with nothing changed.
        rerun: runs the script until training is private, with changed rows.

    Returns:
        The result of the runs; None if no array becomes the records row by row.
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

    At first all arrays, such as records and labels, are rotated together. An array that the script
    computes from rotated ones has another digest then, so it is not rotated again. If the run shows
    nothing, the arrays of each line are rotated without the others.

    Args:
        before: outcome of a run with nothing changed.
        rerun: runs the script.
        arrays: the arrays.

    Returns:
        The result of the runs; None if they show nothing.
    """
    rows = arrays[0].rows
    row_cycles = cycles(rows)
    rotation = rotation_of(row_cycles)
    moved_rows = len(rotation[0])
    by_event: dict[int, list[Appeared]] = {}
    for array in arrays:
        by_event.setdefault(array.event, []).append(array)
    # Tables that got columns come first.
    arrays_of_lines = sorted(by_event.values(), key=_is_grown, reverse=True)[:_MOST_LINES]
    has_several_lines = len(arrays_of_lines) > 1
    attempts = (arrays, *arrays_of_lines) if has_several_lines else (arrays,)
    for chosen in attempts:
        rotated = rerun(_digests(chosen), *rotation)
        if rotated is None:
            continue
        result = PreparationRuns(chosen[0].line, len(before.records), moved_rows)
        lineage = find_lineage(before, rotated, row_cycles)
        private = [chosen]
        if len(lineage.rows) < _FEWEST_ROWS:  # perhaps each row is a part of several records
            if rows != result.records:
                continue
            changed = count_mixed_records(before, rotated, row_cycles)
            if changed > rows / 2:  # if only two rows move, the records that are far from them stay
                first_cycle = row_cycles[:1]
                swapped = rerun(_digests(chosen), *rotation_of(first_cycle))
                changed = count_mixed_records(before, swapped, first_cycle) if swapped else 0
            if 0 < changed <= rows / 2:
                return replace(result, records_changed=changed)
            continue
        # Columns that a table got later, such as a label, may not have moved with its first ones.
        is_whole = len(lineage.rows) == moved_rows
        if not is_whole and _is_grown(arrays_of_lines[0]) and not _is_grown(chosen):
            continue
        if chosen is arrays and has_several_lines:
            # Arrays of public data may be as long as the records. Their rows move no record.
            reruns = [(part, rerun(_digests(part), *rotation)) for part in arrays_of_lines]
            private = [part for part, run in reruns if run and moves_records(before, run, lineage)]
        if private:
            digests = list(chain.from_iterable(map(_digests, private)))
            result = replace(result, line=private[0][0].line)
            return _with_equal_rows(before, rotated, rerun, digests, lineage, result)
    return None


def _is_grown(arrays: Sequence[Appeared]) -> bool:
    """Returns whether the arrays of a line are tables that got columns there."""
    return arrays[0].is_grown


def _digests(arrays: Sequence[Appeared]) -> list[str]:
    """Returns the digests by which a request names arrays."""
    return [array.digest for array in arrays]


def _with_equal_rows(
    before: Prepared,
    rotated: Prepared,
    rerun: Rerun,
    digests: Sequence[str],
    lineage: Lineage,
    result: PreparationRuns,
) -> PreparationRuns | None:
    """Makes private rows equal in up to three runs, until one shows that other records change.

    Args:
        before: outcome of a run with nothing changed.
        rotated: outcome of a run with rotated rows.
        rerun: runs the script.
        digests: digests of the arrays.
        lineage: rows and their records.
        result: the result so far.

    Returns:
        The result; None if no run ended, had the rows to change, and prepared as many records.
    """
    is_whole = len(lineage.rows) == len(rotated.targets)
    changed_rows = 0
    # All rows get the values of the first one, then of the last one. Without targets, the rows with
    # the extremes of columns change.
    for targets in (lineage.rows, lineage.rows[::-1], ()):
        if not (targets or is_whole):  # extremes may be in rows that are public
            continue
        after = rerun(digests, targets, targets[:1] * len(targets))
        if after is None or not after.targets:
            continue
        if len(after.records) == len(before.records):
            changed_rows = changed_rows or len(after.targets)
        positions = lineage.positions if targets else ()
        changed = count_changed_others(before, after, after.targets, positions)
        settings = changed_settings(before, rotated, after)
        if changed or settings:
            return replace(
                result,
                rows=len(after.targets),
                records_changed=changed,
                settings_changed=settings,
            )
    result = replace(result, rows=changed_rows, arrays=tuple(digests), targets=lineage.rows)
    return result if changed_rows else None


def arrays_by_length(prepared: Prepared) -> list[list[Appeared]]:
    """Groups arrays by their number of rows, in the order of their first appearance.

    Arrays that are much shorter than the records, such as those of networks, are left out.
    """
    groups: dict[int, list[Appeared]] = {}
    digests = set()
    for array in prepared.arrays:
        if array.digest not in digests and array.rows * _SHARE >= len(prepared.records):
            groups.setdefault(array.rows, []).append(array)
        digests.add(array.digest)
    return list(groups.values())


def cycles(rows: int) -> list[Cycle]:
    """Returns disjoint cycles of 2, 3, 4 and more rows, which are spread over an array.

    All cycles together have a tenth of the rows.
    """
    lengths: list[int] = []
    for length in range(2, _LONGEST_CYCLE + 1):
        if sum(lengths) + length > max(2, rows // _SHARE):
            break
        lengths.append(length)
    # The first rows are left out: they may decide on an order, such as that of words in a
    # vocabulary.
    spread_rows = np.linspace(rows // _SHARE, rows - 1, sum(lengths)).astype(int)
    return [part.tolist() for part in np.split(spread_rows, np.cumsum(lengths)[:-1])]


def rotation_of(cycles: Iterable[Cycle]) -> tuple[Integers, Integers]:
    """Returns the rows that get other values, and the rows that these values come from."""
    targets = []
    sources = []
    for cycle in cycles:
        targets += cycle
        sources += [cycle[-1], *cycle[:-1]]
    return tuple(targets), tuple(sources)


@dataclass(frozen=True)
class Lineage:
    """Rows of an array that become private records, and the records' positions in the data set."""

    rows: Integers = ()
    positions: Integers = ()


def find_lineage(
    before: Prepared,
    rotated: Prepared,
    cycles: Sequence[Cycle],
) -> Lineage:
    """Finds the rows whose records moved as the rows did."""
    if len(before.records) != len(rotated.records) or not before.records:
        return Lineage()
    # The last number of a summary may depend on the position, so it is left out.
    first = np.array(before.records)[:, :-1]
    second = np.array(rotated.records)[:, :-1]
    spread = _spread(first)
    distances = np.abs(first - second).max(1) / spread
    for tolerance in _TOLERANCES:
        positions = np.flatnonzero(distances > tolerance)
        if len(positions) > len(first) / 2:  # a statistic has changed, or the order of all records
            continue
        record_cycles = _record_cycles(first[positions], second[positions], tolerance * spread)
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
    """Returns the cycles of indices in which summaries moved.

    Args:
        first: summaries before [records, numbers].
        second: summaries after, of the same shape.
        tolerance: largest difference of numbers that count as equal.
    """
    came_from = {}  # index of the record whose values each record now has
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


def moves_records(before: Prepared, rotated: Prepared, lineage: Lineage) -> bool:
    """Returns whether rotated rows moved records of `lineage`, and at most half of all records."""
    first = np.array(before.records)
    second = np.array(rotated.records)
    if len(first) != len(second):
        return False
    distances = np.abs(first - second).max(1) / _spread(first)
    positions = set(np.flatnonzero(distances > _TOLERANCES[-1]).tolist())
    return bool(positions & set(lineage.positions)) and len(positions) <= len(first) / 2


def changed_settings(
    before: Prepared,
    rotated: Prepared,
    after: Prepared,
) -> Texts:
    """Returns the names of settings that depend on the values of rows, but not on the rows' order.

    Such a setting is the same with rotated rows as before, and differs with equal rows.

    Args:
        before: outcome of a run with nothing changed.
        rotated: outcome of a run with rotated rows.
        after: outcome of a run with equal rows.
    """
    return tuple(
        name
        for name, text in before.settings.items()
        if rotated.settings.get(name) == text != after.settings.get(name)
    )


def count_mixed_records(
    before: Prepared,
    rotated: Prepared,
    cycles: Sequence[Cycle],
) -> int:
    """Counts records that changed with rotated rows, if each row is a part of several records.

    The count is 0 if about one record changed for each row, as if each had one row. Rows of a table
    of public vectors that records look up are in several records, too. But such a table seldom has
    as many rows as there are records, so the caller only passes runs about arrays of that length.
    """
    rows = sum(map(len, cycles))
    changed = _count_missing(np.array(before.records), rotated)
    return changed if changed > _MOST_MOVED * rows else 0


def count_changed_others(
    before: Prepared,
    after: Prepared,
    rows: Sequence[int],
    positions: Sequence[int],
) -> int:
    """Counts records that changed though their rows did not; 0 unless that is certain.

    Args:
        before: outcome of a run with nothing changed.
        after: outcome of a run in which rows were changed.
        rows: the rows that were changed.
        positions: positions of the rows' records in the data set, as far as these are known.
    """
    is_as_long = len(before.records) == len(after.records)
    if is_as_long and positions:  # all records of other rows should be there
        other_records = np.delete(np.array(before.records), positions, axis=0)
        changed = _count_missing(other_records, after)
        if changed:
            return changed
    if not (is_as_long or positions):
        return 0  # a row that was filtered out may be in now, and then a random split differs
    # It is not known which records these rows have, but they have about one each.
    changed = _count_missing(np.array(before.records), after)
    return changed if changed > _MOST_RECORDS * len(rows) else 0


def _count_missing(records: Numbers, after: Prepared) -> int:
    """Counts records that a run does not have, at any position.

    Args:
        records: summaries of the records [records, SUMMARY].
        after: outcome of the run.
    """
    # Records are compared by the last number of their summaries.
    candidates = np.sort([record[-1] for record in after.records])
    tolerance = _EXACT * _spread(records[:, -1])
    missing_count = 0
    index = 0
    for number in np.sort(records[:, -1]):  # each candidate can be the match of one record
        while index < len(candidates) and candidates[index] < number - tolerance:
            index += 1
        if index < len(candidates) and candidates[index] <= number + tolerance:
            index += 1
        else:
            missing_count += 1
    return missing_count


def _spread(numbers: Numbers) -> float:
    """Returns the standard deviation of numbers, or 1 if all are equal."""
    return float(numbers.std()) or 1.0
