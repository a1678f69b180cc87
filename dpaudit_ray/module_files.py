"""Whose code a module is: its file, what that imports, and all files of the user's that it runs.

Nothing is imported or run here: a module is found as Python would find it, and what it imports is
read off its text.
"""

from __future__ import annotations

import ast
import collections
import functools
import itertools
import site
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
# CPython 3.11 counts the parser's depth once for all threads, and raises SystemError where a
# callback of the garbage collector (JAX has one) lets another thread parse in the midst.
_PARSING = threading.Lock()


def is_users(file: str | Path) -> bool:
    """Whether a file is of the user's: neither installed, nor Python's own, nor this package's."""
    path = Path(file).resolve()
    if {"site-packages", "dist-packages"} & set(path.parts):
        return False
    return not any(path.is_relative_to(folder) for folder in _installed_folders())


@functools.cache
def _installed_folders() -> tuple[Path, ...]:
    folders = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages()]
    return (_PACKAGE, *(Path(folder).resolve() for folder in folders))


def module_file(name: str) -> Path | None:
    """The file of a module, found without importing anything; None where there is none."""
    folders: list[str] | None = None
    spec: ModuleSpec | None = None
    for part in _with_parents(name):
        try:
            spec = _find_spec(part, folders)
        except KeyError:  # Python asks a package without a file for its parent, as if imported
            spec = None
            inside = [Path(folder) / part.rpartition(".")[2] for folder in folders or ()]
            folders = [str(folder) for folder in inside if folder.is_dir()] or None
        else:
            locations = spec and spec.submodule_search_locations
            folders = list(locations) if locations else None
        if folders is None and part != name:
            return None
    return Path(spec.origin) if spec and spec.has_location and spec.origin else None


def _find_spec(name: str, folders: list[str] | None) -> ModuleSpec | None:
    finds = (finder.find_spec for finder in sys.meta_path if hasattr(finder, "find_spec"))
    return next((spec for find in finds if (spec := find(name, folders)) is not None), None)


def _with_parents(name: str) -> Iterator[str]:
    """a, a.b and a.b.c of a.b.c: packages run before the modules that lie in them."""
    return itertools.accumulate(name.split("."), lambda parent, child: f"{parent}.{child}")


def imported_names(module: str, file: Path) -> list[str]:
    """Modules that a source may import, at its top or later; none for a file that is no source.

    A name that is imported from a module is listed as if it were a module itself, since it may be.
    """
    if file.suffix != ".py":
        return []
    try:
        source = file.read_bytes()
        with _PARSING:
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, OSError):
        return []
    package = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)] if base else []
    return names


def source_closure(modules: Iterable[str]) -> dict[str, Path]:
    """Files of the user's that these modules run when they are imported, by module."""
    files: dict[str, Path] = {}
    queue, seen = collections.deque(modules), set[str]()
    while queue:
        for name in _with_parents(queue.popleft()):
            if name in seen:
                continue
            seen.add(name)
            file = module_file(name)
            if file is not None and is_users(file):
                files[name] = file
                queue += imported_names(name, file)
    return files


def installed_imports(files: Mapping[str, Path]) -> list[str]:
    """Modules of others that sources import, or might: at their top or later, in order, once.

    Python's own library is not among them.
    """
    found: dict[str, bool] = {}  # packages, and whether they are installed
    names = dict.fromkeys(
        name for module, file in files.items() for name in imported_names(module, file)
    )
    for package in {name.partition(".")[0] for name in names} - sys.stdlib_module_names:
        file = module_file(package)
        found[package] = file is not None and not is_users(file)
    return [name for name in names if found.get(name.partition(".")[0])]
