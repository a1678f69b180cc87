"""Imports the code that a sweep file names, and finds its sources without running them.

`package.module:name` imports a module, which runs it, and calls an object in it. So no object is
called before it was checked, none of Python's own library at all, and `Trust` limits the modules
that may be imported.
"""

import ast
import collections
import contextvars
import functools
import importlib
import importlib.util
import inspect
import itertools
import re
import site
import sys
import sysconfig
import threading
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from .errors import SpecError

C = TypeVar("C")
_PACKAGE = Path(__file__).resolve().parent
# CPython 3.11 counts the parser's depth once for all threads, and raises SystemError where a
# callback of the garbage collector (JAX has one) lets another thread parse in the midst.
_PARSING = threading.Lock()


@dataclass(frozen=True)
class Trust:
    """Modules that may be imported, with all that lies below them.

    Attributes:
        modules: names of the modules; None: any but those of Python's own library.
        reads: plug-ins of other modules are read as plain data and shown, but not run.
    """

    modules: tuple[str, ...] | None = None
    reads: bool = False

    @classmethod
    def parse(cls, option: str | None, reads: bool = False) -> "Trust":
        """Returns the modules that `--trust a,b.c` lets a verb import.

        Args:
            option: value of the option. Without one (None), a verb that only reads a run trusts no
                module, and other verbs trust any.
            reads: the verb only reads a run.

        Raises:
            SpecError: a name cannot be that of a module.
        """
        if option is None:
            return cls(() if reads else None, reads)
        names = tuple(name.strip() for name in option.split(",") if name.strip())
        for name in names:
            if name.endswith(".py") or not all(map(str.isidentifier, name.split("."))):
                raise SpecError("--trust", f"takes names of modules, such as a,b.c, got {name!r}")
        return cls(names, reads)

    def allows(self, module: str) -> bool:
        """Returns whether a module may be imported."""
        if self.modules is None:
            return True
        return any(f"{module}.".startswith(f"{name}.") for name in self.modules)


_LENT = "dpaudit_lent"  # stands for a module of the objects that callers passed in this process
_lent: dict[str, Any] = {}  # these objects, by the name that `lend` gave them
_ANY = Trust()
_TRUST = contextvars.ContextVar("trust", default=_ANY)


@contextmanager
def trusting(trust: Trust) -> Iterator[None]:
    """Imports what `trust` allows while this is open."""
    token = _TRUST.set(trust)
    # The working directory comes last, so that no file in it replaces an installed module.
    if trust.modules != ():
        with suppress(FileNotFoundError):  # the working directory may be gone
            sys.path.append(str(Path.cwd()))
    try:
        yield
    finally:
        _TRUST.reset(token)


def lend(value: Any, version: str) -> str:
    """Returns a path by which this process imports an object that has no importable name.

    Args:
        value: a function of the caller's.
        version: changes with what the function does.
    """
    name = re.sub(r"\W", "_", f"{getattr(value, '__name__', 'function')}_{version}")
    _lent[name] = value
    return f"{_LENT}:{name}"


def stays_unimported(path: str) -> bool:
    """Returns whether a plug-in at `module:name` is read as plain data, and its code not imported.

    That is so for modules that are not trusted, if a run is only read. A name without a module is
    a class of this project, which is always imported.
    """
    module, colon, _ = path.partition(":")
    trust = _TRUST.get()
    return bool(colon) and trust.reads and not trust.allows(module)


def require_importable(path: str, key: str) -> str:
    """Returns `path`. Raises SpecError under `key` if its module is not trusted.

    A run that is only read, as for a report, imports no such module, so any path is accepted.
    """
    if not stays_unimported(path):
        _require_trusted(path, key)
    return path


def imported(path: str, key: str) -> Any:
    """Imports what `package.module:name` names. Raises SpecError under `key` if it cannot."""
    module, _, attribute = path.partition(":")
    _require_trusted(path, key)
    if module == _LENT:
        if attribute not in _lent:
            problem = f"{path!r} was passed in another process; call dpaudit_ray.audit again"
            raise SpecError(key, problem)
        return _lent[attribute]
    try:
        value = importlib.import_module(module)
        for part in attribute.split("."):
            value = getattr(value, part)
    except (Exception, SystemExit) as error:  # boundary to a user's module: it may raise anything
        kind = type(error).__name__
        reason = " ".join(str(error).split()) or kind
        remedy = f"mend this {kind}, or name what is there"
        if isinstance(error, ModuleNotFoundError):
            remedy = "is it on PYTHONPATH?"
        raise SpecError(key, f"cannot import {path!r} ({reason}); {remedy}") from error
    return value


def subclass(
    base: type[C],
    path: str,
    key: str,
) -> type[C]:
    """Imports a class of the kind `base`. Raises SpecError under `key` for anything else.

    Args:
        base: a class of this package.
        path: `package.module:Class`.
        key: key of the option that has the path.
    """
    cls = imported(path, key)
    if not (isinstance(cls, type) and issubclass(cls, base)):
        problem = f"{path!r} is not a subclass of {base.__module__}:{base.__name__}"
        if "models" in base.__module__:
            problem += f"; a torch module is named {{name: module, path: {path}}}"
        raise SpecError(key, problem)
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(vars(cls)["__abstractmethods__"]))
        raise SpecError(key, f"{path!r} does not define {missing}")
    return cls


def training(
    path: str,
    options: Mapping[str, Any],
    key: str,
) -> Callable[..., Any]:
    """Imports a function that trains.

    Args:
        path: the function, as `package.module:name`; it takes (member, seed, **options).
        options: options of the plug-in.
        key: key of the mechanism in the sweep file, for errors.

    Raises:
        SpecError: the function cannot be imported, or does not take these arguments.
    """
    train = _callable(path, f"{key}.path")
    try:
        bound = inspect.signature(train).bind(True, 0, **options)
    except ValueError:  # the signature of compiled code is unknown
        return train
    except TypeError as error:
        raise SpecError(
            f"{key}.options", f"{path} does not take (member, seed) and them ({error})"
        ) from error
    if list(bound.arguments)[:2] != ["member", "seed"]:
        _require_own_code(train, path, f"{key}.path")
    return train


def function(
    path: str,
    key: str,
    *arguments: str,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Imports a function that the user wrote.

    Args:
        path: the function, as `package.module:name`.
        key: key in the sweep file, for errors.
        arguments: names of the function's positional arguments.
        options: arguments that are passed by name.

    Raises:
        SpecError: the function cannot be imported, is installed code, or does not take these
            arguments.
    """
    value = _callable(path, key)
    _require_own_code(value, path, key)
    by_name = options or {}
    try:
        inspect.signature(value).bind(*arguments, **by_name)
    except TypeError as error:
        names = ", ".join([*arguments, *by_name])
        raise SpecError(key, f"{path} does not take ({names}) ({error})") from error
    return value


def network(path: str, key: str) -> Callable[..., Any]:
    """Imports a class or function that builds a network, without calling it.

    A class must be a subclass of `nn.Module`. A function must be annotated to return one, unless
    one of the user's files defines it, whose code has already run on import.

    Args:
        path: the class or function, as `package.module:name`.
        key: key in the sweep file, for errors.

    Raises:
        SpecError: the path names anything else.
    """
    from torch import nn

    factory = _callable(path, key)
    if isinstance(factory, nn.Module):
        raise SpecError(key, f"{path} is already a module instance; name its class")
    network_class: Any = factory
    if not isinstance(factory, type):  # a function: what it is annotated to return counts
        try:
            network_class = typing.get_type_hints(factory).get("return")
        except Exception:  # noqa: BLE001 (an annotation is an expression, which may raise anything)
            network_class = None
    if not isinstance(network_class, type):
        _require_own_code(factory, path, key)
    elif not issubclass(network_class, nn.Module):
        raise SpecError(key, f"{path} gives a {network_class.__name__}, no torch.nn.Module")
    return factory


def _require_trusted(path: str, key: str) -> None:
    """Raises SpecError under `key` unless the module of `path` may be imported."""
    module = path.partition(":")[0]
    if module.endswith(".py"):
        name = path.replace(".py:", ":")
        raise SpecError(key, f"{path!r} names a file; name the module in it: {name}")
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise SpecError(key, f"{path!r} is of Python's own library; name a module of yours")
    trust = _TRUST.get()
    if not trust.allows(module):
        trusted = trust.modules or ()
        raise SpecError(
            key,
            f"{path!r} is of a module that is not trusted (trusted: "
            f"{', '.join(trusted) or 'none'}); read its code, then add it: "
            f"--trust {','.join((*trusted, module))}",
        )


def _callable(path: str, key: str) -> Callable[..., Any]:
    """Imports what `path` names, which must be callable.

    It must be defined in the package of `path`, or in a file of the user's: not merely imported
    there from another library. Raises SpecError under `key` for anything else.
    """
    value: Callable[..., Any] = imported(path, key)
    if not callable(value):
        raise SpecError(key, f"{path!r} cannot be called, got {value!r:.60}")
    # An object that the caller passed in this process may be defined anywhere.
    if path.startswith(f"{_LENT}:"):
        return value
    home = str(getattr(value, "__module__", None))
    same_package = home.partition(".")[0] == path.partition(":")[0].partition(".")[0]
    if not same_package and not _is_users_function(value):
        raise SpecError(
            key,
            f"{path!r} is no function or class of that module, but of {home}; write your own",
        )
    return value


def _require_own_code(function: Any, path: str, key: str) -> None:
    """Raises SpecError if installed code defines a function.

    Args:
        function: the function.
        path: its path in the sweep file; objects that callers passed are accepted.
        key: key of the path in the sweep file, for the error.
    """
    if not path.startswith(f"{_LENT}:") and not _is_users_function(function):
        raise SpecError(key, f"{path} is installed code; call it from a function of your own")


def _is_users_function(function: Any) -> bool:
    """Returns whether one of the user's files defines a function."""
    module = sys.modules.get(str(getattr(function, "__module__", None)))
    file = getattr(module, "__file__", None)
    return file is not None and is_users(file)


def is_users(file: str | Path) -> bool:
    """Returns whether a file is neither installed, nor Python's own, nor this package's."""
    if str(file).startswith("<"):  # code that is frozen, or made of a string
        return False
    path = Path(file).resolve()
    if {"site-packages", "dist-packages"} & set(path.parts):
        return False
    return not any(path.is_relative_to(folder) for folder in _installed_folders())


@functools.cache
def _installed_folders() -> tuple[Path, ...]:
    """Returns the folders of this package, of Python and of installed packages."""
    folders = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages()]
    return (_PACKAGE, *(Path(folder).resolve() for folder in folders))


def module_file(name: str) -> Path | None:
    """Finds the file of a module without importing anything; returns None if it has no file."""
    folders = None  # sys.path
    spec = None
    for part in _with_parents(name):
        finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
        try:
            specs = (finder.find_spec(part, folders) for finder in finders)
            spec = next(filter(None, specs), None)
            folders = list((spec and spec.submodule_search_locations) or ())
        # Python looks up the parent of a package without a file among the imported modules.
        except KeyError:
            spec = None
            child = part.rpartition(".")[2]
            folders = [f"{folder}/{child}" for folder in folders or ()]
        if not folders and part != name:
            return None
    return Path(spec.origin) if spec and spec.has_location and spec.origin else None


def _with_parents(name: str) -> Iterator[str]:
    """Yields a, a.b and a.b.c for a.b.c: packages run before the modules that lie in them."""
    return itertools.accumulate(name.split("."), lambda parent, child: f"{parent}.{child}")


def imported_names(module: str, file: Path) -> list[str]:
    """Returns modules that a source may import, in any of its lines.

    Names that are imported from a module are among them, as they may be modules.

    Args:
        module: the name of the source, from which relative imports start.
        file: the source; anything but readable Python imports nothing.
    """
    if file.suffix != ".py":
        return []
    try:
        source = file.read_bytes()
        with _PARSING:
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, OSError):
        return []
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            with suppress(ImportError):  # it leads out of the package
                name = node.module or ""
                base = importlib.util.resolve_name("." * node.level + name, package)
                names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return names


def source_closure(modules: Iterable[str]) -> dict[str, Path]:
    """Returns the user's files that run when modules are imported, by module."""
    files = {}
    queue = collections.deque(modules)
    visited = set()
    while queue:
        for name in _with_parents(queue.popleft()):
            if name in visited:
                continue
            visited.add(name)
            file = module_file(name)
            if file and is_users(file):
                files[name] = file
                queue += imported_names(name, file)
    return files


def installed_imports(files: Mapping[str, Path]) -> list[str]:
    """Returns installed modules that sources may import, each once; none of Python's own."""
    names = []
    for module, file in files.items():
        names += imported_names(module, file)
    packages = {name.partition(".")[0] for name in names} - sys.stdlib_module_names
    homes = {package: module_file(package) for package in packages}
    installed = {package for package, file in homes.items() if file and not is_users(file)}
    return [name for name in dict.fromkeys(names) if name.partition(".")[0] in installed]
