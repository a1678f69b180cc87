"""Reads a CSV file strictly: every column that is asked for is there, and every number is one."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from ..storage.files import reason


class Table:
    """A CSV file with a header, gzipped where its name ends in .gz."""

    def __init__(self, file: Path, remedy: str, **options: Any) -> None:
        """`remedy` ends messages; `options` are those of pandas.read_csv.

        Raises:
            DataError: the file is no such table, or an empty one.
        """
        self._file = file
        self._remedy = remedy
        self._content = read_csv(file, **options)
        if len(self._content) == 0:
            raise DataError(f"{file}: holds no rows; {remedy}")

    def numbers(
        self, columns: Sequence[str], missing: str | None = None
    ) -> npt.NDArray[np.float64]:
        """Columns as finite numbers [N, len(columns)]; NaN where a cell is `missing`.

        Raises:
            DataError: a column is missing, or a cell is no number.
        """
        import pandas as pd

        cells = self._chosen(columns)
        numbers: npt.NDArray[np.float64] = cells.apply(pd.to_numeric, errors="coerce").to_numpy(
            np.float64
        )
        wrong = ~np.isfinite(numbers)
        if missing is not None:
            wrong &= cells.ne(missing).to_numpy(np.bool_)
        self._refuse(cells, wrong, "no finite number")
        return numbers

    def words(self, column: str) -> npt.NDArray[np.str_]:
        """A column as text [N]. Raises DataError when it is missing, or a cell is empty."""
        cells = self._chosen([column])
        self._refuse(cells, cells.isna().to_numpy(), "empty")
        words: npt.NDArray[np.str_] = cells[column].to_numpy(np.str_)
        return words

    def _chosen(self, columns: Sequence[str]) -> Any:
        for column in columns:
            if column not in self._content.columns:
                raise DataError(f"{self._file}: column {column} is missing; {self._remedy}")
        return self._content[list(columns)]

    def _refuse(self, cells: Any, wrong: npt.NDArray[np.bool_], what: str) -> None:
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            raise DataError(
                f"{self._file}: {cells.columns[column]} in data row {row + 1} is "
                f"{str(cells.iloc[row, column])!r}, {what}; clean the data"
            )


def read_csv(file: Path, **options: Any) -> Any:
    """The file as a data frame. Raises DataError in one line when pandas cannot read it."""
    import pandas as pd

    try:
        return pd.read_csv(file, **options)
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file}: not a CSV table ({reason(error)})") from error
