"""A user's own table from a CSV file."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from ..errors import DataError, suggestion
from .arrays import labels, listed
from .base import Data, Dataset, checked, existing_file
from .tabular import read_csv

_REMEDY = "give a table with the names of its columns in the first line"
# Different values that a column may have at most to be proposed as categories, or as classes.
_MOST_VALUES = 50
_MOST_CELLS = 2**28  # cells that all features may have: 2 GiB while they are formed
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")  # first bytes of a file in UTF-16
_DAY_FORMATS = ("ISO8601", "%d.%m.%Y")  # formats of pandas.to_datetime
_SIGNED = "numbers with signs or separators"
# For columns of text: a pattern that matches all cells that are not numbers, their content, and the
# option that reads them; "" if there is none. The first pattern that matches counts.
_KINDS = (
    (r"[-+]?\d{1,3},\d{3}", _SIGNED, ""),  # a decimal comma, or thousands
    (r"[-+]?\d+,\d+", "numbers with a decimal comma", "decimal"),
    (r"\d{4}-\d\d?-\d\d?([T ].*)?|\d\d?\.\d\d?\.\d{4}", "dates", "dates"),
    (r"\d\d?/\d\d?/\d{2,4}", "dates that begin with a day or a month", ""),
    (r"(?=.*[^\d.])[^\w,.]*(?:[A-Z]{3} )?\d[\d.,' ]*(?: ?[A-Z]{3})?[^\w,.]*", _SIGNED, ""),
)
_PLAIN = "write plain values, such as 1234.5 or 2026-11-28"
_PUBLIC = "give a constant that is known without the records: no claim covers a mean of them"


class Csv(Data):
    """A table with a header and a record in each row; all columns but `label` are features.

    `label` is by default the last column: classes 0, 1, ..., or values that `label_order` lists in
    that order, or any numbers for `regression`. A column of `categories` becomes one of 0 and 1 for
    each of its values, which count as public; those of `drop` are left out. `ranges:
    {age: [0, 100]}` takes 0 to 0 and 100 to 1. `fill: {age: 40}` is the value of empty cells. Such
    bounds and values must be public: a mean or a largest value of private records gives something
    away that no accountant counts. `dates` (2026-11-28 or 28.11.2026) become days since 1970.
    """

    name: Literal["csv"] = "csv"
    path: str  # the file
    label: str | None = None  # the column to learn; null: the last
    label_order: list[str | int | float] = Field(default=[])  # values of classes 0, 1, ...
    categories: list[str] = Field(default=[])  # columns of words
    dates: list[str] = Field(default=[])  # columns that become days since 1970
    drop: list[str] = Field(default=[])  # columns that are left out
    fill: dict[str, str | int | float] = Field(default={})  # values of empty cells, by column
    # bounds, by column, that become 0 and 1
    ranges: dict[str, Annotated[list[float], Field(min_length=2, max_length=2)]] = Field(default={})
    regression: bool = False  # the label is a number to learn
    decimal: Literal[".", ","] = "."  # the point of its numbers
    encoding: Literal["utf-8", "utf-16", "latin-1", "cp1252"] = "utf-8"  # of its text

    def read(self) -> Dataset:
        """Reads the table, and forms its features.

        Raises DataError for all problems of its cells at once.
        """
        source, label, table = self._table()
        table = table.drop(columns=self.drop)
        for name in self.dates:
            table[name] = _days_since_1970(table[name])
        for name, value in self.fill.items():
            if name in self.categories:
                value = str(value)  # as all cells of the column
            table[name] = table[name].fillna(value)
        problems = list(self._problems_of_empty_cells(table, label))
        problems += self._problems_of_text(table.drop(columns=label))
        y: np.ndarray = np.empty(0, np.int64)  # used only if there are no problems
        if not table[label].isna().any():
            try:
                y = labels(
                    table[label].to_numpy(), label, self.label_order, regression=self.regression
                )
            except DataError as error:
                problems.append(str(error))
        for name, (low, high) in self.ranges.items():
            if low >= high:
                problems.append(
                    f"`ranges` of {name!r} falls from {low} to {high}; give [least, most]"
                )
        if problems:
            first, *details = [f"{source}: {problem}" for problem in problems]
            raise DataError(first, details=tuple(details))
        columns = [np.empty((len(table), 0))]  # concatenated below, even if there are no features
        for name in table.columns.drop(label):
            cells = table[name].to_numpy()[:, None]
            if name in self.categories:
                columns.append(np.equal(cells, np.unique(cells)))  # one column for each value
            else:
                low, high = self.ranges.get(name, (0.0, 1.0))
                columns.append((cells.astype(float) - low) / (high - low))
        return checked(np.concatenate(columns, axis=1), y, source)

    def guess(self) -> tuple[dict[str, Any], list[str]]:
        """Guesses options from the columns.

        Columns of row numbers, and text of many values, are left out; empty cells become 0.

        Returns:
            Options that differ from their defaults, and notes on columns that they leave out or
            change.
        """
        try:
            _, label, table = self._table(nameless=True)
        except DataError as error:  # text in another encoding: guess again with that one
            if not isinstance(error.__cause__, UnicodeError) or self.encoding != "utf-8":
                raise
            return self._guess_with("encoding", self._other_encoding())
        # By column of text: its content in words, and the option that reads it, or "".
        kinds = {name: _content_and_option(table[name]) for name in _text_columns(table)}
        # If one column has a decimal comma, the table is read anew by that option.
        has_commas = any(option == "decimal" for _, option in kinds.values())
        if has_commas and self.decimal == ".":
            return self._guess_with("decimal", ",")
        values = sorted(table[label].dropna().unique().tolist())  # those of the label
        # A label of numbers is learned as such if it has fractions, or too many values for classes.
        is_continuous = label not in kinds and (
            len(values) > _MOST_VALUES or any(value % 1 for value in values)
        )
        kinds.pop(label, None)
        reasons = {}  # why columns are left out
        for name in table.columns.drop(label):
            if _is_row_number(name, table[name]):
                reasons[name] = "it only numbers the rows"
        for name, (content, option) in kinds.items():
            if not option and name not in reasons:
                reasons[name] = f"it is {content}, such as {_example(table[name])}"
                if not content.startswith("text"):
                    reasons[name] += f"; to keep it, {_PLAIN}"
        notes = [f"column {name!r} is left out: {reason}" for name, reason in reasons.items()]
        features = table.drop(columns=[label, *reasons])
        options = {name: option for name, (_, option) in kinds.items()}
        categories = [name for name in features if options.get(name) == "categories"]
        dates = [name for name in features if options.get(name) == "dates"]
        notes += [f"column {name!r} becomes days since 1970" for name in dates]
        fill = {}  # values for empty cells, by column
        for name, count in features.isna().sum().items():
            if count:
                fill[name] = 0
                notes.append(f"{count:,} empty cells of {name!r} become 0: {_PUBLIC}")
        are_classes = values == [*range(len(values))]  # 0, 1, ... already
        guessed = {
            "label": label,
            "label_order": [] if is_continuous or are_classes else values,
            "categories": categories,
            "dates": dates,
            "drop": [*reasons],
            "fill": fill,
            "regression": is_continuous,
        }
        return {key: value for key, value in guessed.items() if value}, notes

    def _guess_with(self, option: str, value: str) -> tuple[dict[str, Any], list[str]]:
        """Guesses all other options after setting one; returns them, with that one, and notes."""
        options, notes = self.model_copy(update={option: value}).guess()
        return options | {option: value}, notes

    def _problems_of_empty_cells(self, table: Any, label: str) -> Iterator[str]:
        """Yields a line for each column with empty or infinite cells.

        It names the row of the first, counts the others, and ends with a remedy.
        """
        finite = table.replace([np.inf, -np.inf], np.nan)
        missing = finite.isna()
        for name, count in missing.sum().items():
            if count:
                row = int(missing[name].to_numpy().argmax()) + 1
                more = f" and {count - 1:,} more have" if count > 1 else " has"
                remedy = "delete the rows"
                if name != label:
                    remedy += f", `drop` it, or `fill: {{{name}: VALUE}}` ({_PUBLIC})"
                yield (
                    f"row {row} below the header{more} no (finite) value in column {name!r}; "
                    f"{remedy}"
                )

    def _problems_of_text(self, features: Any) -> Iterator[str]:
        """Yields a line for each column of text that no option reads, with the option to add.

        If `categories` would make too many columns, there is a line on the largest of them.
        """
        # By column: its content in words, and the option that reads it, or "".
        kinds = {
            name: _content_and_option(features[name])
            for name in _text_columns(features)
            if name not in self.categories
        }
        for name, (content, option) in kinds.items():
            # All columns that need the same option, so that it can be copied at once.
            names = listed([other for other, (_, needed) in kinds.items() if needed == option])
            remedy = f"list it in `{option}: {names}`"
            if option == "categories":
                remedy += " to have a column of 0 and 1 for each value"
            elif option == "decimal":
                remedy = "state `decimal: ','`"
            elif not option:
                remedy = _PLAIN
            yield (
                f"column {name!r} is {content}, such as {_example(features[name])}: {remedy}, or "
                f"leave it out: `drop: {names}`"
            )
        counts = {  # number of values, by column of categories
            category: features[category].nunique()
            for category in self.categories
            if category in features
        }
        if len(features) * sum(counts.values()) > _MOST_CELLS:
            largest = max(counts, key=lambda name: counts[name])
            yield (
                f"column {largest!r} of `categories` has {counts[largest]:,} values, a column for "
                "each of which takes too much memory; merge values, or `drop` it"
            )

    def _table(self, nameless: bool = False) -> tuple[str, str, Any]:
        """Reads the table, and checks that options name its columns.

        Args:
            nameless: whether columns without a name are allowed.

        Returns:
            The file's name, the label's column, and the cells; categories and dates are text.

        Raises:
            DataError: the file cannot be read, or lacks a column that an option names.
        """
        file = existing_file(self.path, self.name, _REMEDY)
        # Categories and dates stay text, even if they look like numbers.
        text = dict.fromkeys((*self.categories, *self.dates), str)
        table = self._parsed(
            file, sep=self._separator(file), dtype=text, skipinitialspace=True, low_memory=False
        ).rename(columns=str.strip)
        is_empty = table.isna().all()
        # Separators at the ends of lines make a column without name and cells.
        empty = [name for name in table if _is_nameless(name) and is_empty[name]]
        table = table.drop(columns=empty)
        self._check_columns(file, table, nameless)
        names = [*table.columns]
        candidates = (name for name in reversed(names) if name not in self.drop)
        label = self.label or next(candidates, names[-1])
        self._check_options(file, names, label)
        for name in _text_columns(table):
            # Text loses white space at its ends; an empty cell stays as it is.
            table[name] = table[name].map(
                lambda cell: cell.strip() if isinstance(cell, str) else cell
            )
        return str(file), label, table

    def _separator(self, file: Path) -> str:
        """Returns what separates the cells of the header; checks that no two names are equal."""
        first_row = self._parsed(file, header=None, nrows=1, dtype=str).iloc[0]
        header = [*first_row.dropna()]
        separator = ","
        if len(header) == 1:  # the pandas parser has found no comma: another sign may separate
            separator = next((character for character in ";\t|" if character in header[0]), ",")
        if separator != ",":
            header = header[0].split(separator)
        header = [name.strip() for name in header]
        for name in header:
            if name and header.count(name) > 1:
                raise DataError(f"{file}: two columns are called {name!r}; rename one")
        return separator

    def _check_columns(self, file: Path, table: Any, nameless: bool) -> None:
        """Raises DataError unless there are rows of named columns, a label and features.

        Args:
            file: the file, for messages.
            table: content of the file, a data frame.
            nameless: whether columns may lack a name.
        """
        import pandas as pd

        names = [*table.columns]
        # Pandas makes an index of the first cells if rows have more cells than the header.
        if not table.index.equals(pd.RangeIndex(len(table))):
            raise DataError(
                f"{file}: rows have more cells than the {len(names)} names of the header; name all "
                "columns, or remove separators at the ends of lines"
            )
        if len(names) < 2 or all(map(_is_number, names)) or table.empty:
            raise DataError(
                f"{file}: holds {len(table)} rows of {len(names)} columns, the first of which are "
                f"called {', '.join(names[:3]):.40}; {_REMEDY}, and features and a label in others"
            )
        unnamed = [name for name in names if _is_nameless(name) and name not in self.drop]
        if unnamed and not nameless:
            raise DataError(
                f"{file}: a column has no name, as numbers of rows; `drop: {listed(unnamed)}`"
            )

    def _check_options(self, file: Path, names: list[str], label: str) -> None:
        """Raises DataError if an option names no column, or one that has another use.

        Args:
            file: the file, for messages.
            names: names of its columns.
            label: name of the column of labels.
        """
        columns_of = {"label": [label]}
        for option in ("categories", "dates", "drop", "fill", "ranges"):
            columns_of[option] = getattr(self, option)
        for option, columns in columns_of.items():
            for name in columns:
                if name not in names:
                    raise DataError(
                        f"{file}: `{option}` names {name!r}, which is not a column"
                        f"{suggestion(name, names)}columns: {listed(names)}"
                    )
        other_uses = {label, *self.dates, *self.ranges}
        for option, used in {"drop": {label}, "categories": other_uses}.items():
            conflicts = used.intersection(getattr(self, option))
            if conflicts:
                raise DataError(
                    f"{file}: `{option}` names {min(conflicts)!r}, which has another use, too: as "
                    "the label, or in `dates` or `ranges`; remove it from one"
                )

    def _parsed(self, file: Path, **options: Any) -> Any:
        """Reads the file by `encoding` and `decimal`. Raises DataError if that fails."""
        try:
            return read_csv(file, _REMEDY, encoding=self.encoding, decimal=self.decimal, **options)
        except DataError as error:
            if not isinstance(error.__cause__, UnicodeError):
                raise
            raise DataError(
                f"{file}: is not text in {self.encoding}; it may be in another: "
                f"`encoding: {self._other_encoding()}`"
            ) from error.__cause__

    def _other_encoding(self) -> str:
        """Returns the encoding to try next: UTF-8, or one that the first bytes suggest."""
        if self.encoding != "utf-8":
            return "utf-8"
        with existing_file(self.path, self.kind, _REMEDY).open("rb") as file:
            return "utf-16" if file.read(2) in _UTF16_MARKS else "latin-1"


def _days_since_1970(cells: Any) -> Any:
    """Returns a column (a pandas Series) of dates as days; unchanged if a cell is not a date."""
    import pandas as pd

    for day_format in _DAY_FORMATS:
        times = pd.to_datetime(cells, format=day_format, errors="coerce", utc=True)
        if not (times.isna() & cells.notna()).any():
            since_1970 = times - pd.Timestamp(0, tz="UTC")
            return since_1970 / pd.Timedelta(days=1)
    return cells


def _content_and_option(cells: Any) -> tuple[str, str]:
    """Returns the content of a column of text in words, and the option of `Csv` that reads it.

    The option is empty if none does.

    Args:
        cells: the column, a pandas Series.
    """
    values = cells.dropna().astype(str).drop_duplicates()
    not_numbers = values[~values.map(_is_number).astype(bool)]
    for pattern, content, option in _KINDS:
        if not_numbers.str.fullmatch(pattern).all():
            return content, option
    if len(not_numbers) <= len(values) / 2:  # mostly numbers
        count = cells.astype(str).isin(not_numbers).sum()
        return f"numbers but for {count:,} of {len(cells):,} cells", ""
    option = "categories" if len(values) <= _MOST_VALUES else ""
    return f"text of {len(values):,} values", option


def _example(cells: Any) -> str:
    """Returns the first cell that is not a number, and its row, as part of a message."""
    import pandas as pd

    is_text = cells.map(lambda cell: pd.notna(cell) and not _is_number(str(cell)))
    row = int(is_text.argmax())
    return f"{str(cells.iloc[row])!r:.40} in row {row + 1}"


def _text_columns(table: Any) -> list[str]:
    """Returns the names of the columns of a data frame that are not all numbers or booleans."""
    return [name for name in table.columns if table[name].dtype.kind not in "iufb"]


def _is_nameless(name: str) -> bool:
    """Returns whether a column has no name in the file, so that pandas has given it one."""
    return name.startswith("Unnamed: ")


def _is_row_number(name: str, cells: Any) -> bool:
    """Returns whether a column has no name, or only consecutive integers, as numbers of rows."""
    if _is_nameless(name):
        return True
    may_number = cells.dtype.kind in "iu" and cells.is_unique and len(cells) > _MOST_VALUES
    return bool(may_number and cells.max() - cells.min() == len(cells) - 1)


def _is_number(cell: str) -> bool:
    """Returns whether a cell is a finite number."""
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False
