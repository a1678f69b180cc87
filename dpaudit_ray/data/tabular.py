"""Tables of numbers: breast cancer (bundled with scikit-learn) and California Housing."""

from __future__ import annotations

import functools
import warnings
from typing import Literal

import numpy as np

from ..errors import DataError
from .base import Data, Dataset, checked, existing_file, standardized
from .tables import Table

_HOUSING = (
    "MedInc", "HouseAge", "AveRooms", "AveBedrms", "Population", "AveOccup", "Latitude",
    "Longitude",
)  # fmt: skip
_TARGET = "MedHouseVal"


class BreastCancer(Data):
    """569 patients, 30 standardised features, malignant or benign (Wisconsin Diagnostic)."""

    name: Literal["breast_cancer"] = "breast_cancer"

    def read(self) -> Dataset:
        """Reads the copy inside scikit-learn; needs no network."""
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
        x, target = self._downloaded() if self.path is None else self._from_csv(self.path)
        y = (target > np.median(target)).astype(np.int64)
        return checked(standardized(x), y, self.name)

    def _from_csv(self, path: str) -> tuple[np.ndarray, np.ndarray]:
        remedy = (
            "give mechanism.data.path a CSV with scikit-learn's columns, or leave it out to let "
            "scikit-learn download the data"
        )
        table = Table(existing_file(path, self.name, remedy), remedy)
        return table.numbers(_HOUSING), table.numbers([_TARGET])[:, 0]

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
