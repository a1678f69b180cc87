"""Tables of numbers: breast cancer (bundled with scikit-learn) and California Housing."""

from __future__ import annotations

import warnings
from typing import Literal

import numpy as np

from ..errors import DataError
from .base import Data, Dataset, checked, existing_file, standardized

_HOUSING = (
    "MedInc", "HouseAge", "AveRooms", "AveBedrms", "Population", "AveOccup", "Latitude",
    "Longitude",
)  # fmt: skip
_TARGET = "MedHouseVal"


class BreastCancer(Data):
    """569 patients, 30 standardised features, malignant or benign (Wisconsin Diagnostic)."""

    name: Literal["breast_cancer"] = "breast_cancer"

    def load(self) -> Dataset:
        """Reads the copy inside scikit-learn; needs no network."""
        from sklearn.datasets import load_breast_cancer

        x, y = load_breast_cancer(return_X_y=True)
        return checked(standardized(x), y.astype(np.int64), self.name)


class CaliforniaHousing(Data):
    """20,640 districts, 8 standardised features; class 1 = price above the median.

    Pace and Barry (1997). The label is this project's choice: the paper prints a binary
    cross-entropy on a regression target without saying how it was made binary.
    """

    name: Literal["california_housing"] = "california_housing"
    path: str | None = None

    def load(self) -> Dataset:
        """Reads the CSV at `path`, or asks scikit-learn for its cached or downloaded copy."""
        x, target = self._downloaded() if self.path is None else self._from_csv(self.path)
        y = (target > np.median(target)).astype(np.int64)
        return checked(standardized(x), y, self.name)

    def _from_csv(self, path: str) -> tuple[np.ndarray, np.ndarray]:
        import pandas as pd

        remedy = (
            "give mechanism.data.path a CSV with scikit-learn's columns, or leave it out to let "
            "scikit-learn download the data"
        )
        file = existing_file(path, self.name, remedy)
        try:
            table = pd.read_csv(file)
        except (ValueError, OSError) as error:
            raise DataError(f"{file}: not a CSV table ({str(error).splitlines()[0]})") from error
        missing = [c for c in (*_HOUSING, _TARGET) if c not in table.columns]
        if missing:
            raise DataError(f"{file}: column {missing[0]} is missing; {remedy}")
        if len(table) == 0:
            raise DataError(f"{file}: holds no rows; {remedy}")
        numbers = table[[*_HOUSING, _TARGET]].apply(pd.to_numeric, errors="coerce")
        wrong = np.argwhere(~np.isfinite(numbers.to_numpy(np.float64)))
        if len(wrong):
            row, column = wrong[0]
            name = numbers.columns[column]
            value = str(table[name].iloc[row])
            raise DataError(
                f"{file}: {name} in data row {row + 1} is {value!r}, no finite number; clean the "
                "data"
            )
        return numbers[list(_HOUSING)].to_numpy(np.float64), numbers[_TARGET].to_numpy(np.float64)

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
