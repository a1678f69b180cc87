"""Bank marketing and cervical cancer as UCI publishes them, and one line for the rest."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpaudit_ray.data.base import Data, Dataset
from dpaudit_ray.data.uci import Bank, CervicalCancer
from dpaudit_ray.errors import DataError

BANK = """
age;job;marital;education;default;balance;housing;loan;contact;day;month;duration;campaign;pdays;previous;poutcome;y
58;"management";"married";"tertiary";"no";2143;"yes";"no";"unknown";5;"may";261;1;-1;0;"unknown";"no"
44;"technician";"single";"secondary";"no";29;"yes";"no";"unknown";5;"may";151;1;-1;0;"unknown";"yes"
33;"None";"married";"secondary";"no";2;"yes";"yes";"unknown";6;"june";76;1;-1;0;"unknown";"no"
"""


def bank() -> pd.DataFrame:
    return pd.read_csv(io.StringIO(BANK), sep=";", keep_default_na=False)


@pytest.fixture
def cervical(shared_data: Path) -> pd.DataFrame:
    """The first 80 real patients."""
    return pd.read_csv(shared_data / "risk_factors_cervical_cancer.csv", dtype=str).head(80)


def load(folder: Path, data: type[Data], table: pd.DataFrame | str, **options: Any) -> Dataset:
    file = folder / "data.csv"
    separator = ";" if data is Bank else ","
    file.write_text(table if isinstance(table, str) else table.to_csv(sep=separator, index=False))
    return data(path=str(file), **options).load()


def test_calls_are_numbers_and_one_hot_categories(tmp_path: Path) -> None:
    data = load(tmp_path, Bank, BANK)
    ages = np.array([58, 44, 33])
    days = np.array([5, 5, 6])
    assert data.y.tolist() == [0, 1, 0]
    assert data.x.shape == (3, 6 + 3 + 2 + 2 + 1 + 1 + 2 + 1 + 2 + 1)
    assert np.allclose(data.x[:, 0], (ages - ages.mean()) / ages.std(), atol=1e-6)
    assert np.allclose(data.x[:, 2], (days - days.mean()) / days.std(), atol=1e-6)
    assert (data.x[:, 4] == 0).all()  # pdays is -1 everywhere
    assert data.x[:, 6:9].tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0]]  # None, management, ...


def test_the_duration_is_kept_when_asked(tmp_path: Path) -> None:
    kept = load(tmp_path, Bank, BANK, drop_duration=False).x
    dropped = load(tmp_path, Bank, BANK).x
    seconds = np.array([261, 151, 76])
    assert np.allclose(kept[:, 3], (seconds - seconds.mean()) / seconds.std(), atol=1e-6)
    assert np.array_equal(np.delete(kept, 3, axis=1), dropped)


def test_the_real_calls(shared_data: Path) -> None:
    file = shared_data / "bank-full.csv.gz"
    data = Bank(path=str(file)).load()
    assert data.x.shape == (45_211, 50)
    assert np.bincount(data.y).tolist() == [39_922, 5_289]
    assert np.allclose(data.x[:, :6].mean(axis=0), 0, atol=1e-4)
    assert np.allclose(data.x[:, :6].std(axis=0), 1, atol=1e-4)
    assert (data.x[:, 6:].sum(axis=1) == 9).all()  # one value of each category
    with gzip.open(file, "rt") as lines:
        rows = list(csv.DictReader(lines, delimiter=";"))
    blue = np.array([row["job"] == "blue-collar" for row in rows])
    assert np.array_equal(data.x[:, 7], blue)  # admin., blue-collar, ...


def test_the_real_patients(shared_data: Path) -> None:
    data = CervicalCancer(path=str(shared_data / "risk_factors_cervical_cancer.csv")).load()
    assert data.x.shape == (858, 32)
    assert int(data.y.sum()) == 55
    assert np.isfinite(data.x).all()


def test_a_missing_value_becomes_the_median(cervical: pd.DataFrame, tmp_path: Path) -> None:
    """A slow twin: the median of a column's other values, then mean 0 and deviation 1."""
    data = load(tmp_path, CervicalCancer, cervical)
    for column in ("Num of pregnancies", "Smokes (years)", "STDs: Time since first diagnosis"):
        cells = cervical[column].tolist()
        assert "?" in cells
        known = sorted(float(cell) for cell in cells if cell != "?")
        middle = (known[(len(known) - 1) // 2] + known[len(known) // 2]) / 2
        filled = np.array([middle if cell == "?" else float(cell) for cell in cells])
        spread = filled.std() or 1.0
        found = data.x[:, list(cervical.columns).index(column)]
        assert np.allclose(found, (filled - filled.mean()) / spread, atol=1e-5)


def test_the_other_tests_for_the_disease_are_no_features(
    cervical: pd.DataFrame, tmp_path: Path
) -> None:
    data = load(tmp_path, CervicalCancer, cervical)
    changed = cervical.assign(Hinselmann="1", Schiller="0", Cytology="1", row=range(80))
    assert np.array_equal(data.x, load(tmp_path, CervicalCancer, changed).x)
    without = cervical.drop(columns=["Hinselmann", "Schiller", "Cytology"])
    assert np.array_equal(data.x, load(tmp_path, CervicalCancer, without).x)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda t: t.drop(columns="job"), "column job is missing; give mechanism.data.path UCI's"),
        (lambda t: t.drop(columns="y"), "column y is missing"),
        (lambda t: t.assign(age="old"), "age in data row 1 is 'old', no finite number; clean"),
        (lambda t: t.assign(balance=[1, np.inf, 2]), "balance in data row 2 is 'inf', no finite"),
        (lambda t: t.assign(job=["a", "", "b"]), "job in data row 2 is 'nan', empty; clean"),
        (lambda t: t.assign(y="maybe"), "column y must hold yes and no; give mechanism.data.path"),
        (lambda t: t.assign(y="no"), "y holds the classes 0; number two or more"),
        (lambda t: t.head(0), "holds no rows; give mechanism.data.path UCI's bank-full.csv"),
        (lambda t: t.to_csv(index=False), "column age is missing"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_calls_that_are_not_as_published_are_told(
    change: Callable[[pd.DataFrame], Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError) as error:
        load(tmp_path, Bank, change(bank()))
    assert str(error.value).startswith(f"{tmp_path}/data.csv: {problem}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda t: t.drop(columns="Dx"), "column Dx is missing; give mechanism.data.path UCI's"),
        (lambda t: t.drop(columns="Biopsy"), "column Biopsy is missing"),
        (lambda t: t.assign(Age=["?"] * 80), "column Age has no value at all"),
        (lambda t: t.assign(Age="-"), "Age in data row 1 is '-', no finite number; clean"),
        (lambda t: t.assign(Biopsy="?"), "Biopsy in data row 1 is '?', no finite number"),
        (lambda t: t.assign(Biopsy="2"), "column Biopsy must hold 0 and 1; give mechanism"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_patients_that_are_not_as_published_are_told(
    change: Callable[[pd.DataFrame], Any], problem: str, cervical: pd.DataFrame, tmp_path: Path
) -> None:
    with pytest.raises(DataError) as error:
        load(tmp_path, CervicalCancer, change(cervical))
    assert str(error.value).startswith(f"{tmp_path}/data.csv: {problem}")


@pytest.mark.parametrize("data", [Bank, CervicalCancer])
def test_a_file_that_is_not_there_is_told(data: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        data(path=str(tmp_path / "none.csv")).load()
    name = data.model_fields["name"].default
    assert str(error.value).startswith(f"{name}: no file at {tmp_path}/none.csv; give mechanism.")
