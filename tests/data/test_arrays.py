"""Arrays and tables of one's own: what is taken, what is done to it, and one line for the rest."""

import os
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit_ray.data.arrays import Npz
from dpaudit_ray.data.base import Dataset
from dpaudit_ray.data.csv import Csv
from dpaudit_ray.data.tabular import BreastCancer, CaliforniaHousing
from dpaudit_ray.data.vision import Cifar10, Mnist
from dpaudit_ray.errors import DataError, SpecError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 5))
Y = np.arange(40) % 2
IMAGES = RNG.integers(0, 256, size=(40, 4, 6, 3), dtype=np.uint8)


def load(folder: Path, standardize: bool = False, **arrays: Any) -> Dataset:
    np.savez(folder / "data.npz", **arrays)
    return Npz(path=str(folder / "data.npz"), standardize=standardize).load()


@pytest.mark.parametrize("kind", [np.float64, np.float16, np.int8, np.uint8, np.bool_])
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
        ({"x": X, "y": np.array([{}] * 40, dtype=object)}, "an array has Python objects, such as"),
        ({"x": X, "y": Y.astype(float)}, "y must be integer classes [N], got float64 (40,); conv"),
        ({"x": X, "y": Y.astype(str)}, "y is text; `label_order: ['0', '1']` takes its values to"),
        ({"x": X, "y": Y[:, None]}, "y must be integer classes [N], got int64 (40, 1)"),
        ({"x": X, "y": np.arange(40) * 2}, "y holds the classes 0, 2, 4, 6, 8, ...;"),
        ({"x": np.zeros((40, 3, 8, 8), np.uint8), "y": Y}, "x are images [40, 3, 8, 8], with"),
        ({"x": X, "y": Y[:30]}, "x has 40 rows and y has 30"),
        ({"x": X[:0], "y": Y[:0]}, "holds no data, x is (0, 5)"),
        (
            {"x": X.astype(str), "y": Y},
            "x must be real numbers [N, ...], got text (40, 5); a table",
        ),
        ({"x": X[:, 0], "y": Y}, "x must be real numbers [N, ...], got float64 (40,)"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_unusable_arrays_are_told(arrays, problem, tmp_path):
    with pytest.raises(DataError) as error:
        load(tmp_path, **arrays)
    assert str(error.value).startswith(f"{tmp_path}/data.npz: {problem}")


@pytest.mark.filterwarnings("error")
def test_numbers_beyond_float32_need_standardizing(tmp_path):
    with pytest.raises(DataError, match="x, in float32, has a NaN or infinite value in row 0; "):
        load(tmp_path, x=X * 1e100, y=Y)
    assert load(tmp_path, standardize=True, x=X * 1e100, y=Y).x.std() == pytest.approx(1)


@pytest.mark.parametrize(("value", "standardize"), [(np.nan, False), (-np.inf, True)])
@pytest.mark.filterwarnings("error")
def test_the_row_of_a_value_that_is_no_number_is_told(value, standardize, tmp_path):
    x = X.copy()
    x[17, 3] = value
    with pytest.raises(DataError, match="x has a NaN or infinite value in row 17; clean the data"):
        load(tmp_path, standardize, x=x, y=Y)


@pytest.mark.parametrize(
    "write",
    [
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(b"PK\x03\x04 cut off"),
        lambda file: file.write_bytes(pickle.dumps({"x": X, "y": Y})),
        lambda file: np.save(file.open("wb"), X),
        lambda file: (np.savez(file, x=X, y=Y), file.write_bytes(file.read_bytes()[:900])),
    ],
    ids=["empty", "cut", "pickle", "npy", "truncated"],
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
        ("none.npz", f"{tmp_path}/none.npz, nor in the folder of the sweep file"),
        ("~/none.npz", f"{tmp_path}/home/none.npz"),
        (str(tmp_path), f"{tmp_path}, which is a folder"),
    ]:
        with pytest.raises(DataError) as error:
            Npz(path=path).load()
        assert str(error.value).startswith(f"npz: no file at {looked}; write one with numpy.savez")


# Files are read once, and their names known -----------------------------------------------


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

    class Twin(Npz):
        pass

    assert Twin(path=str(file)).load() is not Npz(path=str(file)).load()


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


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (BreastCancer(), []),
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
    np.savez(tmp_path / "d.npz", x=X[:10], y=np.arange(10) % 3)
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


# Tables ------------------------------------------------------------------------------------

TABLE = "age;city;paid\n20;Rome;no\n 60;Oslo;yes\n40;Rome;no\n"


def load_table(folder, text=TABLE, **options):
    (folder / "own.csv").write_text(text)
    return Csv(path=str(folder / "own.csv"), **options).load()


def test_columns_become_features_and_words_classes(tmp_path):
    options = {"categories": ["city"], "label_order": ["no", "yes"], "ranges": {"age": [20, 60]}}
    data = load_table(tmp_path, **options)
    np.testing.assert_array_equal(data.x, [[0, 0, 1], [1, 1, 0], [0.5, 0, 1]])
    assert (data.y.tolist(), data.classes) == ([0, 1, 0], 2)


@pytest.mark.parametrize(("last", "y"), [("0\n1", [0, 1]), ("True\nFalse", [1, 0])])
def test_classes_may_be_numbers_or_truths(last, y, tmp_path):
    first, second = last.split()
    assert load_table(tmp_path, f"a,y\n1,{first}\n2,{second}\n").y.tolist() == y


def test_any_numbers_are_learnt_by_regression(tmp_path):
    data = load_table(tmp_path, "y,a\n100,1\n2.5,3\n", label="y", regression=True)
    assert (data.y.dtype, data.y.tolist(), data.classes) == (np.float32, [100, 2.5], 0)


@pytest.mark.parametrize(
    ("text", "options", "problem"),
    [
        (
            TABLE,
            {},
            "column 'city' is text of 2 values, such as 'Rome' in row 1: list it in `c",
        ),
        (TABLE, {"drop": ["city"]}, "paid is text; `label_order: ['no', 'yes']` takes its values"),
        (TABLE, {"drop": ["city"], "label_order": ["yes"]}, "paid has 'no'; list it in"),
        (
            TABLE,
            {"drop": ["ctiy"]},
            "`drop` names 'ctiy', which is not a column; did you mean city?",
        ),
        ("a,y\n1,0\n2,1\n", {"ranges": {"a": [2, 1]}}, "`ranges` of 'a' falls from 2.0 to 1.0; gi"),
        (
            "a,y\n1,0\n,1\n",
            {},
            "row 2 below the header has no (finite) value in column 'a'; d",
        ),
        (",a,y\n0,1,0\n1,1,1\n", {}, "a column has no name, as numbers of rows; `drop: ['Unnamed:"),
        ("1.5,0\n2,1\n", {}, "holds 1 rows of 2 columns, the first of which are called 1.5, 0;"),
        (
            "a,y\n1,2,0\n1,2,1\n",
            {},
            "rows have more cells than the 2 names of the header; name",
        ),
        ("a,y\n0,1,\n2,1,\n", {}, "rows have more cells than the 2 names of the header; name"),
        ("a,y\n0,1\n2,1\n", {"drop": ["y"], "label": "y"}, "`drop` names 'y', which has another"),
        ("a,y\n0,1\n2,1\n", {"categories": ["a"], "ranges": {"a": [0, 1]}}, "`categories` names"),
        ("a,y\n0,1\n2,1\n", {"encoding": "utf-16"}, "is not text in utf-16; it may be in another"),
        ("a,a ,y\n0,1,0\n2,1,1\n", {}, "two columns are called 'a'; rename one"),
        (
            "a,y\n1,0\n2,\n",
            {},
            "row 2 below the header has no (finite) value in column 'y'; d",
        ),
        ("a,y\n1,0\n1,2,1\n", {}, "not such a CSV table (Error tokenizing data"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_cannot_be_read_is_told(text, options, problem, tmp_path):
    with pytest.raises(DataError) as error:
        load_table(tmp_path, text, **options)
    assert str(error.value).startswith(f"{tmp_path}/own.csv: {problem}")


COLUMNS = {  # a cell, and how a table of such cells is read: its option, or the reason against it
    "1,5": "decimal: ','",
    "2026-11-28": "dates: [a]",
    "2026-11-28T12:00:00Z": "dates: [a]",
    "28.11.2026": "dates: [a]",
    "11/28/2026": "dates that begin with a day or a month",
    "1,234": "numbers with signs or separators",
    "1,234.50": "numbers with signs or separators",
    "12 %": "numbers with signs or separators",
    "$12.50": "numbers with signs or separators",
    "EUR 12": "numbers with signs or separators",
    "12 €": "numbers with signs or separators",
    "yes": "categories: [a]",
}


@pytest.mark.parametrize("cell", COLUMNS)
def test_a_column_of_text_is_named_with_what_reads_it(cell, tmp_path):
    text = f"a;b;y\n{cell};1;0\n{cell};2;1\n"
    with pytest.raises(DataError) as error:
        load_table(tmp_path, text)
    assert f"such as {cell!r} in row 1" in str(error.value)
    assert COLUMNS[cell] in str(error.value)
    assert ("categories" in str(error.value)) == (cell == "yes")


@pytest.mark.parametrize(
    ("text", "encoding", "options", "first"),
    [
        ("a;y\n1,5;0\n-2;1\n", "utf-8", {"decimal": ","}, [1.5, -2]),
        ("a,y\n1970-01-02,0\n1969-12-31,1\n", "utf-8", {"dates": ["a"]}, [1, -1]),
        ("a,y\n1970-01-02 12:00,0\n1970-01-03,1\n", "utf-8", {"dates": ["a"]}, [1.5, 2]),
        ("a;y\n02.01.1970;0\n01.02.1970;1\n", "utf-8", {"dates": ["a"]}, [1, 31]),
        ("a,y\n,0\n2,1\n", "utf-8", {"fill": {"a": 7}}, [7, 2]),
        ("a,y\n,0\nx,1\n", "utf-8", {"fill": {"a": 7}, "categories": ["a"]}, [1, 0]),
        ("ä,y\n1,0\n2,1\n", "latin-1", {"encoding": "latin-1", "drop": []}, [1, 2]),
        ("ä,y\n1,0\n2,1\n", "utf-16", {"encoding": "utf-16"}, [1, 2]),
        ("a,y\n1,0\n2,1\n", "utf-8-sig", {"ranges": {"a": [0, 1]}}, [1, 2]),
        ('"a ","y"\n"1","0"\n"2","1"\n', "utf-8", {"ranges": {"a": [0, 1]}}, [1, 2]),
        ("a,y,\n1,0,\n2,1,\n", "utf-8", {}, [1, 2]),
        ("a,y\n1,no \n2,yes\n3,no\n", "utf-8", {"label_order": ["no", "yes"]}, [1, 2]),
    ],
)
def test_tables_are_read_as_their_options_say(text, encoding, options, first, tmp_path):
    (tmp_path / "own.csv").write_text(text, encoding)
    data = Csv(path=str(tmp_path / "own.csv"), **options).load()
    assert data.x[:2, 0].tolist() == first


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_another_encoding_is_recognised(encoding, tmp_path):
    (tmp_path / "own.csv").write_text("ä,y\n1,0\n2,1\n", encoding)
    data = Csv(path=str(tmp_path / "own.csv"))
    with pytest.raises(DataError, match=f"is not text in utf-8; .*`encoding: {encoding}`"):
        data.load()
    options, _ = data.guess()
    assert options["encoding"] == encoding


def test_all_mistakes_of_a_table_are_told_at_once(tmp_path):
    text = "a,b,c,day,y\n,x,1,2026-11-28,no\n1,y,,2026-11-29,yes\n2,,3,2026-11-30,no\n"
    with pytest.raises(DataError) as error:
        load_table(tmp_path, text, ranges={"c": [1, 0]})
    lines = [str(error.value), *error.value.details]
    expected = ("row 1", "row 3", "row 2", "column 'b' is text", "column 'day' is dates",
                "y is text; `label_order", "`ranges` of 'c'")  # fmt: skip
    assert len(lines) == len(expected)
    for line, part in zip(lines, expected, strict=True):
        assert line.startswith(f"{tmp_path}/own.csv: "), line
        assert part in line


def test_categories_of_many_values_are_refused_before_they_take_memory(tmp_path):
    """A table of 200,000 names asked for 37 GiB."""
    names = "".join(f"name{i},{i % 2}\n" for i in range(20_000))
    with pytest.raises(DataError, match="'a' of `categories` has 20,000 values, a column for"):
        load_table(tmp_path, f"a,y\n{names}", categories=["a"])
