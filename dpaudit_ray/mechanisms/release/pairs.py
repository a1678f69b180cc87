"""Pairs of neighbouring inputs: listed by the user, or patterns that break many mechanisms."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from pydantic import PositiveFloat, field_validator

from ... import imports
from ...errors import SpecError
from ...plugins import Count, ImportPath, Strict
from ...stats.error_rates import Floats

Pair = tuple[Any, Any]
_DISTANCE_BEYOND = 200  # from the bounds of a column to a record outside of them
_LARGEST = 1e12  # value of an extreme record: larger ones overflow in sums of squares


class VectorPairs(Strict):
    """Vectors of query answers, each of which a record changes by at most `change`.

    These are the patterns of StatDP (Ding et al. 2018) and DP-Sniper (Bichsel et al. 2021).
    """

    vectors: Count  # number of answers in each vector
    change: PositiveFloat = 1.0  # of an answer

    def pairs(self) -> Iterator[tuple[str, Pair]]:
        """Yields pairs of vectors, each with the name of its pattern."""
        n = self.vectors
        in_first_half = np.arange(n) < (n + 1) // 2
        is_first = np.arange(n) == 0
        changes = {  # of each answer, from the first vector of a pair to the second
            "one above": np.where(is_first, 1, 0),
            "one below": np.where(is_first, -1, 0),
            "one above, others below": np.where(is_first, 1, -1),
            "one below, others above": np.where(is_first, -1, 1),
            "half above, half below": np.where(in_first_half, 1, -1),
            "all above": np.ones(n),
        }
        answers = np.full(n, self.change)
        # Patterns of short vectors may be equal: the first name of each is kept, so it comes last.
        names = {tuple(change.tolist()): name for name, change in reversed(changes.items())}
        for change, name in reversed(names.items()):
            yield name, (answers, answers + self.change * np.array(change))
        if n > 1:
            yield (
                "two halves exchanged",
                (self.change * in_first_half, self.change * ~in_first_half),
            )


class TablePairs(Strict):
    """A user's table of records, and neighbours that differ from it in one record.

    A neighbour lacks a record ("remove"), has an additional one ("add"), or has another one in
    place of the first ("replace"). Added and replacing records are missing, infinite, extreme, at
    the bounds of the columns or beyond them; "add" also repeats a record.
    """

    table: ImportPath  # function that returns the table
    units: tuple[str, ...] = ("add", "remove")  # ways in which neighbours differ; also "replace"

    @field_validator("units", mode="before")
    @classmethod
    def _are_known(cls, units: Any) -> Any:
        """Returns the units as a tuple. Raises ValueError for unknown units."""
        choices = ("add", "remove", "replace")
        if not isinstance(units, list | tuple) or not units or set(units) - {*choices}:
            raise ValueError(f"must be some of {', '.join(choices)}, got {units!r}")
        return tuple(units)

    def pairs(self) -> Iterator[tuple[str, Pair]]:
        """Yields pairs of neighbouring tables, each with a name for their difference.

        Raises:
            SpecError: the function does not return a table of numbers with two or more records.
        """
        table = imports.function(self.table, "mechanism.pairs.table")()
        is_frame = hasattr(table, "to_numpy")
        values = np.asarray(table.to_numpy() if is_frame else table)
        is_table = values.ndim in (1, 2) and values.dtype.kind in "fiub"
        if not is_table or len(values) < 2:
            raise SpecError(
                "mechanism.pairs.table",
                f"{self.table} must return numbers of two records or more, got "
                f"{values.dtype} of shape {values.shape}",
            )
        records = values.astype(float)

        def in_users_type(rows: Floats) -> Any:
            """Returns rows in the type of the user's table: an array, a data frame or a series."""
            if not is_frame:
                return rows
            columns = getattr(table, "columns", None)
            if columns is None:  # a series
                return type(table)(rows)
            return type(table)(rows, columns=columns)

        for name, (before, after) in _neighbours(records, self.units):
            yield name, (in_users_type(before), in_users_type(after))


def _neighbours(
    records: Floats, units: Sequence[str]
) -> Iterator[tuple[str, tuple[Floats, Floats]]]:
    """Yields pairs of neighbouring tables, each with a name for their difference.

    Args:
        records: the user's table, float64 [n] or [n, columns]. It is the first table of all pairs
            but the last pair of "replace".
        units: ways in which neighbours may differ, as in `TablePairs`.
    """
    low = np.nanmin(records, axis=0, keepdims=True)
    high = np.nanmax(records, axis=0, keepdims=True)
    unusual_records = {
        "highest": high,
        "lowest": low,
        "above the domain": high + _DISTANCE_BEYOND,
        "below the domain": low - _DISTANCE_BEYOND,
        "extreme": np.full_like(high, _LARGEST),
        "infinite": np.full_like(high, np.inf),
        "missing": np.full_like(high, np.nan),
    }
    if "remove" in units:
        extremes = {"first": 0}
        if records.ndim == 1:
            extremes |= {"largest": int(records.argmax()), "smallest": int(records.argmin())}
        for name, index in extremes.items():
            yield f"without the {name} record", (records, np.delete(records, index, axis=0))
    if "add" in units:
        yield "a record twice", (records, np.concatenate([records, records[:1]]))
        for name, record in unusual_records.items():
            yield f"one more record: {name}", (records, np.concatenate([records, record]))
    if "replace" in units:
        for name, record in unusual_records.items():
            replaced = np.concatenate([record, records[1:]])
            yield f"another record: {name}", (records, replaced)
        # The first record changes by the whole range of each column: most of all replacements.
        with_lowest = np.concatenate([low, records[1:]])
        with_highest = np.concatenate([high, records[1:]])
        yield "lowest for highest", (with_lowest, with_highest)


PairSource: TypeAlias = str | VectorPairs | TablePairs


def named_pairs(source: PairSource) -> list[tuple[str, Pair]]:
    """Returns all pairs of a source, each with its name.

    Raises:
        SpecError: the user's function does not return a list of pairs.
    """
    if not isinstance(source, str):
        return list(source.pairs())
    returned = imports.function(source, "mechanism.pairs")()
    listed = returned if isinstance(returned, list | tuple) else []
    are_pairs = [isinstance(pair, list | tuple) and len(pair) == 2 for pair in listed]
    if not are_pairs or not all(are_pairs):
        raise SpecError(
            "mechanism.pairs",
            f"{source} must return a list of pairs of inputs, got {returned!r:.60}",
        )
    return [(f"pair {number}", tuple(pair)) for number, pair in enumerate(returned, start=1)]
