"""Scores of a pack, and the files they are stored in; rows of estimates."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Self, cast

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import DamagedFileError
from . import decoding, strangers
from .place import Place, numbers

Bounds = tuple[int, int]  # first and last trial of a pack, or of a file

RERUN = "run the sweep again: it is set aside and its trials are run again"
ROW_BYTES = 2**11  # of a row in memory; a reason of 300 characters may have 1,800 when printed
_STEPS = 10_000  # recorded of an audit, at most
SCORE_SCHEMA = pa.schema(
    [
        ("audit", pa.string()),
        ("trial", pa.int64()),
        ("member", pa.bool_()),
        ("step", pa.int32()),
        ("score", pa.float64()),
    ]
)
# On held-out examples, or of what was rebuilt; columns after the score where they are measured.
UTILITY = ("accuracy", "loss", "determined")
MISSED = "missed"  # the last column, where a trial was: why, empty for all others
_DIGEST = b"dpaudit_sha256"  # in a file's footer, of what was written into it


@dataclasses.dataclass(frozen=True)
class EstimateRow:
    """A bound at one recorded step beside one claim: a row of estimates.parquet, in its order.

    `epsilon_lower` is at the audit's confidence, `epsilon_lower_together` at the sweep's split
    level, and `epsilon_lower_free` the bound without an assumption, by `free_estimator`.
    """

    audit: str
    step: int
    trials: int
    estimator: str
    status: str
    epsilon_lower: float
    mu_lower: float
    delta: float
    confidence: float
    epsilon_upper: float
    accountant: str
    threshold: float
    epsilon_lower_together: float
    epsilon_lower_free: float
    free_estimator: str


_ARROW = {"str": pa.string(), "int": pa.int64(), "float": pa.float64()}
ESTIMATE_SCHEMA = pa.schema(
    [
        (field.name, pa.int32() if field.name == "step" else _ARROW[str(field.type)])
        for field in dataclasses.fields(EstimateRow)
    ]
)


@dataclasses.dataclass(frozen=True)
class PackScores:
    """Scores of trials first..first+n-1: `members` bool [n], `scores` float64 [n, len(steps)].

    `utility`, like `scores`, by names of UTILITY: what the trained models are worth.
    `missed` says why a trial gave none, by trial; its scores are NaN, and not those of a training
    that diverged. `outputs` has what such trials printed, which is not part of the file. `stated`
    is the digest in the file that they were read from, empty where none was.
    """

    first: int
    members: npt.NDArray[np.bool_]
    steps: tuple[int, ...]
    scores: npt.NDArray[np.float64]
    utility: Mapping[str, npt.NDArray[np.float64]] = dataclasses.field(default_factory=dict)
    missed: Mapping[int, str] = dataclasses.field(default_factory=dict)
    outputs: Mapping[int, str] = dataclasses.field(default_factory=dict)
    stated: str = ""

    @property
    def last(self) -> int:
        return self.first + len(self.members) - 1

    @property
    def lost(self) -> npt.NDArray[np.bool_]:
        """Which trials were missed, bool [n]."""
        missed = np.zeros(len(self.members), dtype=np.bool_)
        missed[[trial - self.first for trial in self.missed]] = True
        return missed

    def part(self, first: int, last: int) -> PackScores:
        rows = slice(first - self.first, last - self.first + 1)
        utility = {name: values[rows] for name, values in self.utility.items()}
        members, scores = self.members[rows], self.scores[rows]
        missed = {trial: why for trial, why in self.missed.items() if first <= trial <= last}
        return PackScores(first, members, self.steps, scores, utility, missed)

    @classmethod
    def joined(cls, packs: Sequence[PackScores]) -> Self:
        before = packs[0]
        utility = {n: np.concatenate([pack.utility[n] for pack in packs]) for n in before.utility}
        members = np.concatenate([pack.members for pack in packs])
        scores = np.concatenate([pack.scores for pack in packs])
        missed = {trial: why for pack in packs for trial, why in pack.missed.items()}
        return cls(before.first, members, before.steps, scores, utility, missed)

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in (self.members, self.scores, *self.utility.values()))

    def difference(self, again: PackScores) -> str | None:
        """In words, the first trial whose score differs by a bit, or that one alone missed."""
        before, after = (np.asarray(pack.scores, np.float64) for pack in (self, again))
        if before.shape != after.shape:
            return f"gave scores of shape {after.shape}, not {before.shape}"
        if self.steps != again.steps or not np.array_equal(self.members, again.members):
            return "has other bits or steps"
        for trial in sorted(self.missed.keys() ^ again.missed.keys()):
            if trial in self.missed:
                return f"gave a score for trial {trial}, which was missed ({self.missed[trial]})"
            return f"gave no score for trial {trial} ({again.missed[trial]})"
        as_bits = (np.ascontiguousarray(scores).view(np.int64) for scores in (before, after))
        for row, column in np.argwhere(np.not_equal(*as_bits)):
            trial = self.first + row
            return f"gave {after[row, column]:.6g} for trial {trial}, not {before[row, column]:.6g}"
        return None

    def table(self, audit: str) -> pa.Table:
        """One row per trial and step; columns of utility where it was measured."""
        n, k = self.scores.shape
        trials = np.arange(self.first, self.first + n)
        columns = [
            pa.repeat(audit, n * k),
            pa.array(np.repeat(trials, k)),
            pa.array(np.repeat(self.members, k)),
            pa.array(np.tile(np.asarray(self.steps, dtype=np.int32), n)),
            *(pa.array(column.reshape(-1), from_pandas=False) for column in self._values),
        ]
        if self.missed:
            reasons = [self.missed.get(trial, "") for trial in trials.tolist()]
            columns.append(pa.array(np.repeat(np.array(reasons, object), k), pa.string()))
        return pa.Table.from_arrays(columns, schema=_schema(self.utility, bool(self.missed)))

    def digest(self, audit: str) -> str:
        """SHA-256 of all that a file of them holds, which tells of numbers that were changed."""
        missed = sorted((int(trial), why) for trial, why in self.missed.items())
        head = [audit, int(self.first), [*map(int, self.steps)], sorted(self.utility), missed]
        sha256 = hashlib.sha256(json.dumps(head).encode())
        sha256.update(np.asarray(self.members, dtype=np.bool_).tobytes())
        for column in self._values:
            sha256.update(np.asarray(column, dtype="<f8").tobytes())
        return sha256.hexdigest()

    def encoded(self, audit: str) -> bytes:
        return encoded(self.table(audit).replace_schema_metadata({_DIGEST: self.digest(audit)}))

    @property
    def _values(self) -> list[npt.NDArray[np.float64]]:
        return [self.scores, *(self.utility[name] for name in UTILITY if name in self.utility)]

    @classmethod
    def from_table(cls, table: pa.Table, audit: str, first: int, last: int) -> PackScores:
        """The inverse of `table`; raises ValueError when rows are missing or not of this pack."""
        measured = [name for name in UTILITY if name in table.column_names]
        some = MISSED in table.column_names
        as_written = table.schema.equals(_schema(measured, some))
        if not as_written or any(c.null_count for c in table.columns):
            raise ValueError("its columns are not those of a score file")
        n = last - first + 1
        k = max(len(table) // n, 1)
        reasons = table[MISSED].to_pylist()[::k] if some else []
        pack = cls(
            first,
            table["member"].to_numpy()[::k],
            tuple(table["step"].to_pylist()[:k]),
            np.resize(table["score"].to_numpy(), (n, k)),
            {name: np.resize(table[name].to_numpy(), (n, k)) for name in measured},
            {trial: why for trial, why in enumerate(reasons, start=first) if why},
            stated=(table.schema.metadata or {}).get(_DIGEST, b"").decode("ascii", "replace"),
        )
        again = pack.table(audit).drop(["score", *measured]) if len(pack.members) == n else None
        if again is None or not again.equals(table.drop(["score", *measured])):
            raise ValueError(f"it does not hold trials {first} to {last} of {audit}")
        if not all(np.isnan(column[pack.lost]).all() for column in pack._values):
            raise ValueError("it has scores of trials that were missed")
        return pack


def _schema(measured: Iterable[str], missed: bool) -> pa.Schema:
    schema = SCORE_SCHEMA
    for name in sorted(measured, key=UTILITY.index):
        schema = schema.append(pa.field(name, pa.float64()))
    return schema.append(pa.field(MISSED, pa.string())) if missed else schema


def _schema_of(names: list[str]) -> pa.Schema:
    return _schema([name for name in UTILITY if name in names], missed=MISSED in names)


def score_frame(audit: str, packs: Iterable[PackScores]) -> pd.DataFrame:
    """The trials of these packs as the columns of a score file."""
    tables = [pack.table(audit) for pack in packs] or [SCORE_SCHEMA.empty_table()]
    rows = frame(pa.concat_tables(tables, promote_options="default"))
    return rows.fillna({MISSED: ""}) if MISSED in rows else rows


def encoded(table: pa.Table, compression: str = "zstd") -> bytes:
    """Returns a table as a Parquet file, whose pages have checksums."""
    sink = pa.BufferOutputStream()
    words = [field.name for field in table.schema if pa.types.is_string(field.type)]
    pq.write_table(
        table, sink, compression=compression, write_page_checksum=True, use_dictionary=words
    )
    return cast(bytes, sink.getvalue().to_pybytes())


def decoded(
    content: bytes, schema_of: Callable[[list[str]], pa.Schema], most_rows: int | None = None
) -> pa.Table:
    """Reads a table as `encoded` has written it, in bounded memory.

    Args:
        content: a Parquet file.
        schema_of: returns the schema that a file with columns of these names must have.
        most_rows: rows that it may have, of ROW_BYTES each; None: as many as its size allows.

    Raises:
        OSError, ValueError, pa.ArrowException: it is damaged, has another schema, or is too large.
    """
    # `pq.read_table` goes through Arrow's data sets, which takes ten times as long here.
    source = pq.ParquetFile(pa.BufferReader(content))
    metadata = source.metadata
    schema = schema_of(source.schema_arrow.names)
    if not source.schema_arrow.equals(schema):
        raise ValueError("its columns are not those of such a file")
    most_bytes = decoding.most_decoded(len(content))
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    if most_rows is not None:
        rows = sum(group.num_rows for group in groups)
        strangers.require(max(metadata.num_rows, rows), most_rows, "rows")
        most_bytes = strangers.SCORES + most_rows * ROW_BYTES
    decoded_bytes = 0
    for group in groups:
        for index in range(group.num_columns):
            decoded_bytes += _decoded_bytes(content, group.column(index))
    strangers.require(decoded_bytes, most_bytes, "decoded bytes")
    # A text may be stored once for many rows: its length is multiplied before it is repeated.
    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    source = pq.ParquetFile(
        pa.BufferReader(content), page_checksum_verification=True, read_dictionary=texts
    )
    table = source.read(use_threads=False)
    for name in texts:
        decoded_bytes += sum(map(_text_bytes, table[name].chunks))
    strangers.require(decoded_bytes, most_bytes, "decoded bytes")
    return table.cast(schema.with_metadata(table.schema.metadata))


def _decoded_bytes(content: bytes, column: pq.ColumnChunkMetaData) -> int:
    """Returns the bytes that Arrow allocates for a column before texts are repeated."""
    start = column.dictionary_page_offset or column.data_page_offset
    stop = start + column.total_compressed_size
    if not 0 <= start <= stop <= len(content):
        raise ValueError("its pages lie outside of it")
    decoded, values = decoding.page_totals(content, start, stop)
    return decoded + 8 * values  # bytes of the widest number


def _text_bytes(texts: pa.DictionaryArray) -> int:
    lengths = np.array([len(text.as_buffer()) for text in texts.dictionary])
    return int(lengths[texts.indices].sum())


def frame(table: pa.Table) -> pd.DataFrame:
    """The table as pandas has it."""
    return cast(pd.DataFrame, table.to_pandas())


class ScoreFiles(Place):
    """The score files of a run directory: scores/<audit>/<first>-<last>.parquet."""

    def write_scores(self, audit: str, pack: PackScores) -> None:
        """Puts a pack's file in place for good. Raises StorageError where others are stored."""

        def difference() -> str | None:
            return self.read_scores(audit, pack.first, pack.last, len(pack.steps)).difference(pack)

        self._create(self.score_file(audit, pack.first, pack.last), pack.encoded(audit), difference)

    def read_scores(self, audit: str, first: int, last: int, steps: int = _STEPS) -> PackScores:
        """Reads a score file and checks that it is what its name says, of so many steps at most.

        Raises DamagedFileError where it is not, MissingFileError where there is none,
        RunDirectoryError where it may not be read, StorageError where it cannot be read now.
        """
        name, rows = self.score_file(audit, first, last), (last - first + 1) * steps
        try:
            content = self._content(name, strangers.SCORES + rows * strangers.SCORE_ROW)
            if content is None:
                raise self._gone(name)
            return PackScores.from_table(decoded(content, _schema_of, rows), audit, first, last)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise DamagedFileError(str(self._unusable(name, error, RERUN))) from error

    def has_scores_of(self, audit: str, pack: Bounds) -> bool:
        """Returns whether a pack has a score file of its own, listed or not."""
        return self.exists(self.score_file(audit, *pack))

    def delete_scores(self, audit: str, first: int, last: int) -> None:
        self.delete(self.score_file(audit, first, last))

    def score_files(self, audit: str) -> set[Bounds]:
        """First and last trial of each score file of an audit; `compaction` knows the packs."""
        return {(first, last) for first, last in self._numbered("scores", audit)}

    def stamps(self, audit: str) -> list[tuple[str, int, int]]:
        return self._read_with(self._folder.stamps, f"scores/{audit}")

    @property
    def has_scores(self) -> bool:
        paths = (path.split("/") for path in self.files(depth=3) if path.startswith("scores/"))
        return any(numbers("scores", path[-1]) for path in paths)

    @staticmethod
    def score_file(audit: str, first: int, last: int) -> str:
        return f"scores/{audit}/{first}-{last}.parquet"
