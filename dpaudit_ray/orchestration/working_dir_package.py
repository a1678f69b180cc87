"""The working directory of a job: what is sent to the cluster, and what is withheld.

Ray's own packager follows links out of the folder and round in circles, does not know the
.gitignore of folders above, and sends secrets. So it gets a copy of what may be sent. To be told
what to leave out, it would need the name of each such file, and the walk that finds them is this
whole file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path

from ..errors import SpecError

LIMIT = 100 * 2**20  # bytes; what the dashboard of a Ray head takes in one request
RAY_IGNORE = ".rayignore"
HIDDEN = ".*"  # settings of tools, caches, and most secrets: .git, .venv, .env, .netrc, .kube, .ray
MADE = ("__pycache__", "*.pyc", "*.egg-info", "node_modules")
MADE_OUTSIDE = ("venv", "build", "dist", "runs")  # of packages, where such names are the user's
# Secrets are not for a cluster's storage, whether they have a dot or not. All in small letters.
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


class Withheld(Enum):
    """Why a file that was not excluded is not sent, in words."""

    SECRET = "for they look like secrets"
    OUTSIDE = "for they lead out of the working directory"
    IGNORED = "for git ignores them"


@dataclasses.dataclass(frozen=True)
class WorkingDirPackage:
    """The files of a folder that a job needs; links in it count as what they lead to.

    `excludes` are patterns of file or folder names, or of paths below the folder; those of its
    .rayignore are added. What begins with a dot, looks like a secret, was made by tools, is ignored
    by git or lies outside of the folder is withheld in any case. Packages are sent whole otherwise,
    whatever their folders are called.
    """

    folder: Path
    excludes: tuple[str, ...] = ()

    def files(self) -> list[Path]:
        """Paths below the folder that are sent, sorted.

        Raises SpecError where together they are larger than `LIMIT`, one cannot be read, or there
        is no such folder.
        """
        sizes: dict[Path, int] = {}
        total = 0
        for path in (path for path, reason in self._paths() if reason is None):
            with _named_if_unreadable(path):
                sizes[path] = (self.folder / path).stat().st_size
            total += sizes[path]
            if total > LIMIT:
                largest = sorted(sizes, key=lambda path: sizes[path], reverse=True)[:3]
                names = ", ".join(f"{path} ({sizes[path] / 2**20:.0f} MiB)" for path in largest)
                raise SpecError(
                    "--working-dir",
                    f"{self.folder} holds more than {LIMIT // 2**20} MiB (largest so far: {names});"
                    f" --exclude what the sweep does not need, or list it in {RAY_IGNORE}; data "
                    "belongs on shared storage",
                )
        return sorted(sizes)

    def withheld(self, reason: Withheld) -> list[Path]:
        """Files and folders without a dot that are not sent for this reason, sorted."""
        return sorted(path for path, why in self._paths() if why is reason)

    def copy(self, folder: Path) -> None:
        """Copies the files below a new folder, with their modes. Raises SpecError as `files` does.

        Ray packs such a folder by its content, and sends the same content once.
        """
        folder.mkdir()
        for path in self.files():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with _named_if_unreadable(path):
                shutil.copy(self.folder / path, target)

    def _paths(self) -> Iterator[tuple[Path, Withheld | None]]:
        """Files that were not excluded, and why they are withheld; or folders, withheld whole."""
        if not self.folder.is_dir():
            raise SpecError("--working-dir", f"{self.folder} is not a folder")
        ray_ignore = self.folder / RAY_IGNORE
        lines = ray_ignore.read_text().splitlines() if ray_ignore.is_file() else []
        ignored = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        patterns = (HIDDEN, *MADE, *ignored, *self.excludes)
        root = self.folder.resolve()
        with _named_if_unreadable():
            yield from self._below(Path(), patterns, (root,), _git_ignored(root))

    def _below(
        self,
        here: Path,
        patterns: Sequence[str],
        above: tuple[Path, ...],
        ignored: frozenset[Path],
    ) -> Iterator[tuple[Path, Withheld | None]]:
        """`above` are the real folders that lead here."""
        for path in (here / name for name in sorted(os.listdir(self.folder / here))):
            full = self.folder / path
            if _matches(path, patterns) or not (full.is_file() or full.is_dir()):
                continue
            if (reason := self._reason(full, path, ignored)) is not None or full.is_file():
                yield path, reason
            elif full.resolve() not in above:  # else links lead round in a circle
                inside = any(_is_package(folder) for folder in (full, *above[1:]))
                if inside or not _matches(path, MADE_OUTSIDE):
                    yield from self._below(path, patterns, (*above, full.resolve()), ignored)

    def _reason(self, full: Path, path: Path, ignored: frozenset[Path]) -> Withheld | None:
        """Why a file or folder is withheld; a link has the reasons of what it leads to, too."""
        real, root = full.resolve(), self.folder.resolve()
        if not real.is_relative_to(root):
            return Withheld.OUTSIDE
        names = [path]
        if full.is_symlink():
            target = real.relative_to(root)
            names += [target, *target.parents][: len(target.parts)]
        if any(name.name.startswith(".") or self._is_secret(name) for name in names):
            return Withheld.SECRET
        return Withheld.IGNORED if ignored.intersection([*names, real.relative_to(root)]) else None

    def _is_secret(self, path: Path) -> bool:
        code = _matches(path, CODE) or _is_package(self.folder / path)
        return not code and _matches(Path(str(path).lower()), SECRETS)


@contextlib.contextmanager
def _named_if_unreadable(path: Path | None = None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = f"cannot read {path or error.filename} ({error.strerror}); --exclude it"
        raise SpecError("--working-dir", why) from error


def _is_package(folder: Path) -> bool:
    return (folder / "__init__.py").is_file()


def _matches(path: Path, patterns: Sequence[str]) -> bool:
    names = (path.name, path.as_posix())
    return any(fnmatch.fnmatch(name, p.strip("/")) for p in patterns for name in names)


def _git_ignored(folder: Path) -> frozenset[Path]:
    """What git ignores below a folder, folders that it ignores whole; nothing outside of git."""
    command = ["git", "-C", str(folder), "ls-files", "-z", "--others", "--ignored"]
    with contextlib.suppress(OSError):
        options = ["--exclude-standard", "--directory"]
        listed = subprocess.run([*command, *options], capture_output=True, check=False)
        return frozenset(Path(os.fsdecode(name)) for name in listed.stdout.split(b"\0") if name)
    return frozenset()
