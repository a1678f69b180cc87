"""Files that are either absent or whole, below one folder, local or in an object store.

Local files are written beside their place, synced and then renamed, or linked where they are
written once; object stores make an upload visible only when it is complete. Everything here raises
OSError, and whatever a `Passage` raises.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from pyarrow import fs

from ..errors import first_line
from . import strangers

# Entered for the moment in which a file becomes visible; raises where it may not.
Passage = Callable[[], AbstractContextManager[None]]
LOCK_SECONDS = 10.0  # for which a lock is asked again: it is held for a read and a rename
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF}


class Folder:
    """A folder (also NFS), or an `s3://`, `gs://`, `file://` address, with or without a last slash.

    Raises:
        ValueError, OSError: the address has no file system.
    """

    def __init__(self, location: str) -> None:
        if "://" in location:
            scheme, _, place = location.partition("://")
            self.location = f"{scheme}://{place.rstrip('/') or place}"
            self._fs, self._root = fs.FileSystem.from_uri(self.location)
        else:
            self.location = str(Path(location).expanduser().absolute())
            self._fs, self._root = fs.LocalFileSystem(), self.location
        self.local = isinstance(self._fs, fs.LocalFileSystem)

    def read(self, name: str, most: int = strangers.RECORD) -> bytes | None:
        """The content of a file, None when there is no such file.

        Raises:
            StrangeFileError: it has more than `most` bytes, or is a pipe or a device.
        """
        try:
            if self.local:
                return strangers.content(self._path(name), most)
            with self._fs.open_input_stream(self._path(name)) as stream:
                found = bytes(stream.read(most + 1))
            strangers.require_size(len(found), most)
            return found
        except (FileNotFoundError, NotADirectoryError):
            return None

    def ends(self, name: str, size: int) -> tuple[bytes, bytes]:
        """The first and the last `size` bytes of a file that is as long as that."""
        with self._fs.open_input_file(self._path(name)) as file:
            return bytes(file.read(size)), bytes(file.read_at(size, file.size() - size))

    def write(self, name: str, content: bytes, passage: Passage = contextlib.nullcontext) -> None:
        """Puts a file in place, with the folders above it; replaces what was there."""
        if self.local:
            _write_local(Path(self._path(name)), content, passage, Path.replace)
        else:
            with passage():
                self._upload(name, content)

    def create(
        self, name: str, content: bytes, passage: Passage = contextlib.nullcontext
    ) -> bytes | None:
        """Puts a file in place where there is none; returns what is there if it is another one.

        Of several that create a local file at once, one does, on any machine. An object store is
        only looked at first: `pyarrow` has no conditional upload, and of two that look at the same
        moment the later one replaces the file of the other.
        """
        if not self.local:
            with passage():
                there = self.read(name, strangers.ARRAYS)
                if there is None:
                    self._upload(name, content)
            return None if there == content else there
        try:
            _write_local(Path(self._path(name)), content, passage, _link)
        except FileExistsError:
            # One of our own is no other one: NFS may carry out a call, and say that it failed.
            if (there := self.read(name, strangers.ARRAYS)) is None:
                raise
            _sync(Path(self._path(name)).parent)
            return None if there == content else there
        return None

    def move(self, name: str, to: str, passage: Passage = contextlib.nullcontext) -> None:
        """Gives a file another name."""
        with passage():
            self._fs.move(self._path(name), self._path(to))

    def delete(self, name: str, passage: Passage = contextlib.nullcontext) -> None:
        """Removes a file if it is there."""
        with passage(), contextlib.suppress(FileNotFoundError):
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
        return [info.base_name for info in self._infos(folder, recursive)]

    def sizes(self, folder: str) -> dict[str, int]:
        """The files in `folder` and their bytes, by one listing."""
        return {info.base_name: info.size for info in self._infos(folder, recursive=False)}

    def stamps(self, folder: str) -> list[tuple[str, int, int]]:
        """The files in `folder`, their bytes and when they were last changed (ns), by name."""
        infos = self._infos(folder, recursive=False)
        return sorted((info.base_name, info.size, info.mtime_ns) for info in infos)

    def paths(self, depth: int) -> list[str]:
        """Every file, by its path from here; what lies deeper than `depth` folders is one.

        So is a folder that a link leads out to.
        """
        found: list[str] = []
        folders = [""]
        for _ in range(depth):
            below: list[str] = []
            for folder in folders:
                selector = fs.FileSelector(self._path(folder), allow_not_found=True)
                for info in self._fs.get_file_info(selector):
                    name = f"{folder}{info.base_name}"
                    inside = info.type == fs.FileType.Directory and not self.leads_out(name)
                    (below if inside else found).append(f"{name}/" if inside else name)
            folders = below
        return sorted([*found, *folders])

    @contextlib.contextmanager
    def locked(self, name: str, *, alone: bool) -> Iterator[bool]:
        """Holds a lock, `alone` or with others; yields whether there is one.

        It is a file, made by who first wants it alone. Where that is gone with its folder, in
        object stores, and on file systems without locks there is none.

        Raises:
            OSError: somebody else has held it for 10 s.
        """
        file = self._lock_file(name, os.O_CREAT if alone else 0)
        if file is None:
            yield False
            return
        try:
            yield _flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        finally:
            os.close(file)

    def _lock_file(self, name: str, create: int) -> int | None:
        if not self.local:
            return None
        with contextlib.suppress(FileNotFoundError):
            return os.open(self._path(name), os.O_RDWR | os.O_CLOEXEC | create, 0o666)
        return None

    def _infos(self, folder: str, recursive: bool) -> list[Any]:
        selector = fs.FileSelector(self._path(folder), allow_not_found=True, recursive=recursive)
        infos = self._fs.get_file_info(selector)
        return [info for info in infos if info.type == fs.FileType.File]

    def _upload(self, name: str, content: bytes) -> None:
        """However a stream is left, Arrow completes its upload.

        So an exception between opening and writing would leave an empty object. What raises there
        is Ctrl-C or a signal, which other threads than the main one never see.
        """

        def upload() -> None:
            with self._fs.open_output_stream(self._path(name)) as stream:
                stream.write(content)

        if threading.current_thread() is not threading.main_thread():
            upload()
            return
        with ThreadPoolExecutor(1) as other:
            other.submit(upload).result()

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


def reason(error: BaseException) -> str:
    """Why, in a few words; the file is named by whoever reports it."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return first_line(error)


def _write_local(
    path: Path, content: bytes, passage: Passage, place: Callable[[Path, Path], object]
) -> None:
    """Write, sync, put in place, sync the folder: after this returns, a power cut loses nothing."""
    with passage():  # what may not be written leaves no trace
        path.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own, so that two drivers on one run directory cannot mix their bytes.
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with beside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with passage():
            place(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _link(beside: Path, path: Path) -> None:
    """Puts a file in place that is there never to be replaced; raises FileExistsError."""
    try:
        os.link(beside, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if path.exists():  # without links, two that look at the same moment are not kept apart
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from error
        beside.replace(path)


def _flock(file: int, kind: int) -> bool:
    """Takes a lock on an open file; False where the file system has none. Raises OSError."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return False
            raise
