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
_FAR = 200  # beyond the domain of a column
_LARGEST = 1e12  # value of an extreme record: larger ones overflow in sums of squares


class VectorPairs(Strict):
    """Vectors of query answers, each of which a record changes by at most `change`.

    These are the patterns of StatDP (Ding et al. 2018) and DP-Sniper (Bichsel et al. 2021).
    """

    vectors: Count  # numbers of each vector
    change: PositiveFloat = 1.0  # of an answer

    def pairs(self) -> Iterator[tuple[str, Pair]]:
        """Yields pairs by the name of their pattern."""
        n = self.vectors
        half = np.arange(n) < (n + 1) // 2
        first = np.arange(n) == 0
        moves = {
            "one above": np.where(first, 1, 0),
            "one below": np.where(first, -1, 0),
            "one above, others below": np.where(first, 1, -1),
            "one below, others above": np.where(first, -1, 1),
            "half above, half below": np.where(half, 1, -1),
            "all above": np.ones(n),
        }
        level = np.full(n, self.change)
        # Short vectors have fewer patterns, of which the first name is kept.
        by_move = {tuple(move.tolist()): name for name, move in reversed(moves.items())}
        for move, name in reversed(by_move.items()):
            yield name, (level, level + self.change * np.array(move))
        if n > 1:
            yield "two halves exchanged", (self.change * half, self.change * ~half)


class TablePairs(Strict):
    """A table of records, as a function returns it, and its neighbours.

    A neighbour lacks a record, has a copy more, or has a record more, or another one, that is
    missing, infinite, extreme or outside of the domain.
    """

    table: ImportPath  # function that returns the table
    units: tuple[str, ...] = ("add", "remove")  # what makes neighbours; "replace" is another

    @field_validator("units", mode="before")
    @classmethod
    def _are_known(cls, units: Any) -> Any:
        """Returns the units as a tuple. Raises ValueError for unknown units."""
        choices = ("add", "remove", "replace")
        if not isinstance(units, list | tuple) or not units or set(units) - {*choices}:
            raise ValueError(f"must be some of {', '.join(choices)}, got {units!r}")
        return tuple(units)

    def pairs(self) -> Iterator[tuple[str, Pair]]:
        """Yields pairs by what is done to a record.

        Raises:
            SpecError: the function returns no table of numbers with two records.
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

        def as_given(rows: Floats) -> Any:
            """Returns rows as the function returned its table: as an array, or a data frame."""
            if not is_frame:
                return rows
            columns = getattr(table, "columns", None)
            if columns is None:
                return type(table)(rows)
            return type(table)(rows, columns=columns)

        for name, (before, after) in _neighbours(records, self.units):
            yield name, (as_given(before), as_given(after))


def _neighbours(
    records: Floats, units: Sequence[str]
) -> Iterator[tuple[str, tuple[Floats, Floats]]]:
    """Yields pairs of neighbouring tables, each by a name for their difference.

    Args:
        records: the user's table, float64 [n] or [n, columns]; but for the last pair, it is the
            first table of each.
        units: ways in which neighbours may differ, as in `TablePairs`.
    """
    low = np.nanmin(records, axis=0, keepdims=True)
    high = np.nanmax(records, axis=0, keepdims=True)
    unusual_records = {
        "highest": high,
        "lowest": low,
        "above the domain": high + _FAR,
        "below the domain": low - _FAR,
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
    """Returns all pairs of a source by name.

    Raises:
        SpecError: the user's function returns no list of pairs.
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
