"""Bounds on files that an attacker may have written, and seals on files that the user wrote.

A run directory or a sweep file may come from a stranger. Opening a pipe waits for ever, a device
has no end, brackets of JSON take fifty times their bytes, and a row of Parquet takes none at all.
`sweep.yamlfile` bounds what YAML stands for, including its aliases. A stranger can write any digest
into a file, but no seal, which depends on the key in the user's home.
"""

import errno
import hmac
import json
import os
import secrets
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..errors import RunDirectoryError

RECORD = 2**28  # bytes of a record; a plan of a million packs has 45 MB
VALUES = 2**24  # JSON values of a record; a pack of a plan has three
ARRAYS = 2**34  # bytes of a file of arrays
SWEEP = 2**22  # bytes of a sweep file
_KEY = 32  # bytes of the user's key
SCORES = 2**20  # bytes of a score file without rows
SCORE_ROW = 512  # further bytes of a score file for each row


class StrangeFileError(ValueError):
    """A file that is not read, since it is too large, or a pipe, a socket or a device."""


def content(path: str, most: int) -> bytes:
    """Returns the content of a regular file.

    Args:
        path: path of the file.
        most: bytes that it may have.

    Raises:
        StrangeFileError: the file has more, or is a pipe, a socket or a device.
        OSError: the file cannot be read.
    """
    _require_regular(os.stat(path))  # before it is opened: to open a device may have an effect
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(opened, "rb") as file:
        status = os.fstat(opened)
        _require_regular(status)
        require_at_most(status.st_size, most)
        read = file.read(most + 1)
    require_at_most(len(read), most)
    return read


def require_at_most(number: int, most: int, what: str = "bytes") -> None:
    """Raises StrangeFileError if a file has more of something than it may have.

    Args:
        number: how many it has.
        most: how many it may have.
        what: what is counted, in the plural.
    """
    if number > most:
        raise StrangeFileError(f"it has {number:,} {what}, more than the {most:,} that it may have")


def parsed(text: str) -> Any:
    """Parses JSON. Raises ValueError if it is not JSON, has more than VALUES, or is too deep."""
    require_at_most(text.count(",") + text.count("[") + text.count("{"), VALUES, "values")
    try:
        return json.loads(text)
    except RecursionError:
        raise StrangeFileError(
            f"it is nested deeper than {sys.getrecursionlimit()} levels"
        ) from None


def describe(error: Exception) -> str:
    """Returns in words why a record, or an object made of it, cannot be read."""
    if isinstance(error.__cause__, StrangeFileError):
        return str(error.__cause__)
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return "it is not JSON" if isinstance(error, RunDirectoryError) else repr(error)


def _require_regular(status: os.stat_result) -> None:
    """Raises StrangeFileError or IsADirectoryError unless the status is of a regular file."""
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        kind = kinds.get(stat.S_IFMT(status.st_mode), "a device")
        raise StrangeFileError(f"it is {kind}, not a regular file")


def seal(content: str) -> str:
    """Returns the HMAC-SHA256 by the user's key, in hexadecimal digits; empty without a key."""
    key = _key()
    return "" if key is None else hmac.new(key, content.encode(), "sha256").hexdigest()


def is_sealed(content: str, seal_text: object) -> bool:
    """Returns whether `seal_text` is this user's seal of `content`."""
    expected = seal(content)
    if not expected or not isinstance(seal_text, str):
        return False
    return hmac.compare_digest(expected.encode(), seal_text.encode(errors="replace"))


def _key() -> bytes | None:
    """Returns the user's key, which the first call creates; None if it cannot be stored."""
    # `Path.home` raises RuntimeError if neither HOME nor the system names a home.
    with suppress(OSError, RuntimeError):
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        file = Path(state) / "dpaudit" / "key"
        if not file.exists():
            file.parent.parent.mkdir(parents=True, exist_ok=True)
            file.parent.mkdir(mode=0o700, exist_ok=True)
            temporary = file.with_name(f".{file.name}.{secrets.token_hex(4)}.tmp")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with os.fdopen(os.open(temporary, flags, 0o600), "wb") as out:
                out.write(secrets.token_bytes(_KEY))
            with suppress(FileExistsError):  # another process was first
                os.link(temporary, file)
            temporary.unlink()
        key = file.read_bytes()
        return key if len(key) == _KEY else None
    return None
