"""Files that are either absent or whole, below one folder, local or in an object store.

Local files are written beside their place, synced and renamed; object stores make an upload
visible only when it is complete. Everything here raises OSError.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from pyarrow import fs


class Folder:
    """A folder (also NFS), or an `s3://`, `gs://`, `file://` address.

    Raises:
        ValueError, OSError: the address has no file system.
    """

    def __init__(self, location: str) -> None:
        if "://" in location:
            self.location = location
            self._fs, self._root = fs.FileSystem.from_uri(location)
        else:
            self.location = str(Path(location).expanduser().absolute())
            self._fs, self._root = fs.LocalFileSystem(), self.location

    def read(self, name: str) -> bytes | None:
        """The content of a file, None when there is no such file."""
        try:
            with self._fs.open_input_stream(self._path(name)) as stream:
                return bytes(stream.read())
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, name: str, content: bytes) -> None:
        """Puts a file in place, with the folders above it; replaces what was there."""
        if isinstance(self._fs, fs.LocalFileSystem):
            _write_local(Path(self._path(name)), content)
        else:
            with self._fs.open_output_stream(self._path(name)) as stream:
                stream.write(content)

    def delete(self, name: str) -> None:
        """Removes a file if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self._fs.delete_file(self._path(name))

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        info = self._fs.get_file_info(self._path(name))
        return bool(info.type == fs.FileType.File)

    def leads_out(self, name: str) -> bool:
        """Whether a link on the way to a file leads out of the folder."""
        if not isinstance(self._fs, fs.LocalFileSystem):
            return False
        return not Path(self._path(name)).resolve().is_relative_to(Path(self._root).resolve())

    def names(self, folder: str, recursive: bool = False) -> list[str]:
        """The files in `folder` (and below), without their paths; none when it does not exist."""
        selector = fs.FileSelector(self._path(folder), allow_not_found=True, recursive=recursive)
        infos = self._fs.get_file_info(selector)
        return [info.base_name for info in infos if info.type == fs.FileType.File]

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


def reason(error: BaseException) -> str:
    """Why, in a few words; the file is named by whoever reports it."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return (str(error) or type(error).__name__).splitlines()[0]


def _write_local(path: Path, content: bytes) -> None:
    """Write, sync, rename, sync the folder: after this returns, a power cut loses nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own, so that two drivers on one run directory cannot mix their bytes.
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with beside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
