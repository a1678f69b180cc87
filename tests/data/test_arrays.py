"""A user's own arrays: what is taken, what is done to it, and one line for the rest."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit_ray.data.arrays import Npz
from dpaudit_ray.data.base import Dataset
from dpaudit_ray.errors import DataError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 5))
Y = np.arange(40) % 2
IMAGES = RNG.integers(0, 256, size=(40, 4, 6, 3), dtype=np.uint8)


def load(folder: Path, standardize: bool = False, **arrays: Any) -> Dataset:
    np.savez(folder / "data.npz", **arrays)
    return Npz(path=str(folder / "data.npz"), standardize=standardize).load()


@pytest.mark.parametrize("kind", [np.float64, np.float16, np.int8, np.uint16, np.uint8, np.bool_])
def test_every_kind_of_real_number_is_taken_as_it_is(kind, tmp_path):
    numbers = (np.abs(X) * 2).astype(kind)
    data = load(tmp_path, x=numbers, y=(Y == 1) if kind is np.bool_ else Y.astype(np.uint8))
    assert (data.x.dtype, data.y.dtype, data.classes) == (np.float32, np.int64, 2)
    assert np.array_equal(data.x, numbers.astype(np.float32))
    assert np.array_equal(data.y, Y)


def test_images_are_scaled_and_put_in_channel_order(tmp_path):
    data = load(tmp_path, x=IMAGES, y=Y)
    assert data.x.shape == (40, 3, 4, 6)
    assert data.x.flags.c_contiguous
    assert data.x[7, 2, 1, 3] == np.float32(IMAGES[7, 1, 3, 2]) / np.float32(255)
    assert (data.x.min() >= 0, data.x.max() <= 1) == (True, True)
    pixel = IMAGES[:, 1, 3, 2].astype(float)
    scaled = load(tmp_path, standardize=True, x=IMAGES, y=Y).x[:, 2, 1, 3]
    assert np.allclose(scaled, (pixel - pixel.mean()) / pixel.std(), atol=1e-6)


def test_standardizing_keeps_the_precision_of_the_file(tmp_path):
    """Seconds since 1970: as float32 they would all be the same. What is constant becomes 0."""
    seconds = np.stack([1.7e9 + np.arange(40.0), np.full(40, 7.0)], 1)
    x = load(tmp_path, standardize=True, x=seconds, y=Y).x
    assert np.allclose(np.diff(x[:, 0]), x[1, 0] - x[0, 0], atol=1e-6)
    assert x[:, 0].std() == pytest.approx(1, abs=1e-6)
    assert (x[:, 1] == 0).all()


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"x": X}, "array y is missing; write one with numpy.savez"),
        ({"y": Y}, "array x is missing"),
        ({}, "array x is missing"),
        ({"x": X, "y": np.array([{}] * 40, dtype=object)}, "an array has Python objects, such as"),
        ({"x": np.array([[None]] * 40, dtype=object), "y": Y}, "an array has Python objects, such"),
        ({"x": X, "y": Y.astype(float)}, "y must be integer classes [N], got float64 (40,); conv"),
        ({"x": X, "y": Y.astype(str)}, "y is text; `label_order: ['0', '1']` takes its values to"),
        ({"x": X, "y": Y[:, None]}, "y must be integer classes [N], got int64 (40, 1)"),
        ({"x": X, "y": 1}, "y must be integer classes [N], got int64 ()"),
        ({"x": X, "y": Y - 1}, "y holds the classes -1, 0; number two or more of them 0, 1, ..."),
        ({"x": X, "y": Y + 1}, "y holds the classes 1, 2;"),
        ({"x": X, "y": Y * 0}, "y holds the classes 0;"),
        ({"x": X, "y": Y * 10**9}, "y holds the classes 0, 1000000000;"),
        ({"x": X, "y": np.arange(40) * 2}, "y holds the classes 0, 2, 4, 6, 8, ...;"),
        ({"x": np.zeros((40, 3, 8, 8), np.uint8), "y": Y}, "x are images [40, 3, 8, 8], with"),
        ({"x": X, "y": Y[:30]}, "x has 40 rows and y has 30"),
        ({"x": X[:0], "y": Y[:0]}, "holds no data, x is (0, 5)"),
        ({"x": X[:, :0], "y": Y}, "holds no data, x is (40, 0)"),
        ({"x": X[:, 0], "y": Y}, "x must be real numbers [N, ...], got float64 (40,)"),
        ({"x": X.astype(str), "y": Y}, "x must be real numbers [N, ...], got <U32"),
        ({"x": X.astype(complex), "y": Y}, "x must be real numbers [N, ...], got complex128"),
        ({"x": X.astype("timedelta64[s]"), "y": Y}, "x must be real numbers [N, ...], got timed"),
    ],
)
@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.filterwarnings("error")
def test_unusable_arrays_are_told(arrays, problem, standardize, tmp_path):
    with pytest.raises(DataError) as error:
        load(tmp_path, standardize, **arrays)
    assert str(error.value).startswith(f"{tmp_path}/data.npz: {problem}")


@pytest.mark.filterwarnings("error")
def test_numbers_beyond_float32_need_standardizing(tmp_path):
    with pytest.raises(DataError, match="x has a NaN or infinite value in row 0; clean the data"):
        load(tmp_path, x=X * 1e100, y=Y)
    assert load(tmp_path, standardize=True, x=X * 1e100, y=Y).x.std() == pytest.approx(1)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.filterwarnings("error")
def test_the_row_of_a_value_that_is_no_number_is_told(value, standardize, tmp_path):
    x = X.copy()
    x[17, 3] = value
    with pytest.raises(DataError, match="x has a NaN or infinite value in row 17; clean the data"):
        load(tmp_path, standardize, x=x, y=Y)


@pytest.mark.parametrize(
    "write",
    [
        lambda file: file.write_text("x,y\n"),
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(b"PK\x03\x04 cut off"),
        lambda file: file.write_bytes(pickle.dumps({"x": X, "y": Y})),
        lambda file: np.save(file.open("wb"), X),
        lambda file: (np.savez(file, x=X, y=Y), file.write_bytes(file.read_bytes()[:900])),
    ],
    ids=["text", "empty", "cut", "pickle", "npy", "truncated"],
)
def test_a_file_that_is_no_npz_is_told(write, tmp_path):
    file = tmp_path / "data.npz"
    write(file)
    with pytest.raises(DataError) as error:
        Npz(path=str(file)).load()
    assert str(error.value) == (
        f"{file}: not a readable .npz file of plain arrays; write one with numpy.savez(path, "
        "x=..., y=...)"
    )


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_no_changed_byte_is_read_as_other_data(save, tmp_path):
    """Every byte of the file is changed in turn: told, or without consequence."""
    file = tmp_path / "data.npz"
    save(file, x=X[:9], y=Y[:9])
    whole, told = file.read_bytes(), 0
    expected = Npz(path=str(file)).load()
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x01]) + whole[place + 1 :])
        try:
            data = Npz(path=str(file)).load()
        except DataError:
            told += 1
        else:
            assert np.array_equal(data.x, expected.x)
            assert np.array_equal(data.y, expected.y)
    assert told > len(whole) / 2


def test_nothing_is_unpickled(tmp_path):
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "sprung",))

    with pytest.raises(DataError):
        load(tmp_path, x=np.array([[Trap()]] * 2), y=np.array([0, 1]))
    assert not (tmp_path / "sprung").exists()


def test_missing_files_are_told_with_where_they_were_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for path, looked in [
        ("none.npz", f"{tmp_path}/none.npz, nor beside the sweep file"),
        (str(tmp_path / "none.npz"), f"{tmp_path}/none.npz"),
        ("~/none.npz", f"{tmp_path}/home/none.npz"),
        (str(tmp_path), str(tmp_path)),
    ]:
        with pytest.raises(DataError) as error:
            Npz(path=path).load()
        assert str(error.value).startswith(f"npz: no file at {looked}; write one with numpy.savez")
