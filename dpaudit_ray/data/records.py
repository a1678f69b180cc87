"""Binary records with a class each: Purchase and Location (Shokri et al. 2017)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from ..errors import DataError
from .arrays import labels, read_npz
from .base import Data, Dataset, checked, existing_file
from .tabular import read_csv


class _Records(Data):
    """Reads an .npz file of `x` and `y`, or text as published: class, then zeros and ones."""

    path: str  # an .npz with x and y, or the published text

    def read(self) -> Dataset:
        """Features are 0.0 and 1.0; published classes, which start at 1, start at 0 here."""
        if self.path.endswith(".npz"):
            x, y, source = read_npz(self.path, self.name)
            return _checked(x, labels(y, f"{source}: y"), source)
        remedy = (
            "give mechanism.data.path an .npz file of x and y, or the published text: lines of a "
            "class and zeros and ones, separated by commas"
        )
        file = existing_file(self.path, self.name, remedy)
        cells = read_csv(file, remedy, header=None).to_numpy()
        if cells.dtype.kind not in "iu" or cells.shape[1] < 2:
            raise DataError(f"{file}: not such text; {remedy}")
        y = cells[:, 0].astype(np.int64)
        return _checked(cells[:, 1:], y - 1 if y.min() == 1 else y, str(file))


class Purchase(_Records):
    """What customers bought: 197,324 records, 600 products, 100 classes (Shokri et al. 2017).

    Nasr et al. 2021 train on 18,000 of such records in 10 classes.
    """

    name: Literal["purchase"] = "purchase"


class Location(_Records):
    """Where people in Bangkok went: 5,010 records, 446 places, 30 classes (Shokri et al. 2017)."""

    name: Literal["location"] = "location"


def _checked(x: np.ndarray, y: np.ndarray, source: str) -> Dataset:
    if x.ndim != 2 or x.dtype.kind not in "fiub":
        raise DataError(f"{source}: x must be records [N, features], got {x.dtype} {x.shape}")
    wrong = (x != 0) & (x != 1)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise DataError(
            f"{source}: feature {column + 1} of record {row + 1} is {x[row, column]}; must be 0 or "
            "1, or read the file as npz"
        )
    return checked(x, y, source)
