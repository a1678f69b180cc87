"""Code that a sweep file names: what may be imported, and what of it may be called.

A sweep file is code as much as the modules that it names: `package.module:name` imports a module,
which runs it, and what lies there is called. So nothing is called before it was looked at, nothing
of Python's own library at all, and `Trust` says which modules may be imported. It belongs to the
process, as what was imported does.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import importlib
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from . import module_files
from .errors import SpecError

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclasses.dataclass(frozen=True)
class Trust:
    """Modules that may be imported, with all that lies below them; None: any but Python's own.

    `reads`: what may not be imported is read as plain data, and shown, but not run.
    """

    modules: tuple[str, ...] | None = None
    reads: bool = False

    @classmethod
    def parse(cls, option: str | None, reads: bool = False) -> Trust:
        """Parses `--trust a,b.c`; without it verbs that run trust all, verbs that read nothing.

        Raises:
            SpecError: not names of modules.
        """
        if option is None:
            return cls(() if reads else None, reads)
        names = tuple(name.strip() for name in option.split(",") if name.strip())
        for name in names:
            if not _MODULE.fullmatch(name):
                raise SpecError("--trust", f"takes names of modules, such as a,b.c, got {name!r}")
        return cls(names, reads)

    def allows(self, module: str) -> bool:
        """Whether a module may be imported."""
        if self.modules is None:
            return True
        return any(f"{module}.".startswith(f"{name}.") for name in self.modules)


_ANY = Trust()
_TRUST: contextvars.ContextVar[Trust] = contextvars.ContextVar("trust")


@contextlib.contextmanager
def trusting(trust: Trust) -> Iterator[None]:
    """Imports what `trust` allows while this is open.

    Modules of one's own are looked for where one works, after all others: a stranger's folder must
    not give a module in place of an installed one.
    """
    token = _TRUST.set(trust)
    if trust.modules != ():
        with contextlib.suppress(FileNotFoundError):  # a run can be read where no folder is left
            sys.path.append(str(Path.cwd()))
    try:
        yield
    finally:
        _TRUST.reset(token)


def is_data(path: str) -> bool:
    """Whether what lies at `path` is read as data: it may not be imported, and need not be."""
    trust = _TRUST.get(_ANY)
    return trust.reads and not trust.allows(path.partition(":")[0])


def check(path: str, key: str) -> str:
    """`path`, of what may be imported or is only read. Raises SpecError under `key` for others."""
    if not is_data(path):
        _require_trusted(path.partition(":")[0], path, key)
    return path


def imported(path: str, key: str) -> Any:
    """The object that `package.module:name` names.

    Raises:
        SpecError: under `key`, when it cannot be had, or may not be imported.
    """
    module, _, attribute = path.partition(":")
    _require_trusted(module, path, key)
    try:
        value: Any = importlib.import_module(module)
        for part in attribute.split("."):
            value = getattr(value, part)
    except (Exception, SystemExit) as error:  # boundary to a user's module: it may raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise SpecError(key, f"cannot import {path!r} ({reason}); is it on PYTHONPATH?") from error
    return value


def training(path: str, options: Mapping[str, Any], key: str) -> Callable[..., Any]:
    """The function that trains: called as `train(member, seed, **options)`.

    Raises:
        SpecError: under `key`, for what is no function or class of that module or of the user's,
            and for what does not take these arguments.
    """
    train = _callable(path, f"{key}.path")
    try:
        bound = inspect.signature(train).bind(True, 0, **options)
    except TypeError as error:
        raise SpecError(
            f"{key}.options", f"{path} does not take (member, seed) and them ({error})"
        ) from error
    except ValueError:  # compiled code does not say what it takes
        return train
    if not _is_users(train) and list(bound.arguments)[:2] != ["member", "seed"]:
        raise SpecError(
            f"{key}.path",
            f"{path} is installed code whose first arguments are not called member and seed, so "
            "it is no training; call it from a function of your own",
        )
    return train


def preparing(path: str, key: str) -> Callable[..., Any]:
    """The function of the user's that prepares: called as `prepare(part, seed)`.

    Raises:
        SpecError: under `key`, for what is no such function.
    """
    prepare = _callable(path, key)
    if not _is_users(prepare):
        raise SpecError(key, f"{path} is installed code; call it from a function of your own")
    try:
        inspect.signature(prepare).bind(0, 0)
    except TypeError as error:
        raise SpecError(key, f"{path} does not take (part, seed) ({error})") from error
    return prepare


def network(path: str, key: str) -> Callable[..., Any]:
    """The class or function that gives a network, seen to do so before anything is called.

    A class must be an `nn.Module`. A function must say that it returns one; only one in a file of
    the user's own, which was run when it was imported, may say nothing.

    Raises:
        SpecError: under `key`, for anything else.
    """
    from torch import nn

    factory = _callable(path, key)
    gives: Any = factory
    if not isinstance(factory, type):
        try:
            gives = typing.get_type_hints(factory).get("return")
        except Exception:  # noqa: BLE001 (an annotation is an expression, which may raise anything)
            gives = None
    if isinstance(gives, type):
        if not issubclass(gives, nn.Module):
            raise SpecError(key, f"{path} gives a {gives.__name__}, no torch.nn.Module")
    elif not _is_users(factory):
        raise SpecError(
            key,
            f"{path} is installed code that does not say whether it returns a torch.nn.Module; "
            "call it from a function of your own",
        )
    return factory


def _require_trusted(module: str, path: str, key: str) -> None:
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise SpecError(key, f"{path!r} is of Python's own library; name a module of yours")
    trust = _TRUST.get(_ANY)
    if not trust.allows(module):
        listed = ", ".join(trust.modules or ()) or "none"
        raise SpecError(
            key,
            f"{path!r} is of a module that is not trusted (trusted: {listed}); read its code, then "
            f"add it: --trust {','.join((*(trust.modules or ()), module))}",
        )


def _callable(path: str, key: str) -> Callable[..., Any]:
    """A function or class of the module that names it, or of another file of the user's."""
    value = imported(path, key)
    if not callable(value):
        raise SpecError(key, f"{path!r} cannot be called, got {value!r:.60}")
    home = str(getattr(value, "__module__", None))
    if home.partition(".")[0] != path.partition(":")[0].partition(".")[0] and not _is_users(value):
        raise SpecError(
            key,
            f"{path!r} is no function or class of that module, but of {home}; write your own",
        )
    function: Callable[..., Any] = value
    return function


def _is_users(function: Any) -> bool:
    module = sys.modules.get(str(getattr(function, "__module__", None)))
    file = getattr(module, "__file__", None)
    return file is not None and module_files.is_users(file)
