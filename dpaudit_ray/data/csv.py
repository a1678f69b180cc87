"""A user's own table from a CSV file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from ..errors import DataError, suggestion
from .arrays import labels, listed
from .base import Data, Dataset, checked, existing_file
from .tabular import read_csv

_REMEDY = "give a table with the names of its columns in the first line"
_MANY = 50  # values: a column of more text is no category, and a label of more numbers no class


class Csv(Data):
    """A table with a header and a record in each row; all columns but `label` are features.

    `label` is the last column where it is left out: classes 0, 1, ..., or values that `label_order`
    lists in that order, or any numbers for `regression`. A column of `categories` becomes one of 0
    and 1 for each of its values, which count as public; those of `drop` are left out. `ranges:
    {age: [0, 100]}` takes 0 to 0 and 100 to 1. Such bounds must be public: a mean or a largest
    value of private records gives something away that no accountant counts.
    """

    name: Literal["csv"] = "csv"
    path: str  # the file
    label: str | None = None  # the column to learn; null: the last
    label_order: list[str | int | float] = Field(default=[])  # values of classes 0, 1, ...
    categories: list[str] = Field(default=[])  # columns of words
    drop: list[str] = Field(default=[])  # columns that are left out
    # bounds, by column, that become 0 and 1
    ranges: dict[str, Annotated[list[float], Field(min_length=2, max_length=2)]] = Field(default={})
    regression: bool = False  # the label is a number to learn

    def read(self) -> Dataset:
        source, label, table = self._table()
        features = table.drop(columns=[label, *self.drop])
        missing = features.join(table[label]).replace([np.inf, -np.inf], np.nan).isna()
        if (count := int(missing.to_numpy().sum())) > 0:
            row, column = np.argwhere(missing.to_numpy())[0]
            more = f", and {count - 1} more have none" * (count > 1)
            raise DataError(
                f"{source}: row {row + 1} below the header has no (finite) value in column "
                f"{missing.columns[column]!r}{more}; fill them, delete the rows, or `drop` columns"
            )
        if text := [name for name in _text(features) if name not in self.categories]:
            strange = next((c for c in features[text[0]] if not _is_number(c)), "")
            raise DataError(
                f"{source}: column {text[0]!r} (column {table.columns.get_loc(text[0]) + 1}) is "
                f"text, such as {strange:.40}: list it under `categories: {listed(text)}` to have "
                f"a column of 0 and 1 for each value, or leave it out: `drop: {listed(text)}`"
            )
        columns = [np.empty((len(table), 0))]
        for name in features:
            cells = features[name].to_numpy()[:, None]
            if name in self.categories:
                columns.append(np.equal(cells, np.unique(cells)))
            else:
                low, high = self.ranges.get(name, (0.0, 1.0))
                if low >= high:
                    problem = f"`ranges` of {name!r} falls from {low} to {high}"
                    raise DataError(f"{source}: {problem}; give [least, most]")
                columns.append((cells.astype(np.float64) - low) / (high - low))
        y = labels(table[label].to_numpy(), f"{source}: {label}", self.label_order, self.regression)
        return checked(np.concatenate(columns, axis=1), y, source)

    def guess(self) -> dict[str, Any]:
        """Options by what the columns hold; drops text of many values, and numbers of rows."""
        _, label, table = self._table(nameless=True)
        values = sorted(table[label].dropna().unique().tolist())
        numbers = label not in (text := _text(table))
        continuous = numbers and (len(values) > _MANY or any(value % 1 for value in values))
        text = [name for name in text if name != label]
        names = [name for name in text if table[name].nunique() > _MANY]
        options = {
            "label": label,
            "label_order": [] if continuous or values == [*range(len(values))] else values,
            "categories": [name for name in text if name not in names],
            "drop": [*(n for n in table if n != label and _numbers_rows(n, table[n])), *names],
            "regression": continuous,
        }
        return {key: value for key, value in options.items() if value}

    def _table(self, nameless: bool = False) -> tuple[str, str, Any]:
        """The file's name, that of the label's column, and the cells; categories are text."""
        file = existing_file(self.path, self.name, _REMEDY)
        first = read_csv(file, _REMEDY, nrows=0).columns
        options = {
            "sep": next((s for s in ";\t|" if len(first) == 1 and s in first[0]), ","),
            "dtype": dict.fromkeys(self.categories, str),
        }
        table = read_csv(file, _REMEDY, skipinitialspace=True, low_memory=False, **options)
        names, label = [*table.columns], self.label or table.columns[-1]
        whole = [*table.index[:1]] == [*range(len(table))][:1]  # pandas takes a first cell for it
        if len(names) < 2 or all(map(_is_number, names)) or not whole or table.empty:
            raise DataError(
                f"{file}: holds {len(table)} rows of {len(names)} columns, the first of which are "
                f"called {', '.join(names[:3]):.40}; {_REMEDY}, and features and a label in others"
            )
        if not nameless and (lost := [n for n in names if _is_nameless(n) and n not in self.drop]):
            raise DataError(
                f"{file}: a column has no name, as numbers of rows; `drop: {listed(lost)}`"
            )
        stated = {"categories": self.categories, "drop": self.drop, "ranges": [*self.ranges]}
        for option, columns in {"label": [label], **stated}.items():
            if unknown := [name for name in columns if name not in names]:
                raise DataError(
                    f"{file}: `{option}` names {unknown[0]!r}, which is no column"
                    f"{suggestion(unknown[0], names)}columns: {listed(names)}"
                )
        return str(file), label, table


def _text(table: Any) -> list[str]:
    return [name for name in table.columns if table[name].dtype.kind not in "iufb"]


def _is_nameless(name: str) -> bool:
    return name.startswith("Unnamed: ")  # as pandas calls it


def _numbers_rows(name: str, cells: Any) -> bool:
    """Whether a column only says which row it is: nameless, or one whole number after another."""
    if _is_nameless(name):
        return True
    numbers = cells.dtype.kind in "iu" and cells.is_unique and len(cells) > _MANY
    return bool(numbers and cells.max() - cells.min() == len(cells) - 1)


def _is_number(cell: str) -> bool:
    try:
        return float(cell) is not None
    except ValueError:
        return False
