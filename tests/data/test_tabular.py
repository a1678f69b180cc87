"""Tables of scikit-learn, UCI and Shokri et al., and all that can be wrong with them."""

import gzip
import io
import urllib.error
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import datasets

from dpaudit_ray.data.base import Dataset
from dpaudit_ray.data.tabular import (
    Bank,
    BreastCancer,
    CaliforniaHousing,
    CervicalCancer,
    Location,
    Purchase,
)
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


def load(
    folder: Path, content: str | bytes | pd.DataFrame, data: Any = CaliforniaHousing, **options: Any
) -> Dataset:
    file = folder / "data.csv"
    if isinstance(content, pd.DataFrame):
        content = content.to_csv(sep=";" if data is Bank else ",", index=False)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return data(path=str(file), **options).load()


def test_breast_cancer_is_the_bundled_data():
    data = BreastCancer().load()
    assert data.x.shape == (569, 30)
    assert np.bincount(data.y).tolist() == [212, 357]
    assert np.allclose(data.x.mean(axis=0), 0, atol=1e-5)
    assert np.allclose(data.x.std(axis=0), 1, atol=1e-5)


def test_housing_is_read_from_a_csv(table, tmp_path):
    data = load(tmp_path, table)
    assert data.x.shape == (50, 8)
    assert np.bincount(data.y).tolist() == [25, 25]
    assert (data.y == (table["MedHouseVal"] > table["MedHouseVal"].median())).all()
    scaled = (table["Latitude"] - table["Latitude"].mean()) / table["Latitude"].std(ddof=0)
    assert np.allclose(data.x[:, FEATURES.index("Latitude")], scaled, atol=1e-6)
    other = load(tmp_path, table[table.columns[::-1]].assign(index=range(50)))
    assert np.array_equal(data.x, other.x), "order and number of columns do not matter"


@pytest.mark.parametrize(
    ("data", "file", "features", "first_classes"),
    [
        (CaliforniaHousing, "california_housing.csv", 8, [10_323, 10_317]),
        (Bank, "bank-full.csv.gz", 50, [39_922, 5_289]),
        (CervicalCancer, "risk_factors_cervical_cancer.csv", 32, [803, 55]),
        (Location, "location30.npz", 446, [169, 178]),
    ],
)
def test_the_real_files(data, file, features, first_classes, shared_data):
    found = data(path=str(shared_data / file)).load()
    assert found.x.shape == (len(found.y), features)
    assert np.isfinite(found.x).all()
    assert np.bincount(found.y)[:2].tolist() == first_classes
    assert found.classes == (30 if data is Location else 2)


@pytest.mark.parametrize("data", [CaliforniaHousing, Bank, CervicalCancer, Location])
def test_a_file_that_is_not_there_is_told_with_how_to_get_it(data, tmp_path):
    name = data.model_fields["name"].default
    for path, kind in ((tmp_path / "none.csv", ""), (tmp_path, ", which is a folder")):
        with pytest.raises(DataError) as error:
            data(path=str(path)).load()
        assert str(error.value).startswith(f"{name}: no file at {path}{kind}; give mechanism.dat")


def test_without_a_path_scikit_learn_is_asked(monkeypatch):
    x, target = np.arange(16.0).reshape(2, 8), np.array([1.0, 2.0])
    monkeypatch.setattr(datasets, "fetch_california_housing", lambda **_: (x, target))
    assert CaliforniaHousing().load().y.tolist() == [0, 1]


@pytest.mark.filterwarnings("error")
def test_a_failed_download_is_one_line(monkeypatch):
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


# Two tables of UCI ----------------------------------------------------------------------

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


def test_calls_are_numbers_and_one_hot_categories(tmp_path):
    data = load(tmp_path, BANK, Bank)
    ages = np.array([58, 44, 33])
    days = np.array([5, 5, 6])
    assert data.y.tolist() == [0, 1, 0]
    assert data.x.shape == (3, 6 + 3 + 2 + 2 + 1 + 1 + 2 + 1 + 2 + 1)
    assert np.allclose(data.x[:, 0], (ages - ages.mean()) / ages.std(), atol=1e-6)
    assert np.allclose(data.x[:, 2], (days - days.mean()) / days.std(), atol=1e-6)
    assert (data.x[:, 4] == 0).all()  # pdays is -1 everywhere
    assert data.x[:, 6:9].tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0]]  # None, management, ...


def test_a_missing_value_becomes_the_median(cervical, tmp_path):
    """A slow twin: the median of a column's other values, then mean 0 and deviation 1."""
    data = load(tmp_path, cervical, CervicalCancer)
    for column in ("Num of pregnancies", "Smokes (years)", "STDs: Time since first diagnosis"):
        cells = cervical[column].tolist()
        assert "?" in cells
        known = sorted(float(cell) for cell in cells if cell != "?")
        middle = (known[(len(known) - 1) // 2] + known[len(known) // 2]) / 2
        filled = np.array([middle if cell == "?" else float(cell) for cell in cells])
        spread = filled.std() or 1.0
        found = data.x[:, list(cervical.columns).index(column)]
        assert np.allclose(found, (filled - filled.mean()) / spread, atol=1e-5)


def test_the_other_tests_for_the_disease_are_no_features(cervical, tmp_path):
    data = load(tmp_path, cervical, CervicalCancer)
    changed = cervical.assign(Hinselmann="1", Schiller="0", Cytology="1", row=range(80))
    assert np.array_equal(data.x, load(tmp_path, changed, CervicalCancer).x)
    without = cervical.drop(columns=["Hinselmann", "Schiller", "Cytology"])
    assert np.array_equal(data.x, load(tmp_path, without, CervicalCancer).x)


MISSING = "not such a CSV table (Usecols do not match columns, columns expected but not found"
NUMBER = "not such a CSV table (could not convert string to float: "


def spoiled(row: int, column: str, value: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Puts `value` into a cell of a table."""

    def change(table: pd.DataFrame) -> pd.DataFrame:
        table = table.astype(object)
        table.loc[row, column] = value
        return table

    return change


@pytest.mark.parametrize(
    ("data", "change", "problem"),
    [
        (CaliforniaHousing, spoiled(3, "AveRooms", "1,5"), NUMBER),
        (
            CaliforniaHousing,
            spoiled(49, "MedInc", "inf"),
            "x has a NaN or infinite value in row 49",
        ),
        (CaliforniaHousing, lambda t: t.drop(columns="MedInc"), MISSING),
        (CaliforniaHousing, lambda t: t.assign(MedHouseVal=1.0), "y holds the classes 0; number t"),
        (CaliforniaHousing, lambda t: t.head(0), "holds no rows; give mechanism.data.path a CSV"),
        (CaliforniaHousing, lambda t: b"", "not such a CSV table (No columns to parse from file)"),
        (Bank, lambda t: t.assign(job=["a", "", "b"]), "a cell is empty; give mechanism.data.path"),
        (Bank, lambda t: t.assign(y="maybe"), "column y must hold yes and no; give mechanism"),
        (Bank, lambda t: t.to_csv(index=False), MISSING),
        (CervicalCancer, lambda t: t.assign(Age=["?"] * 80), "column Age has no value at all"),
        (CervicalCancer, lambda t: t.assign(Biopsy="?"), "column Biopsy must hold 0 and 1"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_is_not_as_published_is_told(data, change, problem, request, tmp_path):
    names = {CaliforniaHousing: "table", CervicalCancer: "cervical"}
    table = bank() if data is Bank else request.getfixturevalue(names[data])
    with pytest.raises(DataError) as error:
        load(tmp_path, change(table), data)
    sources = {f"{tmp_path}/data.csv", data.model_fields["name"].default}
    assert str(error.value).startswith(tuple(f"{source}: {problem}" for source in sources))
    assert "\n" not in str(error.value)


# Records with a class each ---------------------------------------------------------------

RNG = np.random.default_rng(0)
X = RNG.integers(0, 2, size=(30, 6))
Y = np.arange(30) % 3
TEXT = "".join(f"{y + 1},{','.join(map(str, x))}\n" for x, y in zip(X, Y, strict=True))


def purchase(folder: Path, content: str | bytes, name: str = "dataset_purchase") -> Dataset:
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return Purchase(path=str(folder / name)).load()


@pytest.mark.parametrize("name", ["dataset_purchase", "purchase.csv", "purchase.gz"])
def test_text_is_a_class_and_bits(name, tmp_path):
    content = gzip.compress(TEXT.encode()) if name.endswith(".gz") else TEXT
    data = purchase(tmp_path, content, name)
    assert data.x.dtype == np.float32
    assert np.array_equal(data.x, X)
    assert data.y.tolist() == Y.tolist()
    from_zero = "".join(f"{y},{','.join(map(str, x))}\n" for x, y in zip(X, Y, strict=True))
    assert purchase(tmp_path, from_zero).y.tolist() == Y.tolist()
    np.savez(tmp_path / "x.npz", x=X.astype(bool), y=Y.astype(np.uint8))
    by_arrays = Purchase(path=str(tmp_path / "x.npz")).load()
    assert np.array_equal(by_arrays.x, data.x)
    assert (by_arrays.x.dtype, by_arrays.y.dtype) == (np.float32, np.int64)


def test_quoted_classes_do(tmp_path):
    """As in the published file of locations."""
    (tmp_path / "bangkok").write_text(TEXT.replace(",", '",', 1).replace("1", '"1', 1))
    data = Location(path=str(tmp_path / "bangkok")).load()
    assert np.array_equal(data.x, X)
    assert data.y.tolist() == Y.tolist()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "not such a CSV table (No columns to parse from file)"),
        (b"\x89PNG\r\n\x1a\n" + bytes(99), "not such a CSV table ('utf-8' codec can't decode"),
        ("class,a,b\n1,0,1\n", "not such text; give mechanism.data.path an .npz file of x and y"),
        ("1,0,1\n2,0,\n", "not such text"),
        ("1,0,1\n2,0,1,1,1\n", "not such a CSV table (Error tokenizing data"),
        ("1,0,1\n2,0,1\n2,7,1\n", "feature 1 of record 3 is 7; must be 0 or 1, or read the file"),
        ("1,0,1\n3,0,1\n", "y holds the classes 0, 2; number two or more"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_is_no_such_text_is_told(content, problem, tmp_path):
    with pytest.raises(DataError) as error:
        purchase(tmp_path, content)
    assert str(error.value).startswith(f"{tmp_path}/dataset_purchase: {problem}")
    assert "\n" not in str(error.value)
    for damaged in (b"", b"text", gzip.compress(TEXT.encode())[:40]):
        with pytest.raises(DataError, match=r"purchase.gz: not such a CSV table \("):
            purchase(tmp_path, damaged, "purchase.gz")


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"x": X + 0.5, "y": Y}, "feature 1 of record 1 is "),
        ({"x": np.where(X, np.nan, 0), "y": Y}, "feature "),
        ({"x": X[:, 0], "y": Y}, "x must be records [N, features], got int64 (30,)"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_arrays_that_are_no_records_are_told(arrays, problem, tmp_path):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(DataError) as error:
        Purchase(path=str(tmp_path / "x.npz")).load()
    assert str(error.value).startswith(f"{tmp_path}/x.npz: {problem}")
