"""Digests of the code and data that compute trials: another version may give other scores."""

import functools
import hashlib
import importlib.metadata
import itertools
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from .. import __version__
from ..errors import DataError
from ..imports import is_users, module_file, source_closure
from ..storage.files import reason
from ..sweep import grid
from ..sweep.cell import Cell
from ..sweep.spec import Sweep

_PACKAGES = ("torch", "numba", "numpy", "opacus", "ray")
_WITHOUT_EFFECT = ("ray", "python")  # versions that are recorded, but change no score
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class Code:
    """Code that computes trials, and the machine that it runs on.

    Attributes:
        modules: digests of the user's modules, by name.
        versions: versions of packages and of Python, by name.
        device: properties of the processor or GPU that change last bits.
    """

    modules: Mapping[str, Sha256]
    versions: Mapping[str, str]
    device: str


def machine(modules: Iterable[str], gpu: bool = False) -> Code:
    """Returns the code and the device of this process.

    Args:
        modules: names of the user's modules; one that this machine lacks is skipped.
        gpu: whether the device is the GPU, if there is one.
    """
    files = {name: module_file(name) for name in modules}
    digests = {name: _digest(file) for name, file in files.items() if file is not None}
    return Code(digests, installed_versions(), device(gpu))


def first_difference(driver_code: Code, machine_code: Code) -> str | None:
    """Returns the first difference of a machine from the driver's code, in words.

    A module that the machine lacks does not count.

    Args:
        driver_code: the driver's code.
        machine_code: the code of another machine.

    Returns:
        The difference; None if there is no difference.
    """
    for name in ("dpaudit", "torch", "numba"):
        expected = driver_code.versions.get(name)
        version = machine_code.versions.get(name)
        if expected is not None and version != expected:
            return f"it has {name} {version}, the driver {expected}"
    for name, digest in machine_code.modules.items():
        expected = driver_code.modules.get(name)
        if digest != expected:
            return f"{name} has {_short(digest)} there, {_short(expected)} where the driver runs"
    return None


def sweep_code(sweep: Sweep) -> Code:
    """Returns the code that would compute the trials of a sweep here and now."""
    modules = _named_modules(sweep)
    sources = sorted(source_closure(modules).items())
    digests = {name: _digest(file) for name, file in sources}
    versions = installed_versions()
    packages = {module.partition(".")[0] for module in modules}
    for package in sorted(packages - {"dpaudit_ray"}):
        file = module_file(package)
        if file is not None and not is_users(file):
            versions[package] = _version(package)  # stands for the package's content
    return Code(digests, versions, device())


def named_paths(sweep: Sweep) -> set[Path]:
    """Returns the files and folders of a sweep's data, and its modules with their imports."""
    located = map(Path, grid.locations(sweep.raw))
    sources = source_closure(_named_modules(sweep)).values()
    paths = (*located, *_files(sweep.cells), *sources)
    return {path.resolve() for path in paths if path.is_absolute()}


def _named_modules(sweep: Sweep) -> set[str]:
    """Returns the modules outside this project that a sweep file names."""
    modules = set()
    for cell in sweep.cells:
        modules.update(cell.audit.named_modules)
        for part in cell.parts:
            modules.update(part.named_modules())
    return modules


def installed_versions() -> dict[str, str]:
    """Returns the versions of this package, of the packages it computes with, and of Python."""
    versions = {package: _version(package) for package in _PACKAGES}
    return {"dpaudit": __version__, **versions, "python": platform.python_version()}


def changes(
    recorded: Code,
    code: Code,
) -> tuple[list[str], list[str]]:
    """Returns differences in words: first what may change a score, then what does not.

    Args:
        recorded: the code of a run directory.
        code: the code here.
    """
    grave = []
    harmless: list[str] = []
    for name in sorted({*recorded.modules, *code.modules}):
        old = recorded.modules.get(name)
        new = code.modules.get(name)
        if old != new:
            file = module_file(name)
            path = os.path.relpath(file) if file else name
            grave.append(f"{path} has {_short(old)} there, {_short(new)} here")
    for name in sorted({*recorded.versions, *code.versions}):
        old = recorded.versions.get(name, "missing")
        new = code.versions.get(name, "missing")
        if old != new:
            differences = harmless if name in _WITHOUT_EFFECT else grave
            differences.append(f"{name} {old} there, {new} here")
    if recorded.device != code.device:
        harmless.append(f"{recorded.device} there, {code.device} here")
    return grave, harmless


@functools.cache
def device(gpu: bool = False) -> str:
    """Returns the properties of this machine that change last bits of scores.

    Args:
        gpu: whether the name of the GPU is returned, if there is one.

    Returns:
        Name and widest vector instructions of the processor, such as "NAME, avx2", or the GPU.
    """
    if gpu:
        import torch

        if torch.cuda.is_available():
            return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    fields = {}
    for line in reversed(lines):  # so that the first of all processors is the last one read
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    properties = [fields.get("model name") or platform.machine()]
    flags = fields.get("flags", "").split()
    for instructions in ("avx512f", "avx2", "avx", "sse4_2"):
        if instructions in flags:
            properties.append(instructions)
            break
    # With these variables, a user limits the instructions that torch and numba use.
    for variable in ("ATEN_CPU_CAPABILITY", "NUMBA_CPU_NAME"):
        properties.append(os.environ.get(variable, ""))
    return ", ".join(filter(None, properties))


def _version(package: str) -> str:
    """Returns the installed version of a package, or `unknown`."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _digest(path: Path) -> str:
    """Returns the SHA-256 of a file. Raises DataError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({reason(error)}); make it readable") from error


def _short(digest: str | None) -> str:
    """Returns the beginning of a digest, for messages; None stands for a missing file."""
    return "no file" if digest is None else f"SHA-256 {digest[:12]}..."


@dataclass(frozen=True)
class InputFile:
    """A file with its content when the run began; `sha256` is in hexadecimal digits."""

    file: str
    sha256: str


def input_files(sweep: Sweep) -> tuple[InputFile, ...]:
    """Returns the files that data and models read, each once, in order.

    Raises:
        DataError: a file cannot be read.
    """
    files = {}
    for path in _files(sweep.cells):
        if path not in files and os.path.isfile(path):
            files[path] = InputFile(str(path), _digest(path))
    return tuple(files.values())


def digests_of_cell(
    cell: Cell,
    files: tuple[InputFile, ...],
) -> list[str]:
    """Returns the SHA-256 of each file that one audit reads, in the order of `_files`.

    Args:
        cell: the audit.
        files: all files of the sweep. A path that was no file when the run began has no digest.
    """
    digest_by_path = {file.file: file.sha256 for file in files}
    paths = map(str, _files([cell]))
    return [digest_by_path[path] for path in paths if path in digest_by_path]


def other_files(
    recorded: tuple[InputFile, ...],
    now: tuple[InputFile, ...],
) -> str | None:
    """Returns the first difference in content, in words; None if there is no difference.

    Files with equal content count once.

    Args:
        recorded: files as the run recorded them.
        now: files as they are now.
    """
    before = {file.sha256: file for file in recorded}
    after = {file.sha256: file for file in now}
    for old, new in itertools.zip_longest(before.values(), after.values()):
        if old is None or new is None or old.sha256 != new.sha256:
            return f"{(new or old).file} has SHA-256 {_prefix(old)} there, {_prefix(new)} here"
    return None


def _prefix(file: InputFile | None) -> str:
    """Returns the beginning of a file's SHA-256, for messages; None: of no file."""
    return "of no file" if file is None else f"{file.sha256[:12]}..."


def _files(cells: Iterable[Cell]) -> Iterator[Path]:
    """Yields the files that mechanisms, adversaries and their data and models read."""
    for cell in cells:
        for owner in (cell.mechanism, cell.adversary):
            for name in type(owner).model_fields:
                part = getattr(owner, name)
                if hasattr(part, "files"):  # data or a model
                    yield from part.files()
