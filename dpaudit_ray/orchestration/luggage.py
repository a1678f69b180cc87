"""The working directory of a job: what is sent to the cluster, and what stays here."""

from __future__ import annotations

import dataclasses
import fnmatch
import os
import zipfile
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import SpecError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

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
    *("netrc", "_netrc", "git-credentials", "kubeconfig*", "*.kubeconfig", "*.env", "auth.json"),
    *("apikey*", "api[_-]key*", "*[_-]apikey*", "*[_-]api[_-]key*", "*.tfstate", "*.tfstate.*"),
    *("password", "passwords", "passwd", "password.*", "passwords.*", "*[_-]password*", "*.tfvars"),
    *("*.keytab", "htpasswd", "pgpass"),
    *("credentials", "credentials.*", "*[_-]credentials", "*[_-]credentials.*"),
    *("secret", "secrets", "secret.*", "secrets.*", "client_secret*", "*service[_-]account*.json"),
)
CODE = ("*.py", "*.pyi", "*.ipynb")  # about secrets, perhaps, and none itself
GIT_IGNORE = ".gitignore"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same files make the same archive, which Ray sends once


class Left(Enum):
    """Why a file that was not excluded stays here, in words."""

    NOT = ""
    SECRET = "for they look like secrets"
    OUTSIDE = "for they lead out of the working directory"
    IGNORED = f"for {GIT_IGNORE} lists them"


@dataclasses.dataclass(frozen=True)
class Luggage:
    """The files of a folder that a job needs; links in it count as what they lead to.

    `excludes` are patterns of file or folder names, or of paths below the folder; those of its
    .rayignore are added. What begins with a dot, looks like a secret, was made by tools, is ignored
    by git (.gitignore, also in folders above up to the repository and below) or lies outside of the
    folder stays here in any case. Packages are sent whole otherwise, whatever their folders are
    called.
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
        for path in self._paths(Left.NOT):
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

    def left(self, why: Left) -> list[Path]:
        """Files and folders without a dot that stay here for this reason, sorted."""
        return sorted(self._paths(why))

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

    def _paths(self, why: Left) -> Iterator[Path]:
        """Files that were not excluded, and stay here for this reason; or folders of such."""
        if not self.folder.is_dir():
            raise SpecError("--working-dir", f"{self.folder} is not a folder")
        patterns = (HIDDEN, *MADE, *_ignored(self.folder / IGNORE_FILE), *self.excludes)
        root = self.folder.resolve()
        try:
            known = self._below(Path(), patterns, (root,), _above(root))
            yield from (path for path, reason in known if reason is why)
        except OSError as error:
            raise _unreadable(Path(error.filename or self.folder), error) from error

    def _below(
        self, here: Path, patterns: Sequence[str], above: tuple[Path, ...], git: _Ignores
    ) -> Iterator[tuple[Path, Left]]:
        """`above` are the real folders that lead here, `git` what is ignored on the way."""
        git = (*git, *_ignores(self.folder / here))
        for path in (here / name for name in sorted(os.listdir(self.folder / here))):
            full = self.folder / path
            if _matches(path, patterns) or not (full.is_file() or full.is_dir()):
                continue
            if (reason := self._why(full, path, git)) is not Left.NOT or full.is_file():
                yield path, reason
            elif full.resolve() not in above:
                inside = _is_package(full) or any(map(_is_package, above[1:]))
                if inside or not _matches(path, MADE_OUTSIDE):
                    yield from self._below(path, patterns, (*above, full.resolve()), git)

    def _why(self, full: Path, path: Path, git: _Ignores) -> Left:
        """Why a file or folder stays here; a link has the reasons of what it leads to, too."""
        real, root = full.resolve(), self.folder.resolve()
        if not real.is_relative_to(root):
            return Left.OUTSIDE
        target = real.relative_to(root)
        names = (
            [path, *(target, *target.parents)[: len(target.parts)]] if full.is_symlink() else [path]
        )
        if any(name.name.startswith(".") for name in names) or any(map(self._is_secret, names)):
            return Left.SECRET
        return Left.IGNORED if _is_ignored(full, git) or _is_ignored(real, git) else Left.NOT

    def _is_secret(self, path: Path) -> bool:
        full = self.folder / path
        if _matches(path, CODE) or _is_package(full):
            return False
        return _matches(Path(str(path).lower()), SECRETS)


_Ignores = tuple[tuple[Path, "GitIgnoreSpec"], ...]


def _above(root: Path) -> _Ignores:
    """What git ignores by files above a folder, the furthest first; nothing outside of git."""
    found: _Ignores = ()
    for folder in (root, *root.parents):
        if folder != root:
            found = (*_ignores(folder), *found)
        if (folder / ".git").exists():
            return found
    return ()


def _ignores(folder: Path) -> _Ignores:
    from pathspec import GitIgnoreSpec

    file = folder / GIT_IGNORE
    lines = file.read_text(errors="replace").splitlines() if file.is_file() else []
    return ((folder.resolve(), GitIgnoreSpec.from_lines(lines)),) if lines else ()


def _is_ignored(full: Path, git: _Ignores) -> bool:
    """By the last line that speaks of it, in the file that is nearest."""
    end = "/" * full.is_dir()
    place = full.parent.resolve() / full.name
    for folder, spec in reversed(git):
        if place.is_relative_to(folder):
            said = spec.check_file(f"{place.relative_to(folder).as_posix()}{end}").include
            if said is not None:
                return said
    return False


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
