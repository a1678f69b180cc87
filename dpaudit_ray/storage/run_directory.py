"""The run directory: the only module that knows where anything lies in it.

    sweep.yaml                              the specification as run
    plan.json                               audits, packs and claims
    scores/<audit>/<first>-<last>.parquet   a finished pack, or many that follow each other
    estimates.parquet                       replaced at every flush
    failures.json                           packs that were given up: their trials are misses
    decisions.json                          audits that `stop_when` ended early
    driver.json                             who works on the run now; gone when nobody does
    .driver.lock                            locked while that changes
    report.html, figures/                   written by `dpaudit report`
    _SUCCESS                                the sweep is complete

Every file is absent or whole, and damage to one that is there is found by checksums.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import pyarrow as pa

from ..errors import DamagedScoresError, RunDirectoryError, StorageError
from .fence import FILE as OWNER
from .fence import LOCK, Fence
from .files import Folder, reason
from .patience import Patience, may_pass
from .scores import ESTIMATE_SCHEMA, PackScores, decoded, encoded, frame, score_frame

T = TypeVar("T")

# A new name alone repeats the trials, bit for bit: it would not be seen that they had been looked
# at, nor how many were declared then.
RESTORE = "restore it, or use a new name and a new seed"
RERUN = "run the sweep again: it is set aside and its trials are run again"
FAILURES = "failures.json"
_ESTIMATES = "estimates.parquet"
_SUCCESS = "_SUCCESS"
_MAGIC = b"PAR1"  # what a Parquet file begins and ends with
_PACK = re.compile(r"(0|[1-9]\d*)-(0|[1-9]\d*)\.parquet")


class RunDirectory:
    """One sweep's directory, local (also NFS) or at an `s3://`, `gs://`, `file://` address.

    Every access goes through `patience`, which asks storage that fails for a while again. Where
    `owner` is given, the token of a driver, nothing is written unless that driver holds the lease.

    Raises:
        RunDirectoryError: from reads, when a file is damaged or not where it should be.
        StorageError: from writes, and from reads that may succeed later; what was acknowledged
            before is safe.
        LeaseLostError: from writes, when the owner is not the owner any more.
    """

    def __init__(
        self, location: str, patience: Patience | None = None, owner: str | None = None
    ) -> None:
        self._patience = patience or Patience()
        self.owner = owner
        try:
            self._folder = Folder(location)
        except (ValueError, OSError) as error:
            raise RunDirectoryError(
                f"cannot use storage path {location} ({reason(error)}); give a folder, or an "
                "address such as s3://bucket/folder"
            ) from error
        self.location = self._folder.location
        self._fence = None if owner is None else Fence(self._folder, owner)
        self._passage = contextlib.nullcontext if self._fence is None else self._fence.passing

    @classmethod
    def under(cls, storage_path: str, name: str, patience: Patience | None = None) -> RunDirectory:
        """The directory `storage_path/name`."""
        scheme, separator, rest = storage_path.rpartition("://")
        if not rest.strip("/") and (separator or not rest):
            raise RunDirectoryError(
                f"storage path {storage_path!r} names no place; give a folder, or an address such "
                "as s3://bucket/folder"
            )
        place = f"{scheme}{separator}{rest.rstrip('/')}/{name}"
        return cls(place if separator else str(Path(rest) / name), patience)

    def patient(self, patience: Patience) -> RunDirectory:
        """The same directory, asked with another patience."""
        return RunDirectory(self.location, patience, self.owner)

    def owned_by(self, owner: str) -> RunDirectory:
        """The same directory, for the driver with this token to write."""
        return RunDirectory(self.location, self._patience, owner)

    def require_owned(self) -> None:
        """Raises LeaseLostError when the run is another driver's, or gone."""
        if self._fence is not None:
            self._try(OWNER, self._fence.check)

    @contextlib.contextmanager
    def locked(self) -> Iterator[bool]:
        """While this is open no driver puts a file in place; False where storage has no locks."""
        with contextlib.ExitStack() as stack:
            try:
                locked = stack.enter_context(self._folder.locked(LOCK, alone=True))
            except OSError as error:
                raise RunDirectoryError(
                    f"another driver holds {self.location}/{LOCK} ({reason(error)}): it is paused "
                    "in the midst of a write; let it go on, or stop it"
                ) from error
            yield locked

    def require_writable(self) -> None:
        """Raises RunDirectoryError now, rather than StorageError after an hour of training."""
        try:
            self._patience(self._folder.write, ".writable", b"")
            self._patience(self._folder.delete, ".writable")
        except OSError as error:
            raise RunDirectoryError(
                f"storage path {self.location} cannot be written ({reason(error)}); "
                "choose another with --storage-path"
            ) from error

    # Text files ---------------------------------------------------------------------------

    def read_text(self, name: str) -> str | None:
        """Content of a small file, None when it does not exist."""
        content = self._read(name)
        try:
            return None if content is None else content.decode()
        except UnicodeDecodeError as error:
            raise self._unusable(name, error) from error

    def write_text(self, name: str, text: str) -> None:
        """Writes a small file whole or not at all."""
        self._write(name, text.encode())

    def read_json(self, name: str) -> Any:
        """Parsed JSON, None when the file does not exist."""
        text = self.read_text(name)
        try:
            return None if text is None else json.loads(text)
        except ValueError as error:
            raise self._unusable(name, error) from error

    def write_json(self, name: str, value: Any) -> None:
        """Writes JSON whole or not at all."""
        self.write_text(name, json.dumps(value, indent=1))

    def create_json(self, name: str, value: Any) -> Any:
        """Writes JSON where there is no such file; returns what is there if it is something else.

        See `Folder.create` for how far that holds in an object store.
        """
        content = json.dumps(value, indent=1).encode()
        there = self._try(name, self._folder.create, name, content, self._passage)
        return None if there is None else self.read_json(name)

    def delete(self, name: str) -> None:
        """Removes a file if it is there."""
        self._try(name, self._folder.delete, name, self._passage)

    # Scores -------------------------------------------------------------------------------

    def write_scores(self, audit: str, pack: PackScores) -> None:
        """Puts a pack's file in place; only then is the pack done. It is never replaced.

        Raises:
            StorageError: it could not be written, or other scores of these trials are stored.
        """
        name = self._pack(audit, pack.first, pack.last)
        content = encoded(pack.table(audit))
        there = self._try(name, self._folder.create, name, content, self._passage)
        if there is None:
            return
        difference = self.read_scores(audit, pack.first, pack.last).difference(pack)
        if difference is not None:
            raise StorageError(
                f"{self.location}/{name} was written by somebody else, and is never replaced (this "
                f"try {difference}): the training is no function of its seed, or ran on another "
                "kind of device; run the same command again to go on with what is stored"
            )

    def read_scores(self, audit: str, first: int, last: int) -> PackScores:
        """Reads a score file and checks that it is what its name says.

        Raises:
            DamagedScoresError: it is not.
            RunDirectoryError: there is none, or it may not be read.
            StorageError: it cannot be read now.
        """
        name = self._pack(audit, first, last)
        content = self._read(name)
        if content is None:
            raise self._unusable(name, FileNotFoundError("it is gone"), "run the sweep again")
        try:
            return PackScores.from_table(decoded(content), audit, first, last)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise DamagedScoresError(str(self._unusable(name, error, RERUN))) from error

    def delete_scores(self, audit: str, first: int, last: int) -> None:
        """Removes a score file whose trials are in another one."""
        self.delete(self._pack(audit, first, last))

    def score_files(self, audit: str) -> set[tuple[int, int]]:
        """First and last trial of each score file of an audit; `gathering` knows the packs."""
        names = self._list(self._folder.names, f"scores/{audit}")
        return {file for name in names if (file := _bounds(name))}

    def sizes(self, audit: str) -> dict[tuple[int, int], int]:
        """The same, and the bytes of each."""
        sizes = self._list(self._folder.sizes, f"scores/{audit}")
        return {file: size for name, size in sizes.items() if (file := _bounds(name))}

    def whole(self, audit: str, first: int, last: int) -> bool:
        """Whether a score file begins and ends as Parquet does; not what is in it.

        Raises:
            StorageError, RunDirectoryError: it cannot be read.
        """
        name = self._pack(audit, first, last)
        try:
            ends = self._patience(self._folder.ends, name, len(_MAGIC))
        except OSError as error:
            raise self._unread(name, error) from error
        return ends == (_MAGIC, _MAGIC)

    def set_aside(self, audit: str, first: int, last: int) -> str:
        """Renames a score file, so that its packs are not finished; returns its new name."""
        name = self._pack(audit, first, last)
        aside = f"{name}.damaged-{secrets.token_hex(4)}"
        self._try(name, self._folder.move, name, aside, self._passage)
        return aside

    @property
    def has_scores(self) -> bool:
        """Whether any pack of any audit is finished."""
        names = self._list(self._folder.names, "scores", True)
        return any(map(_bounds, names))

    def scores(self, audit: str) -> pd.DataFrame:
        """What the score files of an audit hold, in trial order, as their columns.

        Packs that are just being gathered lie in two files; `Result.scores` has each trial once.
        """
        files = sorted(self.score_files(audit))
        return score_frame(audit, [self.read_scores(audit, *file) for file in files])

    # Results ------------------------------------------------------------------------------

    def write_estimates(self, rows: list[dict[str, Any]]) -> None:
        """Replaces estimates.parquet."""
        self._write(_ESTIMATES, encoded(pa.Table.from_pylist(rows, ESTIMATE_SCHEMA)))

    def estimates(self) -> pd.DataFrame:
        """The latest estimates, empty when none were written yet."""
        content = self._read(_ESTIMATES)
        try:
            table = ESTIMATE_SCHEMA.empty_table() if content is None else decoded(content)
            if not table.schema.equals(ESTIMATE_SCHEMA):
                raise ValueError("its columns are other ones")
        except (OSError, ValueError, pa.ArrowException) as error:
            remedy = "delete it and run the sweep again: it is rebuilt from the scores"
            raise self._unusable(_ESTIMATES, error, remedy) from error
        return frame(table)

    def write_figure(self, name: str, content: bytes) -> None:
        """Writes figures/<name>; a link in a stranger's directory does not say where."""
        if self._folder.leads_out(f"figures/{name}"):
            raise RunDirectoryError(
                f"{self.location}/figures leads out of the run directory; remove the link"
            )
        self._write(f"figures/{name}", content)

    @property
    def complete(self) -> bool:
        """Whether _SUCCESS is present."""
        try:
            return self._patience(self._folder.exists, _SUCCESS)
        except OSError as error:
            raise self._unread(_SUCCESS, error) from error

    def set_complete(self, complete: bool) -> None:
        """Writes or removes _SUCCESS."""
        if complete:
            self._write(_SUCCESS, b"")
        else:
            self.delete(_SUCCESS)

    @staticmethod
    def _pack(audit: str, first: int, last: int) -> str:
        return f"scores/{audit}/{first}-{last}.parquet"

    def _list(self, listing: Callable[..., T], *arguments: Any) -> T:
        try:
            return self._patience(listing, *arguments)
        except OSError as error:
            raise self._unread(str(arguments[0]), error) from error

    def _read(self, name: str) -> bytes | None:
        try:
            return self._patience(self._folder.read, name)
        except OSError as error:
            raise self._unread(name, error) from error

    def _write(self, name: str, content: bytes) -> None:
        self._try(name, self._folder.write, name, content, self._passage)

    def _try(self, name: str, action: Callable[..., T], *arguments: Any) -> T:
        """Something that writes."""
        try:
            return self._patience(action, *arguments)
        except OSError as error:
            raise StorageError(
                f"cannot write {self.location}/{name} ({reason(error)}); free or repair the "
                "storage, then run the same command again"
            ) from error

    def _unread(self, name: str, error: OSError) -> StorageError | RunDirectoryError:
        """What could not be read says nothing about what it holds: nothing is to be deleted."""
        what = f"cannot read {self.location}/{name} ({reason(error)})"
        if may_pass(error):
            return StorageError(f"{what}; run the same command again once the storage answers")
        return RunDirectoryError(f"{what}; make it readable, then run the same command again")

    def _unusable(self, name: str, error: Exception, remedy: str = RESTORE) -> RunDirectoryError:
        return RunDirectoryError(
            f"{self.location}/{name} is not readable ({reason(error)}); {remedy}"
        )


def _bounds(name: str) -> tuple[int, int] | None:
    """First and last trial of a score file, None for another file."""
    match = _PACK.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))
