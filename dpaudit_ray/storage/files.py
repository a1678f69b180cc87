"""Files that are either absent or complete, below one folder of a file system.

Files are written under another name, synced, and then renamed, or linked if they are written once.
All functions raise OSError, and whatever a `WriteGuard` raises.
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

# Returns a context for the moment in which a file becomes visible or is removed. Entering it raises
# an error if that is not allowed.
WriteGuard = Callable[[], AbstractContextManager[None]]
# Time in which a lock is requested again: others hold it for a read and a rename.
LOCK_SECONDS = 10.0
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}  # loops are links that lead to each other
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF}


class Folder:
    """A folder of this machine or of a network file system, with or without a last slash.

    Every change is made within a `write_guard`.
    """

    def __init__(self, location: str) -> None:
        """Takes a path, perhaps with ~, or a `file://` address; the folder need not exist yet."""
        if location.startswith("file://"):
            location = urllib.parse.unquote(location.removeprefix("file://"))
        self._root = Path(location).expanduser().absolute()
        self.location = str(self._root)
        self.write_guard: WriteGuard = contextlib.nullcontext

    def read(
        self,
        name: str,
        most: int = strangers.RECORD,
    ) -> bytes | None:
        """Returns a file's content; None if there is no such file.

        Raises:
            StrangeFileError: the file has more than `most` bytes, or is not a regular file.
        """
        try:
            return strangers.content(str(self._root / name), most)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(
        self,
        name: str,
        content: bytes,
        write_guard: WriteGuard | None = None,
    ) -> None:
        """Stores a file, with the folders above it; replaces an existing one.

        Args:
            name: path of the file.
            content: content of the file.
            write_guard: used in place of the folder's own.
        """
        _write(self._root / name, content, write_guard or self.write_guard, Path.replace)

    def create(self, name: str, content: bytes) -> bytes | None:
        """Stores a file, unless it exists; if several processes do so, one succeeds.

        Returns:
            The content of the file that exists; None if this one is stored, or is the same.
        """
        path = self._root / name
        try:
            _write(path, content, self.write_guard, _link)
        except FileExistsError as error:
            existing = self.read(name, strangers.ARRAYS)
            if existing is None:
                raise OSError("it exists, but cannot be read") from error
            _sync(path.parent)
            # The existing file may be this one: NFS may carry out a call and report a failure.
            return None if existing == content else existing
        return None

    def move(self, name: str, new_name: str) -> None:
        """Renames a file."""
        with self.write_guard():
            (self._root / name).rename(self._root / new_name)

    def delete(self, name: str) -> None:
        """Removes a file if it exists."""
        with self.write_guard():
            (self._root / name).unlink(missing_ok=True)

    def leads_out(self, name: str) -> bool:
        """Returns whether a link in the path of a file leads out of the folder."""
        target = Path(os.path.realpath(self._root / name))  # Path.resolve refuses loops of links
        return not target.is_relative_to(os.path.realpath(self._root))

    def exists(self, name: str) -> bool:
        """Returns whether a regular file of this name exists."""
        # `Path.is_file` of later Pythons returns False if the file's state cannot be known now.
        return stat.S_ISREG(_mode(self._root / name))

    def names(self, folder: str) -> list[str]:
        """Returns the names of the files in `folder`; none if it does not exist."""
        return [entry.name for entry in self._files(folder)]

    def stamps(
        self,
        folder: str,
    ) -> list[tuple[str, int, int]]:
        """Returns name, bytes and time of last change (ns) of each file in `folder`, sorted."""
        files = [(entry.name, entry.stat()) for entry in self._files(folder)]
        return sorted((name, status.st_size, status.st_mtime_ns) for name, status in files)

    def paths(self, depth: int) -> list[str]:
        """Returns sorted paths of the files down to `depth` folders, and of folders below these.

        A link that leads out of the run directory is listed itself, and not followed.
        """
        paths = []
        folders = [""]
        for _ in range(depth):
            subfolders = []
            for folder in folders:
                for entry in self._entries(folder):
                    path = f"{folder}{entry.name}"
                    if stat.S_ISDIR(_mode(entry)) and not self.leads_out(path):
                        subfolders.append(f"{path}/")
                    else:
                        paths.append(path)
            folders = subfolders
        return sorted(paths + folders)

    @contextlib.contextmanager
    def locked(
        self,
        name: str,
        *,
        alone: bool,
    ) -> Iterator[bool]:
        """Locks a file while this is open; yields whether there is a lock.

        A user who may open the file can lock it, and so stop the run: only its owner may, unless a
        group may write to the run directory. An older file that others may open is tightened.
        There is no lock if the folder is gone, or if the file system has none.

        Args:
            name: the file, which is created if it is to be locked `alone`.
            alone: no other process may have a lock; else others may have shared locks.

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
                with contextlib.suppress(OSError):  # some file systems have no modes
                    os.fchmod(file, mode)
            yield _lock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH, name)
        finally:
            os.close(file)

    def _files(self, folder: str) -> list[os.DirEntry[str]]:
        """Returns the regular files in a folder, and links to regular files."""
        files = []
        for entry in self._entries(folder):
            is_file = entry.is_file(follow_symlinks=False)
            if entry.is_symlink():  # only the kind of a link's target takes a further call
                is_file = stat.S_ISREG(_mode(entry))
            if is_file:
                files.append(entry)
        return files

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        """Returns all entries of a folder; none if it does not exist."""
        try:
            with os.scandir(self._root / folder) as entries:
                return list(entries)
        except OSError as error:
            if error.errno in _ABSENT:
                return []
            raise


def _mode(path: Path | os.DirEntry[str]) -> int:
    """Returns the mode of a file or folder, or of a link's target; 0 if it does not exist.

    Raises:
        OSError: the mode cannot be known now.
    """
    try:
        return os.stat(path).st_mode
    except OSError as error:
        if error.errno in _ABSENT:
            return 0
        raise


def reason(error: BaseException) -> str:
    """Returns the reason of an error in a few words, without the file, which the caller names."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return first_line(error)


def _write(
    path: Path,
    content: bytes,
    write_guard: WriteGuard,
    publish: Callable[[Path, Path], object],
) -> None:
    """Writes and syncs a file, publishes it, syncs its folder: a power cut then loses nothing.

    Args:
        path: path of the file.
        content: content of the file.
        write_guard: entered for each change that others can see.
        publish: gives a complete file its path.
    """
    with write_guard():  # a file that may not be written leaves no folder
        path.parent.mkdir(parents=True, exist_ok=True)
    # The name is random, so that two drivers on one run directory cannot mix their bytes.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with write_guard():
            publish(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    """Waits until the names of a folder's files are on disk."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _link(temporary: Path, path: Path) -> None:
    """Links a file to its path. Raises FileExistsError if another file has this path."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # Not safe against a race: two processes may both see no file here, and the later replaces.
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from error
        temporary.replace(path)


def _lock(file: int, kind: int, name: str) -> bool:
    """Locks an open file; returns False if the file system has no locks.

    Args:
        file: descriptor of the file.
        kind: LOCK_EX or LOCK_SH of fcntl.
        name: name of the file, for errors.

    Raises:
        BlockingIOError: another process has had the lock for LOCK_SECONDS.
    """
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
