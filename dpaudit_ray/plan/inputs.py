"""The files that a sweep reads, by content: a run must not go on with other data."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

from ..errors import DataError
from ..storage.files import reason
from ..sweep.cell import Cell
from ..sweep.spec import Sweep


@dataclasses.dataclass(frozen=True)
class InputFile:
    """A file as it was when the run began; `sha256` is in hexadecimal digits."""

    file: str
    sha256: str


@runtime_checkable
class _Reads(Protocol):
    def files(self) -> tuple[Path, ...]:
        """What it reads; see `Data.files`."""


def input_files(sweep: Sweep) -> tuple[InputFile, ...]:
    """Every file that the data sets and models of a sweep read, once, in the order of its audits.

    A file that does not exist is left out: whatever needs it says so when it is loaded. Raises
    DataError where a file is there and cannot be read.
    """
    paths = dict.fromkeys(path for path in _files(sweep.cells) if path.is_file())
    return tuple(InputFile(str(path), _digest(path)) for path in paths)


def of_cell(cell: Cell, files: tuple[InputFile, ...]) -> list[str]:
    """SHA-256 of the files that one audit reads, of those that are `known` for its sweep."""
    digests = {file.file: file.sha256 for file in files}
    return [digests[str(path)] for path in _files([cell]) if str(path) in digests]


def other(recorded: tuple[InputFile, ...], now: tuple[InputFile, ...]) -> str | None:
    """What differs in content, in words; None where nothing does.

    Files are compared in their order, equal ones once: where they lie is no part of a run.
    """
    before, after = ({file.sha256: file for file in files} for files in (recorded, now))
    for old, new in itertools.zip_longest(before.values(), after.values()):
        if old is None or new is None or old.sha256 != new.sha256:
            return f"{(new or old).file} has SHA-256 {_short(old)} there, {_short(new)} here"
    return None


def _short(file: InputFile | None) -> str:
    return "of no file" if file is None else f"{file.sha256[:12]}..."


def _files(cells: Iterable[Cell]) -> Iterator[Path]:
    for cell in cells:
        for owner in (cell.mechanism, cell.adversary):
            for name in type(owner).model_fields:
                part = getattr(owner, name)
                if isinstance(part, _Reads):
                    yield from part.files()


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({reason(error)}); make it readable") from error
