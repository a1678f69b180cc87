"""Files that are either absent or whole, below one folder of a file system.

They are written beside their place, synced and then renamed, or linked where they are written once.
Everything here raises OSError, and whatever a `Passage` raises.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from ..errors import first_line
from . import strangers

# Entered for the moment in which a file becomes visible; raises where it may not.
Passage = Callable[[], AbstractContextManager[None]]
LOCK_SECONDS = 10.0  # for which a lock is asked again: it is held for a read and a rename
_NOTHING = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}  # loops are links that lead to each other
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF}


class Folder:
    """A folder of this machine or of a network file system, with or without a last slash."""

    def __init__(self, location: str) -> None:
        if location.startswith("file://"):
            location = urllib.parse.unquote(location.removeprefix("file://"))
        self._root = Path(location).expanduser().absolute()
        self.location = str(self._root)

    def read(self, name: str, most: int = strangers.RECORD) -> bytes | None:
        """A file's content, or None. Raises StrangeFileError past `most` bytes, or for a pipe."""
        try:
            return strangers.content(str(self._root / name), most)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, name: str, content: bytes, passage: Passage = contextlib.nullcontext) -> None:
        """Puts a file in place, with the folders above it; replaces what was there."""
        _write(self._root / name, content, passage, Path.replace)

    def create(
        self, name: str, content: bytes, passage: Passage = contextlib.nullcontext
    ) -> bytes | None:
        """Creates a file, one of several that do so; returns what is there if it is another one."""
        try:
            _write(self._root / name, content, passage, _link)
        except FileExistsError as error:
            # One of our own is no other one: NFS may carry out a call, and say that it failed.
            if (there := self.read(name, strangers.ARRAYS)) is None:
                raise OSError("it exists, but cannot be read") from error
            _sync((self._root / name).parent)
            return None if there == content else there
        return None

    def move(self, name: str, to: str, passage: Passage = contextlib.nullcontext) -> None:
        """Gives a file another name."""
        with passage():
            (self._root / name).rename(self._root / to)

    def delete(self, name: str, passage: Passage = contextlib.nullcontext) -> None:
        """Removes a file if it is there."""
        with passage():
            (self._root / name).unlink(missing_ok=True)

    def leads_out(self, name: str) -> bool:
        """Whether a link on the way to a file leads out of the folder."""
        target = Path(os.path.realpath(self._root / name))  # Path.resolve refuses loops of links
        return not target.is_relative_to(os.path.realpath(self._root))

    def exists(self, name: str) -> bool:
        """Returns whether a regular file of this name is there."""
        # `Path.is_file` takes a file that cannot be asked for now as absent, in later Pythons.
        return stat.S_ISREG(_kind(self._root / name))

    def names(self, folder: str) -> list[str]:
        """The files in `folder`, without their paths; none when it does not exist."""
        return [entry.name for entry in self._files(folder)]

    def stamps(self, folder: str) -> list[tuple[str, int, int]]:
        """The files in `folder`, their bytes and when they were last changed (ns), by name."""
        files = [(entry.name, entry.stat()) for entry in self._files(folder)]
        return sorted((name, status.st_size, status.st_mtime_ns) for name, status in files)

    def paths(self, depth: int) -> list[str]:
        """Sorted paths of the files down to so many folders; a deeper folder is listed whole.

        A link that leads out of the run directory is listed itself, and not followed.
        """
        paths: list[str] = []
        folders = [""]
        for _ in range(depth):
            below: list[str] = []
            for folder in folders:
                for entry in self._entries(folder):
                    name = f"{folder}{entry.name}"
                    inside = stat.S_ISDIR(_kind(entry)) and not self.leads_out(name)
                    (below if inside else paths).append(f"{name}/" if inside else name)
            folders = below
        return sorted([*paths, *folders])

    @contextlib.contextmanager
    def locked(self, name: str, *, alone: bool) -> Iterator[bool]:
        """Locks a file while this is open; yields whether there is a lock.

        Who may open the file can lock it, and so stop the run: it is its owner's alone, unless the
        run directory may be written by a group. An older file that others may open is tightened.
        Where the folder is gone, and where files have no locks, there is none.

        Args:
            name: the file, which is made where it is to be locked `alone`.
            alone: nobody else has a lock meanwhile; else others may have one that is not alone.

        Raises:
            OSError: another process has had the lock for 10 s.
        """
        try:
            mode = 0o660 if self._root.stat().st_mode & stat.S_IWGRP else 0o600
            create = os.O_CREAT if alone else 0
            file = os.open(self._root / name, os.O_RDWR | os.O_CLOEXEC | create, mode)
        except FileNotFoundError:
            yield False
            return
        try:
            status = os.fstat(file)
            if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != mode:
                with contextlib.suppress(OSError):  # of file systems without modes
                    os.fchmod(file, mode)
            yield _flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH, name)
        finally:
            os.close(file)

    def _files(self, folder: str) -> list[os.DirEntry[str]]:
        files: list[os.DirEntry[str]] = []
        for entry in self._entries(folder):
            is_file = entry.is_file(follow_symlinks=False)
            if entry.is_symlink():  # others are known without a call each
                is_file = stat.S_ISREG(_kind(entry))
            if is_file:
                files.append(entry)
        return files

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self._root / folder) as entries:
                return list(entries)
        except OSError as error:
            if error.errno in _NOTHING:
                return []
            raise


def _kind(path: Path | os.DirEntry[str]) -> int:
    """Returns the mode of a file or folder, or of what a link leads to; 0 where nothing is there.

    Raises:
        OSError: it cannot be known now.
    """
    try:
        return os.stat(path).st_mode
    except OSError as error:
        if error.errno in _NOTHING:
            return 0
        raise


def reason(error: BaseException) -> str:
    """Why, in a few words; the file is named by whoever reports it."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return first_line(error)


def _write(
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


def _flock(file: int, kind: int, name: str) -> bool:
    """Takes a lock on the open file `name`; False where there are none. Raises OSError."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise BlockingIOError(f"another process locks {name}") from None
            time.sleep(0.01)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return False
            raise
