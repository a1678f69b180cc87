"""What is opened of a file that anybody may have written: bounded first, and refused beyond that.

A run directory or a sweep file may come from a stranger. Opening a pipe waits for ever, a device
has no end, brackets of JSON take fifty times their bytes, and a row of Parquet takes none at all.
`sweep.yamlfile` bounds what YAML stands for, by its aliases too.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from typing import Any

from pydantic import ValidationError

from ..errors import RunDirectoryError

RECORD = 2**28  # bytes of a record; a plan of a million packs has 45 MB
VALUES = 2**24  # of a record; a pack of a plan has three
ARRAYS = 2**34  # bytes of a file of arrays
SWEEP = 2**22  # bytes of a sweep file
_SCORES, _ROW = 2**20, 512  # bytes of a score file, and more for each row


class StrangeFileError(ValueError):
    """A file that is not read: what it is, and the bound that it breaks."""


def content(path: str, most: int) -> bytes:
    """The bytes of a regular file.

    Raises StrangeFileError where it is another thing, or holds more than `most` bytes, OSError
    where it cannot be read.
    """
    _require_regular(os.stat(path))  # a device may do something when it is only opened
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(opened, "rb") as file:
        status = os.fstat(opened)
        _require_regular(status)
        require_size(status.st_size, most)
        read = file.read(most + 1)
    require_size(len(read), most)
    return read


def require_size(size: int, most: int) -> None:
    """Raises StrangeFileError for more than `most` bytes."""
    if size > most:
        raise StrangeFileError(f"it has {size:,} bytes, more than the {most:,} that it may have")


def parsed(text: str) -> Any:
    """JSON. Raises ValueError where it is none, holds more than `VALUES`, or is nested too deep."""
    values = text.count(",") + text.count("[") + text.count("{")
    if values > VALUES:
        raise StrangeFileError(f"it holds {values:,} values, more than the {VALUES:,} it may hold")
    try:
        return json.loads(text)
    except RecursionError:
        deepest = sys.getrecursionlimit()
        raise StrangeFileError(f"it is nested deeper than {deepest} levels") from None


def why(error: Exception) -> str:
    """What is wrong with a record that somebody has read, or made something of."""
    if isinstance(error.__cause__, StrangeFileError):
        return str(error.__cause__)
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return "it is not JSON" if isinstance(error, RunDirectoryError) else repr(error)


def score_bytes(rows: int) -> int:
    """Bytes of a score file of so many rows, at most."""
    return _SCORES + rows * _ROW


def require_rows(rows: int, most: int) -> None:
    """Raises StrangeFileError for more than `most` rows."""
    if rows > most:
        raise StrangeFileError(f"it has {rows:,} rows, more than the {most:,} that it may have")


def _require_regular(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        kind = kinds.get(stat.S_IFMT(status.st_mode), "a device")
        raise StrangeFileError(f"it is {kind}, no regular file")
