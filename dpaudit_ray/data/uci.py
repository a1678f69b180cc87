"""Two tables of the UCI repository, as in Yuan et al. 2021: bank marketing and cervical cancer."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from .base import Data, Dataset, checked, existing_file, standardized
from .tables import Table

_BANK_NUMBERS = ("age", "balance", "day", "duration", "campaign", "pdays", "previous")
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


class Bank(Data):
    """45,211 calls of a Portuguese bank; class 1 = the client subscribed (Moro et al. 2011).

    Numbers are standardised, then come the categories, one column of 0 and 1 for each value in
    the file, `unknown` included: 50 features. `duration` is known only after the call and gives
    the answer away; `drop_duration: false` keeps it.
    """

    name: Literal["bank"] = "bank"
    path: str
    drop_duration: bool = True

    def read(self) -> Dataset:
        """Reads UCI's `bank-full.csv`, separated by semicolons, also gzipped."""
        remedy = "give mechanism.data.path UCI's bank-full.csv or bank-full.csv.gz"
        file = existing_file(self.path, self.name, remedy)
        table = Table(file, remedy, sep=";", keep_default_na=False, na_values=[""])
        names = [n for n in _BANK_NUMBERS if not (self.drop_duration and n == "duration")]
        numbers = standardized(table.numbers(names))
        words = [_one_hot(table.words(name)) for name in _BANK_WORDS]
        y = table.words("y")
        if not np.isin(y, ["no", "yes"]).all():
            raise DataError(f"{file}: column y must hold yes and no; {remedy}")
        x = np.concatenate([numbers, *words], axis=1)
        return checked(x, (y == "yes").astype(np.int64), str(file))


class CervicalCancer(Data):
    """858 patients, 32 standardised risk factors; class 1 = a biopsy found cancer, in 55.

    Fernandes et al. 2017. A missing value (`?`) becomes the median of its column. Hinselmann,
    Schiller and cytology are other tests for the same disease and no features.
    """

    name: Literal["cervical_cancer"] = "cervical_cancer"
    path: str

    def read(self) -> Dataset:
        """Reads UCI's `risk_factors_cervical_cancer.csv`."""
        remedy = "give mechanism.data.path UCI's risk_factors_cervical_cancer.csv"
        file = existing_file(self.path, self.name, remedy)
        table = Table(file, remedy)
        known = table.numbers(_CERVICAL_FEATURES, missing="?")
        empty = np.isnan(known).all(axis=0)
        if empty.any():
            column = _CERVICAL_FEATURES[int(empty.argmax())]
            raise DataError(f"{file}: column {column} has no value at all; {remedy}")
        filled = np.where(np.isnan(known), np.nanmedian(known, axis=0), known)
        y = table.numbers(["Biopsy"])[:, 0]
        if not np.isin(y, [0, 1]).all():
            raise DataError(f"{file}: column Biopsy must hold 0 and 1; {remedy}")
        return checked(standardized(filled), y.astype(np.int64), str(file))


def _one_hot(words: npt.NDArray[np.str_]) -> npt.NDArray[np.float32]:
    """[N] to [N, values], the values in alphabetical order."""
    return np.equal(words[:, None], np.unique(words)).astype(np.float32)
