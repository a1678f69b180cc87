"""Tables of numbers and words: data sets of scikit-learn and UCI, and strict reading of CSV files.

Breast cancer is bundled with scikit-learn, California Housing downloaded by it; bank marketing and
cervical cancer (UCI, as in Yuan et al. 2021) are read from files.
"""

from __future__ import annotations

import functools
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from ..storage.files import reason
from .base import Data, Dataset, checked, existing_file, standardized

_HOUSING = (
    "MedInc", "HouseAge", "AveRooms", "AveBedrms", "Population", "AveOccup", "Latitude",
    "Longitude",
)  # fmt: skip
_TARGET = "MedHouseVal"
_BANK_NUMBERS = ("age", "balance", "day", "campaign", "pdays", "previous")
_BANK_WORDS = (
    "job", "marital", "education", "default", "housing", "loan", "contact", "month", "poutcome",
)  # fmt: skip
_CERVICAL_FEATURES = (
    "Age", "Number of sexual partners", "First sexual intercourse", "Num of pregnancies",
    "Smokes", "Smokes (years)", "Smokes (packs/year)",
    "Hormonal Contraceptives", "Hormonal Contraceptives (years)", "IUD", "IUD (years)",
    "STDs", "STDs (number)", "STDs:condylomatosis", "STDs:cervical condylomatosis",
    "STDs:vaginal condylomatosis", "STDs:vulvo-perineal condylomatosis", "STDs:syphilis",
    "STDs:pelvic inflammatory disease", "STDs:genital herpes", "STDs:molluscum contagiosum",
    "STDs:AIDS", "STDs:HIV", "STDs:Hepatitis B", "STDs:HPV", "STDs: Number of diagnosis",
    "STDs: Time since first diagnosis", "STDs: Time since last diagnosis",
    "Dx:Cancer", "Dx:CIN", "Dx:HPV", "Dx",
)  # fmt: skip


class BreastCancer(Data):
    """569 patients, 30 standardised features, malignant or benign (Wisconsin Diagnostic)."""

    name: Literal["breast_cancer"] = "breast_cancer"

    def read(self) -> Dataset:
        x, y = _patients()
        return checked(standardized(x), y.astype(np.int64), self.name)


@functools.cache
def _patients() -> tuple[np.ndarray, np.ndarray]:
    """Parsed once: sweeps ask for them hundreds of times."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    return x, y


class CaliforniaHousing(Data):
    """20,640 districts, 8 standardised features; class 1 = price above the median.

    Pace and Barry (1997). The label is this project's choice: the paper prints a binary
    cross-entropy on a regression target without saying how it was made binary.
    """

    name: Literal["california_housing"] = "california_housing"
    path: str | None = None

    def read(self) -> Dataset:
        """Reads the CSV at `path`, or asks scikit-learn for its cached or downloaded copy."""
        if self.path is None:
            x, target = self._downloaded()
        else:
            remedy = (
                "give mechanism.data.path a CSV with scikit-learn's columns, or leave it out to "
                "let scikit-learn download the data"
            )
            table = Table(existing_file(self.path, self.name, remedy), remedy)
            x, target = table.numbers(_HOUSING), table.numbers([_TARGET])[:, 0]
        y = (target > np.median(target)).astype(np.int64)
        return checked(standardized(x), y, self.name)

    def _downloaded(self) -> tuple[np.ndarray, np.ndarray]:
        from sklearn.datasets import fetch_california_housing

        try:
            with warnings.catch_warnings():  # about each retry; the error below says it once
                warnings.simplefilter("ignore")
                x, target = fetch_california_housing(return_X_y=True)
        except OSError as error:
            raise DataError(
                f"{self.name}: not in scikit-learn's cache and the download failed ({error}); "
                "give mechanism.data.path a CSV file"
            ) from error
        return x, target


class Bank(Data):
    """45,211 calls of a Portuguese bank; class 1 = the client subscribed (Moro et al. 2011).

    Numbers are standardised, then come the categories, one column of 0 and 1 for each value in
    the file, `unknown` included: 50 features. `duration`, which is known only after the call and
    gives the answer away, is none of them.
    """

    name: Literal["bank"] = "bank"
    path: str

    def read(self) -> Dataset:
        """Reads UCI's `bank-full.csv`, separated by semicolons, also gzipped."""
        remedy = "give mechanism.data.path UCI's bank-full.csv or bank-full.csv.gz"
        file = existing_file(self.path, self.name, remedy)
        table = Table(file, remedy, sep=";", keep_default_na=False, na_values=[""])
        numbers = standardized(table.numbers(_BANK_NUMBERS))
        # Each value of a word is a column of 0 and 1, in alphabetical order.
        words = [np.equal(w[:, None], np.unique(w)) for w in map(table.words, _BANK_WORDS)]
        y = table.words("y")
        if not np.isin(y, ["no", "yes"]).all():
            raise DataError(f"{file}: column y must hold yes and no; {remedy}")
        x = np.concatenate([numbers, *words], axis=1, dtype=np.float32)
        return checked(x, (y == "yes").astype(np.int64), str(file))


class CervicalCancer(Data):
    """858 patients, 32 standardised risk factors; class 1 = a biopsy found cancer, in 55.

    Fernandes et al. 2017. A missing value (`?`) becomes the median of its column. Hinselmann,
    Schiller and cytology are other tests for the same disease and no features.
    """

    name: Literal["cervical_cancer"] = "cervical_cancer"
    path: str

    def read(self) -> Dataset:
        remedy = "give mechanism.data.path UCI's risk_factors_cervical_cancer.csv"
        file = existing_file(self.path, self.name, remedy)
        table = Table(file, remedy)
        features = table.numbers(_CERVICAL_FEATURES, missing="?")
        empty = np.isnan(features).all(axis=0)
        if empty.any():
            column = _CERVICAL_FEATURES[int(empty.argmax())]
            raise DataError(f"{file}: column {column} has no value at all; {remedy}")
        medians = np.nanmedian(features, axis=0)
        filled = np.where(np.isnan(features), medians, features)
        y = table.numbers(["Biopsy"])[:, 0]
        if not np.isin(y, [0, 1]).all():
            raise DataError(f"{file}: column Biopsy must hold 0 and 1; {remedy}")
        return checked(standardized(filled), y.astype(np.int64), str(file))


class Table:
    """A CSV file with a header, read strictly; gzipped where its name ends in .gz.

    `remedy` ends messages; `options` are those of pandas.read_csv.

    Raises:
        DataError: the file is no such table, or an empty one.
    """

    def __init__(self, file: Path, remedy: str, **options: Any) -> None:
        self._file, self._remedy = file, remedy
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
        parsed = cells.apply(pd.to_numeric, errors="coerce")
        numbers: npt.NDArray[np.float64] = parsed.to_numpy(np.float64)
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
