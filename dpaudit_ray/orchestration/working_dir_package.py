"""The working directory of a job: what is sent to the cluster, and what is withheld.

Ray's own packager follows links out of the folder and round in circles, does not know the
.gitignore of folders above, and sends secrets. So it gets a copy of what may be sent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
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


@dataclasses.dataclass(frozen=True)
class WorkingDirPackage:
    """The files of a folder that a job needs; packages are sent whole.

    `excludes` are patterns of file or folder names, or of paths below the folder, beside those of
    its .rayignore. Withheld is what begins with a dot, looks like a secret, was made by tools, is
    ignored by git or is a link.
    """

    folder: Path
    excludes: tuple[str, ...] = ()

    def files(self) -> list[Path]:
        """Paths below the folder that are sent, sorted. SpecError: too large or unreadable."""
        with _readable():
            paths = [path for path, withheld in self._paths() if not withheld]
            sizes = {path: (self.folder / path).stat().st_size for path in paths}
        if sum(sizes.values()) > LIMIT:
            largest = sorted(paths, key=lambda path: sizes[path], reverse=True)[:3]
            names = ", ".join(f"{path} ({sizes[path] / 2**20:.0f} MiB)" for path in largest)
            raise SpecError(
                "--working-dir",
                f"{self.folder} holds more than {LIMIT // 2**20} MiB (largest: {names}); --exclude "
                f"what the sweep does not need, or list it in {RAY_IGNORE}; data belongs on shared "
                "storage",
            )
        return sorted(paths)

    def withheld(self) -> list[Path]:
        """Links, secrets, and what git ignores: without a dot, folders whole, sorted."""
        with _readable():
            return sorted(path for path, withheld in self._paths() if withheld)

    def copy(self, folder: Path) -> None:
        """Copies the files below a new folder, with their modes: equal ones are sent once."""
        folder.mkdir()
        for path in self.files():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            with _readable():
                shutil.copy(self.folder / path, folder / path)

    def _paths(self) -> Iterator[tuple[Path, bool]]:
        """Files that are not excluded, and whether they are withheld; or folders, so whole."""
        if not self.folder.is_dir():
            raise SpecError("--working-dir", f"{self.folder} is not a folder")
        ray_ignore = self.folder / RAY_IGNORE
        lines = ray_ignore.read_text().splitlines() if ray_ignore.is_file() else []
        listed = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        patterns = (HIDDEN, *MADE, *listed, *self.excludes)
        return self._below(Path(), patterns, _git_ignored(self.folder), packaged=False)

    def _below(
        self, here: Path, patterns: Sequence[str], ignored: frozenset[Path], packaged: bool
    ) -> Iterator[tuple[Path, bool]]:
        """`packaged`: whether a folder that leads here is a package."""
        for path in (here / name for name in sorted(os.listdir(self.folder / here))):
            full = self.folder / path
            if _matches(path, patterns):
                continue
            package = (full / "__init__.py").is_file()
            code = package or _matches(path, CODE)
            secret = not code and _matches(Path(str(path).lower()), SECRETS)
            if full.is_symlink() or path in ignored or secret:
                yield path, True
            elif full.is_file():
                yield path, False
            elif full.is_dir() and (packaged or package or not _matches(path, MADE_OUTSIDE)):
                yield from self._below(path, patterns, ignored, packaged or package)


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = f"cannot read {error.filename} ({error.strerror}); --exclude it"
        raise SpecError("--working-dir", why) from error


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
