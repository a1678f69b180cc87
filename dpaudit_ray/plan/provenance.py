"""What ran: the user's modules by content, the versions of what computes, and the kind of machine.

Two versions of a training are two trainings, and trials of both are no audit of either. Import
paths do not tell them apart, so the plan records what lies there. Sources are looked at, not run:
a module is found as Python would find it, and what it imports is read off its text.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from ..imports import is_own, named_in
from ..sweep.spec import Sweep
from ..version import __version__

# Another version of one of these may give other scores; of the others, it may not.
COMPUTES = ("dpaudit", "torch", "numba", "numpy", "opacus")
_PACKAGES = {"torch": "torch", "numba": "numba", "numpy": "numpy", "opacus": "opacus", "ray": "ray"}
_DIGEST = re.compile(r"[0-9a-f]{64}")
LARGEST_SOURCE = 2**20  # bytes of a module that a run directory has a copy of


@dataclasses.dataclass(frozen=True)
class Code:
    """What trials were computed by.

    `modules` are SHA-256 digests of the user's, by name; `versions` those of packages; `device`
    is the kind of machine that the sweep was started on.
    """

    modules: Mapping[str, str]
    versions: Mapping[str, str]
    device: str

    def to_json(self) -> dict[str, Any]:
        """As in plan.json."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, raw: Any) -> Code:
        """The inverse of `to_json`; ValueError, TypeError or KeyError for anything else."""
        modules, versions = dict(raw["modules"]), dict(raw["versions"])
        words = [*modules, *modules.values(), *versions, *versions.values(), raw["device"]]
        if not all(isinstance(word, str) for word in words):
            raise ValueError("code has something that is no text")
        if not all(_DIGEST.fullmatch(digest) for digest in modules.values()):
            raise ValueError("code has something that is no SHA-256")
        return cls(modules, versions, raw["device"])


@dataclasses.dataclass(frozen=True)
class Machine:
    """What a process would compute with; None for a module that it does not find."""

    device: str
    versions: Mapping[str, str]
    modules: Mapping[str, str | None]


def machine(modules: Iterable[str], gpu: bool = False) -> Machine:
    """This one, with the user's modules of these names as it has them."""
    found = {name: _file(name) for name in modules}
    digests = {name: None if file is None else _digest(file) for name, file in found.items()}
    return Machine(device(gpu), here(), digests)


def unlike(code: Code, machine: Machine) -> str | None:
    """What a machine has other than the code, in words; None where it has the same.

    What it lacks it cannot import, which is told by who tries.
    """
    for name in ("dpaudit", "torch", "numba"):
        here, there = code.versions.get(name), machine.versions.get(name)
        if here is not None and here != there:
            return f"it has {name} {there}, the driver {here}"
    for name, digest in machine.modules.items():
        if digest is not None and digest != code.modules.get(name):
            wanted = _short(code.modules.get(name))
            return f"{name} has {_short(digest)} there, {wanted} where the driver runs"
    return None


def of(sweep: Sweep) -> Code:
    """What would compute the trials of a sweep here and now."""
    named = sorted(_named(sweep))
    versions = here() | {name: _version(name) for name in _foreign(named)}
    return Code(digests(named), versions, device())


def here() -> dict[str, str]:
    """Versions of this package, of what it computes with, and of Python."""
    found = {name: _version(package) for name, package in _PACKAGES.items()}
    return {"dpaudit": __version__, **found, "python": platform.python_version()}


def digests(named: Iterable[str]) -> dict[str, str]:
    """SHA-256 of modules of the user's and of all that they import, by name, in hexadecimal."""
    return {name: _digest(file) for name, file in sorted(_closure(named).items())}


def sources(sweep: Sweep) -> dict[str, str]:
    """The text of the user's modules by digest, of those that are text and not too long."""
    found = {}
    for file in _closure(_named(sweep)).values():
        if file.suffix == ".py" and file.stat().st_size <= LARGEST_SOURCE:
            content = file.read_bytes()
            try:
                found[hashlib.sha256(content).hexdigest()] = content.decode()
            except UnicodeDecodeError:
                continue
    return found


def changes(there: Code, here: Code) -> tuple[list[str], list[str]]:
    """What differs, in words: what may change a score, and what is only told."""
    names = sorted({*there.modules, *here.modules})
    grave = [
        f"{name} has {_short(there.modules.get(name))} there, {_short(here.modules.get(name))} here"
        for name in names
        if there.modules.get(name) != here.modules.get(name)
    ]
    told: list[str] = []
    for name in sorted({*there.versions, *here.versions}):
        before, now = (code.versions.get(name, "missing") for code in (there, here))
        if before != now:
            computes = name in COMPUTES or name not in (*_PACKAGES, "python")
            (grave if computes else told).append(f"{name} {before} there, {now} here")
    if there.device != here.device:
        told.append(f"{there.device} there, {here.device} here")
    return grave, told


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
    fields = dict(line.split(":", 1) for line in reversed(lines) if ":" in line)
    known = {key.strip(): value.strip() for key, value in fields.items()}
    name = known.get("model name") or platform.machine()
    flags = known.get("flags", "").split()
    sets = [word for word in ("avx512f", "avx2", "avx", "sse4_2") if word in flags][:1]
    asked = [os.environ[key] for key in ("ATEN_CPU_CAPABILITY", "NUMBA_CPU_NAME")
             if os.environ.get(key)]  # fmt: skip
    return ", ".join([name, *sets, *asked])


def _named(sweep: Sweep) -> set[str]:
    """Modules that the sweep takes from elsewhere."""
    taught = {module for cell in sweep.cells for module in cell.audit.named_modules}
    return taught | {
        module for cell in sweep.cells for part in cell.parts for module in part.named_modules()
    }


def _foreign(named: Iterable[str]) -> set[str]:
    """Installed packages among the modules: their version stands for their content."""
    found = set()
    for name in named:
        top = name.partition(".")[0]
        file = _file(top)
        if file is not None and not is_own(file):
            found.add(top)
    return found - {"dpaudit_ray"}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _closure(named: Iterable[str]) -> dict[str, Path]:
    """Files of the user's that these modules run when they are imported, by module."""
    found: dict[str, Path] = {}
    queue, seen = collections.deque(named), set[str]()
    while queue:
        whole = queue.popleft()
        for name in _with_parents(whole):
            if name in seen:
                continue
            seen.add(name)
            file = _file(name)
            if file is not None and is_own(file):
                found[name] = file
                queue += named_in(name, file)
    return found


def _with_parents(name: str) -> Iterator[str]:
    """a, a.b and a.b.c of a.b.c: packages run before what lies in them."""
    parts = name.split(".")
    return (".".join(parts[: i + 1]) for i in range(len(parts)))


def _file(name: str) -> Path | None:
    """The file of a module, found without importing anything; None where there is none."""
    folders: list[str] | None = None
    spec: ModuleSpec | None = None
    for part in _with_parents(name):
        try:
            spec = _found(part, folders)
        except KeyError:  # Python asks a package without a file for its parent, as if imported
            spec = None
            folders = _below(folders or [], part)
        else:
            inside = spec and spec.submodule_search_locations
            folders = list(inside) if inside else None
        if folders is None and part != name:
            return None
    return Path(spec.origin) if spec and spec.has_location and spec.origin else None


def _below(folders: list[str], name: str) -> list[str] | None:
    places = [Path(folder) / name.rpartition(".")[2] for folder in folders]
    return [str(place) for place in places if place.is_dir()] or None


def _found(name: str, folders: list[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = None if find is None else find(name, folders)
        if spec is not None:
            return spec
    return None


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _short(digest: str | None) -> str:
    return "no file" if digest is None else f"SHA-256 {digest[:12]}..."
