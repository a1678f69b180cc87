"""Chooses the files of a working directory that are sent to the cluster with a job.

Ray's own packager follows links out of the folder and round in circles, and sends all it finds,
secrets too. So it gets a copy of the files that git tracks and the sweep names.
"""

import contextlib
import fnmatch
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ..errors import SpecError, printable
from ..storage import strangers

LIMIT = 100 * 2**20  # bytes; what the dashboard of a Ray head takes in one request
RAY_IGNORE = ".rayignore"
HIDDEN = ".*"  # settings of tools, caches, and most secrets: .git, .venv, .env, .netrc, .kube, .ray
MADE = ("__pycache__", "*.pyc", "*.egg-info", "node_modules")
MADE_OUTSIDE = ("venv", "build", "dist", "runs")  # made by tools, unless in a user's package
# Patterns of names in small letters, of files that may be secrets: they are not sent.
SECRETS = """
    id_rsa* id_dsa* id_ecdsa* id_ed25519* *.key *.pem *.ppk *.p12 *.pfx *.jks *.keystore *.kdbx
    token *[_-]token *.token token.* tokens.* *[_-]token.* *.keytab htpasswd pgpass
    netrc _netrc git-credentials kubeconfig* *.kubeconfig *.env auth.json
    apikey* api[_-]key* *[_-]apikey* *[_-]api[_-]key* *.tfstate *.tfstate.* *.tfvars
    password passwords passwd password.* passwords.* *[_-]password*
    credentials credentials.* *[_-]credentials *[_-]credentials.*
    secret secrets secret.* secrets.* client_secret* *service[_-]account*.json
"""
CODE = ("*.py", "*.pyi")  # never a secret, even if its name is that of one
_MAX_NAMES = 20  # names of unsent files that a message lists
_INCLUDE = "; send them with --include NAME"
_SUBMODULE = b"160000"  # mode of an entry of git's index


@dataclass(frozen=True)
class Unsent:
    """A file, or a folder of several files of which none is sent."""

    path: Path
    files: int
    size: int  # bytes

    def __str__(self) -> str:
        """Returns path and size, for messages."""
        if self.files == 1:
            return f"{self.path} ({self.size:,} bytes)"
        return f"{self.path}/ ({self.files:,} files, {self.size:,} bytes)"


@dataclass
class Listing:
    """The files of a folder, in the order of their names.

    Attributes:
        sent: sizes in bytes of the files that are sent.
        withheld: links and secrets, but for names that begin with a dot.
        unsent: files that neither git tracks nor the sweep names.
    """

    sent: dict[Path, int] = field(default_factory=dict)
    withheld: list[Path] = field(default_factory=list)
    unsent: list[Unsent] = field(default_factory=list)

    def add(self, folder: Path, below: "Listing") -> None:
        """Adds the listing of a folder below this one.

        If nothing of that folder is sent, its unsent entries become one, with their total.

        Args:
            folder: the folder.
            below: listing of that folder.
        """
        self.sent |= below.sent
        self.withheld += below.withheld
        if len(below.unsent) > 1 and not below.sent:
            files = sum(entry.files for entry in below.unsent)
            size = sum(entry.size for entry in below.unsent)
            self.unsent.append(Unsent(folder, files, size))
        else:
            self.unsent += below.unsent


@dataclass(frozen=True)
class WorkingDirPackage:
    """The files of a folder that a job needs: tracked by git, named by the sweep, or included.

    Without git, Python sources are sent in place of the files that it tracks. Files are not sent
    if their names begin with a dot or look like a secret, if tools have made them, or if they are
    links.

    Attributes:
        folder: the working directory.
        excludes: patterns of file or folder names, or of paths below the folder, in addition to
            the lines of its .rayignore.
        includes: such patterns of files that are sent in any case.
        named: absolute paths of files that the sweep names.
    """

    folder: Path
    excludes: tuple[str, ...] = ()
    includes: tuple[str, ...] = ()
    named: frozenset[Path] = frozenset()

    def files(self) -> list[Path]:
        """Returns paths below the folder that are sent, sorted.

        Raises:
            SpecError: the files are too large, cannot be read, or have names that Ray cannot pack.
        """
        sizes = self.listing.sent
        for path in sizes:
            try:
                str(path).encode()
            except UnicodeEncodeError as error:
                problem = f"the name of {str(path)!r} is not UTF-8; rename it, or --exclude it"
                raise SpecError("--working-dir", problem) from error
        if sum(sizes.values()) > LIMIT:
            largest = sorted(sizes, key=lambda path: sizes[path], reverse=True)[:3]
            names = ", ".join(f"{path} ({sizes[path] / 2**20:.0f} MiB)" for path in largest)
            raise SpecError(
                "--working-dir",
                f"{self.folder} holds more than {LIMIT // 2**20} MiB (largest: {names}); --exclude "
                f"what the sweep does not need, or list it in {RAY_IGNORE}; data belongs on shared "
                "storage",
            )
        return list(sizes)

    def omissions(self) -> list[str]:
        """Returns a line for withheld files and one for files not chosen, if there are any."""
        messages = []
        for reason, entries, remedy in (
            ("links, what looks like a secret", self.listing.withheld, ""),
            ("not tracked by git, not named by the sweep", self.listing.unsent, _INCLUDE),
        ):
            if entries:
                names = ", ".join(printable(str(entry)) for entry in entries[:_MAX_NAMES])
                excess = len(entries) - _MAX_NAMES
                if excess > 0:
                    names += f" and {excess:,} more"
                messages.append(f"not sent ({reason}): {names}{remedy}")
        return messages

    def copy(self, folder: Path) -> None:
        """Copies the files below a new folder, with their modes: equal ones are sent once."""
        folder.mkdir()
        for path in self.files():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            with _readable():
                shutil.copy(self.folder / path, folder / path)

    @cached_property
    def listing(self) -> Listing:
        """All files below the folder."""
        if not self.folder.is_dir():
            raise SpecError("--working-dir", f"{self.folder} is not a folder")
        with _readable():
            return self._list_folder(Path(), included=False)

    @cached_property
    def _omitted(self) -> tuple[str, ...]:
        """Patterns of files and folders that are neither sent nor listed."""
        ray_ignore = self.folder / RAY_IGNORE
        text = ray_ignore.read_text(errors="replace") if ray_ignore.is_file() else ""
        lines = [line.strip() for line in text.splitlines()]
        ignored = [line for line in lines if line and not line.startswith("#")]
        return (HIDDEN, *MADE, *ignored, *self.excludes)

    @cached_property
    def _tracked(self) -> frozenset[Path] | None:
        """Paths that git tracks, relative to the folder; None without git."""
        return _tracked_by_git(self.folder.resolve())

    @cached_property
    def _parents(self) -> frozenset[Path]:
        """Folders that lead to a file which is tracked or named."""
        folder = self.folder.resolve()
        files = [path.relative_to(folder) for path in self.named if path.is_relative_to(folder)]
        files += self._tracked or ()
        return frozenset().union(*(path.parents for path in files))

    def _list_folder(self, folder: Path, included: bool) -> Listing:
        """Lists the files below a folder.

        Args:
            folder: relative to the working directory.
            included: whether the folder is below one that `includes` names.
        """
        listing = Listing()
        in_package = (self.folder / folder / "__init__.py").is_file()
        for name in sorted(os.listdir(self.folder / folder)):
            path = folder / name
            full = self.folder / path
            if _matches(path, self._omitted):
                continue
            # Code is never taken for a secret. A package, and a folder in one, may have a name that
            # tools use for what they make.
            is_package = (full / "__init__.py").is_file()
            is_code = is_package or _matches(path, CODE)
            is_secret = not is_code and _matches(Path(str(path).lower()), SECRETS.split())
            is_chosen = included or self._is_chosen(path)
            may_be_made = not (is_package or in_package or is_chosen or path in self._parents)
            if full.is_symlink() or is_secret:
                listing.withheld.append(path)
            elif full.is_file():
                size = full.stat().st_size
                if is_chosen:
                    listing.sent[path] = size
                else:
                    listing.unsent.append(Unsent(path, 1, size))
            elif full.is_dir() and not (may_be_made and _matches(path, MADE_OUTSIDE)):
                listing.add(path, self._list_folder(path, is_chosen))
        return listing

    def _is_chosen(self, path: Path) -> bool:
        """Returns whether a file is named, included, tracked by Git, or code without Git."""
        if self.folder.resolve() / path in self.named or _matches(path, self.includes):
            return True
        if self._tracked is None:
            return (self.folder / path).is_file() and _matches(path, CODE)
        return path in self._tracked


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Raises SpecError for a folder or file that cannot be read."""
    try:
        yield
    except (RecursionError, OSError) as error:
        problem = "a folder is nested too deep"
        if isinstance(error, OSError):
            problem = f"cannot read {error.filename} ({error.strerror})"
        raise SpecError("--working-dir", f"{problem}; --exclude it") from error


def _matches(path: Path, patterns: Iterable[str]) -> bool:
    """Returns whether the name of a file, or its path, fits one of the patterns."""
    names = (path.name, path.as_posix())
    return any(fnmatch.filter(names, pattern.strip("/")) for pattern in patterns)


def _tracked_by_git(folder: Path) -> frozenset[Path] | None:
    """Returns the paths below a folder that git tracks, submodules too; None without git.

    The repository is that of the folder, or of the nearest parent that has one.
    """
    home = next((path for path in (folder, *folder.parents) if (path / ".git").exists()), None)
    if home is None:
        return None
    repositories = [home]
    tracked = []
    for repository in repositories:  # the loop itself appends the submodules that it finds
        try:
            entries = _index_entries(repository)
        except (OSError, ValueError, subprocess.CalledProcessError):
            if repository == home:
                return None  # no git on this machine, nothing added yet, or a foreign index
            continue  # a submodule that is not checked out has no index, and no files
        for entry in filter(None, entries):
            mode, _, name = entry.partition(b"\t")
            path = repository / os.fsdecode(name)
            if not mode.startswith(_SUBMODULE):
                tracked.append(path)
            # A link may lead back to a listed repository, and would be followed without end.
            elif path.resolve() not in repositories:
                repositories.append(path)
    return frozenset(path.relative_to(folder) for path in tracked if path.is_relative_to(folder))


def _index_entries(repository: Path) -> list[bytes]:
    """Lists git's index from a copy, in an empty repository without settings of anyone.

    Settings of a folder name programs that git runs: core.fsmonitor, hooks, filters, pagers.
    """
    git = repository / ".git"
    if git.is_file():  # a submodule or another worktree has a link
        link = os.fsdecode(strangers.content(str(git), most=2**12))
        git = repository / link.removeprefix("gitdir:").strip()
    index = strangers.content(str(git / "index"), strangers.RECORD)
    with tempfile.TemporaryDirectory() as scratch:
        empty = Path(scratch)
        for name in ("objects", "refs"):
            (empty / name).mkdir()
        (empty / "HEAD").write_text("ref: refs/heads/main\n")
        (empty / "index").write_bytes(index)
        command = ["git", "--git-dir", scratch, "ls-files", "-z", "--stage"]
        path = os.environ.get("PATH", os.defpath)
        settings = {"PATH": path, "HOME": scratch, "GIT_CONFIG_NOSYSTEM": "1"}
        listed = subprocess.run(command, cwd=scratch, env=settings, capture_output=True, check=True)
    return listed.stdout.split(b"\0")
