"""Tables of scikit-learn, UCI and Shokri et al., and strict reading of CSV files.

Breast cancer is bundled with scikit-learn, California Housing downloaded by it; bank marketing and
cervical cancer are as in Yuan et al. 2021.
"""

import functools
import io
import lzma
import warnings
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

import numpy as np

from ..errors import DataError
from ..storage import decoding
from ..storage.files import reason
from .arrays import labels, read_npz
from .base import Data, Dataset, checked, existing_file, require_finite, standardized

_HOUSING = (
    "MedInc", "HouseAge", "AveRooms", "AveBedrms", "Population", "AveOccup", "Latitude",
    "Longitude", "MedHouseVal",
)  # fmt: skip
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
        """Takes the copy in scikit-learn."""
        x, y = _patients()
        return checked(standardized(x), y.astype(np.int64), self.name)


@functools.cache  # bundled data have no files to watch, so each load of a sweep reads them again
def _patients() -> tuple[np.ndarray, np.ndarray]:
    """Loads scikit-learn's table of breast cancer patients: features and diagnoses."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    return x, y


class CaliforniaHousing(Data):
    """20,640 districts, 8 standardised features; class 1 = price above the median.

    Pace and Barry (1997). The label is this project's choice: the paper does not define one.
    """

    name: Literal["california_housing"] = "california_housing"
    path: str | None = None  # the published file; null: as scikit-learn has it

    def read(self) -> Dataset:
        """Reads the CSV at `path`, or asks scikit-learn for its cached or downloaded copy."""
        if self.path is None:
            from sklearn.datasets import fetch_california_housing

            try:
                with warnings.catch_warnings():  # about each retry; the error below reports it once
                    warnings.simplefilter("ignore")
                    x, target = fetch_california_housing(return_X_y=True)
            except OSError as error:
                raise DataError(
                    f"{self.name}: not in scikit-learn's cache and the download failed ({error}); "
                    "give mechanism.data.path a CSV file"
                ) from error
        else:
            remedy = (
                "give mechanism.data.path a CSV with scikit-learn's columns, or leave it out to "
                "let scikit-learn download the data"
            )
            file = existing_file(self.path, self.name, remedy)
            types = dict.fromkeys(_HOUSING, float)
            table = _read_table(file, remedy, types).to_numpy()
            require_finite(table, str(file))
            x, target = table[:, :-1], table[:, -1]
        is_above = target > np.median(target)
        return checked(standardized(x), is_above.astype(np.int64), self.name)


class Bank(Data):
    """45,211 calls of a Portuguese bank; class 1 = the client subscribed (Moro et al. 2011).

    Numbers are standardised, then come the categories, one column of 0 and 1 for each value in
    the file, in alphabetical order, `unknown` included: 50 features. `duration`, which is known
    only after the call and gives the answer away, is not a feature.
    """

    name: Literal["bank"] = "bank"
    path: str  # the published CSV file

    def read(self) -> Dataset:
        """Reads UCI's `bank-full.csv`, separated by semicolons, also gzipped."""
        remedy = "give mechanism.data.path UCI's bank-full.csv or bank-full.csv.gz"
        file = existing_file(self.path, self.name, remedy)
        texts = [*_BANK_WORDS, "y"]
        types = dict.fromkeys(_BANK_NUMBERS, float) | dict.fromkeys(texts, str)
        table = _read_table(file, remedy, types, sep=";")
        if table[texts].eq("").any(axis=None):
            raise DataError(f"{file}: a cell is empty; {remedy}")
        if not table["y"].isin(["no", "yes"]).all():
            raise DataError(f"{file}: column y must hold yes and no; {remedy}")
        numbers = table[list(_BANK_NUMBERS)].to_numpy()
        require_finite(numbers, str(file))
        features: list[np.ndarray] = [standardized(numbers)]
        for column in _BANK_WORDS:
            cells = table[column].to_numpy(np.str_)[:, None]
            features.append(np.equal(cells, np.unique(cells)))
        x = np.concatenate(features, axis=1, dtype=np.float32)
        y = table["y"].eq("yes").to_numpy(np.int64)
        return checked(x, y, str(file))


class CervicalCancer(Data):
    """858 patients, 32 standardised risk factors; class 1 = a biopsy found cancer, in 55.

    Fernandes et al. 2017. A missing value (`?`) becomes the median of its column. Hinselmann,
    Schiller and cytology are other tests for the same disease and not features.
    """

    name: Literal["cervical_cancer"] = "cervical_cancer"
    path: str  # the published CSV file

    def read(self) -> Dataset:
        """Reads UCI's file; empty cells get the median of their column."""
        remedy = "give mechanism.data.path UCI's risk_factors_cervical_cancer.csv"
        file = existing_file(self.path, self.name, remedy)
        types = dict.fromkeys([*_CERVICAL_FEATURES, "Biopsy"], float)
        table = _read_table(file, remedy, types, na_values=["?"])
        features = table.to_numpy()[:, :-1]
        y = table["Biopsy"]
        if not y.isin([0, 1]).all():
            raise DataError(f"{file}: column Biopsy must hold 0 and 1; {remedy}")
        missing = np.isnan(features)
        for column, is_empty in zip(_CERVICAL_FEATURES, missing.all(axis=0), strict=True):
            if is_empty:
                raise DataError(f"{file}: column {column} has no value at all; {remedy}")
        filled = np.where(missing, np.nanmedian(features, axis=0), features)
        require_finite(filled, str(file))
        return checked(standardized(filled), y.to_numpy(np.int64), str(file))


class _Records(Data):
    """Reads an .npz file of `x` and `y`, or text as published: class, then zeros and ones."""

    path: str  # an .npz with x and y, or the published text

    def read(self) -> Dataset:
        """Reads features of 0.0 and 1.0; classes that start at 1, as published, then start at 0."""
        if self.path.endswith(".npz"):
            x, y, source = read_npz(self.path, self.name)
            y = labels(y, f"{source}: y")
        else:
            remedy = (
                "give mechanism.data.path an .npz file of x and y, or the published text: lines of "
                "a class and zeros and ones, separated by commas"
            )
            file = existing_file(self.path, self.name, remedy)
            source = str(file)
            cells = read_csv(file, remedy, header=None).to_numpy()
            if cells.dtype.kind not in "iu" or cells.shape[1] < 2:
                raise DataError(f"{file}: not such text; {remedy}")
            x = cells[:, 1:]
            y = cells[:, 0].astype(np.int64)
            if y.min() == 1:
                y -= 1
        if x.ndim != 2 or x.dtype.kind not in "fiub":
            raise DataError(f"{source}: x must be records [N, features], got {x.dtype} {x.shape}")
        for row, column in np.argwhere((x != 0) & (x != 1)):  # an error reports the first one
            raise DataError(
                f"{source}: feature {column + 1} of record {row + 1} is {x[row, column]}; must be "
                "0 or 1, or read the file as npz"
            )
        return checked(x, y, source)


class Purchase(_Records):
    """Products bought by customers: 197,324 records, 600 products, 100 classes.

    Shokri et al. 2017. Nasr et al. 2021 train on 18,000 of such records in 10 classes.
    """

    name: Literal["purchase"] = "purchase"


class Location(_Records):
    """Places visited in Bangkok: 5,010 records, 446 places, 30 classes (Shokri et al. 2017)."""

    name: Literal["location"] = "location"


def _read_table(file: Path, remedy: str, types: Mapping[str, type], **options: Any) -> Any:
    """Reads some columns of a CSV file as a data frame.

    Args:
        file: the file.
        remedy: how to get the right file, at the end of each error.
        types: names of the columns, in the order of the result, each with the type of its cells.
        options: further arguments of `pandas.read_csv`; only these make a value count as missing.

    Raises:
        DataError: the file is not such a table, or has no rows.
    """
    options |= {"usecols": list(types), "dtype": types, "keep_default_na": False}
    table = read_csv(file, remedy, **options)
    if table.empty:
        raise DataError(f"{file}: holds no rows; {remedy}")
    return table[list(types)]


def read_csv(file: Path, remedy: str, **options: Any) -> Any:
    """Reads a file as a data frame. Raises DataError in one line if pandas cannot read it."""
    import pandas as pd

    try:
        with io.BufferedReader(decoding.Table(file)) as table:
            return pd.read_csv(table, **options)
    except decoding.ForeignFileError as error:
        raise DataError(f"{file}: {error}") from error
    except (ValueError, OSError, EOFError, zlib.error, lzma.LZMAError, BadZipFile) as error:
        if isinstance(error, UnicodeError):
            remedy = f"save it as text in UTF-8, and {remedy}"
        raise DataError(f"{file}: not such a CSV table ({reason(error)}); {remedy}") from error
