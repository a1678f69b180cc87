"""Loading twice reads once, as long as the files stay as they are."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from dpaudit_ray.data.arrays import Npz
from dpaudit_ray.data.base import Dataset
from dpaudit_ray.data.tabular import BreastCancer, CaliforniaHousing
from dpaudit_ray.data.vision import Cifar10, Mnist
from dpaudit_ray.errors import DataError, SpecError


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
