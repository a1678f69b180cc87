"""Scores of packs and rows of estimates, and the Parquet files in which both are stored."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Self, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..errors import DamagedFileError
from . import decoding, strangers
from .place import Place, numbers

Bounds = tuple[int, int]  # first and last trial of a pack, or of a file

RERUN = "run the sweep again: it is set aside and its trials are run again"
# Bytes of a row in memory; a reason of 300 characters may take 1,800 when printed.
ROW_BYTES = 2**11
_MOST_STEPS = 10_000  # recorded steps of an audit
SCORE_SCHEMA = pa.schema(
    {
        "audit": pa.string(),
        "trial": pa.int64(),
        "member": pa.bool_(),
        "step": pa.int32(),
        "score": pa.float64(),
    }
)
# Measured on held-out examples, or for reconstructions; columns after the score if measured.
UTILITY = ("accuracy", "loss", "determined")
# Last columns, if a trial failed or diverged: the reason, empty for all other trials.
MISSED = "missed"
DIVERGED = "diverged"
_DIGEST = b"dpaudit_sha256"  # key in a file's footer: digest of the pack that was written


@dataclasses.dataclass(frozen=True)
class EstimateRow:
    """A bound at one recorded step, with its claim: a row of estimates.parquet, in column order.

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


_ARROW: dict[Any, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
}
_ESTIMATE_TYPES = {field.name: _ARROW[field.type] for field in dataclasses.fields(EstimateRow)}
ESTIMATE_SCHEMA = pa.schema(_ESTIMATE_TYPES | {"step": pa.int32()})


@dataclasses.dataclass(frozen=True)
class PackScores:
    """Scores of consecutive trials.

    Attributes:
        first: the first of the n trials.
        members: bool [n], whether the canary was in.
        steps: the k recorded steps.
        scores: float64 [n, k]. NaN in trials that failed, and where a training run diverged.
        utility: measurements of the trained models, float64 [n, k] by names of UTILITY.
        missed: why trials failed, by trial.
        diverged: why training runs diverged, by trial; not for every run that did.
        outputs: what failed trials printed, by trial; not a part of the file.
        stated: the digest in the file from which the scores were read; empty without a digest.
    """

    first: int
    members: NDArray[np.bool_]
    steps: tuple[int, ...]
    scores: NDArray[np.float64]
    utility: Mapping[str, NDArray[np.float64]] = dataclasses.field(default_factory=dict)
    missed: Mapping[int, str] = dataclasses.field(default_factory=dict)
    diverged: Mapping[int, str] = dataclasses.field(default_factory=dict)
    outputs: Mapping[int, str] = dataclasses.field(default_factory=dict)
    stated: str = ""

    @property
    def last(self) -> int:
        """The last of the trials."""
        return self.first + len(self.members) - 1

    @property
    def failed(self) -> NDArray[np.bool_]:
        """Failed trials, bool [n]."""
        failed = np.zeros(len(self.members), bool)
        failed[[trial - self.first for trial in self.missed]] = True
        return failed

    def part(self, first: int, last: int) -> Self:
        """Returns the scores of trials `first` to `last`, without outputs and digest."""
        rows = slice(first - self.first, last - self.first + 1)
        utility = {name: values[rows] for name, values in self.utility.items()}

        def of_part(reasons: Mapping[int, str]) -> dict[int, str]:
            """Returns the reasons of these trials only."""
            return {trial: why for trial, why in reasons.items() if first <= trial <= last}

        return type(self)(
            first,
            self.members[rows],
            self.steps,
            self.scores[rows],
            utility,
            of_part(self.missed),
            of_part(self.diverged),
        )

    @classmethod
    def joined(cls, packs: Sequence[Self]) -> Self:
        """Joins packs that follow each other."""
        head = packs[0]
        utility = {}
        for name in head.utility:
            utility[name] = np.concatenate([pack.utility[name] for pack in packs])
        missed: dict[int, str] = {}
        diverged: dict[int, str] = {}
        for pack in packs:
            missed |= pack.missed
            diverged |= pack.diverged
        members = np.concatenate([pack.members for pack in packs])
        scores = np.concatenate([pack.scores for pack in packs])
        return cls(head.first, members, head.steps, scores, utility, missed, diverged)

    @property
    def nbytes(self) -> int:
        """Bytes of bits, scores and utility in memory."""
        return sum(values.nbytes for values in (self.members, self.scores, *self.utility.values()))

    def difference(self, again: Self) -> str | None:
        """Returns how the scores differ from `again`, those of another run of the same trials.

        Returns:
            The first difference, in words; None if both are the same, bit for bit.
        """
        before = np.ascontiguousarray(self.scores, float)
        after = np.ascontiguousarray(again.scores, float)
        if before.shape != after.shape:
            return f"gave scores of shape {after.shape}, not {before.shape}"
        if self.steps != again.steps or not np.array_equal(self.members, again.members):
            return "has other bits or steps"
        for trial in sorted(self.missed.keys() ^ again.missed.keys()):
            if trial in self.missed:
                return f"gave a score for trial {trial}, which was missed ({self.missed[trial]})"
            return f"gave no score for trial {trial} ({again.missed[trial]})"
        differs = before.view(np.int64) != after.view(np.int64)
        for row, column in np.argwhere(differs):  # the first one is described
            trial = self.first + row
            return f"gave {after[row, column]:.6g} for trial {trial}, not {before[row, column]:.6g}"
        return None

    def table(self, audit: str) -> pa.Table:
        """Returns a table with a row per trial and step, with columns of measured utility."""
        n, k = self.scores.shape
        trials = np.arange(self.first, self.first + n)
        # Rows go by trial, and then by step; the columns are in the order of the schema.
        names = [*self.utility]
        columns = [
            pa.repeat(audit, n * k),
            pa.array(np.repeat(trials, k)),
            pa.array(np.repeat(self.members, k)),
            pa.array(np.tile(np.asarray(self.steps, np.int32), n)),
        ]
        columns += [pa.array(values.reshape(-1), from_pandas=False) for values in self._measured]
        for name, by_trial in ((MISSED, self.missed), (DIVERGED, self.diverged)):
            if by_trial:
                names.append(name)
                reasons = [by_trial.get(trial, "") for trial in trials.tolist()]
                repeated = np.repeat(np.array(reasons, object), k)
                columns.append(pa.array(repeated, pa.string()))
        return pa.Table.from_arrays(columns, schema=_schema_of(names))

    def digest(self, audit: str) -> str:
        """Returns the SHA-256 of all that the file contains; it changes with any number."""
        missed = sorted((int(trial), why) for trial, why in self.missed.items())
        diverged = sorted((int(trial), why) for trial, why in self.diverged.items())
        head = [
            audit,
            int(self.first),
            [*map(int, self.steps)],
            sorted(self.utility),
            missed,
        ]
        if diverged:  # else the digest is that of version 1.0
            head.append(diverged)
        sha256 = hashlib.sha256(json.dumps(head).encode())
        sha256.update(np.asarray(self.members, bool).tobytes())
        for values in self._measured:
            sha256.update(np.asarray(values, "<f8").tobytes())
        return sha256.hexdigest()

    def encoded(self, audit: str) -> bytes:
        """Returns the content of the score file, with the digest in its metadata."""
        metadata = {_DIGEST: self.digest(audit)}
        return encoded(self.table(audit).replace_schema_metadata(metadata))

    @property
    def _measured(self) -> list[NDArray[np.float64]]:
        """Scores and utility, float64 [n, k] each, in the order of the file's columns."""
        return [self.scores, *(self.utility[name] for name in UTILITY if name in self.utility)]

    @classmethod
    def from_table(
        cls,
        table: pa.Table,
        audit: str,
        first: int,
        last: int,
    ) -> Self:
        """Restores a pack from its table.

        Args:
            table: returned by `decoded`, so that its schema is that of a score file.
            audit: the audit's id.
            first: first trial of the pack.
            last: last trial of the pack.

        Raises:
            ValueError: rows are missing, or not of these trials.
        """
        error = ValueError(f"it does not hold trials {first} to {last} of {audit}")
        n = last - first + 1
        k, excess = divmod(len(table), n)  # rows of a trial: one for each recorded step
        if k == 0 or excess:
            raise error
        measured = {}
        for name in ("score", *UTILITY):
            if name in table.column_names:
                measured[name] = table[name].to_numpy().reshape(n, k).copy()
        unmeasured = table.drop([*measured])

        def reasons(name: str) -> dict[int, str]:
            """Returns the texts of an optional column by trial, without empty ones."""
            if name not in table.column_names:
                return {}
            texts = table[name].to_pylist()[::k]
            return {trial: why for trial, why in enumerate(texts, start=first) if why}

        pack = cls(
            first,
            table["member"].to_numpy()[::k],
            tuple(table["step"].to_pylist()[:k]),
            measured.pop("score"),
            measured,
            reasons(MISSED),
            reasons(DIVERGED),
            stated=(table.schema.metadata or {}).get(_DIGEST, b"").decode("ascii", "replace"),
        )
        # All other columns follow from the pack, so they must be as `table` makes them.
        if not pack.table(audit).drop(["score", *measured]).equals(unmeasured):
            raise error
        for values in pack._measured:
            if not np.isnan(values[pack.failed]).all():
                raise ValueError("it has scores of trials that were missed")
        return pack


def _schema_of(names: Collection[str]) -> pa.Schema:
    """Returns the schema of a score file with those of the optional columns that are in `names`."""
    optional = [pa.field(name, pa.float64()) for name in UTILITY]
    optional += [pa.field(name, pa.string()) for name in (MISSED, DIVERGED)]
    return pa.schema([*SCORE_SCHEMA, *(field for field in optional if field.name in names)])


def score_frame(audit: str, packs: Iterable[PackScores]) -> pd.DataFrame:
    """Returns the trials of packs as a data frame with the columns of a score file."""
    tables = [pack.table(audit) for pack in packs] or [SCORE_SCHEMA.empty_table()]
    rows = frame(pa.concat_tables(tables, promote_options="default"))
    return without_gaps(rows)


def without_gaps(rows: pd.DataFrame) -> pd.DataFrame:
    """Fills in empty reasons for files without a column of reasons, if others have one."""
    names = [name for name in (MISSED, DIVERGED) if name in rows]
    return rows.fillna(dict.fromkeys(names, ""))


def _text_columns(schema: pa.Schema) -> list[str]:
    """Returns the names of the columns that hold text."""
    return [field.name for field in schema if pa.types.is_string(field.type)]


def encoded(table: pa.Table, compression: str = "zstd") -> bytes:
    """Returns a table as a Parquet file, whose pages have checksums."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression=compression,
        write_page_checksum=True,
        use_dictionary=_text_columns(table.schema),
    )
    return cast(bytes, sink.getvalue().to_pybytes())


def decoded(
    content: bytes,
    schema_of: Callable[[list[str]], pa.Schema],
    most_rows: int | None = None,
) -> pa.Table:
    """Reads a table as `encoded` has written it, in bounded memory.

    Args:
        content: a Parquet file.
        schema_of: returns the schema that a file with columns of these names must have.
        most_rows: rows that the file may have, of ROW_BYTES each; None: as many as its size allows.

    Raises:
        OSError, ValueError, pa.ArrowException: the file is damaged, has another schema, lacks a
            value, or is too large.
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
        strangers.require_at_most(max(metadata.num_rows, rows), most_rows, "rows")
        most_bytes = strangers.SCORES + most_rows * ROW_BYTES
    decoded_bytes = 0
    for group in groups:
        for index in range(group.num_columns):
            decoded_bytes += _decoded_bytes(content, group.column(index))
    strangers.require_at_most(decoded_bytes, most_bytes, "decoded bytes")
    # A text may be stored once for many rows: its length is multiplied before it is repeated.
    texts = _text_columns(schema)
    source = pq.ParquetFile(
        pa.BufferReader(content), page_checksum_verification=True, read_dictionary=texts
    )
    table = source.read(use_threads=False)
    if any(column.null_count for column in table.columns):
        raise ValueError("it has rows that lack a value")
    for name in texts:
        for chunk in table[name].chunks:
            lengths = np.array([len(text.as_buffer()) for text in chunk.dictionary])
            decoded_bytes += int(lengths[chunk.indices].sum())
    strangers.require_at_most(decoded_bytes, most_bytes, "decoded bytes")
    return table.cast(schema.with_metadata(table.schema.metadata))


def _decoded_bytes(content: bytes, column: pq.ColumnChunkMetaData) -> int:
    """Returns the bytes that Arrow allocates for a column before texts are repeated."""
    start = column.dictionary_page_offset or column.data_page_offset
    stop = start + column.total_compressed_size
    if not 0 <= start <= stop <= len(content):
        raise ValueError("its pages lie outside of it")
    decoded, values = decoding.page_totals(content, start, stop)
    return decoded + 8 * values  # bytes of the widest number


def frame(table: pa.Table) -> pd.DataFrame:
    """Converts a table to a data frame."""
    return cast(pd.DataFrame, table.to_pandas())


class ScoreFiles(Place):
    """The score files of a run directory: scores/<audit>/<first>-<last>.parquet."""

    def write_scores(self, audit: str, pack: PackScores) -> None:
        """Stores a pack's file once. Raises StorageError if other scores are stored."""
        file = (audit, pack.first, pack.last)
        self._create(
            self.score_file(*file),
            pack.encoded(audit),
            lambda: self.read_scores(*file, len(pack.steps)).difference(pack),
        )

    def read_scores(
        self, audit: str, first: int, last: int, steps: int = _MOST_STEPS
    ) -> PackScores:
        """Reads a score file, and checks that it has the trials that its name states.

        Args:
            audit: the audit's id.
            first: first trial of the file.
            last: last trial of the file.
            steps: number of recorded steps that the file may have.

        Raises:
            DamagedFileError: the file has other trials, or cannot be decoded.
            MissingFileError: there is no such file.
            RunDirectoryError: the file may not be read.
            StorageError: the file cannot be read now.
        """
        name = self.score_file(audit, first, last)
        rows = (last - first + 1) * steps
        with self._readable(name, RERUN, DamagedFileError):
            content = self._stored(name, strangers.SCORES + rows * strangers.SCORE_ROW)
            return PackScores.from_table(decoded(content, _schema_of, rows), audit, first, last)

    def has_scores_of(self, audit: str, pack: Bounds) -> bool:
        """Returns whether a score file has exactly this pack, listed or not."""
        return self.exists(self.score_file(audit, *pack))

    def delete_scores(self, audit: str, first: int, last: int) -> None:
        """Deletes the score file of these trials, if it exists."""
        self.delete(self.score_file(audit, first, last))

    def score_files(self, audit: str) -> set[Bounds]:
        """Returns first and last trial of each score file of an audit, compacted or not."""
        return {(first, last) for first, last in self._numbered("scores", audit)}

    def stamps(
        self,
        audit: str,
    ) -> list[tuple[str, int, int]]:
        """Returns name, bytes and time of last change (ns) of each score file of an audit."""
        return self._read_with(f"scores/{audit}", self._folder.stamps, f"scores/{audit}")

    @property
    def has_scores(self) -> bool:
        """Whether there is a score file of any audit."""
        paths = [path.split("/") for path in self.files(depth=3)]
        return any(path[0] == "scores" and numbers("scores", path[-1]) for path in paths)

    @staticmethod
    def score_file(audit: str, first: int, last: int) -> str:
        """Returns the path of the score file of these trials."""
        return f"scores/{audit}/{first}-{last}.parquet"
