"""Bounds on what a compressed file decodes to, required before anything of it is decoded.

A file of some kilobytes may stand for gigabytes. Each file may decode to `FREE` bytes, and to
`RATIO` bytes more for each byte that is stored.
"""

import bz2
import gzip
import io
import lzma
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from . import strangers
from .strangers import StrangeFileError

FREE = 2**27  # pandas takes ten times as much for a table of single digits
RATIO = 16  # most tables and models compress less; deflate reaches 1,032, zstd 32,768
_CELL_BYTES = 8  # size of a float64
# Suffixes of files that are not text. Pandas would decompress .tar and .zst without a bound.
_FOREIGN = {
    ".tar", ".tgz", ".tbz2", ".txz", ".zst", ".lz4", ".7z", ".rar", ".Z", ".parquet", ".feather",
    ".xls", ".xlsx", ".ods",
}  # fmt: skip
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}  # zipfile decodes others without a bound


def stored_bytes(file: Path) -> int:
    """Returns the bytes that a file takes on its disk: a file of holes has any size."""
    status = file.stat()
    return min(status.st_size, status.st_blocks * 512)  # POSIX counts blocks of 512 bytes


def most_decoded(stored: int) -> int:
    """Returns the bytes that a file of `stored` bytes may decode to."""
    return FREE + RATIO * stored


def require_members(members: Iterable[zipfile.ZipInfo], stored: int) -> None:
    """Requires that members of a zip file of `stored` bytes can be read in bounded memory.

    Raises:
        StrangeFileError: members are too large, or compressed by a method without a bound.
    """
    decoded = 0
    for member in members:
        decoded += member.file_size
        if member.compress_type not in _METHODS:
            raise StrangeFileError(
                f"{member.filename!r:.40} is not compressed by deflate, which has no bound; "
                "decompress it"
            )
    strangers.require_at_most(decoded, most_decoded(stored), "decoded bytes")


class ForeignFileError(StrangeFileError):
    """A file of a kind that is not read."""


def _only_member(file: Path) -> Any:
    """Opens the only file in a zip file. Raises StrangeFileError if there are more."""
    archive = zipfile.ZipFile(file)
    members = archive.infolist()
    if len(members) != 1:
        raise StrangeFileError(f"it has {len(members)} files in it; give one")
    require_members(members, stored_bytes(file))
    return archive.open(members[0])


_OPENERS: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zip": _only_member,
}


class Table(io.RawIOBase):
    """The decompressed bytes of a table, by the file's suffix, bounded while they are read.

    A parser fills short rows with empty cells, so a line of two bytes may become a million cells.
    In a table of complete rows each cell has at least one byte, the separator after it.
    """

    def __init__(self, file: Path) -> None:
        """Opens a file. Raises ForeignFileError for formats other than CSV, by the suffix."""
        if foreign := _FOREIGN.intersection(file.suffixes):
            raise ForeignFileError(
                f"is a {min(foreign)} file, but only CSV text is read, plain or as "
                f"{', '.join(_OPENERS)}; unpack it, or save it as CSV"
            )
        self._most_bytes = most_decoded(stored_bytes(file))
        opener = _OPENERS.get(file.suffix)
        self._file = file.open("rb") if opener is None else opener(file)
        self._bytes = 0
        self._lines = 0
        self._columns = 0

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        """Reads into `buffer`. Raises StrangeFileError once the table is too large."""
        chunk: bytes = self._file.read(len(buffer))
        buffer[: len(chunk)] = chunk
        if self._bytes == 0:
            # The parser fills up each row to the length of the header, which is at most this.
            header = chunk.partition(b"\n")[0]
            self._columns = 1 + max(map(header.count, (b",", b";", b"\t", b"|")))
        self._bytes += len(chunk)
        self._lines += chunk.count(b"\n")
        strangers.require_at_most(self._bytes, self._most_bytes, "decoded bytes")
        # Cells that fit into FREE bytes, and one for each byte, as in a table of complete rows.
        most_cells = FREE // _CELL_BYTES + self._bytes
        strangers.require_at_most(self._lines * self._columns, most_cells, "cells")
        return len(chunk)


# Pages of Parquet: their headers are structs in Thrift's compact protocol ---------------------

# Types of a field.
_BOOLS = (1, 2)
_INTEGERS = (4, 5, 6)
_BINARY = 8
_STRUCT = 12
# Fields of a page's header: decoded bytes, stored bytes, and values of a data page, a dictionary
# or a data page of version 2.
_SIZES = ((2,), (3,), (5, 1), (7, 1), (8, 1))


def page_totals(
    content: bytes,
    start: int,
    stop: int,
) -> tuple[int, int]:
    """Returns the bytes and the values that the pages of a column decode to.

    Arrow allocates as the headers of pages state; the file's footer may state less.

    Args:
        content: a Parquet file.
        start: where the pages of one column begin.
        stop: where they end.

    Raises:
        ValueError: these bytes are not pages.
    """
    decoded = 0
    values = 0
    while start < stop:
        header: dict[tuple[int, ...], int] = {}
        try:
            start = _read_struct(content, start, (), header)
        except IndexError as error:
            raise ValueError("a page of it is cut off") from error
        sizes = [header.get(field, 0) for field in _SIZES]
        if min(sizes) < 0:
            raise ValueError("a page of it has a negative size")
        decoded += sizes[0]
        start += sizes[1]
        values += sum(sizes[2:])
    return decoded, values


def _read_struct(
    content: bytes,
    start: int,
    path: tuple[int, ...],
    integers: dict[tuple[int, ...], int],
) -> int:
    """Reads the integers of a struct, and of the structs in it.

    If a field is stored twice, the larger value counts: readers differ on which one they use.

    Args:
        content: a Parquet file.
        start: where the struct begins.
        path: fields of the structs around it.
        integers: values by path, to which those of this struct are added.

    Returns:
        The end of the struct.
    """
    field = 0
    while byte := content[start]:
        start += 1
        # `step`: by how much the field's number exceeds the last one; 0 if the number follows.
        # `kind`: the type of the value; it contains the value of a boolean, which has no bytes.
        step, kind = divmod(byte, 16)
        if step:
            field += step
        else:
            field, start = _read_integer(content, start)
        name = (*path, field)
        if kind in _INTEGERS:
            value, start = _read_integer(content, start)
            integers[name] = max(value, integers.get(name, value))
        elif kind == _BINARY:
            length, start = _read_integer(content, start, signed=False)
            start += length
        elif kind == _STRUCT and len(path) < 2:
            start = _read_struct(content, start, name, integers)
        elif kind not in _BOOLS:
            raise ValueError("a page of it has a foreign header")
    return start + 1


def _read_integer(
    content: bytes,
    start: int,
    signed: bool = True,
) -> tuple[int, int]:
    """Reads an integer of 7 bits a byte, the lowest first, its sign in the last bit.

    Args:
        content: content of a page.
        start: index of the first byte.
        signed: whether the last bit is a sign.

    Returns:
        The integer and its end.
    """
    value = 0
    for shift in range(0, 64, 7):
        byte = content[start]
        start += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return (value >> 1) ^ -(value & 1) if signed else value, start
    raise ValueError("a page of it has a foreign header")
