"""A folder of one sweep, whatever lies in it: asked with patience, and written by its owner only.

`driver.json` names the driver that holds the lease; every process that works for it, its aggregator
too, knows that driver's token and writes only while the entry bears it. In a file system the entry
is read, and the file becomes visible, under a lock that whoever takes a lease over needs alone. In
an object store each upload is on a condition that was taken before the entry was read, so a process
that is paused in between replaces nothing that the new driver has written; what it may still put in
place is an older record that the new driver has not written yet, and then does. `cluster/README.md`
says how far that holds.
"""

import contextlib
import dataclasses
import errno
import json
import random
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

from ..errors import LeaseLostError, MissingFileError, RunDirectoryError, StorageError
from . import strangers
from .buckets import Bucket, LastingError
from .files import Folder, Passage, reason

T = TypeVar("T")
DRIVER = "driver.json"
LOCK = ".driver.lock"  # of no content; it stays, since a lock that is deleted locks nothing

# A new name alone repeats the trials, bit for bit: it would not be seen that they had been looked
# at, nor how many were declared then.
RESTORE = "restore it, or use a new name and a new seed"

# What waiting does not heal. A full disk is one of them: it is told while somebody may still act.
_LASTING = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG,
    errno.EINVAL, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ELOOP, errno.EEXIST,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Patience:
    """Asks again after 0.1 s, 0.2 s, 0.4 s, ..., 10 s for `seconds` in all; 0 asks once.

    Every pause is shortened by up to a half, so that many who failed together come back apart.

    Attributes:
        seconds: time for all attempts.
        sleep: waits for so many seconds.
        tell: called with a line while storage does not answer, after 2 s, 4 s, 8 s and so on.
    """

    seconds: float = 0.0
    sleep: Callable[[float], object] = time.sleep
    tell: Callable[[str], object] = lambda line: None

    def __call__(self, action: Callable[..., T], *arguments: Any) -> T:
        """The result of `action(*arguments)`; raises its last OSError when patience ends."""
        started, waited, pause = time.monotonic(), 0.0, 0.1
        told_at = _QUIET_SECONDS
        while True:
            try:
                return action(*arguments)
            except OSError as error:
                elapsed = max(waited, time.monotonic() - started)
                if elapsed >= self.seconds or not may_pass(error):
                    raise
                if elapsed >= told_at:
                    of_all = f"{elapsed:.0f} of {self.seconds:.0f} s"
                    self.tell(f"storage does not answer, waiting ({of_all}): {reason(error)}")
                    told_at = 2 * elapsed
            wait = min(pause, 10.0) * random.uniform(0.5, 1)
            self.sleep(wait)
            waited, pause = waited + wait, 2 * pause


_QUIET_SECONDS = 2.0  # of an outage: shorter ones are common, and nobody can act on them


def may_pass(error: OSError) -> bool:
    """Whether the same call may succeed later."""
    return error.errno not in _LASTING and not isinstance(error, LastingError)


OPENING = Patience(seconds=5)  # a mistyped address is told soon
RUNNING = Patience(seconds=60)  # an outage of a minute costs a running sweep nothing


class Place:
    """A sweep's directory, local (also NFS) or at an `s3://`, `gs://`, `file://` address.

    Every access goes through `patience`. Where `owner` is given, the token of a driver, nothing is
    written unless that driver holds the lease.

    Raises:
        RunDirectoryError: from reads, when a file is damaged or not where it should be.
        StorageError: from writes, and from reads that may succeed later.
        LeaseLostError: from writes, when the owner is not the owner any more.
    """

    def __init__(
        self, location: str, patience: Patience | None = None, owner: str | None = None
    ) -> None:
        self._patience = patience or Patience()
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
        self._passage = contextlib.nullcontext if owner is None else self._owned

    @classmethod
    def under(cls, storage_path: str, name: str, patience: Patience | None = None) -> Self:
        scheme, separator, rest = storage_path.rpartition("://")
        if not rest.strip("/") and (separator or not rest):
            raise RunDirectoryError(
                f"storage path {storage_path!r} names no place; give a folder, or an address such "
                "as s3://bucket/folder"
            )
        place = f"{scheme}{separator}{rest.rstrip('/')}/{name}"
        return cls(place if separator else str(Path(rest) / name), patience)

    def patient(self, patience: Patience) -> Self:
        return type(self)(self.location, patience, self.owner)

    def owned_by(self, owner: str) -> Self:
        return type(self)(self.location, self._patience, owner)

    def require_owned(self) -> None:
        """Raises LeaseLostError when the run is another driver's, or gone."""
        if self.owner is not None:
            self._try(DRIVER, self._check_owner)

    @contextlib.contextmanager
    def _owned(self) -> Iterator[None]:
        """What is put in place in here is put by the lease's holder; LeaseLostError for others."""
        with self._folder.locked(LOCK, alone=False):
            self._check_owner()
            yield

    def _check_owner(self) -> None:
        content: bytes | None = b""
        try:
            content = self._folder.read(DRIVER)
            entry = strangers.parsed((content or b"{}").decode())
        except ValueError:  # damaged, or not opened: of nobody
            entry = {}
        if isinstance(entry, dict) and entry.get("owner") == self.owner:
            return
        if content is not None:
            raise LeaseLostError(
                f"another driver has taken over {self.location} ({process_of(entry)}) and goes on "
                "with the sweep; this one has stopped and writes nothing more"
            )
        raise LeaseLostError(
            f"{self.location}/{DRIVER} is gone: another driver had taken over and has ended, or "
            "the run directory was moved or deleted; this one has stopped and writes nothing more: "
            "restore what is missing and run the same command again to resume"
        )

    @contextlib.contextmanager
    def locked(self) -> Iterator[bool]:
        """While this is open no driver puts a file in place; false where storage has no locks."""
        with contextlib.ExitStack() as stack:
            try:
                locked = stack.enter_context(self._folder.locked(LOCK, alone=True))
            except BlockingIOError as error:
                raise RunDirectoryError(
                    f"another driver holds {self.location}/{LOCK} ({reason(error)}): it is paused "
                    "in the midst of a write; let it go on, or stop it"
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
        try:
            content = self._content(name)
            return None if content is None else content.decode()
        except ValueError as error:  # also where it is not opened
            raise self._unusable(name, error) from error

    def write_text(self, name: str, text: str) -> None:
        self._write(name, text.encode())

    def read_json(self, name: str) -> Any:
        text = self.read_text(name)
        try:
            return None if text is None else strangers.parsed(text)
        except ValueError as error:
            raise self._unusable(name, error) from error

    def write_json(self, name: str, value: Any, passage: Passage | None = None) -> None:
        self._write(name, json.dumps(value, indent=1).encode(), passage)

    def create_json(self, name: str, value: Any) -> Any:
        """Writes JSON where there is none.

        Returns:
            The value that another writer has stored; None if this one is stored now.
        """
        content = json.dumps(value, indent=1).encode()
        there = self._try(name, self._folder.create, name, content, self._passage)
        if there is None:
            return None
        # Parsed, not read again: if it were deleted meanwhile, this one would count as stored.
        try:
            return strangers.parsed(there.decode())
        except ValueError as error:
            raise self._unusable(name, error) from error

    def exists(self, name: str) -> bool:
        """Returns whether a file is stored. It is asked for by name, since lists may lag behind."""
        return self._read_with(self._folder.exists, name)

    def files(self, depth: int) -> list[str]:
        """Every file in it and in folders below, to so many, by its path from here."""
        return self._read_with(self._folder.paths, depth, name="")

    def delete(self, name: str) -> None:
        self._try(name, self._folder.delete, name, self._passage)

    def _create(self, name: str, content: bytes, difference: Callable[[], str | None]) -> None:
        """Writes a file once; StorageError where there is one with what `difference` says."""
        if self._try(name, self._folder.create, name, content, self._passage) is None:
            return
        if (other := difference()) is not None:
            raise StorageError(
                f"{self.location}/{name} was written by somebody else, and is never replaced (this "
                f"try {other}): what makes it is no function of its seed, or ran on another kind "
                "of device; run the same command again to go on with what is stored"
            )

    def set_aside(self, name: str) -> str:
        """Gives a damaged file a name that nobody looks for; returns it."""
        aside = f"{name}.damaged-{secrets.token_hex(4)}"
        self._try(name, self._folder.move, name, aside, self._passage)
        return aside

    def _numbered(self, folder: str, owner: str) -> Iterator[tuple[int, ...]]:
        names = self._read_with(self._folder.names, f"{folder}/{owner}")
        return filter(None, (numbers(folder, name) for name in names))

    def _read_with(self, action: Callable[..., T], argument: Any, name: str | None = None) -> T:
        """Returns `action(argument)`.

        Args:
            action: reads, or lists, what is stored.
            argument: a name below this place, or another argument of `action`.
            name: the name for errors, where it is not `argument`; empty: this place itself.
        """
        try:
            return self._patience(action, argument)
        except OSError as error:
            raise self._unread(argument if name is None else name, error) from error

    def _content(self, name: str, most: int = strangers.RECORD) -> bytes | None:
        """What is in a file. Raises StrangeFileError for what is not opened, too."""
        try:
            return self._patience(self._folder.read, name, most)
        except OSError as error:
            raise self._unread(name, error) from error

    def _write(self, name: str, content: bytes, passage: Passage | None = None) -> None:
        self._try(name, self._folder.write, name, content, passage or self._passage)

    def _try(self, name: str, action: Callable[..., T], *arguments: Any) -> T:
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

    def _unread(self, name: str, error: OSError) -> StorageError | RunDirectoryError:
        """What could not be read says nothing about what it holds: nothing is to be deleted."""
        place = f"{self.location}/{name}".rstrip("/")
        what = f"cannot read {place} ({reason(error)})"
        if may_pass(error):
            return StorageError(f"{what}; run the same command again once the storage answers")
        remedy = "make it readable"
        if isinstance(error, LastingError):
            remedy = error.remedy
            if error.renewable:
                return StorageError(f"{what}; {remedy}, then run the same command again")
        return RunDirectoryError(f"{what}; {remedy}, then run the same command again")

    def _gone(self, name: str) -> MissingFileError:
        error = FileNotFoundError("it is gone")
        return MissingFileError(str(self._unusable(name, error, "run the sweep again")))

    def _unusable(self, name: str, error: Exception, remedy: str = RESTORE) -> RunDirectoryError:
        return RunDirectoryError(
            f"{self.location}/{name} is not readable ({reason(error)}); {remedy}"
        )


_NUMBER = r"(0|[1-9]\d*)"
# Names of files in the folders of an audit or a preparation: trials, parts and steps.
_NUMBERED = {
    "scores": re.compile(rf"{_NUMBER}-{_NUMBER}\.parquet"),
    "checkpoints": re.compile(rf"{_NUMBER}-{_NUMBER}-{_NUMBER}\.parquet"),
    "preparations": re.compile(rf"{_NUMBER}\.parquet"),
    "missed": re.compile(rf"{_NUMBER}\.txt"),
}
# By a process that was killed, or set aside since it was damaged.
_LEFT = re.compile(r".*/(\.[^/]+\.[0-9a-f]{8}\.tmp|[^/]+\.parquet\.damaged-[0-9a-f]{8})")
DEPTH = 4  # of folders that are looked into; a run has two


def numbers(folder: str, name: str) -> tuple[int, ...]:
    """The numbers in the name of a file in a folder below `folder`; none where it is not so."""
    match = _NUMBERED[folder].fullmatch(name)
    return () if match is None else tuple(map(int, match.groups()))


def foreign(path: str, audits: Collection[str], preparations: Collection[str]) -> bool:
    """Whether a file lies where only a run with these ids writes, and is none of it."""
    folder, *below = path.split("/")
    if folder not in _NUMBERED or not below or _LEFT.fullmatch(path):
        return False
    owners = preparations if folder == "preparations" else audits
    return not (len(below) == 2 and below[0] in owners and numbers(folder, below[1]))


def process_of(entry: Any) -> str:
    """The driver that an entry of `driver.json` names, in words."""
    holder = entry if isinstance(entry, dict) else {}
    return f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
