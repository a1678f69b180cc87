"""Purchase and Location, as published and as .npz; loading twice reads once."""

import gzip
import os
import time
from pathlib import Path

import numpy as np
import pytest

from dpaudit_ray.data.arrays import Npz
from dpaudit_ray.data.base import Dataset
from dpaudit_ray.data.tabular import BreastCancer, CaliforniaHousing, Location, Purchase
from dpaudit_ray.data.vision import Cifar10, Mnist
from dpaudit_ray.errors import DataError, SpecError

RNG = np.random.default_rng(0)
X = RNG.integers(0, 2, size=(30, 6))
Y = np.arange(30) % 3
TEXT = "".join(f"{y + 1},{','.join(map(str, x))}\n" for x, y in zip(X, Y, strict=True))


def load(folder: Path, content: str | bytes, name: str = "dataset_purchase") -> Dataset:
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return Purchase(path=str(folder / name)).load()


@pytest.mark.parametrize("name", ["dataset_purchase", "purchase.csv", "purchase.gz"])
def test_text_is_a_class_and_bits(name, tmp_path):
    content = gzip.compress(TEXT.encode()) if name.endswith(".gz") else TEXT
    data = load(tmp_path, content, name)
    assert data.x.dtype == np.float32
    assert np.array_equal(data.x, X)
    assert data.y.tolist() == Y.tolist()
    from_zero = "".join(f"{y},{','.join(map(str, x))}\n" for x, y in zip(X, Y, strict=True))
    assert load(tmp_path, from_zero).y.tolist() == Y.tolist()


def test_quoted_classes_do(tmp_path):
    """As in the published file of locations."""
    (tmp_path / "bangkok").write_text(TEXT.replace(",", '",', 1).replace("1", '"1', 1))
    data = Location(path=str(tmp_path / "bangkok")).load()
    assert np.array_equal(data.x, X)
    assert data.y.tolist() == Y.tolist()


def test_arrays_do_as_well(tmp_path):
    np.savez(tmp_path / "x.npz", x=X.astype(bool), y=Y.astype(np.uint8))
    data = Purchase(path=str(tmp_path / "x.npz")).load()
    assert data.x.dtype == np.float32
    assert np.array_equal(data.x, X)
    assert data.y.dtype == np.int64


def test_the_real_locations(shared_data):
    data = Location(path=str(shared_data / "location30.npz")).load()
    assert data.x.shape == (5_010, 446)
    assert data.classes == 30
    assert set(np.unique(data.x)) == {0, 1}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "not such a CSV table (No columns to parse from file)"),
        (b"\x89PNG\r\n\x1a\n" + bytes(99), "not such a CSV table ('utf-8' codec can't decode"),
        ("class,a,b\n1,0,1\n", "not such text; give mechanism.data.path an .npz file of x and y"),
        ("1,0,1\n2,0,\n", "not such text"),
        ("1,0,0.5\n2,0,1\n", "not such text"),
        ("1\n2\n", "not such text"),
        ("1,0,1\n2,0,1,1,1\n", "not such a CSV table (Error tokenizing data"),
        ("1,0,1\n2,0,1\n2,7,1\n", "feature 1 of record 3 is 7; must be 0 or 1, or read the file"),
        ("1,0,1\n3,0,1\n", "y holds the classes 0, 2; number two or more"),
        ("5,0,1\n6,0,1\n", "y holds the classes 5, 6; number two or more"),
        ("1,0,1\n1,0,0\n", "y holds the classes 0; number two or more"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_is_no_such_text_is_told(content, problem, tmp_path):
    with pytest.raises(DataError) as error:
        load(tmp_path, content)
    assert str(error.value).startswith(f"{tmp_path}/dataset_purchase: {problem}")
    assert "\n" not in str(error.value)
    for damaged in (b"", b"text", gzip.compress(TEXT.encode())[:40]):
        with pytest.raises(DataError, match=r"purchase.gz: not such a CSV table \("):
            load(tmp_path, damaged, "purchase.gz")


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"x": X + 0.5, "y": Y}, "feature 1 of record 1 is "),
        ({"x": np.where(X, np.nan, 0), "y": Y}, "feature "),
        ({"x": X[:, 0], "y": Y}, "x must be records [N, features], got int64 (30,)"),
        ({"x": X, "y": Y + 0.5}, "y must be integer classes [N], got float64"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_unusable_arrays_are_told(arrays, problem, tmp_path):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(DataError) as error:
        Purchase(path=str(tmp_path / "x.npz")).load()
    assert str(error.value).startswith(f"{tmp_path}/x.npz: {problem}")


@pytest.mark.parametrize("name", ["none", "none.npz"])
def test_a_file_that_is_not_there_is_told(name, tmp_path):
    with pytest.raises(DataError) as error:
        Location(path=str(tmp_path / name)).load()
    assert str(error.value).startswith(f"location: no file at {tmp_path}/{name}; ")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A data set that was written an hour ago."""
    return write(tmp_path / "data.npz", 0.0, age=3600)


def write(file: Path, value: float, age: float) -> Path:
    np.savez(file, x=np.full((4, 2), value), y=np.arange(4) % 2)
    then = time.time() - age
    os.utime(file, (then, then))
    return file


def test_a_file_is_read_once(file):
    first = Npz(path=str(file)).load()
    assert Npz(path=str(file)).load() is first
    assert Npz(path=os.path.relpath(file)).load() is not first  # another spelling: read again
    assert Npz(path=str(file), standardize=True).load() is not first


def test_a_file_that_has_changed_is_read_again(file):
    assert Npz(path=str(file)).load().x[0, 0] == 0
    write(file, 1.0, age=1800)
    assert Npz(path=str(file)).load().x[0, 0] == 1
    other = write(file.with_name("other.npz"), 2.0, age=1800)
    other.replace(file)
    assert Npz(path=str(file)).load().x[0, 0] == 2
    write(file, 1.0, age=0)
    first = Npz(path=str(file)).load()
    again = Npz(path=str(file)).load()
    assert again is not first, "two changes within one tick of a clock would leave no trace"
    file.unlink()
    with pytest.raises(DataError, match="npz: no file at"):
        Npz(path=str(file)).load()


def test_data_of_ones_own_is_cached_too(file):
    class Counted(Npz):
        def read(self) -> Dataset:
            reads.append(self.path)
            return super().read()

    class Twin(Npz):
        pass

    reads: list[str] = []
    assert Counted(path=str(file)).load() is Counted(path=str(file)).load()
    assert reads == [str(file)]
    assert Twin(path=str(file)).load() is not Counted(path=str(file)).load()


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (BreastCancer(), []),
        (CaliforniaHousing(), []),
        (CaliforniaHousing(path="/a/housing.csv"), ["/a/housing.csv"]),
        (Npz(path="/a/x.npz"), ["/a/x.npz"]),
        (Cifar10(root="/a"), [f"/a/cifar-10-batches-py/data_batch_{i}" for i in range(1, 6)]),
        (
            Mnist(root="/a"),
            ["/a/MNIST/raw/train-images-idx3-ubyte", "/a/MNIST/raw/train-labels-idx1-ubyte"],
        ),
    ],
)
def test_the_files_that_are_read_are_known(data, names):
    assert [str(file) for file in data.files()] == names


def test_relative_files_are_named_in_full(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert Npz(path="x.npz").files() == (tmp_path / "x.npz",)
    assert Npz(path="~/x.npz").files() == (Path("/home/me/x.npz"),)
    assert Cifar10(root="~").files()[0].parent == Path("/home/me/cifar-10-batches-py")


def test_the_first_records_only(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "d.npz", x=rng.normal(size=(10, 2)), y=np.arange(10) % 3)
    whole = Npz(path=str(tmp_path / "d.npz")).load()
    some = Npz(path=str(tmp_path / "d.npz"), records=6).load()
    assert np.array_equal(some.x, whole.x[:6])
    assert np.array_equal(some.y, whole.y[:6])
    assert Npz(path="x", records=6).identity() != Npz(path="x").identity()
    with pytest.raises(SpecError, match=r"mechanism.data.records: is 11, but npz has 10"):
        Npz(path=str(tmp_path / "d.npz"), records=11).load()
    np.savez(tmp_path / "e.npz", x=np.eye(3), y=np.array([0, 0, 1]))
    with pytest.raises(DataError, match=r"first 2 of npz: y holds the classes 0;"):
        Npz(path=str(tmp_path / "e.npz"), records=2).load()
