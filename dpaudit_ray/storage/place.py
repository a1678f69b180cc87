"""A sweep's directory, in a file system or an object store, which only its owner writes to.

`driver.json` names the driver that holds the lease. Every process that works for that driver, its
aggregator included, knows its token, and writes only while the entry has this token. In a file
system the entry is read, and the file becomes visible, under a lock that a driver needs alone to
take a lease over. In an object store each upload has a condition that was set before the entry was
read, so a process that is paused in between replaces nothing that the new driver has written. It
may still store an older version of a file that the new driver writes only later.
`cluster/README.md` describes the limits of this.
"""

import errno
import json
import os
import random
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import Any, Self, TypeVar

import pyarrow as pa

from ..errors import LeaseLostError, MissingFileError, RunDirectoryError, StorageError
from . import strangers
from .buckets import Bucket, LastingError
from .files import Folder, WriteGuard, reason

T = TypeVar("T")
DRIVER = "driver.json"
LOCK = ".driver.lock"  # is empty, and never deleted: a lock on a deleted file locks nothing

# A new name alone would repeat the same trials bit for bit, and hide that their results were known
# before, and how many trials were declared then.
RESTORE = "restore it, or use a new name and a new seed"

# Errors that waiting does not end, as on a full disk: they are reported while a user can still act.
_LASTING = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG,
    errno.EINVAL, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ELOOP, errno.EEXIST,
}  # fmt: skip
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 10.0
_QUIET_SECONDS = 2.0  # shorter outages are common, and not reported


@dataclass(frozen=True)
class Patience:
    """Repeats a call that fails after 0.1 s, 0.2 s, 0.4 s, ..., 10 s, for `seconds` in all.

    Each pause is shortened by up to a half at random, so that processes that failed at the same
    moment do not repeat their calls at the same moment.

    Attributes:
        seconds: time for all attempts; 0 for one attempt.
        sleep: waits for this number of seconds.
        tell: called with a line while storage does not answer, after 2 s, 4 s, 8 s and so on.
    """

    seconds: float = 0.0
    sleep: Callable[[float], object] = time.sleep
    tell: Callable[[str], object] = lambda line: None

    def __call__(
        self,
        action: Callable[..., T],
        *arguments: Any,
    ) -> T:
        """Returns `action(*arguments)`; raises its last OSError when the time is over."""
        started = time.monotonic()
        slept = 0.0  # counted, since another `sleep` function may not move the clock
        pause = _FIRST_PAUSE_SECONDS
        next_report = _QUIET_SECONDS
        while True:
            try:
                return action(*arguments)
            except OSError as error:
                elapsed = max(slept, time.monotonic() - started)
                if elapsed >= self.seconds or not _is_temporary(error):
                    raise
                if elapsed >= next_report:
                    progress = f"{elapsed:.0f} of {self.seconds:.0f} s"
                    self.tell(f"storage does not answer, waiting ({progress}): {reason(error)}")
                    next_report = 2 * elapsed
            shortened = min(pause, _LONGEST_PAUSE_SECONDS) * random.uniform(0.5, 1)
            self.sleep(shortened)
            slept += shortened
            pause *= 2


def _is_temporary(error: OSError) -> bool:
    """Returns whether the same call may succeed later."""
    return error.errno not in _LASTING and not isinstance(error, LastingError)


_ONCE = Patience()
OPENING = Patience(seconds=5)  # a mistyped address is reported soon
RUNNING = Patience(seconds=60)  # a running sweep survives an outage of a minute


class Place:
    """A sweep's directory, local (also NFS) or at an `s3://`, `gs://`, `az://`, `file://` address.

    Every access is repeated as `patience` allows. If `owner`, the token of a driver, is set, files
    are written only while that driver holds the lease.

    Raises:
        RunDirectoryError: from reads, if a file is damaged or not where it should be.
        StorageError: from writes, and from reads that may succeed later.
        LeaseLostError: from writes, if the owner does not hold the lease any more.
    """

    def __init__(
        self,
        location: str,
        patience: Patience = _ONCE,
        owner: str | None = None,
    ) -> None:
        """Makes the client, without a request.

        Args:
            location: a folder or an address.
            patience: how long each access is repeated.
            owner: token of the driver that writes; None: files are written without a lease.

        Raises:
            RunDirectoryError: the address is not valid.
        """
        self._patience = patience
        self.owner = owner
        try:
            self.local = "://" not in location or location.startswith("file://")
            self._folder = Folder(location) if self.local else Bucket(location)
        except (ValueError, OSError, RuntimeError) as error:  # RuntimeError: no home for the ~
            raise RunDirectoryError(
                f"cannot use storage path {location} ({reason(error)}); give a folder, or an "
                "address such as s3://bucket/folder"
            ) from error
        self.location = self._folder.location
        if owner is not None:
            self._folder.write_guard = self._owned

    @classmethod
    def under(
        cls,
        storage_path: str | PathLike[str],
        name: str,
        patience: Patience = _ONCE,
    ) -> Self:
        """Opens the directory `name` in a storage path.

        Args:
            storage_path: a folder or an address.
            name: name of the directory.
            patience: how long each access is repeated.

        Raises:
            RunDirectoryError: the path names no place.
        """
        parent = os.fspath(storage_path) if isinstance(storage_path, str | PathLike) else ""
        _, separator, path = parent.rpartition("://")
        if not path.strip("/") and (separator or not path):
            raise RunDirectoryError(
                f"storage path {storage_path!r} names no place; give a folder, or an address such "
                "as s3://bucket/folder"
            )
        return cls(f"{parent.rstrip('/')}/{name}", patience)

    def with_patience(self, patience: Patience) -> Self:
        """Returns the same place, with another patience."""
        return type(self)(self.location, patience, self.owner)

    def owned_by(self, owner: str) -> Self:
        """Returns the same place, to write to as this driver only."""
        return type(self)(self.location, self._patience, owner)

    def require_owned(self) -> None:
        """Raises LeaseLostError if another driver holds the lease, or the run is deleted."""
        if self.owner is not None:
            self._write_with(DRIVER, self._check_owner)

    @contextmanager
    def _owned(self) -> Iterator[None]:
        """Lets a file become visible only while the owner holds the lease.

        Raises:
            LeaseLostError: another driver holds it.
        """
        with self._folder.locked(LOCK, alone=False):
            self._check_owner()
            yield

    def _check_owner(self) -> None:
        """Raises LeaseLostError unless `driver.json` names the owner."""
        content: bytes | None = b""
        try:
            content = self._folder.read(DRIVER)
            entry = strangers.parsed((content or b"{}").decode())
        except ValueError:  # the file is damaged, or not opened: it names no owner
            entry = {}
        if isinstance(entry, dict) and entry.get("owner") == self.owner:
            return
        if content is not None:
            raise LeaseLostError(
                f"another driver has taken over {self.location} ({process_of(entry)}) and "
                "continues the sweep; this one has stopped and writes nothing more"
            )
        raise LeaseLostError(
            f"{self.location}/{DRIVER} is gone: another driver had taken over and has ended, or "
            "the run directory was moved or deleted; this one has stopped and writes nothing more: "
            "restore what is missing and run the same command again to resume"
        )

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Locks the directory: no driver can write while this is open. Yields whether locks exist.

        Raises:
            RunDirectoryError: another driver is in the middle of a write, or the lock cannot be
                used.
        """
        with ExitStack() as stack:
            try:
                locked = stack.enter_context(self._folder.locked(LOCK, alone=True))
            except BlockingIOError as error:
                raise RunDirectoryError(
                    f"another driver holds {self.location}/{LOCK} ({reason(error)}): it is paused "
                    "during a write; resume that process, or stop it"
                ) from error
            except OSError as error:
                remedy = "repair the storage, or remove the file"
                if isinstance(error, PermissionError):
                    remedy = (
                        "it belongs to another user: run as that user, or share the run directory "
                        "(docs/run-directory.md)"
                    )
                raise RunDirectoryError(
                    f"cannot lock {self.location}/{LOCK} ({reason(error)}); {remedy}"
                ) from error
            yield locked

    def require_writable(self) -> None:
        """Raises RunDirectoryError now, rather than StorageError after an hour of training."""
        try:
            self._patience(self._folder.write, ".writable", b"")
            self._patience(self._folder.delete, ".writable")
        except OSError as error:
            remedy = "choose another with --storage-path"
            if isinstance(error, FileExistsError):
                remedy = f"a file or a link to nowhere is in its way: remove it, or {remedy}"
            if isinstance(error, LastingError):
                remedy = error.remedy
            raise RunDirectoryError(
                f"storage path {self.location} cannot be written ({reason(error)}); {remedy}"
            ) from error

    def read_text(self, name: str) -> str | None:
        """Returns the text of a file; None if there is no such file."""
        with self._readable(name):
            content = self._content(name)
            return None if content is None else content.decode()

    def write_text(self, name: str, text: str) -> None:
        """Replaces a text file, or creates it."""
        self._write(name, text.encode())

    def read_json(self, name: str) -> Any:
        """Returns the value of a JSON file; None if there is no such file."""
        text = self.read_text(name)
        if text is None:
            return None
        with self._readable(name):
            return strangers.parsed(text)

    def write_json(
        self,
        name: str,
        value: Any,
        write_guard: WriteGuard | None = None,
    ) -> None:
        """Replaces a JSON file.

        Args:
            name: path in the directory.
            value: plain data.
            write_guard: entered while the file becomes visible; by default the owner's guard.
        """
        self._write(name, json.dumps(value, indent=1).encode(), write_guard)

    def create_json(self, name: str, value: Any) -> Any:
        """Writes a JSON file unless it exists.

        Returns:
            The value that another writer has stored; None if this one is stored now.
        """
        content = json.dumps(value, indent=1).encode()
        other = self._write_with(name, self._folder.create, name, content)
        if other is None:
            return None
        # Parses what was read: if the file was deleted since, reading it again would return None.
        with self._readable(name):
            return strangers.parsed(other.decode())

    def exists(self, name: str) -> bool:
        """Returns whether a file is stored; requests its name, since lists may lag behind."""
        return self._read_with(name, self._folder.exists, name)

    def files(self, depth: int) -> list[str]:
        """Returns the paths of all files, relative to this directory, down to `depth` folders."""
        return self._read_with("", self._folder.paths, depth)

    def delete(self, name: str) -> None:
        """Deletes a file, if it exists."""
        self._write_with(name, self._folder.delete, name)

    def set_aside(self, name: str) -> str:
        """Renames a damaged file, so that no reader finds it; returns the new name."""
        new_name = f"{name}.damaged-{secrets.token_hex(4)}"
        self._write_with(name, self._folder.move, name, new_name)
        return new_name

    def _create(
        self,
        name: str,
        content: bytes,
        difference: Callable[[], str | None],
    ) -> None:
        """Writes a file once.

        Args:
            name: path of the file.
            content: content of the file.
            difference: returns how an existing file differs from this one; None if it does not.

        Raises:
            StorageError: a different file exists.
        """
        if self._write_with(name, self._folder.create, name, content) is None:
            return
        change = difference()
        if change is not None:
            raise StorageError(
                f"{self.location}/{name} was written by another process with other content, and is "
                f"never replaced (this attempt {change}): the computation depends on more than its "
                "seed, or ran on another kind of device; run the same command again to continue "
                "with the stored file"
            )

    def _numbered(
        self,
        folder: str,
        owner: str,
    ) -> Iterator[tuple[int, ...]]:
        """Yields the numbers in the names of an audit's or a preparation's files in `folder`."""
        path = f"{folder}/{owner}"
        names = self._read_with(path, self._folder.names, path)
        return filter(None, (numbers(folder, name) for name in names))

    def _content(
        self,
        name: str,
        most: int = strangers.RECORD,
    ) -> bytes | None:
        """Returns a file's content; None if there is no such file.

        Args:
            name: path of the file.
            most: bytes that it may have.

        Raises:
            StrangeFileError: the file has more.
        """
        return self._read_with(name, self._folder.read, name, most)

    def _stored(self, name: str, most: int) -> bytes:
        """Returns the content of a file that was listed, of at most `most` bytes.

        Raises:
            MissingFileError: the file is gone.
        """
        content = self._content(name, most)
        if content is None:
            raise MissingFileError(
                f"{self.location}/{name} is not readable (it is gone); run the sweep again"
            )
        return content

    @contextmanager
    def _readable(
        self,
        name: str,
        remedy: str = RESTORE,
        error_class: type[RunDirectoryError] = RunDirectoryError,
    ) -> Iterator[None]:
        """Turns errors about the content of a file into an error with its name.

        Args:
            name: path of the file.
            remedy: what the user can do.
            error_class: class of the error that is raised instead.
        """
        try:
            yield
        except (OSError, ValueError, pa.ArrowException) as error:
            raise error_class(
                f"{self.location}/{name} is not readable ({reason(error)}); {remedy}"
            ) from error

    def _write(
        self,
        name: str,
        content: bytes,
        write_guard: WriteGuard | None = None,
    ) -> None:
        """Replaces a file, with as many attempts as patience allows.

        Args:
            name: path of the file.
            content: content of the file.
            write_guard: entered while the file becomes visible; by default the owner's guard.

        Raises:
            StorageError: the file is not written.
        """
        self._write_with(name, self._folder.write, name, content, write_guard)

    def _write_with(
        self,
        name: str,
        action: Callable[..., T],
        *arguments: Any,
    ) -> T:
        """Returns `action(*arguments)`, which writes the file `name`; raises StorageError."""
        try:
            return self._patience(action, *arguments)
        except OSError as error:
            remedy = "free or repair the storage"
            if isinstance(error, LastingError):
                remedy = error.remedy
            raise StorageError(
                f"cannot write {self.location}/{name} ({reason(error)}); {remedy}, then run the "
                "same command again"
            ) from error

    def _read_with(
        self,
        name: str,
        action: Callable[..., T],
        *arguments: Any,
    ) -> T:
        """Returns `action(*arguments)`, which reads the file or folder `name`.

        Raises:
            StorageError: the file may be readable later, so its content is unknown.
            RunDirectoryError: waiting does not make the file readable.
        """
        try:
            return self._patience(action, *arguments)
        except OSError as error:
            path = f"{self.location}/{name}".rstrip("/")
            problem = f"cannot read {path} ({reason(error)})"
            if _is_temporary(error):
                raise StorageError(
                    f"{problem}; run the same command again once the storage answers"
                ) from error
            error_class: type[StorageError | RunDirectoryError] = RunDirectoryError
            remedy = "make it readable"
            if isinstance(error, LastingError):
                remedy = error.remedy
                if error.renewable:  # expired credentials: the file is still there
                    error_class = StorageError
            raise error_class(f"{problem}; {remedy}, then run the same command again") from error


_NUMBER = r"(0|[1-9]\d*)"
# Names of files in the folders of an audit or a preparation: trials, parts and steps.
_NUMBERED = {
    "scores": re.compile(rf"{_NUMBER}-{_NUMBER}\.parquet"),
    "checkpoints": re.compile(rf"{_NUMBER}-{_NUMBER}-{_NUMBER}\.parquet"),
    "preparations": re.compile(rf"{_NUMBER}\.parquet"),
    "missed": re.compile(rf"{_NUMBER}\.txt"),
}
# Files of a process that was killed, and damaged files that were set aside.
_LEFTOVER = re.compile(r".*/(\.[^/]+\.[0-9a-f]{8}\.tmp|[^/]+\.parquet\.damaged-[0-9a-f]{8})")
DEPTH = 4  # levels of folders that are listed; a run has two


def numbers(folder: str, name: str) -> tuple[int, ...]:
    """Returns the numbers in a file's name in `folder`; empty if no such file has this name."""
    match = _NUMBERED[folder].fullmatch(name)
    return () if match is None else tuple(map(int, match.groups()))


def foreign(
    path: str,
    audits: Collection[str],
    preparations: Collection[str],
) -> bool:
    """Returns whether a file is in a folder of scores or the like, but not one of the run.

    Args:
        path: path in the run directory.
        audits: ids of the run's audits.
        preparations: ids of its preparations.
    """
    folder, *below = path.split("/")
    if folder not in _NUMBERED or not below or _LEFTOVER.fullmatch(path):
        return False
    owners = preparations if folder == "preparations" else audits
    return not (len(below) == 2 and below[0] in owners and numbers(folder, below[1]))


def process_of(entry: Any) -> str:
    """Returns the process and the host that an entry of `driver.json` names, as text."""
    holder = entry if isinstance(entry, dict) else {}
    return f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
