"""What trials were computed of, by content: two versions of code or data are two trainings."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import itertools
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Protocol, runtime_checkable

from pydantic import Field

from .. import __version__
from ..errors import DataError
from ..imports import is_users, module_file, source_closure
from ..storage.files import reason
from ..sweep import grid
from ..sweep.cell import Cell
from ..sweep.spec import Sweep

_PACKAGES = ("torch", "numba", "numpy", "opacus", "ray")
_MOVES_NO_SCORE = ("ray", "python")  # whose versions are recorded, and may differ
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


@dataclasses.dataclass(frozen=True)
class Code:
    """What computed trials: SHA-256 of the user's modules, versions of packages, the machine."""

    modules: Mapping[str, Sha256]
    versions: Mapping[str, str]
    device: str


@dataclasses.dataclass(frozen=True)
class Machine:
    """Code and device of a process; None for a module that it does not find."""

    device: str
    versions: Mapping[str, str]
    modules: Mapping[str, str | None]


def machine(modules: Iterable[str], gpu: bool = False) -> Machine:
    """This machine, with the user's modules of these names as it has them."""
    files = {name: module_file(name) for name in modules}
    digests = {name: None if file is None else _digest(file) for name, file in files.items()}
    return Machine(device(gpu), here(), digests)


def unlike(code: Code, machine: Machine) -> str | None:
    """How a machine first differs from the code, in words; None for none, or a lacking module."""
    for name in ("dpaudit", "torch", "numba"):
        here, there = code.versions.get(name), machine.versions.get(name)
        if here is not None and here != there:
            return f"it has {name} {there}, the driver {here}"
    for name, digest in machine.modules.items():
        if digest not in (None, ours := code.modules.get(name)):
            return f"{name} has {_short(digest)} there, {_short(ours)} where the driver runs"
    return None


def sweep_code(sweep: Sweep) -> Code:
    """The code that would compute the trials of a sweep here and now."""
    modules = _named_modules(sweep)
    digests = {name: _digest(file) for name, file in sorted(source_closure(modules).items())}
    versions = here()
    for package in sorted({module.partition(".")[0] for module in modules} - {"dpaudit_ray"}):
        file = module_file(package)
        if file is not None and not is_users(file):
            versions[package] = _version(package)  # stands for its content
    return Code(digests, versions, device())


def named_paths(sweep: Sweep) -> set[Path]:
    """Returns what a sweep names: files and folders of data, and its modules with their imports."""
    located = map(Path, grid.locations(sweep.raw))
    sources = source_closure(_named_modules(sweep)).values()
    paths = (*located, *_files(sweep.cells), *sources)
    return {path.resolve() for path in paths if path.is_absolute()}


def _named_modules(sweep: Sweep) -> set[str]:
    """Returns the modules outside this project that a sweep file names."""
    modules: set[str] = set()
    for cell in sweep.cells:
        modules.update(cell.audit.named_modules)
        for part in cell.parts:
            modules.update(part.named_modules())
    return modules


def here() -> dict[str, str]:
    """Versions of this package, of what it computes with, and of Python."""
    versions = {package: _version(package) for package in _PACKAGES}
    return {"dpaudit": __version__, **versions, "python": platform.python_version()}


def changes(there: Code, here: Code) -> tuple[list[str], list[str]]:
    """Differences in words: those that may change a score, and those that do not."""
    grave, harmless = list[str](), list[str]()
    for name in sorted({*there.modules, *here.modules}):
        old, new = (code.modules.get(name) for code in (there, here))
        if old != new:
            file = module_file(name)
            place = os.path.relpath(file) if file else name
            grave.append(f"{place} has {_short(old)} there, {_short(new)} here")
    for name in sorted({*there.versions, *here.versions}):
        before, now = (code.versions.get(name, "missing") for code in (there, here))
        if before != now:
            differences = harmless if name in _MOVES_NO_SCORE else grave
            differences.append(f"{name} {before} there, {now} here")
    if there.device != here.device:
        harmless.append(f"{there.device} there, {here.device} here")
    return grave, harmless


@functools.cache
def device(gpu: bool = False) -> str:
    """The kind of this machine, as far as it decides over last bits: "NAME, avx2", or its GPU."""
    if gpu:
        import torch

        if torch.cuda.is_available():
            return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    pairs = (line.split(":", 1) for line in reversed(lines) if ":" in line)
    fields = {key.strip(): value.strip() for key, value in pairs}
    name = fields.get("model name") or platform.machine()
    flags = fields.get("flags", "").split()
    sets = [word for word in ("avx512f", "avx2", "avx", "sse4_2") if word in flags][:1]
    variables = (os.environ.get(key) for key in ("ATEN_CPU_CAPABILITY", "NUMBA_CPU_NAME"))
    return ", ".join([name, *sets, *filter(None, variables)])


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({reason(error)}); make it readable") from error


def _short(digest: str | None) -> str:
    return "no file" if digest is None else f"SHA-256 {digest[:12]}..."


@dataclasses.dataclass(frozen=True)
class InputFile:
    """A file as it was when the run began; `sha256` is in hexadecimal digits."""

    file: str
    sha256: str


@runtime_checkable
class _Reads(Protocol):
    def files(self) -> tuple[Path, ...]:
        """Files whose content it reads."""


def input_files(sweep: Sweep) -> tuple[InputFile, ...]:
    """Files that data and models read, once, in order. Raises DataError for an unreadable one."""
    paths = dict.fromkeys(path for path in _files(sweep.cells) if os.path.isfile(path))
    return tuple(InputFile(str(path), _digest(path)) for path in paths)


def files_of_cell(cell: Cell, files: tuple[InputFile, ...]) -> list[str]:
    """SHA-256 of those of a sweep's `files` that one audit reads."""
    digests = {file.file: file.sha256 for file in files}
    return [digests[str(path)] for path in _files([cell]) if str(path) in digests]


def other_files(recorded: tuple[InputFile, ...], now: tuple[InputFile, ...]) -> str | None:
    """What differs in content, in words; None where nothing does. Equal files count once."""
    before, after = ({file.sha256: file for file in files} for files in (recorded, now))
    for old, new in itertools.zip_longest(before.values(), after.values()):
        if old is None or new is None or old.sha256 != new.sha256:
            return f"{(new or old).file} has SHA-256 {_stated(old)} there, {_stated(new)} here"
    return None


def _stated(file: InputFile | None) -> str:
    return "of no file" if file is None else f"{file.sha256[:12]}..."


def _files(cells: Iterable[Cell]) -> Iterator[Path]:
    for cell in cells:
        for owner in (cell.mechanism, cell.adversary):
            for name in type(owner).model_fields:
                part = getattr(owner, name)
                if isinstance(part, _Reads):
                    yield from part.files()
