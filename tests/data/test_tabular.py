"""Breast cancer from scikit-learn, California Housing from a CSV, and all that can be wrong."""

from __future__ import annotations

import urllib.error
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import datasets

from dpaudit_ray.data.tabular import BreastCancer, CaliforniaHousing
from dpaudit_ray.errors import DataError

FEATURES = [
    *("MedInc", "HouseAge", "AveRooms", "AveBedrms", "Population", "AveOccup", "Latitude"),
    "Longitude",
]


@pytest.fixture
def table() -> pd.DataFrame:
    """Like the real file, but small."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(rng.normal(size=(50, 9)), columns=[*FEATURES, "MedHouseVal"])


def load(folder: Path, content: str | bytes | pd.DataFrame) -> Any:
    file = folder / "housing.csv"
    if isinstance(content, pd.DataFrame):
        content = content.to_csv(index=False)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return CaliforniaHousing(path=str(file)).load()


def test_breast_cancer_is_the_bundled_data() -> None:
    data = BreastCancer().load()
    assert data.x.shape == (569, 30)
    assert np.bincount(data.y).tolist() == [212, 357]
    assert np.allclose(data.x.mean(axis=0), 0, atol=1e-5)
    assert np.allclose(data.x.std(axis=0), 1, atol=1e-5)


def test_housing_is_read_from_a_csv(table: pd.DataFrame, tmp_path: Path) -> None:
    data = load(tmp_path, table)
    assert data.x.shape == (50, 8)
    assert np.bincount(data.y).tolist() == [25, 25]
    assert (data.y == (table["MedHouseVal"] > table["MedHouseVal"].median())).all()
    scaled = (table["Latitude"] - table["Latitude"].mean()) / table["Latitude"].std(ddof=0)
    assert np.allclose(data.x[:, FEATURES.index("Latitude")], scaled, atol=1e-6)


def test_order_and_number_of_columns_do_not_matter(table: pd.DataFrame, tmp_path: Path) -> None:
    straight = load(tmp_path, table)
    other = load(tmp_path, table[table.columns[::-1]].assign(index=range(50)))
    assert np.array_equal(straight.x, other.x)
    assert np.array_equal(straight.y, other.y)


def test_the_real_file(shared_data: Path) -> None:
    data = CaliforniaHousing(path=str(shared_data / "california_housing.csv")).load()
    assert data.x.shape == (20_640, 8)
    assert abs(int(data.y.sum()) - 10_320) < 100


@pytest.mark.parametrize(
    ("row", "column", "value", "shown"),
    [
        (3, "AveRooms", "many", "AveRooms in data row 4 is 'many'"),
        (3, "AveRooms", "1,5", "AveRooms in data row 4 is '1,5'"),
        (0, "Longitude", "", "Longitude in data row 1 is 'nan'"),
        (49, "MedInc", "inf", "MedInc in data row 50 is 'inf'"),
        (7, "MedHouseVal", "inf", "MedHouseVal in data row 8 is 'inf'"),
        (7, "MedHouseVal", "1+2j", "MedHouseVal in data row 8 is '1+2j'"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_value_that_is_no_number_is_told(
    row: int, column: str, value: str, shown: str, table: pd.DataFrame, tmp_path: Path
) -> None:
    spoiled = table.astype(object)
    spoiled.loc[row, column] = value
    with pytest.raises(DataError) as error:
        load(tmp_path, spoiled)
    assert str(error.value) == (
        f"{tmp_path}/housing.csv: {shown}, no finite number; clean the data"
    )


@pytest.mark.parametrize("column", ["MedInc", "Latitude", "MedHouseVal"])
def test_a_missing_column_is_named(column: str, table: pd.DataFrame, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"column {column} is missing; give mechanism.data.path a"):
        load(tmp_path, table.drop(columns=column))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "not a CSV table (No columns to parse from file)"),
        (b"\x89PNG\r\n\x1a\n" + bytes(99), "not a CSV table ('utf-8' codec can't decode"),
        (",".join([*FEATURES, "MedHouseVal"]) + "\n", "holds no rows; give mechanism.data.path"),
        ("a,b\n1,2\n1,2,3,4\n", "not a CSV table (Error tokenizing data"),
        ('a,b\n1,"2\n', "not a CSV table (Error tokenizing data. C error: EOF inside string"),
        ("a;b\n1;2\n", "column MedInc is missing"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_is_no_such_table_is_told(content: str | bytes, problem: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        load(tmp_path, content)
    assert str(error.value).startswith(f"{tmp_path}/housing.csv: {problem}")
    assert "\n" not in str(error.value)


@pytest.mark.filterwarnings("error")
def test_numbers_that_are_too_large_are_told(table: pd.DataFrame, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="x has a NaN or infinite value in row 0"):
        load(tmp_path, table.assign(MedInc=1e308))


def test_prices_that_are_all_the_same_make_no_classes(table: pd.DataFrame, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="y holds the classes 0; number two or more"):
        load(tmp_path, table.assign(MedHouseVal=1.0))


def test_a_file_that_is_not_there_is_told_with_how_to_get_it(tmp_path: Path) -> None:
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(DataError) as error:
            CaliforniaHousing(path=str(path)).load()
        assert str(error.value) == (
            f"california_housing: no file at {path}; give mechanism.data.path a CSV with "
            "scikit-learn's columns, or leave it out to let scikit-learn download the data"
        )


def test_without_a_path_scikit_learn_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    x, target = np.arange(16.0).reshape(2, 8), np.array([1.0, 2.0])
    monkeypatch.setattr(datasets, "fetch_california_housing", lambda **_: (x, target))
    assert CaliforniaHousing().load().y.tolist() == [0, 1]


@pytest.mark.filterwarnings("error")
def test_a_failed_download_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(**_: bool) -> None:
        warnings.warn("Retry downloading", stacklevel=2)
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(datasets, "fetch_california_housing", offline)
    with pytest.raises(DataError) as error:
        CaliforniaHousing().load()
    assert str(error.value) == (
        "california_housing: not in scikit-learn's cache and the download failed (<urlopen error "
        "no network>); give mechanism.data.path a CSV file"
    )
