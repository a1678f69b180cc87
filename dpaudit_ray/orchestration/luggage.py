"""The working directory of a job: what is sent to the cluster, and what stays here."""

from __future__ import annotations

import dataclasses
import fnmatch
import os
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import SpecError

LIMIT = 100 * 2**20  # bytes; what the dashboard of a Ray head takes in one request
IGNORE_FILE = ".rayignore"
LEFT_OUT = (
    *(".git", ".hg", ".venv", "venv", "node_modules", "__pycache__", ".*_cache", ".tox"),
    *("*.pyc", "*.egg-info", "build", "dist", "runs", ".rayignore"),
    *(".env", ".ssh", ".aws", "auth_token", "*.pem"),  # secrets are not for a cluster's storage
)
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same files make the same archive, which Ray sends once


@dataclasses.dataclass(frozen=True)
class Luggage:
    """The files of a folder that a job needs.

    `excludes` are patterns of file or folder names, or of paths below the folder; those of its
    .rayignore and `LEFT_OUT` are added.
    """

    folder: Path
    excludes: tuple[str, ...] = ()

    def files(self) -> list[Path]:
        """Paths below the folder, sorted.

        Raises:
            SpecError: together they are larger than `LIMIT`, or there is no such folder.
        """
        if not self.folder.is_dir():
            raise SpecError("--working-dir", f"{self.folder} is not a folder")
        found, total, sizes = [], 0, []
        for path in self._walk():
            size = (self.folder / path).stat().st_size
            found.append(path)
            sizes.append((size, path))
            total += size
            if total > LIMIT:
                raise _too_large(self.folder, sizes)
        return sorted(found)

    def pack(self, archive: Path) -> None:
        """Writes the files into a zip archive.

        Raises:
            SpecError: as `files` does, or a file cannot be read.
        """
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
            for path in self.files():
                entry = zipfile.ZipInfo(path.as_posix(), _EPOCH)
                entry.compress_type = zipfile.ZIP_DEFLATED
                try:
                    source = self.folder / path
                    entry.external_attr = (source.stat().st_mode & 0o777) << 16
                    out.writestr(entry, source.read_bytes())
                except OSError as error:
                    raise SpecError(
                        "--working-dir", f"cannot read {path} ({error.strerror}); --exclude it"
                    ) from error

    def _walk(self) -> Iterator[Path]:
        patterns = (*LEFT_OUT, *_ignored(self.folder / IGNORE_FILE), *self.excludes)
        for parent, folders, names in os.walk(self.folder):
            here = Path(parent).relative_to(self.folder)
            folders[:] = [name for name in folders if not _matches(here / name, patterns)]
            for name in names:
                path = here / name
                if (self.folder / path).is_file() and not _matches(path, patterns):
                    yield path


def _ignored(file: Path) -> list[str]:
    lines = file.read_text().splitlines() if file.is_file() else []
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def _matches(path: Path, patterns: Sequence[str]) -> bool:
    plain = [pattern.strip("/") for pattern in patterns]
    return any(
        fnmatch.fnmatch(path.name, pattern) or fnmatch.fnmatch(path.as_posix(), pattern)
        for pattern in plain
    )


def _too_large(folder: Path, sizes: list[tuple[int, Path]]) -> SpecError:
    largest = ", ".join(
        f"{path} ({size / 2**20:.0f} MiB)" for size, path in sorted(sizes, reverse=True)[:3]
    )
    return SpecError(
        "--working-dir",
        f"{folder} holds more than {LIMIT // 2**20} MiB (largest so far: {largest}); --exclude "
        f"what the sweep does not need, or list it in {IGNORE_FILE}; "
        "data belongs on shared storage",
    )
