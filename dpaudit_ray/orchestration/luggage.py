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
HIDDEN = ".*"  # settings of tools, caches, and most secrets: .git, .venv, .env, .netrc, .kube, .ray
MADE = ("__pycache__", "*.pyc", "*.egg-info", "node_modules")
MADE_OUTSIDE = ("venv", "build", "dist", "runs")  # of packages, where such names are the user's
# Secrets are not for a cluster's storage, whether they have a dot or not.
SECRETS = (
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*.key", "*.pem", "*.ppk"),
    *("*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx"),
    *("token", "*[_-]token", "*.token", "token.*", "tokens.*", "*[_-]token.*"),
    *("netrc", "_netrc", "git-credentials", "kubeconfig", "*.kubeconfig", "*.env"),
    *("credentials", "credentials.*", "*[_-]credentials", "*[_-]credentials.*"),
    *("secret", "secrets", "secret.*", "secrets.*", "client_secret*", "*service[_-]account*.json"),
)
CODE = ("*.py", "*.pyi", "*.ipynb")  # about secrets, perhaps, and none itself
# Where links lead under other names.
SECRET_PLACES = {".ssh", ".aws", ".kube", ".gnupg", ".ray", ".docker", ".azure", "gcloud"}
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same files make the same archive, which Ray sends once


@dataclasses.dataclass(frozen=True)
class Luggage:
    """The files of a folder that a job needs; links count as what they lead to.

    `excludes` are patterns of file or folder names, or of paths below the folder; those of its
    .rayignore are added. What begins with a dot, looks like a secret or was made by tools stays
    here in any case. Packages are sent whole otherwise, whatever their folders are called.
    """

    folder: Path
    excludes: tuple[str, ...] = ()

    def files(self) -> list[Path]:
        """Paths below the folder, sorted.

        Raises:
            SpecError: together they are larger than `LIMIT`, one cannot be read, or there is no
                such folder.
        """
        found, total, sizes = [], 0, []
        for path in self._walk():
            if self._is_secret(path):
                continue
            try:
                size = (self.folder / path).stat().st_size
            except OSError as error:
                raise _unreadable(path, error) from error
            found.append(path)
            sizes.append((size, path))
            total += size
            if total > LIMIT:
                raise _too_large(self.folder, sizes)
        return sorted(found)

    def secrets(self) -> list[Path]:
        """Files and folders without a dot that stay here because they look like secrets."""
        return sorted(path for path in self._walk() if self._is_secret(path))

    def pack(self, archive: Path) -> None:
        """Writes the files into a zip archive.

        Raises:
            SpecError: as `files` does.
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
                    raise _unreadable(path, error) from error

    def _walk(self) -> Iterator[Path]:
        """Files that were not excluded, secrets among them, and folders of secrets."""
        if not self.folder.is_dir():
            raise SpecError("--working-dir", f"{self.folder} is not a folder")
        patterns = (HIDDEN, *MADE, *_ignored(self.folder / IGNORE_FILE), *self.excludes)
        try:
            yield from self._below(Path(), patterns, (self.folder.resolve(),))
        except OSError as error:
            raise _unreadable(Path(error.filename or self.folder), error) from error

    def _below(
        self, here: Path, patterns: Sequence[str], above: tuple[Path, ...], inside: bool = False
    ) -> Iterator[Path]:
        """`above` are the real folders that lead here; `inside`: one of them is a package."""
        for path in (here / name for name in sorted(os.listdir(self.folder / here))):
            full = self.folder / path
            if _matches(path, patterns):
                continue
            if full.is_file() or (full.is_dir() and self._is_secret(path)):
                yield path
            elif full.is_dir() and full.resolve() not in above:
                package = inside or _is_package(full)
                if package or not _matches(path, MADE_OUTSIDE):
                    yield from self._below(path, patterns, (*above, full.resolve()), package)

    def _is_secret(self, path: Path) -> bool:
        full = self.folder / path
        names = [path]
        if full.is_symlink():
            real = full.resolve()
            names.append(real)
            if real.name.startswith("."):
                return True
            if not real.is_relative_to(self.folder.resolve()) and SECRET_PLACES & {*real.parts}:
                return True
        if any(_matches(name, CODE) for name in names) or _is_package(full):
            return False
        return any(_matches(name, SECRETS) for name in names)


def _is_package(folder: Path) -> bool:
    return (folder / "__init__.py").is_file()


def _ignored(file: Path) -> list[str]:
    lines = file.read_text().splitlines() if file.is_file() else []
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def _matches(path: Path, patterns: Sequence[str]) -> bool:
    plain = [pattern.strip("/") for pattern in patterns]
    return any(
        fnmatch.fnmatch(path.name, pattern) or fnmatch.fnmatch(path.as_posix(), pattern)
        for pattern in plain
    )


def _unreadable(path: Path, error: OSError) -> SpecError:
    return SpecError("--working-dir", f"cannot read {path} ({error.strerror}); --exclude it")


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
