"""The run directory: the only module that knows where anything lies in it.

    sweep.yaml                              the specification as run
    plan.json                               audits, packs and claims
    scores/<audit>/<first>-<last>.parquet   one file per finished pack, written once
    estimates.parquet                       replaced at every flush
    failures.json                           packs that failed in the last try
    report.html, figures/                   written by `dpaudit report`
    _SUCCESS                                the sweep is complete

A file is either absent or whole: local files are written beside their place, synced and renamed;
object stores make an upload visible only when it is complete.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from .errors import RunDirectoryError, StorageError

_PACK = re.compile(r"^(\d+)-(\d+)\.parquet$")
SCORE_SCHEMA = pa.schema(
    [
        ("audit", pa.string()),
        ("trial", pa.int64()),
        ("member", pa.bool_()),
        ("step", pa.int32()),
        ("score", pa.float64()),
    ]
)
ESTIMATE_SCHEMA = pa.schema(
    [
        ("audit", pa.string()),
        ("step", pa.int32()),
        ("trials", pa.int64()),
        ("estimator", pa.string()),
        ("status", pa.string()),
        ("epsilon_lower", pa.float64()),
        ("mu_lower", pa.float64()),
        ("delta", pa.float64()),
        ("confidence", pa.float64()),
        ("epsilon_upper", pa.float64()),
        ("accountant", pa.string()),
        ("threshold", pa.float64()),
    ]
)


@dataclasses.dataclass(frozen=True)
class PackScores:
    """Scores of trials first..first+n-1: `members` bool [n], `scores` float64 [n, len(steps)]."""

    first: int
    members: npt.NDArray[np.bool_]
    steps: tuple[int, ...]
    scores: npt.NDArray[np.float64]

    @property
    def last(self) -> int:
        """The last trial."""
        return self.first + len(self.members) - 1

    def table(self, audit: str) -> pa.Table:
        """One row per trial and step."""
        n, k = self.scores.shape
        trials = np.arange(self.first, self.first + n)
        columns = [
            pa.array([audit] * (n * k)),
            pa.array(np.repeat(trials, k)),
            pa.array(np.repeat(self.members, k)),
            pa.array(np.tile(np.asarray(self.steps, dtype=np.int32), n)),
            pa.array(self.scores.reshape(-1), from_pandas=False),
        ]
        return pa.Table.from_arrays(columns, schema=SCORE_SCHEMA)

    @classmethod
    def from_table(cls, table: pa.Table, audit: str, first: int, last: int) -> PackScores:
        """The inverse of `table`; raises ValueError when rows are missing or not of this pack."""
        if not table.schema.equals(SCORE_SCHEMA):
            raise ValueError("its columns are not those of a score file")
        n = last - first + 1
        steps = table["step"].to_numpy()
        k, rest = divmod(len(steps), n)
        trials = np.repeat(np.arange(first, last + 1), max(k, 1))
        whole = k > 0 and rest == 0 and np.array_equal(table["trial"].to_numpy(), trials)
        if not whole or set(table["audit"].unique().to_pylist()) != {audit}:
            raise ValueError(f"it does not hold trials {first} to {last} of {audit}")
        return cls(
            first,
            table["member"].to_numpy(zero_copy_only=False)[::k],
            tuple(int(s) for s in steps[:k]),
            table["score"].to_numpy().reshape(n, k),
        )


class RunDirectory:
    """One sweep's directory, local (also NFS) or at an `s3://`, `gs://` address.

    Raises:
        RunDirectoryError: from reads, when a file is damaged or not where it should be.
        StorageError: from writes; what was acknowledged before is safe.
    """

    def __init__(self, location: str) -> None:
        remote = "://" in location
        self.location = location if remote else str(Path(location).absolute())
        try:
            if remote:
                self._fs, self._root = fs.FileSystem.from_uri(location)
            else:
                self._fs, self._root = fs.LocalFileSystem(), self.location
        except (ValueError, OSError) as error:
            raise RunDirectoryError(f"cannot use storage path {location}: {error}") from error

    @classmethod
    def under(cls, storage_path: str, name: str) -> RunDirectory:
        """The directory `storage_path/name`."""
        return cls(f"{storage_path.rstrip('/')}/{name}")

    @property
    def is_local(self) -> bool:
        """Whether files can be opened by their path on this machine."""
        return isinstance(self._fs, fs.LocalFileSystem)

    def require_writable(self) -> None:
        """Raises RunDirectoryError now, rather than StorageError after an hour of training."""
        try:
            self.write_text(".writable", "")
            self._fs.delete_file(self._path(".writable"))
        except (StorageError, OSError) as error:
            raise RunDirectoryError(
                f"storage path {self.location} cannot be written ({_reason(error)}); "
                "choose another with --storage-path"
            ) from error

    # Text files ---------------------------------------------------------------------------

    def read_text(self, name: str) -> str | None:
        """Content of a small file, None when it does not exist."""
        try:
            with self._fs.open_input_stream(self._path(name)) as stream:
                return bytes(stream.read()).decode()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise RunDirectoryError(
                f"cannot read {self.location}/{name} ({_reason(error)})"
            ) from error

    def write_text(self, name: str, text: str) -> None:
        """Writes a small file whole or not at all."""
        self._write(name, text.encode())

    def read_json(self, name: str) -> Any:
        """Parsed JSON, None when the file does not exist."""
        text = self.read_text(name)
        try:
            return None if text is None else json.loads(text)
        except ValueError as error:
            raise RunDirectoryError(
                f"{self.location}/{name} is damaged ({error}); restore it or use a new name"
            ) from error

    def write_json(self, name: str, value: Any) -> None:
        """Writes JSON whole or not at all."""
        self.write_text(name, json.dumps(value, indent=1))

    # Scores -------------------------------------------------------------------------------

    def write_scores(self, audit: str, pack: PackScores) -> None:
        """Puts a pack's file in place; only then is the pack done."""
        self._write_table(self._pack(audit, pack.first, pack.last), pack.table(audit))

    def read_scores(self, audit: str, first: int, last: int) -> PackScores:
        """Reads a finished pack and checks that it is what its name says."""
        name = self._pack(audit, first, last)
        try:
            with self._fs.open_input_file(self._path(name)) as file:
                return PackScores.from_table(pq.read_table(file), audit, first, last)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise RunDirectoryError(
                f"{self.location}/{name} is not a readable score file ({_reason(error)}); "
                "delete it to have its trials run again"
            ) from error

    def finished(self, audit: str) -> set[tuple[int, int]]:
        """Bounds (first, last) of all finished packs of an audit."""
        selector = fs.FileSelector(self._path(f"scores/{audit}"), allow_not_found=True)
        try:
            names = [info.base_name for info in self._fs.get_file_info(selector)]
        except OSError as error:
            raise RunDirectoryError(f"cannot list {self.location} ({_reason(error)})") from error
        return {(int(m[1]), int(m[2])) for name in names if (m := _PACK.match(name))}

    def scores(self, audit: str) -> pd.DataFrame:
        """All finished trials of an audit, in trial order, as the columns of a score file."""
        packs = [self.read_scores(audit, *bounds) for bounds in sorted(self.finished(audit))]
        tables = [pack.table(audit) for pack in packs] or [SCORE_SCHEMA.empty_table()]
        return _frame(pa.concat_tables(tables))

    # Results ------------------------------------------------------------------------------

    def write_estimates(self, rows: list[dict[str, Any]]) -> None:
        """Replaces estimates.parquet."""
        self._write_table("estimates.parquet", pa.Table.from_pylist(rows, ESTIMATE_SCHEMA))

    def estimates(self) -> pd.DataFrame:
        """The latest estimates, empty when none were written yet."""
        try:
            with self._fs.open_input_file(self._path("estimates.parquet")) as file:
                return _frame(pq.read_table(file, schema=ESTIMATE_SCHEMA))
        except FileNotFoundError:
            return _frame(ESTIMATE_SCHEMA.empty_table())
        except (OSError, ValueError, pa.ArrowException) as error:
            raise RunDirectoryError(
                f"{self.location}/estimates.parquet is not readable ({_reason(error)}); delete it "
                "and run the sweep again: it is rebuilt from the scores"
            ) from error

    def write_figure(self, name: str, content: bytes) -> None:
        """Writes figures/<name>."""
        self._write(f"figures/{name}", content)

    @property
    def complete(self) -> bool:
        """Whether _SUCCESS is present."""
        info = self._fs.get_file_info(self._path("_SUCCESS"))
        return bool(info.type == fs.FileType.File)

    def set_complete(self, complete: bool) -> None:
        """Writes or removes _SUCCESS."""
        if complete:
            self.write_text("_SUCCESS", "")
        elif self.complete:
            self._fs.delete_file(self._path("_SUCCESS"))

    # Where and how ------------------------------------------------------------------------

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @staticmethod
    def _pack(audit: str, first: int, last: int) -> str:
        return f"scores/{audit}/{first}-{last}.parquet"

    def _write_table(self, name: str, table: pa.Table) -> None:
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        self._write(name, sink.getvalue())

    def _write(self, name: str, content: bytes | pa.Buffer) -> None:
        path = self._path(name)
        try:
            if self.is_local:
                _write_local(Path(path), content)
            else:
                with self._fs.open_output_stream(path) as stream:
                    stream.write(content)
        except OSError as error:
            raise StorageError(
                f"cannot write {self.location}/{name} ({_reason(error)}); free or repair the "
                "storage, then run the same command again"
            ) from error


def _write_local(path: Path, content: bytes | pa.Buffer) -> None:
    """Write, sync, rename, sync the folder: after this returns, a power cut loses nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.tmp")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _frame(table: pa.Table) -> pd.DataFrame:
    frame: pd.DataFrame = table.to_pandas()
    return frame


def _reason(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).splitlines()[0]
