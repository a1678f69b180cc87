"""A stranger's data: a small file is not decoded to gigabytes, and no program is asked."""

import bz2
import gzip
import io
import lzma
import os
import zipfile
from collections.abc import Callable

import numpy as np
import pytest

from dpaudit_ray.data.arrays import Npz
from dpaudit_ray.data.csv import Csv
from dpaudit_ray.data.tabular import Location
from dpaudit_ray.data.vision import Mnist
from dpaudit_ray.errors import DataError
from dpaudit_ray.storage import decoding

MOST = 2**16  # bytes that a file of this test may decode to
TABLE = "a,label\n" + "".join(f"{row % 7},{row % 2}\n" for row in range(1000))


def zipped(content: bytes, method: int = zipfile.ZIP_DEFLATED, name: str = "table.csv") -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", method) as archive:
        archive.writestr(name, content)
    return sink.getvalue()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".csv": bytes,
    ".csv.gz": gzip.compress,
    ".csv.bz2": bz2.compress,
    ".csv.xz": lzma.compress,
    ".csv.zip": zipped,
}


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "FREE", MOST)


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_table_is_read_however_it_is_compressed(suffix, tmp_path, bounded):
    file = tmp_path / f"table{suffix}"
    file.write_bytes(PACKERS[suffix](TABLE.encode()))
    data = Csv(path=str(file)).read()
    assert data.x[:, 0].tolist() == [row % 7 for row in range(1000)]


@pytest.mark.parametrize("suffix", [".csv.gz", ".csv.bz2", ".csv.xz", ".csv.zip"])
def test_decompression_stops_at_the_bound(suffix, tmp_path, bounded, monkeypatch):
    """Before the parser has all of it."""
    file = tmp_path / f"table{suffix}"
    file.write_bytes(PACKERS[suffix](b"a,label\n" + b"1,0\n" * 10**6))
    parsed = list[int]()
    read = decoding.Table.readinto

    def counted(self: decoding.Table, buffer: bytearray) -> int:
        count = read(self, buffer)
        parsed.append(self._bytes)
        return count

    monkeypatch.setattr(decoding.Table, "readinto", counted)
    with pytest.raises(DataError, match="decoded bytes, more than the"):
        Csv(path=str(file)).read()
    assert max(parsed, default=0) <= decoding.most_decoded(file.stat().st_size)


@pytest.mark.parametrize("source", [Csv, Location])
def test_short_rows_are_not_filled_with_a_million_cells(source, tmp_path, bounded):
    file = tmp_path / "table.csv"
    file.write_text(",".join(f"c{column}" for column in range(5000)) + "\n" + "1\n" * 10**4)
    with pytest.raises(DataError, match=r"it has [\d,]+ cells, more than"):
        source(path=str(file)).read()


FOREIGN = (
    r"table\.[a-z.]+: is a \.{} file, but only CSV text is read, plain or as \.gz, \.bz2, \.xz, "
    r"\.zip; unpack it, or save it as CSV$"
)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("table.csv.zst", b"\x28\xb5\x2f\xfd", FOREIGN.format("zst")),
        ("table.tar", b"", FOREIGN.format("tar")),
        ("table.tar.gz", gzip.compress(b"", mtime=0), FOREIGN.format("tar")),
        ("table.tgz", gzip.compress(b"", mtime=0), FOREIGN.format("tgz")),
        ("table.parquet", b"PAR1\xff", FOREIGN.format("parquet")),
        ("table.csv.zip", zipped(b"", zipfile.ZIP_LZMA), "is not compressed by deflate"),
        ("table.csv.zip", b"PK", "not a zip file"),
        ("table.csv.xz", b"\xfd7zXZ\x00", "not such a CSV table"),
        ("table.csv.gz", b"\x1f\x8b\x08", "not such a CSV table"),
        ("table.csv.bz2", b"BZh9", "not such a CSV table"),
    ],
)
def test_a_file_that_is_not_decompressed_is_one_line(name, content, problem, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=problem) as error:
        Csv(path=str(tmp_path / name)).read()
    assert "\n" not in str(error.value)


def test_what_a_library_raises_is_a_line_of_the_data_set(tmp_path):
    """A number of 400 digits in a cell was an OverflowError, reported as a bug in dpaudit."""
    (tmp_path / "table.csv").write_text(f"a,label\n{'1' * 400},0\n1,1\n")
    with pytest.raises(DataError, match=r"numbers but for 1 of 2 cells, such as '111"):
        Csv(path=str(tmp_path / "table.csv")).load()


def test_a_file_of_holes_has_no_size_of_its_own(tmp_path):
    (tmp_path / "holes.csv").write_bytes(b"a,label\n0,1\n")
    os.truncate(tmp_path / "holes.csv", 2**40)
    assert decoding.stored_bytes(tmp_path / "holes.csv") < 2**16


@pytest.mark.parametrize("name", ["x", "y"])
def test_arrays_are_not_decompressed_beyond_the_bound(name, tmp_path, bounded):
    arrays = {"x": np.ones((2, 2)), "y": np.array([0, 1])} | {name: np.zeros((2**12, 2**9))}
    np.savez_compressed(tmp_path / "bomb.npz", **arrays)
    with pytest.raises(DataError, match=r"decoded bytes, more than .*numpy\.savez"):
        Npz(path=str(tmp_path / "bomb.npz")).read()
    np.savez(tmp_path / "plain.npz", **arrays)
    with pytest.raises(DataError, match=r"rows|classes"):
        Npz(path=str(tmp_path / "plain.npz")).read()


def test_other_arrays_of_the_file_do_not_count(tmp_path, bounded):
    arrays = {"x": np.eye(2), "y": np.array([0, 1]), "more": np.zeros((2**12, 2**9))}
    np.savez_compressed(tmp_path / "data.npz", **arrays)
    assert Npz(path=str(tmp_path / "data.npz")).read().x.tolist() == [[1, 0], [0, 1]]


def test_texts_of_no_characters_are_counted(tmp_path, bounded):
    """A header of 128 bytes stands for a trillion of them."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<U0", "fortran_order": False, "shape": (10**12,)}
    )
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        archive.writestr("y.npy", header.getvalue())
        sink = io.BytesIO()
        np.save(sink, np.eye(2))
        archive.writestr("x.npy", sink.getvalue())
    with pytest.raises(DataError, match="1,000,000,000,000 values, more than"):
        Npz(path=str(tmp_path / "data.npz")).read()


def test_a_bare_array_is_not_read(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(2))
    (tmp_path / "x.npy").rename(tmp_path / "x.npz")
    os.truncate(tmp_path / "x.npz", 2**40)
    with pytest.raises(DataError, match=r"not a readable \.npz"):
        Npz(path=str(tmp_path / "x.npz")).read()


def test_images_of_another_size_are_not_read(tmp_path):
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for part in (*Mnist.parts, *Mnist.test_parts):
        (folder / part).touch()
        os.truncate(folder / part, 2**40)
    with pytest.raises(DataError, match="1,099,511,627,776 bytes, more than"):
        Mnist(root=str(tmp_path)).read()
