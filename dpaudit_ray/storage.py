"""The run directory: the only module that knows where anything lies in it.

    sweep.yaml                              the specification as run
    plan.json                               audits, packs and claims
    scores/<audit>/<first>-<last>.parquet   one file per finished pack, written once
    estimates.parquet                       replaced at every flush
    failures.json                           packs that were given up: their trials are misses
    decisions.json                          audits that `stop_when` ended early
    driver.json                             who works on the run now; gone when nobody does
    report.html, figures/                   written by `dpaudit report`
    _SUCCESS                                the sweep is complete

Every file is absent or whole, and damage to one that is there is found by checksums.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from .errors import RunDirectoryError, StorageError
from .files import Folder, reason
from .patience import Patience

# A new name alone repeats the trials, bit for bit: it would not be seen that they had been looked
# at, nor how many were declared then.
RESTORE = "restore it, or use a new name and a new seed"
FAILURES = "failures.json"
_ESTIMATES = "estimates.parquet"
_SUCCESS = "_SUCCESS"
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
        ("epsilon_lower_together", pa.float64()),
        ("epsilon_lower_free", pa.float64()),
        ("free_estimator", pa.string()),
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

    def difference(self, again: PackScores) -> str | None:
        """The first trial that has another score there, bit for bit, in words; None for none."""
        mine, other = (
            np.ascontiguousarray(pack.scores, dtype=np.float64).view(np.int64)
            for pack in (self, again)
        )
        if mine.shape != other.shape:
            return f"gave scores of shape {other.shape}, not {mine.shape}"
        places = np.argwhere(mine != other)
        if len(places) == 0:
            return None
        row, column = places[0]
        before, after = self.scores[row, column], again.scores[row, column]
        return f"gave {after:.6g} for trial {self.first + row}, not {before:.6g}"

    def table(self, audit: str) -> pa.Table:
        """One row per trial and step."""
        n, k = self.scores.shape
        trials = np.arange(self.first, self.first + n)
        columns = [
            pa.repeat(audit, n * k),
            pa.array(np.repeat(trials, k)),
            pa.array(np.repeat(self.members, k)),
            pa.array(np.tile(np.asarray(self.steps, dtype=np.int32), n)),
            pa.array(self.scores.reshape(-1), from_pandas=False),
        ]
        return pa.Table.from_arrays(columns, schema=SCORE_SCHEMA)

    @classmethod
    def from_table(cls, table: pa.Table, audit: str, first: int, last: int) -> PackScores:
        """The inverse of `table`; raises ValueError when rows are missing or not of this pack."""
        if not table.schema.equals(SCORE_SCHEMA) or any(c.null_count for c in table.columns):
            raise ValueError("its columns are not those of a score file")
        n = last - first + 1
        k = max(len(table) // n, 1)
        pack = cls(
            first,
            table["member"].to_numpy()[::k],
            tuple(table["step"].to_pylist()[:k]),
            np.resize(table["score"].to_numpy(), (n, k)),
        )
        if len(pack.members) != n or not pack.table(audit).drop(["score"]).equals(
            table.drop(["score"])
        ):
            raise ValueError(f"it does not hold trials {first} to {last} of {audit}")
        return pack


def score_frame(audit: str, packs: Iterable[PackScores]) -> pd.DataFrame:
    """The trials of these packs as the columns of a score file."""
    tables = [pack.table(audit) for pack in packs] or [SCORE_SCHEMA.empty_table()]
    return _frame(pa.concat_tables(tables))


class RunDirectory:
    """One sweep's directory, local (also NFS) or at an `s3://`, `gs://`, `file://` address.

    Every access goes through `patience`, which asks storage that fails for a while again.

    Raises:
        RunDirectoryError: from reads, when a file is damaged or not where it should be.
        StorageError: from writes; what was acknowledged before is safe.
    """

    def __init__(self, location: str, patience: Patience | None = None) -> None:
        self._patience = patience or Patience()
        try:
            self._folder = Folder(location)
        except (ValueError, OSError) as error:
            raise RunDirectoryError(
                f"cannot use storage path {location} ({reason(error)}); give a folder, or an "
                "address such as s3://bucket/folder"
            ) from error
        self.location = self._folder.location

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
        return RunDirectory(self.location, patience)

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
            raise self._damaged(name, error) from error

    def write_text(self, name: str, text: str) -> None:
        """Writes a small file whole or not at all."""
        self._write(name, text.encode())

    def read_json(self, name: str) -> Any:
        """Parsed JSON, None when the file does not exist."""
        text = self.read_text(name)
        try:
            return None if text is None else json.loads(text)
        except ValueError as error:
            raise self._damaged(name, error) from error

    def write_json(self, name: str, value: Any) -> None:
        """Writes JSON whole or not at all."""
        self.write_text(name, json.dumps(value, indent=1))

    def delete(self, name: str) -> None:
        """Removes a file if it is there."""
        try:
            self._patience(self._folder.delete, name)
        except OSError as error:
            raise self._unwritten(name, error) from error

    # Scores -------------------------------------------------------------------------------

    def write_scores(self, audit: str, pack: PackScores) -> None:
        """Puts a pack's file in place; only then is the pack done."""
        self._write_table(self._pack(audit, pack.first, pack.last), pack.table(audit))

    def read_scores(self, audit: str, first: int, last: int) -> PackScores:
        """Reads a finished pack and checks that it is what its name says."""
        name = self._pack(audit, first, last)
        remedy = "delete it to have its trials run again"
        table = self._read_table(name, remedy)
        if table is None:
            raise self._damaged(name, FileNotFoundError("it is gone"), "run the sweep again")
        try:
            return PackScores.from_table(table, audit, first, last)
        except ValueError as error:
            raise self._damaged(name, error, remedy) from error

    def finished(self, audit: str) -> set[tuple[int, int]]:
        """Bounds (first, last) of all finished packs of an audit."""
        names = self._names(f"scores/{audit}")
        return {(int(m[1]), int(m[2])) for name in names if (m := _PACK.match(name))}

    @property
    def has_scores(self) -> bool:
        """Whether any pack of any audit is finished."""
        return any(_PACK.match(name) for name in self._names("scores", recursive=True))

    def scores(self, audit: str) -> pd.DataFrame:
        """All finished trials of an audit, in trial order, as the columns of a score file."""
        bounds = sorted(self.finished(audit))
        return score_frame(audit, [self.read_scores(audit, *pack) for pack in bounds])

    # Results ------------------------------------------------------------------------------

    def write_estimates(self, rows: list[dict[str, Any]]) -> None:
        """Replaces estimates.parquet."""
        self._write_table(_ESTIMATES, pa.Table.from_pylist(rows, ESTIMATE_SCHEMA))

    def estimates(self) -> pd.DataFrame:
        """The latest estimates, empty when none were written yet."""
        remedy = "delete it and run the sweep again: it is rebuilt from the scores"
        table = self._read_table(_ESTIMATES, remedy)
        if table is None:
            return _frame(ESTIMATE_SCHEMA.empty_table())
        if not table.schema.equals(ESTIMATE_SCHEMA):
            raise self._damaged(_ESTIMATES, ValueError("its columns are other ones"), remedy)
        return _frame(table)

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
            raise RunDirectoryError(f"cannot read {self.location} ({reason(error)})") from error

    def set_complete(self, complete: bool) -> None:
        """Writes or removes _SUCCESS."""
        if complete:
            self._write(_SUCCESS, b"")
        else:
            self.delete(_SUCCESS)

    @staticmethod
    def _pack(audit: str, first: int, last: int) -> str:
        return f"scores/{audit}/{first}-{last}.parquet"

    def _names(self, folder: str, recursive: bool = False) -> list[str]:
        try:
            return self._patience(self._folder.names, folder, recursive)
        except OSError as error:
            raise RunDirectoryError(f"cannot list {self.location} ({reason(error)})") from error

    def _read(self, name: str) -> bytes | None:
        try:
            return self._patience(self._folder.read, name)
        except OSError as error:
            raise self._damaged(name, error) from error

    def _write(self, name: str, content: bytes) -> None:
        try:
            self._patience(self._folder.write, name, content)
        except OSError as error:
            raise self._unwritten(name, error) from error

    def _read_table(self, name: str, remedy: str) -> pa.Table | None:
        try:
            content = self._patience(self._folder.read, name)
            if content is None:
                return None
            # `pq.read_table` goes through Arrow's data sets, which takes ten times as long here.
            source = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
            return source.read(use_threads=False)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise self._damaged(name, error, remedy) from error

    def _write_table(self, name: str, table: pa.Table) -> None:
        sink = pa.BufferOutputStream()
        words = [field.name for field in table.schema if pa.types.is_string(field.type)]
        pq.write_table(
            table, sink, compression="zstd", write_page_checksum=True, use_dictionary=words
        )
        self._write(name, sink.getvalue().to_pybytes())

    def _damaged(self, name: str, error: Exception, remedy: str = RESTORE) -> RunDirectoryError:
        return RunDirectoryError(
            f"{self.location}/{name} is not readable ({reason(error)}); {remedy}"
        )

    def _unwritten(self, name: str, error: OSError) -> StorageError:
        return StorageError(
            f"cannot write {self.location}/{name} ({reason(error)}); free or repair the storage, "
            "then run the same command again"
        )


def _frame(table: pa.Table) -> pd.DataFrame:
    frame: pd.DataFrame = table.to_pandas()
    return frame
